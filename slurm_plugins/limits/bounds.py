"""Which limits hold for a job: its QOS, its partitions' QOS, its user, and the accounts above. Pure.

By Slurm's own order (its web page resource_limits): what a QOS limits the association does not. Where both the
partition's QOS and the job's limit the same, which of them counts is a flag of the QOS: here it is the lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from site_configs.units import format_size
from slurm_plugins.limits.records import Associations, Limits

__all__ = ["LIMITS", "Bound", "Holder", "NotKnownError", "find_bounds", "format_amount"]

LIMITS: Final[Mapping[str, str]] = {
    "MaxTRESPerJob": "QOS, else the user or the nearest account above that has one: one job",
    "MaxTRESPerNode": "the same: one job on a node",
    "MinTRESPerJob": "QOS: what a job must ask for",
    "MaxTRESPerUser": "QOS: all that the user's jobs there have",
    "MaxTRESPerAccount": "QOS: all that the account's jobs there have",
    "MaxTRESRunMinsPerUser": "QOS: the same, times the time that is left to them",
    "MaxTRESRunMinsPerAccount": "QOS: the same, times the time that is left to them",
    "MaxTRESMinsPerJob": "QOS, else user and accounts above: one job, times its time limit",
    "GrpTRES": "QOS, else the user and each account above: all jobs there",
    "GrpTRESMins": "the same, over the time that they ran",
    "GrpTRESRunMins": "the same, times the time that is left to them",
}
"""The limits of accounting that are read, for each TRES; who sets them and what they count. Documentation."""

Of = Literal["job", "node", "least", "shared"]


class NotKnownError(Exception):
    """A limit that may be there and is not told of; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that holds for a job: `most` of a TRES for what `of` says; `shared`: together with other jobs, or over
    time."""

    tres: str
    name: str
    whose: str
    most: int
    of: Of

    def __str__(self) -> str:
        return f"the limit {self.name} of {self.whose} is {format_amount(self.tres, self.most)}"


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose job it is. `qos` and `account` as the job names them; `partitions` are those in which it may start, with
    the QOS of each, empty for none."""

    uid: int
    account: str
    qos: tuple[str, ...]
    partitions: tuple[tuple[str, str], ...]


def format_amount(tres: str, most: int) -> str:
    """An amount as a person reads it.

    >>> format_amount("mem", 40960), format_amount("cpu", 1), format_amount("gres/gpu:a100", 4)
    ('40G of memory', '1 CPU', '4 of gres/gpu:a100')
    """
    if tres == "mem":
        return f"{format_size(most)} of memory"
    words = {"cpu": "CPU", "node": "node", "gres/gpu": "GPU"}
    return f"{most} {words[tres]}{'' if most == 1 else 's'}" if tres in words else f"{most} of {tres}"


def find_bounds(told: Associations, job: Holder) -> tuple[Bound, ...]:
    """All limits of accounting that hold for a job. Raises NotKnownError."""
    account = job.account.lower()
    if not told.is_whole(account):
        raise NotKnownError(f"it is not known what account {account} allows")
    found: list[Bound] = []
    for_all: set[tuple[str, str]] = set()
    factor = 1.0
    for name, partitions in _qos_names(told, job, account):
        qos = told.qos.get(name)
        if qos is None:
            raise NotKnownError(f"it is not known what QOS {name} allows")
        if not qos.whole:
            raise NotKnownError(f"it is not known what QOS {name} allows each user and account")
        own = tuple(_bounds(qos.limits, f"QOS {name}"))
        # One of several QOS, or of several partitions', says nothing of a start in another
        if not partitions or partitions >= {partition for partition, _ in job.partitions}:
            for_all |= {(bound.name, bound.tres) for bound in own}
            factor = min(factor, qos.factor)
        found += own
    found += (
        bound
        for bound in _of_association(told, job, account, factor)
        if (bound.name, bound.tres) not in for_all
    )
    return tuple(dict.fromkeys(found))


def _qos_names(told: Associations, job: Holder, account: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The job's QOS, and those of its partitions with the partitions that have them."""
    named = [name.lower() for name in job.qos if name]
    if not named:
        users = [told.of_user(job.uid, account, partition) for partition, _ in job.partitions]
        named = sorted({(user and user.default_qos) or "normal" for user in users})
    if len(named) == 1:
        yield named[0], frozenset()
    else:
        yield from ((name, frozenset({""})) for name in named)
    of_partitions: dict[str, set[str]] = {}
    for partition, qos in job.partitions:
        if qos:
            of_partitions.setdefault(qos.lower(), set()).add(partition)
    for name, having in of_partitions.items():
        yield name, frozenset(having)


def _of_association(told: Associations, job: Holder, account: str, factor: float) -> Iterator[Bound]:
    above = told.accounts_above(account)
    for partition, _ in job.partitions:
        user = told.of_user(job.uid, account, partition)
        if user is None:
            raise NotKnownError(f"it is not known what account {account} allows its user")
        chain = [(f"the user in account {account}", user.limits)]
        chain += [(f"account {one.account}", one.limits) for one in above]
        # What a user inherits is filled in by Slurm, at times a moment late
        seen: set[tuple[str, str]] = set()
        for whose, limits in chain:
            for bound in _bounds(limits, whose):
                if bound.of == "shared":
                    yield _times(bound, factor)
                elif (bound.name, bound.tres) not in seen:
                    seen.add((bound.name, bound.tres))
                    yield _times(bound, factor)


def _times(bound: Bound, factor: float) -> Bound:
    if factor == 1.0:
        return bound
    return Bound(bound.tres, bound.name, bound.whose, int(bound.most * factor), bound.of)


def _bounds(limits: Limits, whose: str) -> Iterator[Bound]:
    of_job: Sequence[tuple[str, Mapping[str, int], Of]] = (
        ("MaxTRESPerJob", limits.per_job, "job"),
        ("MaxTRESPerNode", limits.per_node, "node"),
        ("MinTRESPerJob", limits.least, "least"),
    )
    for name, amounts, of in of_job:
        yield from (Bound(tres, name, whose, most, of) for tres, most in amounts.items())
    for name, amounts in limits.shared.items():
        yield from (Bound(tres, name, whose, most, "shared") for tres, most in amounts.items())
