"""`gsub why JOB`: asks Slurm, the service and, where these know too little, the job's own logs as their owner."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, TypeVar

from gsub.client import connect, job_id, telling
from gsub.errors import UserError
from gsub.service import NoRecordError, Records, records
from gsub.term import is_terminal
from gsub.waiting import Wait, waiting
from gsub.why_view import Known, Task, facts, lines
from profiler.answers import JobSummary, VerdictAnswer
from profiler.receipt import ENDED
from prolog_epilog.failures.taxonomy import NO_SIGNATURE

if TYPE_CHECKING:
    from profiler.findings import Finding
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["known_of", "why_job"]

_T = TypeVar("_T")

_TASKS: Final = 24
"""Failed tasks of an array that are looked at; --json tells how many there are more."""
_QUEUE: Final = frozenset({"Priority", "Resources"})
"""Reasons for which the rest of the queue, and what is free, are worth the asking."""


def why_job(job: str, *, as_json: bool) -> int:
    """Find out and print; returns the exit code. Raises UserError."""
    known = known_of(job_id(job), connect(), datetime.now(timezone.utc))
    if as_json:
        from gsub.commands.submit import print_json

        print_json(facts(known))
        return 0
    text = list(lines(known))
    if not is_terminal(sys.stdout):
        print("\n".join(text))
        return 0
    from gsub.term import console

    screen = console()
    for place, line in enumerate(text):
        screen.print(line, markup=False, style="bold" if place == 0 else "")
    return 0


def known_of(job: str, client: SlurmClient, now: datetime) -> Known:
    """All that can be found out about a job. Raises UserError where nobody knows of it."""
    troubles: list[str] = []
    live, record = _of_slurm(job, client, troubles)
    service = _service(troubles)
    shown = _shown(job, live)
    answer = _asked(lambda: service.verdict(shown), troubles) if service is not None else None
    if answer is None and live is None and record is None:
        with telling():
            from slurm_plugins.client.errors import NoSuchJob

            raise NoSuchJob(job)
    summary = _summary(live, record, answer)
    wait = _wait(live, client, now) if live is not None else None
    tasks, more = _tasks(job, client, service, troubles) if live is None or live.array_job_id else ((), 0)
    verdict = answer.verdict if answer is not None else None
    own: Finding | None = None
    read: tuple[str, ...] = ()
    if _worth_reading(summary, verdict.finding if verdict else None):
        own, read = _read(live, record, summary)
    return Known(
        job=summary,
        now=now,
        wait=wait,
        verdict=verdict,
        similar=answer.similar if answer is not None else None,
        decision=_asked(lambda: service.decision(shown), troubles)
        if service is not None and answer
        else None,
        usage=_asked(lambda: service.usage(shown), troubles) if service is not None and answer else None,
        own=own,
        read=read,
        troubles=tuple(dict.fromkeys(troubles)),
        tasks=tasks,
        more=more,
    )


def _of_slurm(
    job: str, client: SlurmClient, troubles: list[str]
) -> tuple[Job | None, AccountingRecord | None]:
    """The job as slurmctld has it, else its last attempt as slurmdbd has it."""
    from slurm_plugins.client.errors import SlurmError

    try:
        parts = client.jobs(ids=[job])
        if parts:
            exact = [one for one in parts if one.shown_id == job]
            return (exact or _by_interest(parts))[0], None
        rows = client.accounting(ids=[job], duplicates=False)
        return None, next(iter(rows), None)
    except SlurmError as error:
        troubles.append(f"what Slurm knows of it: {error}")
        return None, None


def _by_interest(parts: Sequence[Job]) -> list[Job]:
    """Of an array the part to speak of first: one that failed, one that waits, any."""

    def rank(one: Job) -> int:
        if one.state.ended and one.state.value != "COMPLETED":
            return 0
        return 1 if one.state.value == "PENDING" else 2

    return sorted(parts, key=rank)


def _shown(job: str, live: Job | None) -> str:
    """The id to ask the service by: of an array the task that is spoken of."""
    return live.shown_id if live is not None and live.array_task_id is not None else job


def _service(troubles: list[str]) -> Records | None:
    try:
        return records()
    except UserError as error:
        troubles.append(f"what gsub's service keeps: {error.why or error.what}")
        return None


def _asked(ask: Callable[[], _T], troubles: list[str]) -> _T | None:
    """An answer of the service; None where it has none. What is wrong with the service is written down."""
    try:
        return ask()
    except NoRecordError:
        return None  # it has not started, or is another user's
    except UserError as error:
        troubles.append(f"what gsub's service keeps: {error.what}" + (f" ({error.why})" if error.why else ""))
        return None


def _summary(live: Job | None, record: AccountingRecord | None, answer: VerdictAnswer | None) -> JobSummary:
    """The job in the service's words, brought up to date by Slurm's."""
    known = answer.job if answer is not None else None
    job = live or record
    if job is None:
        assert known is not None  # noqa: S101 - the caller has one of the three
        return known
    if known is not None and (known.state in ENDED or not job.state.ended):
        return known
    ended = job.end if job.state.ended else None
    return JobSummary(
        cluster=known.cluster if known is not None else "",
        job_id=job.id,
        restarts=job.restarts or 0,
        array_job_id=job.array_job_id,
        array_task_id=job.array_task_id,
        het_job_id=job.het_job_id,
        het_offset=job.het_offset,
        name=job.name,
        user=job.user,
        uid=job.uid,
        account=job.account or "",
        partition=job.partition,
        qos=job.qos or "",
        state=job.state.value,
        reason=job.reason or "",
        exit_code=job.exit.code if job.state.ended else None,
        signal=job.exit.signal if job.state.ended else None,
        submitted=_seconds(job.submitted),
        started=None if job.state.value == "PENDING" else _seconds(job.start),
        ended=_seconds(ended),
        nodes=str(job.nodes),
        gpus=job.gpus,
        work_dir=job.work_dir or "",
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _wait(live: Job, client: SlurmClient, now: datetime) -> Wait | None:
    """Why it waits; None when it does not."""
    from slurm_plugins.client.errors import SlurmError

    if live.state.value != "PENDING":
        return None
    queue: Sequence[Job] = ()
    nodes: tuple[object, ...] = ()
    if (live.reason or "") in _QUEUE:
        with suppress(SlurmError):  # the reason stands without them
            queue, nodes = client.jobs(), client.nodes()
    return waiting(live, now, queue, nodes)  # type: ignore[arg-type]


def _tasks(
    job: str, client: SlurmClient, service: Records | None, troubles: list[str]
) -> tuple[tuple[Task, ...], int]:
    """The failed tasks of an array that is asked about as a whole."""
    from slurm_plugins.client.errors import SlurmError

    if not job.isdecimal():
        return (), 0
    try:
        rows: Sequence[Job | AccountingRecord] = client.jobs(ids=[job])
        if not rows:
            rows = client.accounting(ids=[job], duplicates=False)
    except SlurmError:
        return (), 0  # told already
    failed = [
        one
        for one in rows
        if one.array_task_id is not None and one.state.ended and one.state.value != "COMPLETED"
    ]
    tasks = []
    for one in failed[:_TASKS]:
        shown = one.shown_id
        answer = (
            _asked(lambda shown=shown: service.verdict(shown), troubles)  # type: ignore[misc]
            if service is not None
            else None
        )
        finding = answer.verdict.finding if answer is not None and answer.verdict is not None else None
        tasks.append(Task(shown, one.state.value, finding))
    return tuple(tasks), len(failed) - len(tasks)


# --- its logs, as this user may read them ---------------------------------------------------------------------------


def _worth_reading(job: JobSummary, told: Finding | None) -> bool:
    """Whether this user's own look may add something: it failed, and nobody says why, or not all was seen."""
    over = job.state in ENDED if job.state is not None else job.ended is not None
    if not over or job.state == "COMPLETED" or job.uid not in (None, os.geteuid()):
        return False
    return told is None or told.reason == NO_SIGNATURE or bool(told.unseen)


