"""A folder to write to is not there: make it before the program runs, or before Slurm opens the job's output in it."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final

from gsub.fixes.paths import absolute, named
from gsub.fixes.values import Case, Fix, Fixer

__all__ = ["FIXER"]

_SHELL: Final = re.compile(r"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(?:\S*/)?(?:ba|da|z|k)?sh\b")
# What Slurm says of an output that it could not open (ESLURMD_IO_ERROR, shown as 0:53), or of its folder
_SLURMS: Final = re.compile(r"signal 53\b|[Cc]ould not open std(?:out|err) file")


def _fix(case: Case) -> Fix | None:
    if case.finding.reason == "output_error" and any(_SLURMS.search(line) for line in case.evidence):
        return _output(case)
    for said in named(case.evidence):
        path = absolute(said, case.folder)
        folder = os.path.dirname(path)  # noqa: PTH120
        if not folder or case.files.kind(folder) or not _may_be_made(folder, case):
            continue
        shown = os.path.dirname(said) or folder  # noqa: PTH120
        why = f"{said} could not be written: there is no folder {shown}."
        if case.wrap is not None or _SHELL.match(case.script):
            return Fix(f"Make {shown} before the run.", why, insert=f"mkdir -p -- {shlex.quote(shown)}")
        return Fix(f"Make {shown} before the run.", why, folders=(folder,))
    return None


def _output(case: Case) -> Fix | None:
    """The folder of the job's own output: it must be there before the script begins."""
    folder = os.path.dirname(case.output)  # noqa: PTH120
    if not folder or "%" in folder or case.files.kind(folder) or not _may_be_made(folder, case):
        return None
    return Fix(
        f"Make {folder} before the submission.",
        "Slurm could not write the job's output: it makes no folders.",
        folders=(folder,),
    )


def _may_be_made(folder: str, case: Case) -> bool:
    """Whether the nearest folder above it is there, and this user's to write to."""
    above = folder
    while above != "/" and not case.files.kind(above):
        above = os.path.dirname(above)  # noqa: PTH120
    return case.files.kind(above) == "folder" and case.files.may(above, "write")


FIXER: Final = Fixer(frozenset({"output_error", "checkpoint_error"}), _fix)
