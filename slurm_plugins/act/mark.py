"""The mark on a job of which gsub-act, an operator, has set what limits count.

Slurm holds such a job to those limits no longer, for its life. So its Comment says so: the shim's slurm_job_modify then
refuses its user's changes of how much it gets, and of the mark (tables.lua has the same word and the fields). Not its
AdminComment, which Slurm lets no operator write ("Access/permission denied", seen on 22.05.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["MARK", "add_mark", "is_marked", "needs_mark"]

MARK: Final = "gsub:guarded"
_COUNTED: Final = frozenset({"MinMemoryNode", "MinMemoryCPU"})
"""The fields of `update` that limits count."""


def needs_mark(fields: Mapping[str, str]) -> bool:
    """Whether setting these fields takes a job out of a limit's reach."""
    return not _COUNTED.isdisjoint(fields)


def is_marked(comment: str | None) -> bool:
    """Whether a Comment has the mark."""
    return MARK in (comment or "").split()


def add_mark(comment: str | None) -> str:
    """A Comment with the mark; what the user put there stays.

    >>> add_mark(None), add_mark("project 7"), add_mark("project 7 gsub:guarded")
    ('gsub:guarded', 'project 7 gsub:guarded', 'project 7 gsub:guarded')
    """
    return comment or "" if is_marked(comment) else f"{comment or ''} {MARK}".lstrip()
