"""What the attempts came to that ended in a span of time: sums for metrics, without names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import case, func, select

from profiler.store.queries import STATE
from profiler.store.report import FAILED, OUTCOMES, UNKNOWN
from profiler.store.schema import job, verdict
from profiler.store.store import Store

__all__ = ["NEVER_USED", "Ended", "ended"]

NEVER_USED: Final = "never_used"
"""Why GPU-hours of an attempt that did not fail are wasted."""


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
        """GPU-hours that came to nothing, and why: as in the audit all of a failed attempt, else those never used."""
        return (self.reason, self.gpu_hours) if self.outcome in FAILED else (NEVER_USED, self.idle_hours)


def ended(store: Store, cluster: str, since: float, until: float) -> tuple[Ended, ...]:
    """Attempts that ended from `since` on and before `until` (seconds since the epoch). Raises StoreError.

    An index finds them: what it costs is theirs alone.
    """
    outcome = case(
        *((STATE.in_(words), name) for name, words in OUTCOMES.items() if words), else_="unknown"
    ).label("outcome")
    reason = func.coalesce(func.nullif(verdict.c.reason, ""), UNKNOWN).label("reason")
    hours = job.c.gpus * (job.c.ended - job.c.started) / 3600.0
    # GPUs that nobody saw may be idle or not
    idle = case((job.c.gpus_known >= job.c.gpus, hours * job.c.gpus_idle / job.c.gpus))
    wanted = (
        select(outcome, reason, func.count(), *(func.coalesce(func.sum(one), 0.0) for one in (hours, idle)))
        .outerjoin(verdict, verdict.c.job == job.c.pk)
        .where(job.c.cluster == cluster, job.c.ended >= since, job.c.ended < until)
        .group_by(outcome, reason)
    )
    with store.reading("What ended cannot be read.") as connection:
        return tuple(_rows(connection.execute(wanted).all()))


def _rows(rows: object) -> Iterator[Ended]:
    for row in rows:  # type: ignore[attr-defined]
        name, why, count, hours, idle = row
        yield Ended(name, why, count, max(0.0, float(hours)), max(0.0, float(idle)))
