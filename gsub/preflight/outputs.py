"""Where the job's output goes: its folders are there and may be written."""

# ruff: noqa: PTH112, PTH118, PTH120 - paths as scripts have them

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from gsub.preflight.paths import no_writing, short
from gsub.preflight.places import certain, shown
from gsub.preflight.values import Finding, Level, Submission
from gsub.sbatch_release import sbatch_release

__all__ = ["output", "targets"]

_MAKES_NONE: Final = (22, 5)
"""The last release seen that makes no folders for output files."""
_MAKES: Final = (24, 11)
"""The first one seen that does."""
_SECONDS: Final = 1.9  # a check has 2 s


def targets(submission: Submission) -> Iterator[tuple[str, int, str, str]]:
    """Option, line (0: command line), the value and the folder of the job's output files, where it is certain."""
    for name in ("output", "error"):
        option = submission.option(name)
        if option is None or not option.value:
            continue
        folder = os.path.dirname(os.path.join(submission.folder, option.value))
        if "%" in folder or "\\" in folder:
            continue
        line = int(option.source.rpartition(" ")[2]) if option.source.startswith("script line ") else 0
        yield name, line, option.value, os.path.normpath(folder)


def output(submission: Submission) -> Iterator[Finding]:
    """Slurm ends a job at once, without a word, when it cannot open its output file; newer ones make the folder."""
    if submission.elsewhere or submission.later:
        return
    for name, line, value, folder in targets(submission):
        sure: Level = "error" if certain(folder, submission) else "warning"
        helps = f"mkdir -p {short(shown(folder, submission))}"
        if not os.path.lexists(folder):
            makes = _makes_folders(submission) if certain(folder, submission) else True
            if makes is not True:
                what = f"--{name}={short(value)}: its folder is not there, and Slurm does not make it"
                yield submission.finding(sure if makes is False else "warning", line, what, helps)
        elif not os.path.isdir(folder):
            yield submission.finding(
                sure, line, f"--{name}={short(value)}: {short(folder)} is no folder", "name another"
            )
        elif no_writing(folder):
            file = os.path.join(submission.folder, value)
            if "%" in value or not os.path.lexists(file):
                what = f"--{name}={short(value)}: you may not write into {short(shown(folder, submission))}"
                yield submission.finding(sure, line, what, "write to a folder of yours")


def _makes_folders(submission: Submission) -> bool | None:
    """Whether this Slurm makes the folders of output files itself; None where that was not seen."""
    release = sbatch_release(submission.environ, submission.slurm_folder, seconds=_SECONDS)
    if release is None:
        return None
    return False if release <= _MAKES_NONE else True if release >= _MAKES else None
