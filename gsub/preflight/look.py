"""A command line of gsub looked at before sbatch sees it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Final

from gsub.argv import CommandLine
from gsub.here import here
from gsub.preflight.values import Submission
from gsub.sbatch_options import Table
from gsub.script import request

__all__ = ["OFF", "submission", "wanted"]

OFF: Final = "GSUB_PREFLIGHT"
"""The variable that turns it off, with the value `off`."""
_LATER: Final = frozenset({"dependency", "begin", "hold"})
_ELSEWHERE: Final = frozenset({"clusters", "container", "container-id", "uid", "gid", "bb", "bbf", "stepmgr"})
_ENVIRONMENT: Final = frozenset({"export-file", "get-user-env"})
_ASKS: Final = ("help", "usage", "version", "test-only", "autocomplete")


def wanted(line: CommandLine, environ: Mapping[str, str]) -> bool:
    """Whether this is a submission to be looked at."""
    off = "--no-preflight" in line.ours or environ.get(OFF, "").lower() in ("off", "0", "no")
    return not off and not line.unsure and not any(line.given(name) for name in _ASKS)


def submission(
    line: CommandLine, text: str, environ: Mapping[str, str], *, slurm_folder: str = ""
) -> Submission:
    """The submission that a command line makes with a script's text."""
    asked = request(line, text, environ, Table.of_all())
    first = asked.components[0]
    chosen = {option.name: option for option in first}
    cwd = here()
    folder = chosen["chdir"].value if "chdir" in chosen else None
    export = chosen["export"].value if "export" in chosen else None
    names = {option.name for component in asked.components for option in component}
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = environ.get("HOME", "/")
    return Submission(
        name=asked.script,
        text=text,
        args=line.args,
        folder=os.path.normpath(os.path.join(cwd, folder or "")),  # noqa: PTH118 - text
        environ=environ,
        inherits=(export is None or export.upper().split(",", 1)[0] == "ALL") and not names & _ENVIRONMENT,
        components=asked.components,
        later=bool(names & _LATER),
        elsewhere=bool(names & _ELSEWHERE) or "%" in (folder or ""),
        words=line.sbatch,
        slurm_folder=slurm_folder,
        home=home,
        cwd=cwd,
    )
