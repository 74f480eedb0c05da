"""How much memory a job may be given: the limits that hold for it, and what one that is in the way says. Pure.

Slurm checks no limit of memory for an operator, neither when he sets it nor afterwards: a job whose memory was set by
gsub-act would start beyond the limit of its QOS, in this attempt and all later ones (seen on 22.05.8, 24.11.5 and
26.05.5). So all that Slurm would have held the user to is looked at before, by Slurm's own order (its web page
resource_limits): what a QOS limits the association does not. Where both the partition's QOS and the job's limit the
same, which of them counts is a flag of the QOS: here it is the lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from slurm_plugins.act.assoc import Associations, Qos, Shared
from slurm_plugins.client.values import Job, Partition

__all__ = [
    "AGAIN",
    "LIMITS",
    "Bound",
    "Need",
    "NotKnownError",
    "Pool",
    "Room",
    "Verdict",
    "bounds",
    "need_of",
    "verdict",
]

LIMITS: Final[Mapping[str, str]] = {
    "MaxMemPerNode": "the partition, else slurm.conf: on a node",
    "MaxMemPerCPU": "the partition, else slurm.conf: for each CPU of the job",
    "MaxTRESPerJob": "QOS, else the user or the nearest account above that has one: all nodes of the job together",
    "MaxTRESPerNode": "the same: on a node",
    "MaxTRESPerUser": "QOS: all that the user has in use there",
    "MaxTRESPerAccount": "QOS: all that the account has in use there",
    "GrpTRES": "QOS, else the user and each account above: all that is in use there",
}
"""The limits that are read, of memory (`mem=`); who sets them and what they count. Documentation."""
AGAIN: Final = 60.0
"""Seconds after which there may be room again where others use what there is."""

Of = Literal["node", "cpu", "job", "together"]


class NotKnownError(Exception):
    """A limit that may be there and is not told of; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a job is to have: `each` MiB on each of `nodes`, or with `per_cpu` for each of `cpus`."""

    each: int
    per_cpu: bool
    nodes: int | None
    cpus: int | None

    def of(self, what: Of) -> int:
        """MiB on its fullest node, for each of its CPUs, or in all. Raises NotKnownError.

        >>> [Need(1000, True, 2, 5).of(what) for what in ("node", "cpu", "job")]
        [3000, 1000, 5000]
        """
        if what == ("cpu" if self.per_cpu else "node"):
            return self.each
        if not self.nodes or not self.cpus:
            raise NotKnownError("it is not known how many nodes and CPUs the job is to have")
        if what == "node":
            return self.each * -(-self.cpus // self.nodes)
        if what == "cpu":
            return -(-self.each * self.nodes // self.cpus)
        return self.each * (self.cpus if self.per_cpu else self.nodes)


@dataclass(frozen=True, slots=True)
class Pool:
    """The jobs that share a limit: in a QOS (by name or by partition), of accounts, of a user; None: of all."""

    qos: str | None = None
    partitions: frozenset[str] = frozenset()
    """Those whose own QOS it is."""
    accounts: frozenset[str] | None = None
    uid: int | None = None

    def has(self, job: Job) -> bool:
        """Whether a job counts in it."""
        if self.uid is not None and job.uid != self.uid:
            return False
        if self.accounts is not None and (job.account or "").lower() not in self.accounts:
            return False
        if self.qos is None or self.qos in _names(job.qos, lower=True):
            return True
        return bool(self.partitions & {*_names(job.partition)})


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit: `most` MiB of memory for what `of` says, of which `used` are in use by the jobs of `pool`."""

    name: str
    whose: str
    most: int
    of: Of
    used: int = 0
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What Slurm told of its limits, for one job; MiB.

    Parameters
    ----------
    partitions: those in which it may start.
    biggest: what the biggest node of them has for jobs; None: not known.
    per_node, per_cpu: MaxMemPerNode and MaxMemPerCPU of slurm.conf.
    enforced: whether accounting enforces limits; `associations` is looked at only then.
    associations: None where they were not told of, and then `missing` says why.
    """

    partitions: tuple[Partition, ...]
    biggest: int | None
    per_node: int | None = None
    per_cpu: int | None = None
    enforced: bool = False
    associations: Associations | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job may not have the memory, empty when it may; `again`: in how many seconds it might."""

    why: str = ""
    again: float | None = None


