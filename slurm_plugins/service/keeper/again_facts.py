"""What policy looks at, out of the store's rows and a look at Slurm. Pure.

A verdict that waits for a decision (`Undecided`) becomes an `Attempt`, a `Failure` and a `Past`; what Slurm has of the
job by now shows whether it is that attempt's still (`overtaken`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from profiler.answers import JobSummary
from profiler.findings import Finding
from profiler.resubmissions import PastAttempt
from profiler.store import Undecided
from profiler.wording import shown_id
from site_configs.clients_table import find_client, is_left_alone
from site_configs.site_model import MODES, Mode, Site
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job
from slurm_plugins.resubmit.places import alike
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past
from slurm_plugins.service.keeper.again_look import Look, Room, is_stranger

__all__ = ["another", "attempt_of", "client_of", "mode_of", "names_of", "overtaken", "past_of", "wishes_of"]

_WORDS: Final = re.compile(r"[\s,;]+")
_APART: Final = 60.0
"""Seconds between two ends that cannot be one: that of a node's epilog, and Slurm's."""
_NOT_AGAIN: Final = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.DEADLINE})


def attempt_of(
    case: Undecided, look: Look, *, opted_out: bool = False, client: str = "", dependants: Iterable[int] = ()
) -> Attempt:
    """The attempt, by the store and by what Slurm has of it.

    Of a job that Slurm has no record of any more it is supposed that it could be run again: whether that would have
    helped is then said too. `opted_out`: the job's environment had GSUB=off when it was submitted. `client`: the
    program that manages it and is left to do so. `dependants`: jobs that waited for it before it ended.
    """
    of, job = case.job, look.jobs.get(case.job.job_id)
    partitions = (job.partition if job is not None else of.partition).split(",")
    rooms = [look.rooms[name] for name in partitions if name in look.rooms]
    names = tuple(dict.fromkeys(name for room in rooms for name in room.nodes))
    places = alike(names, look.nodes, case.nodes, job.features if job is not None else None)
    words = wishes_of((job.comment if job is not None else None) or case.comment)
    return Attempt(
        cluster=of.cluster,
        job_id=of.job_id,
        restarts=of.restarts,
        id=shown_id(of) if job is None else job.shown_id,
        uid=-1 if of.uid is None else of.uid,
        state=of.state or "",
        nodes=case.nodes,
        excluded=tuple(job.excluded_nodes) if job is not None else (),
        partition_nodes=() if job is not None and job.reservation else places,
        required=tuple(job.required_nodes) if job is not None else (),
        runtime_s=case.runtime,
        ended=of.ended,
        gpus=of.gpus if of.gpus is not None or job is None else job.gpu_count,
        batch=True if job is None else job.batch,
        requeue=True if job is None else job.requeue,
        whole_array=job is not None
        and (job.array_tasks is not None or (job.array_job_id is not None and job.array_task_id is None)),
        het=of.het_job_id is not None or (job is not None and job.het_job_id is not None),
        dependants=_dependants(of, look, dependants),
        client=client,
        wishes=words | {"off"} if opted_out else words,
        memory=_memory(of, job, look, rooms, places),
    )


_NOTHING: Final = Finding("none")


def past_of(attempts: Sequence[PastAttempt]) -> Past:
    """Earlier attempts, the oldest first; one without a verdict counts as one that did not fail."""
    return Past(
        tuple(
            Earlier(Failure.of(one.finding or _NOTHING, one.source), one.nodes, one.resubmission, one.runtime)
            for one in attempts
        )
    )


def wishes_of(comment: str | None) -> frozenset[str]:
    """The words for gsub in a job's comment, in lower case.

    >>> sorted(wishes_of("run 7, gsub:resubmit=off GSUB:Checkpoint"))
    ['checkpoint', 'resubmit=off']
    """
    words = _WORDS.split((comment or "")[:4096].lower())
    return frozenset(word.removeprefix("gsub:") for word in words if word.startswith("gsub:"))


def client_of(site: Site, case: Undecided, job: Job | None, told: object) -> str:
    """The program that manages a job and is left to do so; "" for none.

    `told`: what was seen of its script when it was submitted. Of a job that gsub was not asked about then, its name and
    comment tell.
    """
    name = job.name if job is not None else case.job.name
    comment = (job.comment if job is not None else None) or case.comment
    found = told if isinstance(told, str) and told else find_client(site.clients, name=name, comment=comment)
    return found if is_left_alone(site.clients, found) else ""


def another(of: JobSummary, job: Job) -> bool:
    """Whether Slurm's job of that number is not the one that was judged: numbers come again."""
    if of.uid is not None and job.uid is not None and of.uid != job.uid:
        return True
    ended = job.end.timestamp() if job.end is not None and job.state.ended else None
    same = job.restarts == of.restarts and ended is not None and of.ended is not None
    return same and abs((ended or 0.0) - (of.ended or 0.0)) > _APART


