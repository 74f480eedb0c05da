"""What Slurm says of jobs, as the store keeps it. Pure: values of `slurm_plugins.client` in, facts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from profiler.records import JobRef
from profiler.store.facts import JobFacts
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["of_accounting", "of_job", "running"]

_ON_NODES = frozenset({JobState.RUNNING, JobState.SUSPENDED})


def of_job(job: Job, cluster: str, now: float) -> JobFacts:
    """The attempt that slurmctld holds.

    What it plans is not a fact: the start of a pending job, the end of a running one. One that is COMPLETING has ended,
    but how is shown only when its nodes are free.
    """
    begun = job.state is not JobState.PENDING
    final = job.state.ended and JobFlag.COMPLETING not in job.flags and job.end is not None
    started = _seconds(job.start) if begun else None
    return _facts(
        job,
        cluster,
        exited=final,
        started=started if started is not None and started <= now else None,
        ended=_seconds(job.end) if final else None,
        gpus=job.gpu_count,
        memory_asked_bytes=job.tres.memory,
        final=final,
    )


def of_accounting(row: AccountingRecord, cluster: str) -> JobFacts:
    """An attempt as slurmdbd holds it; before 24.11 it does not say which one (`restarts`): its start tells."""
    final = row.ended
    return _facts(
        row,
        cluster,
        # Requeued by hand, it did not end by itself: 0:0 is then no exit code [measured, 22.05 and 26.05]
        exited=final and (JobFlag.REQUEUED not in row.flags or bool(row.exit)),
        started=_seconds(row.start),
        ended=_seconds(row.end),
        gpus=row.gpus,
        memory_asked_bytes=row.tres.memory if row.tres.memory is not None else row.tres_requested.memory,
        final=final,
    )


def _facts(
    told: Job | AccountingRecord,
    cluster: str,
    *,
    exited: bool,
    started: float | None,
    ended: float | None,
    gpus: int | None,
    memory_asked_bytes: int | None,
    final: bool,
) -> JobFacts:
    """What both sources tell alike, and what was made of the rest. `exited`: its exit status is one."""
    return JobFacts(
        cluster=cluster,
        job_id=told.id,
        restarts=told.restarts,
        array_job_id=told.array_job_id,
        array_task_id=told.array_task_id,
        het_job_id=told.het_job_id,
        het_offset=told.het_offset,
        name=_told(told.name),
        user=_told(told.user),
        uid=told.uid,
        account=_told(told.account),
        partition=_told(told.partition),
        qos=_told(told.qos),
        state=_state(told),
        reason=_told(told.reason),
        exit_code=told.exit.code if exited else None,
        signal=told.exit.signal if exited else None,
        derived_exit_code=told.derived_exit.code if exited else None,
        submitted=_seconds(told.submitted),
        eligible=_seconds(told.eligible),
        started=started,
        ended=ended,
        time_limit=None if told.time_limit is None else float(told.time_limit),
        nodes=told.nodes.expression,
        cpus=told.num_cpus,
        gpus=gpus,
        memory_asked_bytes=memory_asked_bytes,
        work_dir=_told(told.work_dir),
        stdout=_told(told.stdout),
        stderr=_told(told.stderr),
        comment=_told(told.comment),
        final=final,
    )


def running(jobs: Iterable[Job]) -> Mapping[str, tuple[JobRef, ...]]:
    """The jobs of each node that has any. One whose end is still being worked on is among them: Slurm has it there."""
    found: dict[str, list[JobRef]] = {}
    for job in jobs:
        if job.state in _ON_NODES or JobFlag.COMPLETING in job.flags:
            for node in job.nodes:
                found.setdefault(node, []).append(JobRef(job.id, job.restarts))
    return {node: tuple(refs) for node, refs in found.items()}


def _state(job: Job | AccountingRecord) -> str | None:
    """Slurm's word for how it is; None while all that is shown is a flag that does not tell."""
    if job.state is not JobState.UNKNOWN:
        return str(job.state.value)
    return "REQUEUED" if JobFlag.REQUEUED in job.flags else None


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _told(text: str | None) -> str:
    """Text of users, fit to be stored: bytes that were no UTF-8 come as lone surrogates, which no store can hold."""
    return (text or "").encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
