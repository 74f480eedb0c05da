"""Rows of Slurm's answers that were left out: counted, and logged once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from profiler.logs import Troubles
from prolog_epilog.failures.mask import mask
from slurm_plugins.service.metrics import Counter

__all__ = ["note_unread"]

_WHAT: Final = "rows of Slurm's answers cannot be read and are left out"


def note_unread(troubles: Troubles, counter: Counter, kinds: Mapping[str, int], example: str) -> None:
    """Count rows by what they are of, and log one of them; what a user wrote in it is masked."""
    troubles.say(_WHAT, f"{mask(example)} (and {sum(kinds.values()) - 1} more)" if kinds else "")
    for kind, number in kinds.items():
        counter.add(kind, by=number)
