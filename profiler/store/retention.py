"""What has been kept long enough is removed, a little at a time, so that records that come in never wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, delete, func, or_, select, tuple_

from profiler.store.schema import (
    decision,
    finding,
    gpu_usage,
    job,
    job_node,
    node,
    node_check,
    node_clearance,
    node_event,
    profile_point,
    resubmission,
    series,
    smoke,
    undecided,
    unjudged,
    verdict,
)

__all__ = ["Purged", "purge"]

_JOBS: Final = 200
"""Jobs in one transaction: some ten milliseconds."""
_ROWS: Final = 1000
_LEAST: Final = 2000
_SHARE: Final = 10
"""Of each kind one purge removes `_LEAST`, or one in so many, whichever is more: a day's worth is far less, and a clock
that is wrong, or a mistake in the site file, is noticed before all is gone."""
_AHEAD: Final = 86400.0
"""Nothing goes by a clock that is further ahead of the newest record than this."""
_REST: Final = 1.0
"""After each transaction a pause of so many times what it took: writers get half of the time at least."""

Writing: TypeAlias = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Purged:
    """How many were removed."""

    jobs: int = 0
    series: int = 0
    events: int = 0
    decisions: int = 0


def purge(
    writing: Writing,
    now: float,
    retention: float,
    series_retention: float,
    *,
    rest: Callable[[float], object] = time.sleep,
) -> Purged:
    """Remove jobs that ended more than `retention` seconds ago with all that is known of them, and older events,
    decisions and nodes that were silent for so long; and series of which `series_retention` seconds nothing was heard.

    A job that never told its end goes when nothing was heard of it for as long. `writing` begins a transaction. What
    one purge removes is bounded; the next one goes on.
    """
    with writing() as connection:
        clusters = list(_clusters(connection))
        newest = _newest(connection, clusters)
        most = {table.name: _most(connection, table) for table in _BOUNDED}
    if newest is None:
        return Purged()
    now = min(now, newest + _AHEAD)
    before = now - retention
    courses = _each(
        writing, rest, lambda connection: _series(connection, now - series_retention), most[series.name]
    )
    jobs = 0
    for cluster in clusters:
        place: tuple[float, int] | None = (float("-inf"), 0)
        while place is not None and jobs < most[job.name]:
            begun = time.monotonic()
            with writing() as connection:
                place, gone = _jobs(connection, cluster, before, place)
            jobs += gone
            rest((time.monotonic() - begun) * _REST)
    events = _each(writing, rest, lambda connection: _events(connection, before), most[node_event.name])

    def old(table: Table) -> int:
        return _each(writing, rest, lambda connection: _old(connection, table, before), most[table.name])

    decisions = old(decision)
    old(smoke)
    old(profile_point)
    with writing() as connection:
        silent = select(node.c.cluster, node.c.name).where(node.c.heard < before)
        connection.execute(
            delete(node_check).where(tuple_(node_check.c.cluster, node_check.c.node).in_(silent))
        )
        connection.execute(delete(node).where(node.c.heard < before))
        connection.execute(delete(node_clearance).where(node_clearance.c.at < before))
    return Purged(jobs, courses, events, decisions)


def _clusters(connection: Connection) -> Iterator[str]:
    """The clusters that have jobs: each found by one step in an index, where DISTINCT would read all of it."""
    found = connection.execute(select(func.min(job.c.cluster))).scalar()
    while found is not None:
        yield found
        found = connection.execute(select(func.min(job.c.cluster)).where(job.c.cluster > found)).scalar()


_BOUNDED: Final = (job, series, node_event, decision, smoke, profile_point)


def _most(connection: Connection, table: Table) -> int:
    """How many rows of a table one purge may remove."""
    return max(_LEAST, connection.execute(select(func.count()).select_from(table)).scalar_one() // _SHARE)


def _newest(connection: Connection, clusters: Iterable[str]) -> float | None:
    """When the newest record was made: by the nodes' clocks and Slurm's, not by ours, where there are such records."""

    def latest(column: Column[float], *where: ColumnElement[bool]) -> float | None:
        found: float | None = connection.execute(select(func.max(column)).where(*where)).scalar()
        return found

    told = [latest(node_event.c.at)]
    told += [latest(job.c.sort_at, job.c.cluster == one) for one in clusters]  # no index has their ends
    ours = (latest(table.c.at) for table in (decision, smoke, profile_point))
    return max((one for one in told if one is not None), default=None) or max(
        (one for one in ours if one is not None), default=None
    )


def _each(
    writing: Writing, rest: Callable[[float], object], step: Callable[[Connection], int], most: int
) -> int:
    """Repeat a step, each in a transaction of its own, until it finds nothing, or has found so much."""
    total = 0
    for count in _steps(writing, rest, step):
        total += count
        if total >= most:
            break
    return total


def _steps(
    writing: Writing, rest: Callable[[float], object], step: Callable[[Connection], int]
) -> Iterator[int]:
    while True:
        begun = time.monotonic()
        with writing() as connection:
            count = step(connection)
        yield count
        if not count:
            return
        rest((time.monotonic() - begun) * _REST)


def _jobs(
    connection: Connection, cluster: str, before: float, place: tuple[float, int]
) -> tuple[tuple[float, int] | None, int]:
    """Remove jobs that started after `place` and are old enough; where to go on, None at the end, and how many went."""
    # A job ends after it starts: those that started later than `before` need no look
    keys = connection.execute(
        select(job.c.sort_at, job.c.pk)
        .where(
            job.c.cluster == cluster, job.c.sort_at < before, tuple_(job.c.sort_at, job.c.pk) > tuple_(*place)
        )
        .order_by(job.c.sort_at, job.c.pk)
        .limit(_JOBS)
    ).all()
    if not keys:
        return None, 0
    over = and_(job.c.ended.is_not(None), job.c.ended < before)
    silent = and_(job.c.ended.is_(None), job.c.touched < before)
    old = list(
        connection.execute(
            select(job.c.pk).where(job.c.pk.in_([key.pk for key in keys]), or_(over, silent))
        ).scalars()
    )
    if old:
        for table in (gpu_usage, job_node, series, finding, unjudged, verdict, undecided, resubmission):
            connection.execute(delete(table).where(table.c.job.in_(old)))
        connection.execute(delete(job).where(job.c.pk.in_(old)))
    return (keys[-1].sort_at, keys[-1].pk), len(old)


def _series(connection: Connection, before: float) -> int:
    old = connection.execute(
        select(series.c.job, series.c.node)
        .where(series.c.touched < before)
        .order_by(series.c.touched)
        .limit(_JOBS)
    ).all()
    if old:
        connection.execute(
            delete(series).where(tuple_(series.c.job, series.c.node).in_([tuple(row) for row in old]))
        )
    return len(old)


def _events(connection: Connection, before: float) -> int:
    """Remove events, but for the last one of a check: it says how the node is."""
    kept = select(node_check.c.event_id)
    old = list(
        connection.execute(
            select(node_event.c.pk)
            .where(node_event.c.at < before, node_event.c.id.not_in(kept))
            .order_by(node_event.c.at)
            .limit(_ROWS)
        ).scalars()
    )
    if old:
        connection.execute(delete(node_event).where(node_event.c.pk.in_(old)))
    return len(old)


def _old(connection: Connection, table: Table, before: float) -> int:
    """Remove rows by their time."""
    key = tuple_(*table.primary_key)
    old = connection.execute(
        select(*table.primary_key).where(table.c.at < before).order_by(table.c.at).limit(_ROWS)
    ).all()
    if old:
        connection.execute(delete(table).where(key.in_([tuple(row) for row in old])))
    return len(old)
