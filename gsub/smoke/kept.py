"""The results of smoke runs that are kept, by the job that they were about; and how long they are."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gsub.smoke.result import read

if TYPE_CHECKING:
    from gsub.smoke.result import Result

__all__ = ["AGE", "LOOKED_AT", "SKEW", "holder_of", "prune"]

LOOKED_AT: Final = 200
"""The most results that are looked at, the latest."""
AGE: Final = 30 * 86400.0
"""Seconds for which results and output are kept."""
SKEW: Final = 120.0
"""Seconds by which clocks may differ. Numbers of jobs come again: a result is known by its time."""
_REMOVED: Final = 100  # at a time: a submission is not to wait
_OURS: Final = re.compile(r"\d+(?:\.out)?")


def holder_of(state: Path, real: int, since: float = 0.0) -> Result | None:
    """The smoke run that held a job; None where none did, as far as is known. Never raises.

    `since`: when the job was submitted, in seconds since the epoch.
    """
    numbers = []
    with suppress(OSError):
        numbers = [int(path.name) for path in (state / "smoke").iterdir() if path.name.isdecimal()]
    for number in sorted(numbers, reverse=True)[:LOOKED_AT]:
        result = read(state, number)
        if result is None or result.at < since - SKEW:
            continue
        if result.held and real in (result.real, *result.dependants):
            return result
    return None


def prune(state: Path, now: float | None = None) -> None:
    """Remove what is older than `AGE`. Never raises."""
    before = (time.time() if now is None else now) - AGE
    with suppress(OSError):
        old = [
            path
            for path in (state / "smoke").iterdir()
            if _OURS.fullmatch(path.name) and path.lstat().st_mtime < before
        ]
        for path in old[:_REMOVED]:
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
