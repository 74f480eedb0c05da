"""`gsub why JOB`: asks Slurm, the service and, where these know too little, the job's own logs as their owner."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, TypeVar, get_args

from gsub.again_view import of_this_job
from gsub.client import connect, job_id, telling
from gsub.errors import UserError
from gsub.job_parts import accounted_parts, is_rest, live_parts, unknown
from gsub.service import NoRecordError, Records, records
from gsub.term import is_terminal
from gsub.waiting import Wait, waiting
from gsub.why_tasks import tasks_of
from gsub.why_view import Known, facts, lines
from profiler.answers import JobSummary, QueuePosition, Verdict, VerdictAnswer
from profiler.receipt import ENDED
from profiler.wording import span
from prolog_epilog.failures.taxonomy import NO_SIGNATURE

if TYPE_CHECKING:
    from profiler.answers import FreeGpus
    from profiler.findings import Finding
    from prolog_epilog.failures.judge import NodeWord
    from prolog_epilog.failures.text import LogText
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["known_of", "why_job"]

_T = TypeVar("_T")

_QUEUE: Final = frozenset({"Priority", "Resources"})
"""Reasons for which the rest of the queue, and what is free, are worth the asking."""
_SOON: Final = 60.0
"""Seconds after a job's end in which its nodes and its logs may still have a word to say."""
_ASIDE: Final = 60.0
"""Seconds by which a job's log may have changed before its start or after its end: clocks differ, files come late."""


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
    live, record, outage = _of_slurm(job, client, troubles)
    told = live or record
    service = _Service(troubles)
    shown = _shown(job, told)
    answer = service.asked(lambda records: records.verdict(shown))
    if answer is None and told is None:
        with telling():
            # Nobody knows whether there is such a job while one who may does not answer
            raise outage or unknown(job, client)
    earlier: VerdictAnswer | None = None
    if live is not None and answer is not None and answer.job.restarts != live.restarts:
        # It was requeued: the service knows of the attempt before, or of a job of before that had this number
        present = live.restarts
        earlier = answer if answer.job.restarts < present else None
        answer = service.asked(lambda records: records.verdict(shown, present))
    restarts = answer.job.restarts if answer is not None else None
    summary = _summary(live, record, answer)
    verdict = answer.verdict if answer is not None else None
    own: Finding | None = None
    read: tuple[str, ...] = ()
    mine = summary.uid in (None, os.geteuid())
    if _worth_judging(summary, verdict.finding if verdict else None, mine=mine):
        own, read = _judged(told, summary, verdict.finding if verdict else None, mine=mine)
    followed = service.asked(lambda records: records.resubmissions(shown)) if answer or earlier else None
    return Known(
        job=summary,
        now=now,
        wait=_wait(live, client, service, now) if live is not None else None,
        verdict=verdict,
        similar=answer.similar if answer is not None else None,
        # Also of a first attempt that waits: the service has its decision before anything else of it
        decision=service.asked(lambda records: records.decision(shown)),
        usage=service.asked(lambda records: records.usage(shown, restarts)) if answer else None,
        own=own,
        read=read,
        unsettled=service.answers and _unsettled(summary, verdict, own, now, mine=mine),
        earlier=earlier,
        again=of_this_job(followed.resubmissions, summary) if followed is not None else (),
        troubles=tuple(dict.fromkeys(troubles)),
        tasks=tasks_of(job, told, client, service),
    )


def _of_slurm(
    job: str, client: SlurmClient, troubles: list[str]
) -> tuple[Job | None, AccountingRecord | None, SlurmError | None]:
    """The job as slurmctld has it, else its last attempt as slurmdbd has it; and who did not answer."""
    from slurm_plugins.client.errors import SlurmError, SlurmUnreachable

    outage: SlurmError | None = None
    parts: tuple[Job, ...] = ()
    try:
        parts = live_parts(job, client)
    except SlurmError as error:
        outage = error
        troubles.append(f"what Slurm knows of it: {error}")
    live = _part(job, parts)
    if live is not None and (job != str(live.array_job_id) or _rank(job, live) <= _FAILED):
        return live, None, None
    try:
        rows = accounted_parts(job, client)
    except SlurmError as error:
        if live is None:
            troubles.append(f"what Slurm's accounting knows of it: {error}")
            # A cluster without accounting refuses: that is no news of this job
            outage = outage or (error if isinstance(error, SlurmUnreachable) else None)
        return live, None, outage
    if live is None:
        return None, _part(job, rows), outage
    # slurmctld forgets the tasks that ended first while others still wait or run
    known = {one.shown_id for one in parts}
    record = _part(job, [one for one in rows if one.shown_id not in known])
    if record is None or _rank(job, record) > _CANCELLED or _rank(job, record) >= _rank(job, live):
        return live, None, None
    return None, record, None


_Part = TypeVar("_Part", "Job", "AccountingRecord")
_FAILED: Final = 1
_CANCELLED: Final = 2
"""Ranks of a task that ended badly: see `_rank`."""


