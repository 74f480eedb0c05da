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
    return JobFacts(
        cluster=cluster,
        job_id=job.id,
        restarts=job.restarts,
        array_job_id=job.array_job_id,
        array_task_id=job.array_task_id,
        het_job_id=job.het_job_id,
        het_offset=job.het_offset,
        name=_told(job.name),
        user=_told(job.user),
        uid=job.uid,
        account=_told(job.account),
        partition=_told(job.partition),
        qos=_told(job.qos),
        state=_state(job),
        reason=_told(job.reason),
        exit_code=job.exit.code if final else None,
        signal=job.exit.signal if final else None,
        derived_exit_code=job.derived_exit.code if final else None,
        submitted=_seconds(job.submitted),
        eligible=_seconds(job.eligible),
        started=started if started is not None and started <= now else None,
        ended=_seconds(job.end) if final else None,
        time_limit=None if job.time_limit is None else float(job.time_limit),
        nodes=job.nodes.expression,
        cpus=job.num_cpus,
        gpus=job.gpu_count,
        memory_asked_bytes=job.tres.memory,
        work_dir=_told(job.work_dir),
        stdout=_told(job.stdout),
        stderr=_told(job.stderr),
        comment=_told(job.comment),
        final=final,
    )


def of_accounting(row: AccountingRecord, cluster: str) -> JobFacts:
    """An attempt as slurmdbd holds it; before 24.11 it does not say which one (`restarts`): its start tells."""
    final = row.ended
    # An attempt that was requeued by hand did not end by itself: 0:0 is then no exit code [measured, 22.05 and 26.05]
    exited = final and (JobFlag.REQUEUED not in row.flags or bool(row.exit))
    return JobFacts(
        cluster=cluster,
        job_id=row.id,
        restarts=row.restarts,
        array_job_id=row.array_job_id,
        array_task_id=row.array_task_id,
        het_job_id=row.het_job_id,
        het_offset=row.het_offset,
        name=_told(row.name),
        user=_told(row.user),
        uid=row.uid,
        account=_told(row.account),
        partition=_told(row.partition),
        qos=_told(row.qos),
        state=_state(row),
        reason=_told(row.reason),
        exit_code=row.exit.code if exited else None,
        signal=row.exit.signal if exited else None,
        derived_exit_code=row.derived_exit.code if exited else None,
        submitted=_seconds(row.submitted),
        eligible=_seconds(row.eligible),
        started=_seconds(row.start),
        ended=_seconds(row.end),
        time_limit=None if row.time_limit is None else float(row.time_limit),
        nodes=row.nodes.expression,
        cpus=row.num_cpus,
        gpus=row.gpus,
        memory_asked_bytes=row.tres.memory if row.tres.memory is not None else row.tres_requested.memory,
        work_dir=_told(row.work_dir),
        stdout=_told(row.stdout),
        stderr=_told(row.stderr),
        comment=_told(row.comment),
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
