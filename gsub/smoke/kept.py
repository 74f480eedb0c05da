"""The results of smoke runs that are kept, by the job that they were about."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gsub.smoke.result import read

if TYPE_CHECKING:
    from gsub.smoke.result import Result

__all__ = ["LOOKED_AT", "holder_of"]

LOOKED_AT: Final = 200
"""The most results that are looked at, the latest."""


def holder_of(state: Path, real: int) -> Result | None:
    """The smoke run that held a job; None where none did, as far as is known. Never raises."""
    numbers = []
    with suppress(OSError):
        numbers = [int(path.name) for path in (state / "smoke").iterdir() if path.name.isdecimal()]
    for number in sorted(numbers, reverse=True)[:LOOKED_AT]:
        result = read(state, number)
        if result is not None and result.held and real in (result.real, *result.dependants):
            return result
    return None