def _read(
    live: Job | None, record: AccountingRecord | None, job: JobSummary
) -> tuple[Finding | None, tuple[str, ...]]:
    """What the logs say to this user, and which were read."""
    from gsub.why_rules import site_rules
    from prolog_epilog.failures.classify import Ended, classify
    from prolog_epilog.failures.judge import SlurmWord, judge
    from prolog_epilog.failures.reading import Unseen, read_log

    logs, read = [], []
    for path in _paths(live, record, job):
        found = read_log(path)
        if not isinstance(found, Unseen):
            logs.append(found)
            read.append(path)
    told = live or record
    derived = told.derived_exit if told is not None else None
    word = SlurmWord(
        state=job.state or "",
        exit_code=job.exit_code,
        signal=job.signal,
        derived_exit_code=derived.code if derived is not None else None,
        reason=job.reason,
        nodes=told.nodes.names if told is not None else (),
        failed_node=getattr(record, "failed_node", None) or "",
    )
    ended = Ended(job.state, job.exit_code, job.signal)
    finding = classify(logs, ended, site_rules()) if logs else None
    return judge(finding, word, ()), tuple(read)


def _paths(live: Job | None, record: AccountingRecord | None, job: JobSummary) -> list[str]:
    """Its output files, absolute; Slurm's default name where nobody says."""
    told = live or record
    paths = [path for path in (getattr(told, "stdout", None), getattr(told, "stderr", None)) if path]
    if not paths and job.work_dir and job.array_task_id is not None:
        paths = [f"slurm-{job.array_job_id}_{job.array_task_id}.out"]
    elif not paths and job.work_dir:
        paths = [f"slurm-{job.job_id}.out"]
    whole = [os.path.join(job.work_dir, path) for path in paths]  # noqa: PTH118 - text as Slurm has it
    return [path for path in dict.fromkeys(whole) if os.path.isabs(path) and path != os.devnull]  # noqa: PTH117
