"""What jobs do: those that run, and those that ended lately, for the rules of a site (`profiler.alerts`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from sqlalchemy import Connection, RowMapping, bindparam, or_, select

from profiler.answers import JobSummary, NodeSeries, Usage
from profiler.records import GpuUse
from profiler.store.bulk import chunks
from profiler.store.queries import LISTED, courses, gpu_use, node_use
from profiler.store.schema import gpu_usage, job, job_node, series
from profiler.store.store import Store

__all__ = ["InUse", "in_use"]

_LOOKED_AT: Final = 1000
"""Nodes of a job whose course is read."""

_OPEN: Final = select(job_node.c.job).where(job_node.c.ended_at.is_(None)).distinct()
_RUNNING: Final = (
    select(job.c.pk)
    .join(job_node, job_node.c.job == job.c.pk)
    .where(
        job.c.pk.in_(bindparam("keys", expanding=True)),
        job.c.cluster == bindparam("cluster"),
        job.c.ended.is_(None),
        job_node.c.ended_at.is_(None),
        # As in `queries.nodes`: a job whose start nobody told runs as long as its usage is not the last
        or_(job_node.c.started_at.is_not(None), job_node.c.final.is_(False)),
    )
    .distinct()
)
_ENDED: Final = select(job.c.pk).where(
    job.c.cluster == bindparam("cluster"), job.c.ended >= bindparam("since")
)
_NODES: Final = (
    select(job_node)
    .where(job_node.c.job.in_(bindparam("keys", expanding=True)))
    .order_by(job_node.c.job, job_node.c.node)
)
_GPUS: Final = (
    select(gpu_usage)
    .where(gpu_usage.c.job.in_(bindparam("keys", expanding=True)))
    .order_by(gpu_usage.c.job, gpu_usage.c.node, gpu_usage.c.place)
)
_DRAWN: Final = select(series.c.node, series.c.serial).where(series.c.job == bindparam("key"))


@dataclass(frozen=True, slots=True)
class InUse:
    """What a job does.

    `courses`: its nodes over time, of a job one of whose GPUs was seen stuck, where a node's came with the report of
    its usage or with the one before; else empty.
    """

    usage: Usage
    courses: tuple[NodeSeries, ...] = ()


def in_use(store: Store, cluster: str, *, ended_since: float | None = None) -> tuple[InUse, ...]:
    """The jobs that run, by id; with `ended_since` those that ended then or later instead. Raises StoreError."""
    found: list[InUse] = []
    with store.reading("The use of jobs cannot be read.") as connection:
        if ended_since is None:
            running = sorted(connection.execute(_OPEN).scalars())
            keys = [
                key
                for some in chunks(running)
                for key in connection.execute(_RUNNING, {"keys": some, "cluster": cluster}).scalars()
            ]
        else:
            asked = {"cluster": cluster, "since": ended_since}
            keys = list(connection.execute(_ENDED, asked).scalars())
        for some in chunks(keys):
            found += _of(connection, some)
    return tuple(sorted(found, key=lambda one: (one.usage.job.job_id, one.usage.job.restarts)))


def _of(connection: Connection, keys: Sequence[int]) -> list[InUse]:
    asked = {"keys": keys}
    jobs = {row[0]: JobSummary(*row[1:]) for row in connection.execute(LISTED, asked)}
    gpus: dict[tuple[int, str], list[GpuUse]] = {}
    for row in connection.execute(_GPUS, asked).mappings():
        gpus.setdefault((row["job"], row["node"]), []).append(gpu_use(row))
    nodes = connection.execute(_NODES, asked).mappings().all()
    found = []
    for key, of_job in groupby(nodes, key=lambda row: int(row["job"])):
        if key not in jobs:
            continue
        rows = list(of_job)
        uses = tuple(node_use(row, tuple(gpus.get((key, row["node"]), ()))) for row in rows)
        usage = Usage(jobs[key], uses)
        seen_stuck = any(gpu.stuck_seconds for node in usage.nodes for gpu in node.gpus)
        found.append(InUse(usage, _courses(connection, key, usage.job, rows) if seen_stuck else ()))
    return found


def _courses(
    connection: Connection, key: int, of: JobSummary, rows: Iterable[RowMapping]
) -> tuple[NodeSeries, ...]:
    # An older one would tell of a GPU that has long computed again that it is stuck up to now
    least = {row["node"]: (row["serial"] or 0) - 1 for row in rows}
    drawn = {row.node: row.serial for row in connection.execute(_DRAWN, {"key": key})}
    told = courses(connection, key, of, None, _LOOKED_AT).nodes
    return tuple(one for one in told if drawn.get(one.node, -1) >= least[one.node])
