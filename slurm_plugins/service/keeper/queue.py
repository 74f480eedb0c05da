"""What waits and what runs, as figures of the whole cluster: for metrics, so without names. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurm_plugins.client.causes import CAUSES, cause
from slurm_plugins.client.parse import task_count
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job

__all__ = ["Queue", "queue_of"]


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
            tasks = task_count(job.array_tasks)
            pending[cause(job)] += tasks
            wanted[cause(job)] += tasks * (job.gpu_count or 0)
    return Queue(running, pending, wanted)
