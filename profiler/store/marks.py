"""Failed attempts of which it is still to be decided what follows: marked together with their verdict.

A verdict and its mark are one transaction, and so are what was decided and the end of the mark: whoever is killed
between the two finds the mark again. Nothing is marked that ended long ago, so that neither an upgrade nor a store that
was away for a day brings old jobs back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, delete, select

from profiler.resubmissions import Resubmission
from profiler.store.bodies import row_of
from profiler.store.bulk import chunks, upsert
from profiler.store.schema import resubmission, undecided

__all__ = ["RECENT", "Failed", "mark", "unmark"]

RECENT: Final = 900.0
"""Seconds after its end in which a failed attempt may still be tried again by itself: later its user has seen to it."""
_OVER: Final = ("moved_on", "gone", "slurm")
"""Ends that another reason does not change: Slurm's state of the job brought them."""

_ROWS = select(resubmission.c.job, resubmission.c.reason, resubmission.c.body).where(
    resubmission.c.job.in_(bindparam("jobs", expanding=True))
)
_DECIDED = delete(undecided).where(undecided.c.job == bindparam("job_"))


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt with a verdict that was just written. `ended`: by Slurm's clock, None where it has not said so."""

    key: int
    cluster: str
    uid: int | None
    ended: float | None
    reason: str


def mark(connection: Connection, failed: Sequence[Failed], at: float) -> None:
    """Mark attempts that ended a moment before `at`, unless it was decided already what follows.

    What was decided by another reason is decided again while it can still be taken back: nothing was done yet, or was
    to be done.
    """
    recent = [one for one in failed if one.ended is not None and one.ended > at - RECENT]
    rows: dict[int, tuple[str, Resubmission | None]] = {}
    for some in chunks([one.key for one in recent]):
        for row in connection.execute(_ROWS, {"jobs": some}):
            rows[row[0]] = (row[1], row_of(row[2]))
    meant = [one for one in recent if one.key not in rows or _again(one.reason, *rows[one.key])]
    upsert(
        connection,
        undecided,
        [
            {
                "job": one.key,
                "cluster": one.cluster,
                "uid": one.uid,
                "due": at,
                "mark": secrets.randbits(62),
            }
            for one in sorted(meant, key=lambda one: one.key)
        ],
        least=("due",),
    )


def unmark(connection: Connection, keys: Sequence[int]) -> None:
    """Nothing is to be decided about these attempts any more."""
    if keys:
        connection.execute(_DECIDED, [{"job_": key} for key in keys])


def _again(reason: str, before: str, row: Resubmission | None) -> bool:
    """Whether another reason asks for another decision."""
    if row is None or reason == before or row.state == "done":
        return False
    if row.state == "stopped":
        return row.tries == 0 and row.stop not in _OVER
    return True
