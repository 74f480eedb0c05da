"""`gsub learn --forget`: what was measured of a workload was wrong, and is to count no more."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gsub.errors import USAGE, UserError
from gsub.term import one_line

if TYPE_CHECKING:
    from gsub.service import Records

__all__ = ["forget"]

_NAME: Final = re.compile(r"(?:run|args|script|text|like|name|own):.+")
_USAGE: Final = "gsub learn --forget --workload NAME, or gsub learn --forget SCRIPT [ARGS]"


def forget(words: Sequence[str]) -> int:
    """Have the service forget the workload that the words behind `--forget` name. Raises UserError."""
    from gsub.points import deliver_kept, drop_kept
    from gsub.service import records
    from profiler.workload import owned

    as_json, workload, user, rest = _read(words)
    if rest and user:
        raise UserError(
            "--user goes with --workload: what else names a script's runs is in its user's environment",
            fix="'gsub learn --show' tells that user the names",
            exit_code=USAGE,
        )
    names: tuple[str, ...] = ()
    if rest:
        names = _of_script([f"--workload={workload}", *rest] if workload else rest)
    elif name := workload if _NAME.fullmatch(workload) else owned(workload):
        names = (name,)
    else:
        raise UserError("it is not said which workload is to be forgotten", fix=_USAGE, exit_code=USAGE)
    service = records()
    deliver_kept(os.environ)
    name = _known(names, service) if rest else names[0]
    found = service.forget(name, user)
    if not user:
        # What still waits here would be sent after it, and be believed
        with suppress(OSError):
            drop_kept(found.workload)
    if as_json:
        from gsub.commands.submit import print_json

        print_json({"workload": found.workload, "runs": found.runs})
    else:
        from gsub.render import count

        whose = f" of {one_line(user)}" if user else ""
        print(f"forgotten{whose}: {one_line(found.workload)}, measured in {count(found.runs, 'run')}")
    return 0


def _read(words: Sequence[str]) -> tuple[bool, str, str, list[str]]:
    """Our options ahead of all others: whether JSON is wanted, the workload, the user; and the other words."""
    rest, as_json = list(words), False
    values = {"--workload": "", "--user": ""}
    while rest:
        name, equals, value = rest[0].partition("=")
        if rest[0] == "--json":
            as_json = True
        elif name in values and (equals or len(rest) > 1):
            values[name] = value if equals else rest.pop(1)
        else:
            break
        rest.pop(0)
    if rest and rest[0] in values:
        raise UserError(f"{rest[0]} wants a name", fix=_USAGE, exit_code=USAGE)
    return as_json, values["--workload"], values["--user"], rest


def _of_script(words: Sequence[str]) -> tuple[str, ...]:
    """The names of a submission, the most telling first."""
    from gsub.argv import split
    from gsub.sbatch_options import Table
    from gsub.script_text import text_of
    from gsub.workload_name import identified

    line = split(words, Table.of_all())
    text = b"" if line.script is None and line.wrap is None else text_of(line, pipes=True)
    if not text:
        what = f"cannot read the script {line.script}" if line.script else "there is no script"
        raise UserError(what, fix=_USAGE, exit_code=USAGE)
    return identified(line, text, os.environ).fingerprints


def _known(names: Sequence[str], service: Records) -> str:
    """The first of these under which something was measured: what the next submission would be given by."""
    known = {name for one in service.curves().curves for name in (one.workload, *one.also)}
    for name in names:
        if name in known:
            return name
    raise UserError(
        "nothing was measured of this script with these arguments, nor of others like it",
        fix="'gsub learn --show' has what is known, and gsub learn --forget --workload NAME forgets it",
    )
