"""One look at Slurm for the attempts that something is to be decided about: many jobs with a few commands.

    look = Looking(client, runner, queue).look(ids, memory_of)      # in a thread: it waits for Slurm

slurmctld is asked for these jobs, once for all of them, and for the dependencies of those that wait, with a limit of
time that grows with the queue. Nodes, partitions and its configuration change seldom, and are kept for some minutes.
Memory that was asked for only scontrol tells, a job at a time: it is asked where more of it may be wanted.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from slurm_plugins.client.commands import valid_id
from slurm_plugins.client.errors import NoSuchJob, SlurmTimeout
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.purposes import DEPENDENCIES
from slurm_plugins.client.requeue_delay import DEFAULT, requeue_delay
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job, Node, Partition
from slurm_plugins.service.patience import QueuePatience

__all__ = [
    "MIN_JOB_AGE",
    "NO_DELAY",
    "Asked",
    "Look",
    "Looking",
    "Room",
    "Slurm",
    "delay_of",
    "is_stranger",
    "record_of",
    "release_of",
    "waited_for",
]

_Id = TypeVar("_Id", int, str)

NO_DELAY: Final = DEFAULT
MIN_JOB_AGE: Final = 300.0
"""Seconds for which Slurm keeps the record of a job that has ended, where its configuration does not say."""

_KEPT: Final = 120.0
"""Seconds for which nodes, partitions and the configuration are not asked for again."""
_WAITING: Final = 5.0
"""... the dependencies of jobs that wait."""

_QUICK: Final = (23, 11)
"""The first release whose slurmd forgets a job at once when it starts anew. Those before look for such jobs once in two
seconds: one that starts within its credential's life may get no prolog (on busy nodes of 22.05.8 every second one)."""

_AFTER: Final = re.compile(r"(?<=:)(\d{1,10}(?:_(?:\d{1,9}|\*))?)")
# A user's text in the record can only spoil what is known of the user's own job
_MEMORY: Final = re.compile(r" MinCPUsNode=\d+ MinMemory(Node|CPU)=([0-9.]+)([KMGT]?) MinTmpDiskNode=")
_UNITS: Final = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}


