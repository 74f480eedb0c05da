"""Whether a smoke job holds the last GPU that a waiting job of its user lacks: it ends then. Pure.

Slurm starts a smoke job in a gap, and jobs end sooner than their time limits say: then the next job could start but for
the one GPU of a smoke run, and race would not be free. Asked is of the user's own jobs that Slurm would start next
(reason Resources), counting GPUs a node: those that are free, and those that the user's smoke jobs hold. What Slurm
does not tell of is not in the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slurm_plugins.client.values import Job, Node

__all__ = ["NAME", "in_the_way", "limited", "next_ones", "room"]

NAME: Final = "smoke-"
"""What the names of smoke jobs begin with."""
_LIMIT: Final = re.compile(r"(?:QOS|Assoc)(?:Max|Grp)(?!\w*Per(?:Job|Node))\w*|AssociationJobLimit")
"""Reasons of a job that waits since its user (or account) has as much running as is allowed."""


def next_ones(jobs: Iterable[Job]) -> list[Job]:
    """The jobs that only lack resources, none of them smoke jobs."""
    from slurm_plugins.client.values import JobState

    return [
        job
        for job in jobs
        if job.state is JobState.PENDING and job.reason == "Resources" and not job.name.startswith(NAME)
    ]


def limited(jobs: Sequence[Job]) -> int:
    """The job that a limit keeps from its start while nothing but smoke jobs of the user's run; 0 for none."""
    from slurm_plugins.client.values import JobState

    running = [job for job in jobs if job.state is JobState.RUNNING]
    if not running or not all(job.name.startswith(NAME) for job in running):
        return 0
    for job in jobs:
        own = job.state is JobState.PENDING and not job.name.startswith(NAME)
        if own and _LIMIT.fullmatch(job.reason or ""):
            return job.array_job_id or job.id
    return 0


def room(jobs: Sequence[Job], taken: Mapping[str, tuple[int, int]]) -> bool:
    """Whether one of these nodes would do for a waiting job, were the user's smoke jobs gone, and does not as it is.

    Parameters
    ----------
    jobs: those of the user. taken: by node its GPUs, and how many of them jobs hold.
    """
    from slurm_plugins.client.values import JobState

    held = _held(jobs)
    waits = [job for job in jobs if job.state is JobState.PENDING and not job.held]
    wanted = {_each(job) for job in waits if not job.name.startswith(NAME)} - {0}
    return any(
        gpus - used < each <= gpus - used + held.get(name, 0)
        for name, (gpus, used) in taken.items()
        for each in wanted
    )


def in_the_way(smoke: int, jobs: Sequence[Job], nodes: Sequence[Node]) -> int:
    """The job that could start if the user's smoke jobs were gone, this one among those that matter; 0 for none.

    Parameters
    ----------
    smoke: the id of this smoke job. jobs: those of the user, the smoke jobs among them.
    """
    held = _held(jobs)
    here = next((frozenset(job.nodes) for job in jobs if job.id == smoke), frozenset())
    for job in next_ones(jobs):
        if not (each := _each(job)):
            continue
        count = max(job.num_nodes or 1, 1)
        free = {
            node.name: node.gpus - node.gpus_allocated
            for node in nodes
            if node.available
            and node.gpus_allocated is not None
            and (not node.partitions or not job.partition or {*job.partition.split(",")} & {*node.partitions})
        }
        already = {name for name, gpus in free.items() if gpus >= each}
        freed = {name for name, gpus in free.items() if gpus < each <= gpus + held.get(name, 0)}
        if len(already) < count <= len(already) + len(freed) and here & freed:
            return job.array_job_id or job.id
    return 0


def _each(job: Job) -> int:
    """GPUs a node."""
    return -(-(job.gpu_count or 0) // max(job.num_nodes or 1, 1))


def _held(jobs: Iterable[Job]) -> dict[str, int]:
    """GPUs that the user's smoke jobs hold, by node."""
    from slurm_plugins.client.values import JobState

    found: dict[str, int] = {}
    for job in jobs:
        if job.state is JobState.RUNNING and job.name.startswith(NAME):
            names = set(job.nodes)
            for name in names:
                found[name] = found.get(name, 0) + (job.gpu_count or 0) // len(names)
    return found
