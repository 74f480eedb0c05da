"""What the attempts came to that ended in a span of time: sums for metrics, without names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, case, func, select

from profiler.store.queries import STATE
from profiler.store.report import FAILED, OUTCOMES, UNKNOWN, never_used
from profiler.store.schema import job, verdict
from profiler.store.store import Store

__all__ = ["NEVER_USED", "Ended", "ended"]

NEVER_USED: Final = "never_used"
"""Why GPU-hours of an attempt that did not fail are wasted."""

_OUTCOME: Final = case(
    *((STATE.in_(words), name) for name, words in OUTCOMES.items() if words), else_="unknown"
).label("outcome")
_REASON: Final = func.coalesce(func.nullif(verdict.c.reason, ""), UNKNOWN).label("reason")
_HOURS: Final = job.c.gpus * (job.c.ended - job.c.started) / 3600.0
_IDLE: Final = never_used(_HOURS, job.c.gpus, job.c.gpus_known, job.c.gpus_idle)
_ENDED: Final = (
    select(
        _OUTCOME, _REASON, func.count(), *(func.coalesce(func.sum(hours), 0.0) for hours in (_HOURS, _IDLE))
    )
    .outerjoin(verdict, verdict.c.job == job.c.pk)
    .where(
        job.c.cluster == bindparam("cluster"),
        job.c.ended >= bindparam("since"),
        job.c.ended < bindparam("until"),
    )
    .group_by(_OUTCOME, _REASON)
)
"""The statement: an index finds the attempts, so that it costs what they are, not what the store holds."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Attempts of one outcome (`report.OUTCOMES`) and one reason ("n/a": none is known); of what is known the hours.

    `idle_hours` are those of GPUs that were never used.
    """

    outcome: str
    reason: str
    attempts: int
    gpu_hours: float
    idle_hours: float

    @property
    def wasted(self) -> tuple[str, float]:
        """Why GPU-hours came to nothing, and how many: all of a failed attempt, else those never used."""
        return (self.reason, self.gpu_hours) if self.outcome in FAILED else (NEVER_USED, self.idle_hours)


def ended(store: Store, cluster: str, since: float, until: float) -> tuple[Ended, ...]:
    """Attempts that ended from `since` on and before `until` (seconds since the epoch). Raises StoreError."""
    asked = {"cluster": cluster, "since": since, "until": until}
    with store.reading("What ended cannot be read.") as connection:
        return tuple(
            # A clock that was set back made a run of less than nothing
            Ended(outcome, reason, count, max(0.0, float(hours)), max(0.0, float(idle)))
            for outcome, reason, count, hours, idle in connection.execute(_ENDED, asked)
        )