@dataclass(frozen=True, slots=True)
class Room:
    """A partition: the nodes of it that take jobs, and MiB that its biggest one gives at most (None: not known)."""

    nodes: tuple[str, ...]
    most_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Memory that a job asked for: MiB for each `per`, "node" or "cpu"; 0 for all that a node has."""

    per: str
    mib: int


@dataclass(frozen=True, slots=True)
class Look:
    """What Slurm says now. `jobs`: those of the ids that it holds, by id. `waiting`: the jobs that wait for a job, by
    its id as a dependency names it ("12", "12_3", "12_*"). `delay_s`: for how long it keeps a requeued job back;
    `record_s`: for how long it keeps the record of a job that has ended. `quick`: a job may start again within that
    delay, and its prolog is run. `nodes`: all of the cluster, by name, as far as they are known. `owners`: the uid and
    the account of each job of `waiting`, as far as they are known.
    """

    jobs: Mapping[int, Job]
    waiting: Mapping[str, tuple[str, ...]]
    rooms: Mapping[str, Room]
    memory: Mapping[int, Asked]
    delay_s: float = NO_DELAY
    record_s: float = MIN_JOB_AGE
    quick: bool = True
    nodes: Mapping[str, Node] = field(default_factory=dict)
    owners: Mapping[str, tuple[int, str]] = field(default_factory=dict)


class Slurm(Protocol):
    """Where a look comes from."""

    def look(self, ids: Sequence[int], memory_of: Sequence[int]) -> Look:
        """Look once, at these jobs, and at what memory some of them asked for. Raises SlurmError."""
        ...

    def job(self, shown: str) -> Job | None:
        """One job; None where Slurm has none (any more). Raises SlurmError."""
        ...


class Looking:
    """`Slurm` over its commands. For one thread. `queue` makes a client that gives Slurm as many seconds."""

    def __init__(
        self,
        client: SlurmClient,
        runner: Runner,
        queue: Callable[[float], SlurmClient],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._runner = runner
        self._queue = queue
        self._patience = QueuePatience()
        self._clock = clock
        self._standing: tuple[float, Mapping[str, Room], Mapping[str, Node], str] | None = None
        self._waiting: tuple[float, Mapping[str, tuple[str, ...]], Mapping[str, tuple[int, str]]] | None = (
            None
        )

    def look(self, ids: Sequence[int], memory_of: Sequence[int]) -> Look:
        """See `Slurm.look`."""
        rooms, nodes, config = self._stands()
        # Before the jobs: one that is submitted in between waits for a job that we then see as it is
        waiting, owners = self._waits()
        wanted = set(ids)
        jobs = {job.id: job for job in self._client.jobs(ids=sorted(wanted)) if job.id in wanted}
        memory = self._memory([number for number in memory_of if number in jobs])
        quick = release_of(config) >= _QUICK
        return Look(jobs, waiting, rooms, memory, delay_of(config), record_of(config), quick, nodes, owners)

    def job(self, shown: str) -> Job | None:
        """See `Slurm.job`."""
        try:
            return self._client.job(shown)
        except NoSuchJob:
            return None

    def _stands(self) -> tuple[Mapping[str, Room], Mapping[str, Node], str]:
        now = self._clock()
        if self._standing is None or now - self._standing[0] > _KEPT:
            nodes = {node.name: node for node in self._client.nodes()}
            rooms = _rooms(self._client.partitions(), nodes.values())
            config = check(self._runner.read(["scontrol", "show", "config"])).stdout
            self._standing = now, rooms, nodes, config
        return self._standing[1:]

    def _waits(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[int, str]]]:
        now = self._clock()
        if self._waiting is None or now - self._waiting[0] > _WAITING:
            jobs = [job for job in self._pending() if job.dependency]
            owners = {job.shown_id: (job.uid, job.account or "") for job in jobs if job.uid is not None}
            self._waiting = now, waited_for((job.shown_id, job.dependency or "") for job in jobs), owners
        return self._waiting[1:]

    def _pending(self) -> tuple[Job, ...]:
        begun = self._clock()
        try:
            jobs = self._queue(self._patience.limit).jobs(state=JobState.PENDING, values=DEPENDENCIES)
        except SlurmTimeout:
            self._patience.note_late()
            raise
        self._patience.note_answer(self._clock() - begun)
        return jobs

    def _memory(self, ids: Sequence[int]) -> Mapping[int, Asked]:
        found = {}
        for number in ids:
            try:
                # Never of several jobs at once: a job's name may look like the record of another
                done = check(self._runner.read(["scontrol", "show", "job", valid_id(number)]), job_id=number)
            except NoSuchJob:
                continue
            told = _MEMORY.search(done.stdout)
            if told:
                mib = int(float(told[2]) * _UNITS[told[3]])
                found[number] = Asked("node" if told[1] == "Node" else "cpu", mib)
        return found


def waited_for(waiting: Iterable[tuple[_Id, str]]) -> Mapping[str, tuple[_Id, ...]]:
    """Who waits for whom, out of jobs that wait and their dependencies as squeue writes them.

    >>> waited_for([("14", "afterok:12(unfulfilled),afterany:13_*(unfulfilled)"), ("15", "singleton(unfulfilled)")])
    {'12': ('14',), '13_*': ('14',)}
    """
    found: dict[str, list[_Id]] = {}
    for number, dependency in waiting:
        for before in _AFTER.findall(dependency):
            found.setdefault(before, []).append(number)
    return {before: tuple(numbers) for before, numbers in found.items()}


def is_stranger(one: tuple[int | None, str | None], other: tuple[int | None, str | None]) -> bool:
    """Whether two jobs, by uid and account, have nothing to do with each other: neither the user nor the account.

    Anybody may submit a job that waits for another one's: that must not take his further attempts from him.

    >>> is_stranger((1001, "lab"), (1002, "lab")), is_stranger((1001, "lab"), (1002, "bio"))
    (False, True)
    """
    (uid, account), (other_uid, other_account) = one, other
    if uid is None or other_uid is None:
        return False
    return uid != other_uid and _known(account) != _known(other_account)


def _known(account: str | None) -> str:
    return "" if account in (None, "(null)") else account.lower()


def delay_of(config: str) -> float:
    """Seconds for which Slurm keeps a requeued job back at least, out of ``scontrol show config``."""
    return requeue_delay(
        release_of(config), _value(config, "SchedulerParameters"), _value(config, "AuthInfo")
    )[0]


def _value(config: str, key: str) -> str:
    line = re.search(rf"(?m)^{key}\s*= (.*)$", config)
    return line[1] if line else ""


def record_of(config: str) -> float:
    """MinJobAge, seconds, out of ``scontrol show config``; 0 stands for never forgetting."""
    found = re.search(r"(?m)^MinJobAge\s*= (\d{1,9}) sec", config)
    return MIN_JOB_AGE if found is None else float(found[1]) or math.inf


def release_of(config: str) -> tuple[int, int]:
    """Slurm's release, out of ``scontrol show config``; (0, 0) where it is not told."""
    found = re.search(r"(?m)^SLURM_VERSION\s*= (\d{1,3})\.(\d{1,2})", config)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _rooms(partitions: Iterable[Partition], nodes: Iterable[Node]) -> Mapping[str, Room]:
    there: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.partitions:
            there.setdefault(name, []).append(node)
    rooms = {}
    for partition in partitions:
        members = there.get(partition.name, [])
        sizes = [(node.memory - (node.memory_reserved or 0)) >> 20 for node in members if node.memory]
        limit = partition.max_memory_per_node
        most = max(sizes) if sizes else None
        if most is not None and limit:
            most = min(most, limit >> 20)
        rooms[partition.name] = Room(tuple(node.name for node in members if node.available), most)
    return rooms
