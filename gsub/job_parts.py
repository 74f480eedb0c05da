"""What Slurm has of a job as a user types it: exactly that job, and tasks that ended before they started."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from slurm_plugins.client.errors import NoSuchJob
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["accounted_parts", "is_rest", "live_parts", "single_tasks", "unknown"]

_Part = TypeVar("_Part", bound="Job | AccountingRecord")


def live_parts(job: str, client: SlurmClient) -> tuple[Job, ...]:
    """The parts of a job that slurmctld has; none of another job. Raises SlurmError."""
    return _of(job, client.jobs(ids=[job]))


def accounted_parts(job: str, client: SlurmClient) -> tuple[AccountingRecord, ...]:
    """The parts of a job that accounting has, each by its last attempt. Raises SlurmError.

    sacct has the tasks of an array that were cancelled before they started in one row (`375_[3-20%1]`), which it finds
    by the array's number alone.
    """
    rows = _of(job, client.accounting(ids=[job], duplicates=False))
    array, _, task = job.partition("_")
    if rows or not task:
        return rows
    # A row that waits is not believed: slurmdbd hears late which of its tasks are gone
    return tuple(one for one in _of(job, client.accounting(ids=[array], duplicates=False)) if one.state.ended)


def _of(job: str, parts: Iterable[_Part]) -> tuple[_Part, ...]:
    """Those that were asked for: squeue answers `17+5` and `17_5` with whatever job 17 is."""
    if job.isdecimal():
        return tuple(parts)
    found = tuple(parts)
    exact = tuple(one for one in found if one.shown_id == job)
    array, _, task = job.partition("_")
    if exact or not task:
        return exact
    return tuple(
        _as_task(one, int(task))
        for one in found
        if str(one.array_job_id) == array and int(task) in _numbers(one)
    )


def single_tasks(group: _Part) -> tuple[_Part, ...]:
    """A row that stands for several tasks of an array as one part for each of them."""
    return tuple(_as_task(group, number) for number in _numbers(group))


def _numbers(group: Job | AccountingRecord) -> tuple[int, ...]:
    from slurm_plugins.client.parse import task_numbers

    return task_numbers(group.array_tasks)


def _as_task(group: _Part, number: int) -> _Part:
    # The output's name still has %a in it, and nothing was written
    return replace(group, array_task_id=number, array_tasks=None, stdout=None, stderr=None)


def is_rest(part: Job | AccountingRecord) -> bool:
    """Whether it stands for the tasks of an array that have not started, or for the array as such.

    26.05 keeps a record of an array after its last task has started or was cancelled: its task is 4294967294, none.
    """
    return part.array_tasks is not None or (part.array_job_id is not None and part.array_task_id is None)


def unknown(job: str, client: SlurmClient) -> NoSuchJob:
    """The error where neither the controller nor accounting has a job."""
    from slurm_plugins.client.errors import NoSuchJob

    array, _, task = job.partition("_")
    if task and _is_array(array, client):
        return NoSuchJob(
            job,
            f"Slurm's controller and accounting know nothing of task {task} of array {array}: it has no such task, or "
            "that was cancelled before it started, which leaves no record.",
        )
    return NoSuchJob(job)


def _is_array(array: str, client: SlurmClient) -> bool:
    from slurm_plugins.client.errors import SlurmError

    for ask in (live_parts, accounted_parts):
        with suppress(SlurmError):
            if any(one.array_job_id is not None for one in ask(array, client)):
                return True
    return False