def _part(job: str, parts: Sequence[_Part]) -> _Part | None:
    """The one that was asked for; of an array or a heterogeneous job one that failed, one that waits, any."""
    return min(parts, key=lambda one: _rank(job, one), default=None)


def _rank(job: str, one: Job | AccountingRecord) -> int:
    """The lower, the more it has to tell. The rest of an array has the array's number, and is not the array."""
    if one.shown_id == job and not is_rest(one):
        return 0
    if not one.state.ended:
        return 3 if one.state.value == "PENDING" else 4
    if one.state.value == "COMPLETED":
        return 6
    if is_rest(one):
        return 5
    return _CANCELLED if one.state.value == "CANCELLED" else _FAILED


def _shown(job: str, told: Job | AccountingRecord | None) -> str:
    """The id to ask the service by: of an array the task that is spoken of, of a heterogeneous job the component."""
    if told is None:
        return job
    if told.array_task_id is not None:
        return told.shown_id
    return job if told.het_job_id is None else str(told.id)


class _Service:
    """What the service keeps, as far as it answers. What is wrong with it is written down; then it is left alone."""

    def __init__(self, troubles: list[str]) -> None:
        self._troubles = troubles
        self._records: Records | None = None
        try:
            self._records = records()
        except UserError as error:
            self._told(error.why or error.what)

    @property
    def answers(self) -> bool:
        """Whether there is one, and it has answered so far."""
        return self._records is not None

    def asked(self, ask: Callable[[Records], _T]) -> _T | None:
        """An answer of the service; None where it has none."""
        if self._records is None:
            return None
        try:
            return ask(self._records)
        except NoRecordError:
            return None  # it has not started, or is another user's
        except UserError as error:
            self._records = None  # to wait for it once is enough
            self._told(error.what + (f" ({error.why})" if error.why else ""))
            return None

    def _told(self, trouble: str) -> None:
        self._troubles.append(f"what gsub's service keeps: {trouble}")


