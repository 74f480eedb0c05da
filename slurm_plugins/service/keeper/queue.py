"""What waits and what runs, as figures of the whole cluster: for metrics, so without names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from ClusterShell.RangeSet import RangeSet, RangeSetException

from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job

__all__ = ["CAUSES", "Queue", "cause", "queue_of"]

CAUSES: Final = ("priority", "resources", "locality", "limits", "user", "other")
"""What jobs wait for: jobs that come before; GPUs, CPUs, memory; few switches; limits of an account, a QOS; something
of their user's (a dependency, a begin time, a hold); anything else.
"""
_OF_USER: Final = ("Dependency", "BeginTime", "JobHeld", "JobArrayTaskLimit")
_LIMITS: Final = ("QOS", "Assoc", "MaxMemPerLimit", "AccountingPolicy")


class Queue(msgspec.Struct, frozen=True):
    """Jobs that run, and by cause (CAUSES) those that wait, each task of an array one, and their GPUs."""

    running: int = 0
    pending: dict[str, int] = msgspec.field(default_factory=dict)
    pending_gpus: dict[str, int] = msgspec.field(default_factory=dict)


def queue_of(jobs: Iterable[Job]) -> Queue:
    """What slurmctld's jobs are in sum. GPUs that Slurm does not name count as none."""
    running = 0
    pending, wanted = dict.fromkeys(CAUSES, 0), dict.fromkeys(CAUSES, 0)
    for job in jobs:
        if job.state is JobState.RUNNING:
            running += 1
        elif job.state is JobState.PENDING:
            tasks = _tasks(job.array_tasks)
            pending[cause(job)] += tasks
            wanted[cause(job)] += tasks * (job.gpu_count or 0)
    return Queue(running, pending, wanted)


def cause(job: Job) -> str:
    """Which of CAUSES a pending job waits for, by the one reason that Slurm names."""
    reason = job.reason or ""
    if job.held or reason.startswith(_OF_USER):
        return "user"
    if reason.startswith(_LIMITS):
        return "limits"
    if reason.startswith("Resources"):
        return "locality" if job.switches else "resources"
    return "priority" if reason.startswith("Priority") else "other"


def _tasks(listed: str | None) -> int:
    """Tasks of a pending array ("3-5%2"); what cannot be read, as a list that Slurm has cut, counts as one."""
    try:
        return max(1, len(RangeSet((listed or "").partition("%")[0])))
    except RangeSetException:
        return 1
