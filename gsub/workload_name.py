"""The workload that a submission is: its names, and the variable that tells plain decisions what they cannot see.

Slurm's plugin is not told what a script is called with, and sees of the environment a few names. gsub knows both: it
puts their digests into GSUB_WORKLOAD, which travels with the job where its environment does (`--export` may leave it
out; the script and its name are then what it is known by).

    identity = identified(line, script, environ)
    environ["GSUB_WORKLOAD"] = variable(identity)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gsub.argv import CommandLine
from gsub.errors import USAGE, UserError
from gsub.sbatch_options import Table
from profiler.workload import Identity, identify, owned

__all__ = [
    "HEAD_BYTES",
    "OPTION",
    "VARIABLE",
    "head",
    "identified",
    "named",
    "own_name",
    "stated",
    "variable",
    "with_workload",
]

OPTION: Final = "--workload"
VARIABLE: Final = "GSUB_WORKLOAD"
HEAD_BYTES: Final = 64 * 1024
"""So much of a script is seen by decisions (`slurm_plugins.decide.request.HEAD_BYTES`; a test holds them equal)."""
_DIGESTS: Final = re.compile(r"(?:run|args|text|script):[0-9a-f]{32}(?:,.*)?")
_WISH: Final = re.compile(r"(?:^|[\s,;])gsub:workload=([^\s,;]+)", re.IGNORECASE)


def own_name(line: CommandLine) -> str:
    """What `--workload` says; empty where it is not given. Raises UserError for a name that is none."""
    given = [setting.value or "" for setting in line.own if setting.name == OPTION]
    if not given:
        return ""
    if not owned(given[-1]) or _DIGESTS.fullmatch(given[-1]):
        raise UserError(
            f"{OPTION} wants a name of your own choice; nothing was submitted",
            fix=f"{OPTION}=resnet50, or leave it out: script, arguments and environment are its name then",
            exit_code=USAGE,
        )
    return given[-1]


def stated(environ: Mapping[str, str]) -> str:
    """The user's own name in GSUB_WORKLOAD; empty for none, and for digests that gsub put there.

    >>> stated({"GSUB_WORKLOAD": "resnet"}), stated({"GSUB_WORKLOAD": variable(identify("python train.py"))})
    ('resnet', '')
    """
    name = environ.get(VARIABLE, "").strip()
    return "" if _DIGESTS.fullmatch(name) else name


def identified(line: CommandLine, script: bytes, environ: Mapping[str, str]) -> Identity:
    """The names of a submission, as decisions will look them up. Raises UserError for a `--workload` that is none."""
    from gsub.script import request

    text = head(script)
    asked = request(line, text, environ, Table.of_all())
    options = {option.name: option.value or "" for option in asked.components[0]}
    # Inside a job it tells of that job, and was inherited
    own = stated(environ) if "SLURM_JOB_ID" not in environ else ""
    wish = _WISH.search(options.get("comment", ""))
    return identify(
        text,
        line.args,
        environ,
        name=options.get("job-name") or asked.job_name,
        own=own_name(line) or own or (wish[1] if wish else ""),
        tail=len(script) if len(script) > HEAD_BYTES else 0,
    )


def variable(identity: Identity) -> str:
    """The value of GSUB_WORKLOAD; empty where there is nothing to tell.

    >>> variable(identify("python train.py", own="My ResNet"))
    'my-resnet'
    >>> variable(identify("python train.py", ["--lr", "0.1"], name="a")).split(":")[0], variable(identify(name="a"))
    ('run', '')
    """
    names = {name.partition(":")[0]: name for name in identity.fingerprints}
    if "own" in names:
        return names["own"].removeprefix("own:")
    told = ("run", "args", "text", "like")
    return ",".join(names[kind] for kind in told) if names.keys() >= set(told) else ""


def with_workload(line: CommandLine, script: bytes, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for `sbatch`, with the workload's names in it. Raises UserError as `identified`."""
    return named(line, script, environ)[0]


def named(
    line: CommandLine, script: bytes, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The same, and all names of the workload; the most telling first. Raises UserError likewise."""
    own = owned(own_name(line))
    told = own.removeprefix("own:")
    names: tuple[str, ...] = (own,) if own else ()
    if script:
        identity = identified(line, script, environ)
        told, names = variable(identity), identity.fingerprints
    rest = {name: value for name, value in environ.items() if name != VARIABLE}
    return ({**rest, VARIABLE: told} if told else rest), names


def head(data: bytes, limit: int = HEAD_BYTES) -> str:
    """The first bytes as text, not ending in half a character."""
    if len(data) > limit:
        end = next((limit - back for back in range(4) if data[limit - back] & 0xC0 != 0x80), limit)
        data = data[:end]
    return data.decode(errors="replace")
