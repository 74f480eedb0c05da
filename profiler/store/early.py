"""After how long jobs fail of what a smoke run would have seen: the site's history, of all users, without names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    cast,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from profiler.answers import EarlyFailures
from profiler.bad_nodes import RULES
from profiler.early import SEEN
from profiler.node_votes import workload_of
from profiler.store.schema import decision, job, verdict

__all__ = ["LONG", "MOST", "SEEN", "SMOKE", "EarlyQuery"]

LONG: Final = 600.0
"""Seconds that no smoke run lasts longer than: a job that ran for so long counts, however it ended."""
MOST: Final = 20_000
"""The most jobs that are looked at, the last to start, and the most workloads of a user and day that failed."""
_TOLD: Final = 2000
SMOKE: Final = "smoke-%"
"""The names of smoke jobs; what failed there would have failed in the job itself."""
_NO_WORKLOAD: Final = '%"workload":[]%'
"""In a decision's line, where its script is gsub's own: a name alone proves no smoke job, as anybody can choose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyQuery:
    """Of which jobs: with several GPUs or with one, started from `since` on (seconds since the epoch)."""

    cluster: str
    several: bool
    since: float


def early_failures(connection: Connection, query: EarlyQuery) -> EarlyFailures:
    """How many runs there were that failed so, or ran for long; and the run times of the first, in whole seconds.

    A workload of a user counts once a day, `RULES.workloads` of a user a day at most: an array of thousands, or a loop,
    does not speak for everybody.
    """
    last = (
        select(job.c.sort_at, job.c.gpus, job.c.started, job.c.ended, job.c.name, job.c.uid)
        .where(job.c.cluster == query.cluster, job.c.sort_at >= query.since)
        .order_by(job.c.sort_at.desc(), job.c.pk.desc())
        .limit(MOST)
        .subquery()
    )
    least = connection.execute(select(func.min(last.c.sort_at))).scalar()
    if least is None:
        return EarlyFailures(0)
    size = last.c.gpus > 1 if query.several else last.c.gpus == 1
    took = last.c.ended - last.c.started
    ran = connection.execute(
        _by_day(last.c.uid, last.c.name, last.c.sort_at, took).where(
            size, not_(func.coalesce(last.c.name, "").like(SMOKE)), took >= LONG
        )
    )
    # GPUs asked for, times run time, over run time
    most = 1.5 * verdict.c.runtime
    held = verdict.c.gpu_seconds > most if query.several else verdict.c.gpu_seconds.between(1e-9, most)
    of_gsub = exists().where(
        decision.c.cluster == verdict.c.cluster,
        decision.c.job_id == verdict.c.job_id,
        decision.c.body.like(_NO_WORKLOAD),
    )
    smoke = verdict.c.name.like(SMOKE)
    failed = connection.execute(
        _by_day(verdict.c.uid, verdict.c.name, verdict.c.at, verdict.c.runtime)
        .where(
            verdict.c.cluster == query.cluster,
            verdict.c.reason.in_(SEEN),
            verdict.c.at >= least,
            verdict.c.runtime >= 0,
            or_(and_(held, not_(func.coalesce(verdict.c.name, "").like(SMOKE))), and_(smoke, of_gsub)),
        )
        .order_by(func.max(verdict.c.at).desc())
        .limit(MOST)
    )
    times = sorted(float(round(one)) for one in _votes(failed)[:_TOLD])
    long = len(_votes(ran))
    return EarlyFailures(long + sum(time < LONG for time in times), tuple(times))


def _by_day(
    uid: ColumnElement[int | None],
    name: ColumnElement[str | None],
    at: ColumnElement[float],
    took: ColumnElement[float],
) -> Select[Any]:
    """A uid, a job's name, a day, and how long such runs took on average."""
    day = cast(at / literal_column("86400"), Integer)
    return select(uid, name, day, func.avg(took)).group_by(uid, name, day)


def _votes(rows: Iterable[Sequence[Any]]) -> list[float]:
    """How long each took that counts, of rows of `_by_day`."""
    seen: dict[tuple[int | None, int], set[str]] = {}
    times = []
    for uid, name, day, took in rows:
        known = seen.setdefault((uid, day), set())
        workload = workload_of(name or "")
        if workload not in known and len(known) < RULES.workloads:
            known.add(workload)
            times.append(took)
    return times
