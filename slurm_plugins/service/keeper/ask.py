"""One look at Slurm for the store: what runs where, and facts on the attempts that it wants to know of.

slurmctld is asked for all it holds, in brief, and for all of those attempts that it has; slurmdbd for the attempts that
slurmctld no longer holds, many at a time.
Runs as a process of its own (``python -m slurm_plugins.service.keeper.ask``, see `slurm_plugins.service.answering`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from profiler.answers import FreeGpus
from profiler.records import JobRef
from profiler.store.facts import JobFacts
from site_configs.site import parse_site
from slurm_plugins.client import client
from slurm_plugins.client.errors import SlurmError, SlurmFormatError, SlurmTimeout, SlurmUnreachable
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.purposes import QUEUE
from slurm_plugins.client.states import JobState
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import Job, Node
from slurm_plugins.decide.free import Causes, wants_nodes
from slurm_plugins.service.answering import answer_questions
from slurm_plugins.service.keeper.again_look import is_stranger, waited_for
from slurm_plugins.service.keeper.facts import of_accounting, of_job, running
from slurm_plugins.service.keeper.pending_queue import QueueEntry, queue_entries
from slurm_plugins.service.keeper.queue import Queue, queue_of
from slurm_plugins.service.look import slurm_environment
from slurm_plugins.service.patience import COMMAND_SECONDS

__all__ = ["Pending", "Question", "Seen", "ask"]

_AT_ONCE: Final = 400
"""Ids of one call of sacct: a command line has a length."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`site` is the text of the site file in force; `wanted` are the attempts to tell of.
    `queue_seconds` is the limit of time for one reading of the queue."""

    site: str
    site_path: str
    wanted: tuple[JobRef, ...] = ()
    queue_seconds: float = COMMAND_SECONDS


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A job that waits, the attempt to come, and what for (`profiler.waits.CAUSES`); `array` is its array's leader."""

    job_id: int
    restarts: int
    cause: str
    array: int | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm said, asked at `at`. `running` is None where it did not answer, or with nothing: that is no fact.
    `waiting` are the jobs that wait for others, by the job that each waits for, as its dependency names it.
    `queue` is what runs and waits in sum; `pending` is what waits, None where that is not known.
    `entries` are the pending jobs as `pending_queue` wants them, None where they are not known; `rooms` go with them.

    `error` and `accounting_error` are sentences: what they stand for is not known, not empty. `unread` counts rows that
    could not be read and were left out (`client.tables.Unread`), of which `unread_example` is one.
    `queue_took` is the seconds that reading the queue took; `queue_late`: it was not read within the limit.
    """

    at: float
    running: Mapping[str, tuple[JobRef, ...]] | None = None
    facts: tuple[JobFacts, ...] = ()
    waiting: Mapping[str, tuple[int, ...]] = {}
    queue: Queue | None = None
    pending: tuple[Pending, ...] | None = None
    entries: tuple[QueueEntry, ...] | None = None
    rooms: tuple[FreeGpus, ...] = ()
    error: str = ""
    queue_took: float | None = None
    queue_late: bool = False
    accounting_error: str = ""
    unread: Mapping[str, int] = {}
    unread_example: str = ""


def ask(
    client: SlurmClient, cluster: str, wanted: Sequence[JobRef], now: float, unread: Unread | None = None
) -> Seen:
    """Look once. Never raises SlurmError. `unread` is what the client counts rows in that it cannot read."""
    error = accounting_error = ""
    facts: list[JobFacts] = []
    runs = None
    waiting: Mapping[str, tuple[int, ...]] = {}
    queue = pending = entries = None
    rooms: tuple[FreeGpus, ...] = ()
    rest = set(wanted)
    took, late, begun = None, False, time.monotonic()
    try:
        jobs = client.jobs(values=QUEUE)
        took = time.monotonic() - begun
        known = {ref.job_id for ref in rest} & {job.id for job in jobs}
        told = _jobs_of(client, known)
    except SlurmError as raised:
        error, late = str(raised), isinstance(raised, SlurmTimeout)
    else:
        runs = running(jobs) if jobs else None
        waiting, queue = _waiting(jobs), queue_of(jobs) if jobs else None
        if jobs:
            waits = [job for job in jobs if job.state is JobState.PENDING]
            causes = _causes(client, waits)
            pending = None if causes is None else _pending(waits, causes)
            entries, rooms = queue_entries(waits, causes)
        for job in told:
            ref = JobRef(job.id, job.restarts)
            if ref in rest:
                facts.append(of_job(job, cluster, now))
                rest.discard(ref)
    ids = sorted({ref.job_id for ref in rest})
    for first in range(0, len(ids), _AT_ONCE):
        part = ids[first : first + _AT_ONCE]
        asked = set(part)
        try:
            # a heterogeneous job's or an array's other parts come along
            rows = (row for row in client.accounting(ids=part) if row.id in asked)
            facts += [of_accounting(row, cluster) for row in rows]
        except SlurmError as raised:
            accounting_error = str(raised)
            if isinstance(raised, SlurmUnreachable):
                break  # each of the others would wait as long
    return Seen(
        at=now,
        running=runs,
        facts=tuple(facts),
        waiting=waiting,
        queue=queue,
        pending=pending,
        entries=entries,
        rooms=rooms,
        error=error,
        queue_took=took,
        queue_late=late,
        accounting_error=accounting_error,
        unread=dict(unread.kinds) if unread else {},
        unread_example=unread.example if unread else "",
    )


def _jobs_of(client: SlurmClient, ids: Collection[int]) -> tuple[Job, ...]:
    """These jobs with all their values; none where of none can all be read, which the client has counted."""
    try:
        return client.jobs(ids=sorted(ids)) if ids else ()
    except SlurmFormatError:
        return ()


def _causes(client: SlurmClient, waits: Sequence[Job]) -> Causes | None:
    """Causes that know the nodes, which are asked for once, and only if a job waits for its turn at them.

    None where Slurm does not tell: without them, jobs that lack GPUs and jobs whose GPUs lie apart look alike.
    """
    nodes: tuple[Node, ...] = ()
    if any(map(wants_nodes, waits)):
        try:
            nodes = client.nodes()
        except SlurmError:
            return None
    return Causes(nodes)


def _pending(waits: Sequence[Job], causes: Causes) -> tuple[Pending, ...]:
    """What waits, and for what."""
    return tuple(Pending(job.id, job.restarts, causes.of(job), job.array_job_id) for job in waits)


def _waiting(jobs: Sequence[Job]) -> Mapping[str, tuple[int, ...]]:
    """Who waits for whom, but for strangers."""
    by_id = {job.id: job for job in jobs}
    found = waited_for(
        (job.id, job.dependency) for job in jobs if job.dependency and job.state is JobState.PENDING
    )
    if not found:
        return {}
    owners: dict[str, tuple[int | None, str | None]] = {}
    for job in jobs:
        own = (job.uid, job.account)
        owners[str(job.id)] = owners[job.shown_id] = own
        if job.array_job_id is not None:
            owners[str(job.array_job_id)] = owners[f"{job.array_job_id}_*"] = own
            owners[f"{job.array_job_id}_{job.array_task_id}"] = own
    kept = {}
    for before, numbers in found.items():
        whose = owners.get(before, (None, None))
        near = tuple(n for n in numbers if not is_stranger(whose, (by_id[n].uid, by_id[n].account)))
        if near:
            kept[before] = near
    return kept


def answer(text: bytes) -> bytes:
    """Answer a `Question` with `Seen`, both as JSON."""
    question = msgspec.json.decode(text, type=Question)
    site = parse_site(question.site, question.site_path)
    unread = Unread()
    env = slurm_environment(os.environ, site)
    reader = client(env, site.slurm.backend, timeout=question.queue_seconds, unread=unread)
    return msgspec.json.encode(ask(reader, site.cluster, question.wanted, time.time(), unread))


if __name__ == "__main__":
    sys.exit(answer_questions(answer))