def overtaken(restarts: int, job: Job) -> str:
    """Why a job is not that of the attempt any more, or has not failed for Slurm; "" where nothing has happened."""
    if job.restarts > restarts:
        return "it was queued again already, by Slurm itself or by somebody else"
    if JobFlag.COMPLETING in job.flags or job.state is JobState.UNKNOWN:
        return ""
    if job.state in _NOT_AGAIN:
        return f"for Slurm it is {job.state.value.lower()}"
    return "" if job.state.ended else f"it is {job.state.value.lower()} again already"


def mode_of(site: Site, of: JobSummary, job: Job | None) -> Mode:
    """How far gsub may go with a job: in the most cautious of the partitions that it may run in, as gsub-act says."""
    partition = job.partition if job is not None else of.partition
    account = (job.account if job is not None else of.account) or ""
    uid = -1 if of.uid is None else of.uid
    modes = [site.mode_for(partition=name, account=account, uid=uid) for name in partition.split(",")]
    return min(modes, key=MODES.index)


def names_of(of: JobSummary) -> tuple[str, ...]:
    """A job as dependencies name it: itself, and all tasks of its array."""
    if of.array_job_id is None:
        return (str(of.job_id),)
    array = of.array_job_id
    return (str(of.job_id), f"{array}_{of.array_task_id}", f"{array}_*", str(array))


def _dependants(of: JobSummary, look: Look, before: Iterable[int]) -> tuple[str, ...]:
    """The jobs that wait for this one, and those that did and were not cancelled; strangers' do not count."""
    own = (of.uid, of.account)
    found = [
        number
        for name in names_of(of)
        for number in look.waiting.get(name, ())
        if not is_stranger(own, look.owners.get(number, (None, None)))
    ]
    found += [
        job.shown_id
        for job in (look.jobs.get(number) for number in before)
        if job is not None and job.state is not JobState.CANCELLED
    ]
    return tuple(dict.fromkeys(found))


def _memory(
    of: JobSummary, job: Job | None, look: Look, rooms: Iterable[Room], places: Sequence[str]
) -> Memory:
    peak = None if of.memory_peak_bytes is None else of.memory_peak_bytes >> 20
    # Slurm may start it in any of its partitions: what all of them have
    sizes = [room.most_mib for room in rooms]
    known = [size for size in sizes if size is not None]
    most = min(known) if known and len(known) == len(sizes) else None
    # A bigger node of another kind, or beside one that the user asks for by name, is of no use: it would wait for ever
    if most is not None and (fits := _sizes(look, places)):
        most = min(most, max(fits))
    if most is not None and job is not None and (must := _sizes(look, job.required_nodes)):
        most = min(most, *must)
    asked = look.memory.get(of.job_id)
    cpus = None
    if job is not None and job.num_cpus and job.num_nodes:
        cpus = -(-job.num_cpus // job.num_nodes)
    if job is not None and job.memory_per_gpu:
        # Slurm then shows the partition's default as what it asked for, and gsub-act cannot set this
        return Memory(job.memory_per_gpu >> 20, "gpu", peak, most, cpus)
    if asked is None:
        return Memory(peak_mib=peak, most_mib=most, cpus_per_node=cpus)
    return Memory(asked.mib, asked.per, peak, most, cpus)


def _sizes(look: Look, names: Iterable[str]) -> list[int]:
    """MiB that jobs may have of these nodes, as far as they are known."""
    nodes = [node for node in map(look.nodes.get, names) if node is not None]
    return [(node.memory - (node.memory_reserved or 0)) >> 20 for node in nodes if node.memory]