def need_of(job: Job, fields: Mapping[str, str]) -> Need | None:
    """What a job has in all once it has these fields; None where they set no memory."""
    for name, per_cpu in (("MinMemoryNode", False), ("MinMemoryCPU", True)):
        if name in fields:
            return Need(int(fields[name]), per_cpu, job.num_nodes, job.num_cpus)
    return None


def bounds(job: Job, room: Room) -> tuple[Bound, ...]:
    """All limits that hold for a job, those of partitions first. Raises NotKnownError."""
    found = [*_of_partitions(job, room)]
    if room.enforced:
        found += _of_accounting(job, room)
    return tuple(found)


def verdict(need: Need, limits: Sequence[Bound], raised: Iterable[tuple[Job, Need]] = ()) -> Verdict:
    """What is in the way of `need`. Raises NotKnownError.

    `raised` are other jobs that wait with memory that gsub-act set: Slurm will start them without a look at these
    limits, so they count as if they ran.
    """
    others = tuple(raised)
    for limit in limits:
        wanted = need.of(limit.of)
        if wanted > limit.most:
            would = f"it would be {wanted} MiB {_PER[limit.of]}"
            return Verdict(
                f"the limit {limit.name} of {limit.whose} is {limit.most} MiB of memory, and {would}"
            )
    for limit in limits:
        if limit.pool is not None:
            waiting = sum(other.of("together") for job, other in others if limit.pool.has(job))
            wanted, used = need.of(limit.of), limit.used + waiting
            if wanted + used > limit.most:
                return Verdict(
                    f"the limit {limit.name} of {limit.whose} is {limit.most} MiB of memory, of which {used} MiB are "
                    f"in use or given to jobs that wait: {wanted} MiB more are too much now",
                    AGAIN,
                )
    return Verdict()


_PER: Final = {"node": "on a node", "cpu": "for a CPU", "job": "for the job", "together": "for the job"}


# --- partitions -------------------------------------------------------------------------------------------------------


def _of_partitions(job: Job, room: Room) -> Iterator[Bound]:
    told = {partition.name: partition for partition in room.partitions}
    for name in _names(job.partition):
        partition = told.get(name)
        if partition is None:
            raise NotKnownError(f"Slurm does not tell of partition {name}, nor how much memory it allows")
        per_node, per_cpu = partition.max_memory_per_node, partition.max_memory_per_cpu
        if per_node is None and per_cpu is None:
            # a partition's own limit takes the place of slurm.conf's
            if room.per_node is not None:
                yield Bound("MaxMemPerNode", "slurm.conf", room.per_node, "node")
            if room.per_cpu is not None:
                yield Bound("MaxMemPerCPU", "slurm.conf", room.per_cpu, "cpu")
        if per_node is not None:
            yield Bound("MaxMemPerNode", f"partition {name}", per_node >> 20, "node")
        if per_cpu is not None:
            yield Bound("MaxMemPerCPU", f"partition {name}", per_cpu >> 20, "cpu")


# --- accounting -------------------------------------------------------------------------------------------------------


def _of_accounting(job: Job, room: Room) -> Iterator[Bound]:
    told = room.associations
    if told is None:
        raise NotKnownError(
            f"it is not known what accounting lets the job have: {room.missing or 'not told'}"
        )
    if job.uid is None or not job.account:
        raise NotKnownError("it is not known of which user and account the job is, nor what they may have")
    account = job.account.lower()
    for_all: set[str] = set()
    for name, partitions in _qos_names(job, room.partitions):
        qos = told.qos.get(name)
        if qos is None:
            raise NotKnownError(f"it is not known how much memory QOS {name} allows")
        of_qos = tuple(_of_qos(qos, job.uid, account, partitions))
        # One of several QOS, or of several partitions', says nothing of a start in another
        if (name,) == _names(job.qos, lower=True) or partitions >= {*_names(job.partition)}:
            for_all |= {bound.name for bound in of_qos}
        yield from of_qos
    for bound in _of_association(told, job, account):
        if bound.name not in for_all:
            yield bound