def _summary(live: Job | None, record: AccountingRecord | None, answer: VerdictAnswer | None) -> JobSummary:
    """The job in the service's words, brought up to date by Slurm's."""
    known = answer.job if answer is not None else None
    job = live or record
    if job is None:
        assert known is not None  # noqa: S101 - the caller has one of the three
        return known
    if known is not None and (known.state in ENDED or not job.state.ended):
        if live is None or known.state in ENDED or known.restarts != live.restarts:
            return known
        import msgspec

        # The service looks seldom: it may be suspended, or at its end, since. What is a flag alone has no state's value
        word = job.state_text if job.state.value == "UNKNOWN" else job.state.value
        return msgspec.structs.replace(known, state=word or known.state)
    ended = job.end if job.state.ended else None
    return JobSummary(
        cluster=known.cluster if known is not None else "",
        job_id=job.id,
        restarts=(known.restarts if known is not None else 0) if job.restarts is None else job.restarts,
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


def _wait(live: Job, client: SlurmClient, service: _Service, now: datetime) -> Wait | None:
    """Why it waits; None when it does not."""
    if live.state.value != "PENDING":
        return None
    position: QueuePosition | None = None
    if (live.reason or "") in _QUEUE and not live.held:
        # The service looks at the queue anyway: Slurm is to be asked for it as seldom as can be
        position = service.asked(lambda records: records.position(live.id)) or _position(live, client)
    wait = waiting(live, now, position)
    return _held_by_smoke(live, wait) if live.held else wait


def _position(live: Job, client: SlurmClient) -> QueuePosition | None:
    """Its position in the queue as Slurm tells it to this user; None where Slurm does not."""
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.purposes import POSITION
    from slurm_plugins.client.queued import QueuedJob, count_ahead
    from slurm_plugins.decide.free import sum_free_gpus

    free: FreeGpus | None = None
    with suppress(SlurmError):  # the reason stands without them
        queue = client.jobs(state=live.state, partition=live.partition, values=POSITION)
        higher, earlier = count_ahead(QueuedJob.of(live), map(QueuedJob.of, queue))
        if live.gpu_count:
            with suppress(SlurmError):
                free = sum_free_gpus(live, client.nodes())
        return QueuePosition(higher, earlier, free=free)
    return None


def _held_by_smoke(live: Job, wait: Wait) -> Wait:
    """Why it is held, where a smoke run of this user's did that."""
    from gsub.smoke.kept import holder_of
    from gsub.smoke.submission import environment_folder
    from gsub.term import one_line

    state = environment_folder(os.environ)
    if state is None:
        return wait
    since = live.submitted.timestamp() if live.submitted is not None else 0.0
    result = holder_of(state, live.array_job_id or live.id, since)
    if result is None:
        return wait
    shown = live.array_job_id or live.shown_id
    evidence = tuple(
        one_line(f"{one.file}:{one.line}: {one.text}" if one.line else f"{one.file}: {one.text}")
        for one in result.evidence[:3]
    )
    does = f"{one_line(result.advice)} " if result.advice else ""
    return dataclasses.replace(
        wait,
        sentence=f"its smoke run (job {result.smoke}) failed and holds it: {one_line(result.sentence)}",
        facts=(*evidence, *wait.facts),
        advice=f"{does}gsub cancel {shown}, and submit it again; 'scontrol release {shown}' lets it run all the same",
    )


# --- judged here, by its logs as far as this user may read them -----------------------------------------------------


def _worth_judging(job: JobSummary, told: Finding | None, *, mine: bool) -> bool:
    """Whether an own look may add something: it failed, and nobody says why, or not all was seen."""
    over = job.state in ENDED if job.state is not None else job.ended is not None
    if not over or job.state == "COMPLETED":
        return False
    return told is None or (mine and (told.reason == NO_SIGNATURE or bool(told.unseen)))


def _unsettled(
    job: JobSummary, verdict: Verdict | None, own: Finding | None, now: datetime, *, mine: bool
) -> bool:
    """Whether a job has only just ended, and its reason may still turn out to be another one."""
    from prolog_epilog.failures.judge import stands

    if own is None or (verdict is not None and verdict.finding.reason != NO_SIGNATURE):
        return False
    if job.ended is not None and now.timestamp() - job.ended > _SOON:
        return False
    # Before Slurm has spoken, a log that tells of a failure may be of a run that ended well
    return job.state is None or not (mine and stands(own))


def _judged(
    of: Job | AccountingRecord | None, job: JobSummary, told: Finding | None, *, mine: bool
) -> tuple[Finding, tuple[str, ...]]:
    """What its logs, where they are this user's, and Slurm say; and which logs were read."""
    import msgspec

    from gsub.why_rules import site_rules
    from profiler.findings import Finding
    from prolog_epilog.failures.classify import Ended, classify
    from prolog_epilog.failures.judge import SlurmWord, judge

    logs, unseen = _own_logs(of, job, mine=mine)
    derived = of.derived_exit if of is not None else None
    word = SlurmWord(
        state=job.state or "",
        exit_code=job.exit_code,
        signal=job.signal,
        derived_exit_code=derived.code if derived is not None else None,
        reason=job.reason,
        nodes=of.nodes.names if of is not None else (),
        failed_node=getattr(of, "failed_node", None) or "",
    )
    ended = Ended(job.state, job.exit_code, job.signal)
    finding = classify(logs, ended, site_rules()) if logs else Finding(NO_SIGNATURE)
    finding = msgspec.structs.replace(finding, unseen=(*finding.unseen, *unseen))
    return judge(finding, word, _node_words(told)), tuple(log.name for log in logs)


def _own_logs(
    of: Job | AccountingRecord | None, job: JobSummary, *, mine: bool
) -> tuple[list[LogText], list[str]]:
    """Its logs as far as they are this user's, and what was not read."""
    if of is not None and of.start is None and not job.started and not job.restarts:
        return [], []  # it never started: there are none
    return _logs(_paths(of, job), job) if mine else ([], ["its logs, which are another user's"])


def _node_words(told: Finding | None) -> list[NodeWord]:
    """What the nodes saw, out of the service's verdict: it counts beside the logs that were read here, too."""
    from prolog_epilog.failures.judge import NodeKind, NodeWord

    return [
        NodeWord(one.node, one.what, one.text, one.at)  # type: ignore[arg-type]
        for one in (told.evidence if told is not None else ())
        if one.source == "root" and one.what in get_args(NodeKind)
    ]


def _logs(paths: Sequence[str], job: JobSummary) -> tuple[list[LogText], list[str]]:
    """The logs that are this job's still, and what was not read: a later run may write to the same file."""
    from prolog_epilog.failures.reading import Unseen, read_log

    logs: list[LogText] = []
    unseen: list[str] = []
    for path in paths:
        found = read_log(path)
        if isinstance(found, Unseen):
            unseen.append(str(found))
        elif job.started is not None and found.base < job.started - _ASIDE:
            unseen.append(f"{path} was last written to before this job began")
        elif job.ended is not None and found.base > job.ended + _ASIDE:
            late = span(found.base - job.ended)
            unseen.append(
                f"{path} was changed {late} after the end, maybe by another run: gsub why --log reads it"
            )
        else:
            logs.append(found)
    return logs, unseen


def _paths(told: Job | AccountingRecord | None, job: JobSummary) -> list[str]:
    """Its output files, absolute; Slurm's default name where nobody says."""
    paths = [path for path in (getattr(told, "stdout", None), getattr(told, "stderr", None)) if path]
    if not paths and job.work_dir and job.array_task_id is not None:
        paths = [f"slurm-{job.array_job_id}_{job.array_task_id}.out"]
    elif not paths and job.work_dir:
        paths = [f"slurm-{job.job_id}.out"]
    whole = [os.path.join(job.work_dir, path) for path in paths]  # noqa: PTH118 - text as Slurm has it
    return [path for path in dict.fromkeys(whole) if os.path.isabs(path) and path != os.devnull]  # noqa: PTH117
