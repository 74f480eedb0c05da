"""What jobs do: those that run, and those that ended lately, for the rules of a site (`profiler.alerts`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec
from sqlalchemy import Connection, bindparam, or_, select

from profiler.answers import JobSummary, Usage
from profiler.records import GpuUse
from profiler.store.bulk import chunks
from profiler.store.queries import LISTED, gpu_use, node_use
from profiler.store.schema import gpu_usage, job, job_node
from profiler.store.store import Store

__all__ = ["in_use"]

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
_COUNTED: Final = select(job.c.pk, job.c.slurm_gpus).where(job.c.pk.in_(bindparam("keys", expanding=True)))
_GPUS: Final = (
    select(gpu_usage)
    .where(gpu_usage.c.job.in_(bindparam("keys", expanding=True)))
    .order_by(gpu_usage.c.job, gpu_usage.c.node, gpu_usage.c.place)
)


def in_use(store: Store, cluster: str, *, ended_since: float | None = None) -> tuple[Usage, ...]:
    """The jobs that run, by id; with `ended_since` those that ended then or later instead. Raises StoreError.

    Their number of GPUs is by Slurm's word alone: what a node does not see of its own, it cannot count.
    """
    found: list[Usage] = []
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
    return tuple(sorted(found, key=lambda one: (one.job.job_id, one.job.restarts)))


def _of(connection: Connection, keys: Sequence[int]) -> list[Usage]:
    asked = {"keys": keys}
    counted: dict[int, int | None] = {row.pk: row.slurm_gpus for row in connection.execute(_COUNTED, asked)}
    jobs = {
        row[0]: msgspec.structs.replace(JobSummary(*row[1:]), gpus=counted.get(row[0]))
        for row in connection.execute(LISTED, asked)
    }
    gpus: dict[tuple[int, str], list[GpuUse]] = {}
    for row in connection.execute(_GPUS, asked).mappings():
        gpus.setdefault((row["job"], row["node"]), []).append(gpu_use(row))
    nodes = connection.execute(_NODES, asked).mappings().all()
    found = []
    for key, of_job in groupby(nodes, key=lambda row: int(row["job"])):
        if key not in jobs:
            continue
        uses = tuple(node_use(row, tuple(gpus.get((key, row["node"]), ()))) for row in of_job)
        found.append(Usage(jobs[key], uses))
    return found
