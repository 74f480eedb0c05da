"""Jobs that wait, no more of each than its position in the queue takes, and that position. Pure.

Slurm takes the higher priority first; among equals the job that was submitted first, then the lower id
(sort_job_queue2 in job_scheduler.c, 22.05 to 26.05).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from .values import Job

__all__ = ["Queued", "QueuedJob", "count_ahead"]


class Queued(Protocol):
    """A job that waits. `priority` is 0 while it is held, `submitted` in seconds since the epoch."""

    @property
    def job_id(self) -> int:
        """Its own id, of an array's waiting part too."""
        ...

    @property
    def partition(self) -> str:
        """Its partitions, with commas between them."""
        ...

    @property
    def priority(self) -> int:
        """See the class."""
        ...

    @property
    def submitted(self) -> float:
        """See the class."""
        ...


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """`Queued` out of a job that was read with `purposes.POSITION`, or with more."""

    job_id: int
    partition: str
    priority: int
    submitted: float

    @classmethod
    def of(cls, job: Job) -> QueuedJob:
        """Take what counts in the queue from a job that waits."""
        submitted = job.submitted.timestamp() if job.submitted is not None else 0.0
        return cls(job.id, job.partition, 0 if job.held else job.priority or 0, submitted)


def count_ahead(job: Queued, queue: Iterable[Queued]) -> tuple[int, int]:
    """Count the jobs that come before a job in its partitions: by a higher priority, and as equals that came first.

    >>> one, two, three = (QueuedJob(number, "gpu", 100, number) for number in (1, 2, 3))
    >>> count_ahead(two, [one, two, three, QueuedJob(4, "gpu", 200, 4.0), QueuedJob(5, "cpu", 900, 5.0)])
    (1, 1)
    """
    mine = set(job.partition.split(","))
    turn = (job.submitted, job.job_id)
    higher = earlier = 0
    for one in queue:
        if one.priority < job.priority or one.priority == 0 or mine.isdisjoint(one.partition.split(",")):
            continue
        if one.priority > job.priority:
            higher += 1
        elif (one.submitted, one.job_id) < turn:
            earlier += 1
    return higher, earlier