def _qos_names(job: Job, partitions: Sequence[Partition]) -> Iterator[tuple[str, frozenset[str]]]:
    """The job's QOS, and those of its partitions with the partitions that have them."""
    own = _names(job.qos, lower=True)
    if not own:
        raise NotKnownError("it is not known which QOS the job has, nor how much memory that allows")
    by_name: dict[str, set[str]] = {name: set() for name in own}
    for partition in partitions:
        if partition.qos and partition.name in _names(job.partition):
            by_name.setdefault(partition.qos.lower(), set()).add(partition.name)
    for name, having in by_name.items():
        yield name, frozenset(having)


def _of_qos(qos: Qos, uid: int, account: str, partitions: frozenset[str]) -> Iterator[Bound]:
    whose = f"QOS {qos.name}"
    if qos.per_job is not None:
        yield Bound("MaxTRESPerJob", whose, qos.per_job, "job")
    if qos.per_node is not None:
        yield Bound("MaxTRESPerNode", whose, qos.per_node, "node")
    if uid not in qos.users or account not in qos.accounts:
        raise NotKnownError(f"it is not known how much memory QOS {qos.name} allows this user and account")
    of_user, of_account = qos.users[uid], qos.accounts[account]
    own = Pool(qos.name, partitions)
    yield from _shared("MaxTRESPerUser", whose, of_user, Pool(qos.name, partitions, uid=uid))
    yield from _shared(
        "MaxTRESPerAccount", whose, of_account, Pool(qos.name, partitions, frozenset({account}))
    )
    yield from _shared("GrpTRES", whose, qos.together, own)


def _of_association(told: Associations, job: Job, account: str) -> Iterator[Bound]:
    chain = told.accounts_above(account)
    if not told.is_whole(account):
        raise NotKnownError(f"it is not known how much memory account {account} allows")
    for partition in _names(job.partition):
        user = told.of_user(job.uid or 0, account, partition)
        if user is None:
            raise NotKnownError(f"it is not known how much memory account {account} allows its user")
        of_user = f"user {job.user} in account {account}"
        # What a user inherits is filled in by Slurm, at times a moment late
        for level, whose in ((user, of_user), *((a, f"account {a.account}") for a in chain)):
            if level.per_job is not None:
                yield Bound("MaxTRESPerJob", whose, level.per_job, "job")
                break
        for level, whose in ((user, of_user), *((a, f"account {a.account}") for a in chain)):
            if level.per_node is not None:
                yield Bound("MaxTRESPerNode", whose, level.per_node, "node")
                break
        yield from _shared(
            "GrpTRES", of_user, user.together, Pool(accounts=frozenset({account}), uid=job.uid)
        )
    for above in chain:
        pool = Pool(accounts=frozenset(_below(told, above.account)))
        yield from _shared("GrpTRES", f"account {above.account}", above.together, pool)


def _below(told: Associations, account: str) -> Iterator[str]:
    """An account and those under it."""
    names = {a.account for a in told.found if a.uid is None}
    return (name for name in names if any(a.account == account for a in told.accounts_above(name)))


def _shared(name: str, whose: str, limit: Shared, pool: Pool) -> Iterator[Bound]:
    if limit.most is not None:
        yield Bound(name, whose, limit.most, "together", limit.used, pool)


def _names(text: str | None, *, lower: bool = False) -> tuple[str, ...]:
    return tuple(name.lower() if lower else name for name in (text or "").split(",") if name)
