"""After how long jobs fail of what a smoke run would have seen: the site's history, of all users, without names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, not_, or_, select

from profiler.answers import EarlyFailures
from profiler.early import SEEN
from profiler.store.schema import job, verdict

__all__ = ["LONG", "MOST", "SEEN", "SMOKE", "EarlyQuery"]

LONG: Final = 600.0
"""Seconds that no smoke run lasts longer than: a job that ran for so long counts, however it ended."""
MOST: Final = 20_000
"""The most jobs that are looked at, the last to start."""
_TOLD: Final = 2000
SMOKE: Final = "smoke-%"
"""The names of smoke jobs; what failed there would have failed in the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyQuery:
    """Of which jobs: with several GPUs or with one, started from `since` on (seconds since the epoch)."""

    cluster: str
    several: bool
    since: float


def early_failures(connection: Connection, query: EarlyQuery) -> EarlyFailures:
    """How many jobs there were that failed so, or ran for long; and the run times of the first, in whole seconds."""
    last = (
        select(job.c.sort_at, job.c.gpus, job.c.started, job.c.ended, job.c.name)
        .where(job.c.cluster == query.cluster, job.c.sort_at >= query.since)
        .order_by(job.c.sort_at.desc(), job.c.pk.desc())
        .limit(MOST)
        .subquery()
    )
    size = last.c.gpus > 1 if query.several else last.c.gpus == 1
    where = [size, not_(func.coalesce(last.c.name, "").like(SMOKE))]
    least, long = connection.execute(
        select(
            select(func.min(last.c.sort_at)).scalar_subquery(),
            select(func.count())
            .select_from(last)
            .where(*where, last.c.ended - last.c.started >= LONG)
            .scalar_subquery(),
        )
    ).one()
    if least is None:
        return EarlyFailures(0)
    # GPUs asked for, times run time, over run time
    most = 1.5 * verdict.c.runtime
    held = verdict.c.gpu_seconds > most if query.several else verdict.c.gpu_seconds.between(1e-9, most)
    times = connection.execute(
        select(verdict.c.runtime)
        .where(
            verdict.c.cluster == query.cluster,
            verdict.c.reason.in_(SEEN),
            verdict.c.at >= least,
            verdict.c.runtime >= 0,
            or_(held, verdict.c.name.like(SMOKE)),
        )
        .order_by(verdict.c.at.desc())
        .limit(_TOLD)
    ).scalars()
    failed = sorted(float(round(time)) for time in times)
    return EarlyFailures(long + sum(time < LONG for time in failed), tuple(failed))
