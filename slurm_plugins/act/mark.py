"""The mark on a job of which gsub-act, an operator, has set what limits count.

Slurm holds such a job to those limits no longer, for its life. So its AdminComment says so: the shim's
slurm_job_modify then refuses its user's changes of how much it gets (tables.lua has the same word and the fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["MARK", "is_marked", "marked", "needs_mark"]

MARK: Final = "gsub:guarded"
_COUNTED: Final = frozenset({"MinMemoryNode", "MinMemoryCPU"})
"""The fields of `update` that limits count."""


def needs_mark(fields: Mapping[str, str]) -> bool:
    """Whether setting these fields takes a job out of a limit's reach."""
    return not _COUNTED.isdisjoint(fields)


def is_marked(comment: str | None) -> bool:
    """Whether an AdminComment has the mark."""
    return MARK in (comment or "").split()


def marked(comment: str | None) -> str:
    """An AdminComment with the mark; what others put there stays.

    >>> marked(None), marked("JS1:H4sI"), marked("JS1:H4sI gsub:guarded")
    ('gsub:guarded', 'JS1:H4sI gsub:guarded', 'JS1:H4sI gsub:guarded')
    """
    return comment or "" if is_marked(comment) else f"{comment or ''} {MARK}".lstrip()
