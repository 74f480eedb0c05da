"""Which nodes a request may use: its partitions, its constraint, its -x and -w, by kinds of nodes.

Unknown is an answer: `places` gives None where gsub cannot be sure (a reservation, a constraint with counts, a node
that Slurm does not list), and a stage then changes nothing.

>>> Constraint.read("[leaf1|leaf2]&ib").sets({"ib", "leaf1"})
frozenset({0})
>>> Constraint.read("a&(b|c)").sets({"a", "c"}), Constraint.read("a&(b|c)").sets({"a"})
(frozenset({0}), frozenset())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from site_configs.hostlist import HostlistError, expand
from slurm_plugins.decide.alike import Group, groups_of, merged, only, without
from slurm_plugins.decide.inventory import Inventory, Kind, Memory, Pool
from slurm_plugins.decide.request import Job

__all__ = ["Constraint", "Place", "Size", "UnknownConstraintError", "places"]

T = TypeVar("T")
_MAX_HOSTS: Final = 4096  # names in one -x or -w that are looked at
_RECENT: Final = 8


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes that are of one size: GPUs that the request may have, GPUs of any type, CPUs, memory in MiB.

    `threads` are those of a core; CPUs are threads, as Slurm counts them.
    """

    gpus: int
    all_gpus: int
    cpus: int
    memory: int
    threads: int
    count: int
    usable: int

    def usable_cpus(self, threads_per_core: int = 0) -> int:
        """CPUs for a job that uses so many threads of each core; 0 for all of them."""
        if 0 < threads_per_core < self.threads:
            return self.cpus * threads_per_core // self.threads
        return self.cpus


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of one partition that all of a job's nodes may come from.

    A request has several where it names several partitions, or a constraint like ``[leaf1|leaf2]``; Slurm takes one of
    them. `groups` hold only the nodes that fit the constraint and are not excluded. `required` are those of -w.
    """

    pool: Pool
    groups: tuple[Group, ...]
    required: tuple[str, ...] = ()
    _memory: Memory = field(default_factory=Memory, repr=False, compare=False)

    @property
    def nodes(self) -> int:
        """How many nodes, those that are down too."""
        return sum(group.count for group in self.groups)

    def sizes(self, gpu_type: str = "") -> tuple[Size, ...]:
        """Its nodes that have GPUs of that type, by size, largest first."""
        return self.remember(("sizes", gpu_type), lambda: _sizes(self.groups, gpu_type))

    def remember(self, key: Hashable, work: Callable[[], T]) -> T:
        """As `Pool.remember`, for as long as this place is there."""
        return self._memory(key, work)

    def only_required(self) -> Place:
        """The same place, of its nodes only those that -w names."""
        return self.remember(
            "only required",
            lambda: replace(self, groups=only(self.groups, self.required), _memory=Memory()),
        )


def places(job: Job, inventory: Inventory) -> tuple[Place, ...] | None:
    """Where Slurm may put the job; None when that is not known, empty when nothing fits the constraint."""
    pools = inventory.pools_of(job.partition)
    if not pools or job.reservation:
        return None
    found: list[Place] = []
    for pool in pools:
        of_pool = (
            _by_names(job, pool) if job.exc_nodes or job.req_nodes else _by_constraint(job.features, pool)
        )
        if of_pool is None:
            return None
        found += of_pool
    return tuple(found)


def _by_constraint(features: str | None, pool: Pool) -> tuple[Place, ...] | None:
    return pool.remember(("eligible", features or ""), lambda: _constrained(features, pool))


def _constrained(features: str | None, pool: Pool) -> tuple[Place, ...] | None:
    if not features:
        groups = groups_of(pool)
        return (Place(pool, groups),) if groups else ()
    try:
        constraint = Constraint.read(features)
    except UnknownConstraintError:
        return None
    sets: dict[int, list[Kind]] = {}
    for kind in pool.kinds:
        for number in constraint.sets(kind.features):
            sets.setdefault(number, []).append(kind)
    return tuple(Place(pool, merged(sets[number])) for number in sorted(sets))


def _by_names(job: Job, pool: Pool) -> tuple[Place, ...] | None:
    # Each list keeps its own copy of thousands of names: only the last few are remembered, for the stages to come.
    recent: dict[Hashable, tuple[Place, ...] | None] = pool.remember(("eligible", "recent"), dict)
    key = job.features, job.exc_nodes, job.req_nodes
    if key not in recent:
        found = _listed(job, pool)
        for old in list(recent)[: 1 + len(recent) - _RECENT]:
            recent.pop(old, None)
        recent[key] = found
        return found
    return recent[key]


def _listed(job: Job, pool: Pool) -> tuple[Place, ...] | None:
    try:
        excluded = frozenset(expand(job.exc_nodes, _MAX_HOSTS)) if job.exc_nodes else frozenset()
        required = expand(job.req_nodes, _MAX_HOSTS) if job.req_nodes else ()
    except HostlistError:
        return None
    fitting = _by_constraint(job.features, pool)
    if fitting is None:
        return None
    # Each of the nodes that are required must be in one place or another.
    there = {name for place in fitting for group in place.groups for name in group.among(required)}
    if not set(required) <= there - excluded:
        return None
    places = (Place(pool, without(place.groups, excluded), required) for place in fitting)
    return tuple(place for place in places if place.groups)


def _sizes(groups: Iterable[Group], gpu_type: str) -> tuple[Size, ...]:
    found: dict[tuple[int, int, int, int, int], tuple[int, int]] = {}
    for group in groups:
        if gpus := group.gpus_of(gpu_type):
            like = (gpus, group.gpus, group.cpus, group.memory, group.threads)
            count, usable = found.get(like, (0, 0))
            found[like] = (count + group.count, usable + group.usable)
    return tuple(Size(*like, *found[like]) for like in sorted(found, reverse=True))


# --- constraints ----------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"\s*([\[\]()&|]|[A-Za-z0-9_.=/+-]+)\s*")
_Test = Callable[[Collection[str]], bool]


class UnknownConstraintError(ValueError):
    """A constraint that gsub cannot read: counts (``a*2``), KNL modes, & and | mixed without parentheses."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """``--constraint`` (sbatch(1)): features joined by & or |, parentheses, and one ``[a|b]`` at the outermost level.

    ``[a|b]`` is Slurm's matching OR: all nodes of the job have a, or all have b. Each is a set; a constraint without
    brackets has one.
    """

    always: tuple[_Test, ...]
    alternatives: tuple[_Test, ...]

    @classmethod
    def read(cls, text: str) -> Constraint:
        """Read an expression. Raises UnknownConstraintError."""
        return _Parser(text).whole()

    def sets(self, features: Collection[str]) -> frozenset[int]:
        """Which of the sets, numbered from 0, a node with these features belongs to."""
        if not all(test(features) for test in self.always):
            return frozenset()
        return frozenset(n for n, test in enumerate(self.alternatives) if test(features))


class _Parser:
    """Recursive descent over at most a few hundred tokens; depth is bounded."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            if (found := _TOKEN.match(text, at)) is None:
                raise UnknownConstraintError(text)
            self.tokens.append(found[1])
            at = found.end()
        if len(self.tokens) > 500:
            raise UnknownConstraintError(text)
        self.at = 0

    def whole(self) -> Constraint:
        terms, joint, bracket = self.terms(0, brackets=True)
        if self.at != len(self.tokens) or (bracket and joint == "|"):
            raise UnknownConstraintError("".join(self.tokens))
        if joint == "|":
            terms = [_any(terms)]
        return Constraint(tuple(terms), tuple(bracket) or (_always,))

    def terms(self, depth: int, *, brackets: bool = False) -> tuple[list[_Test], str, list[_Test]]:
        """Terms with one joint between them, and the matching OR among them."""
        found: list[_Test] = []
        bracket: list[_Test] = []
        joint = ""
        while True:
            if brackets and self.peek() == "[" and not bracket:
                bracket = self.bracket(depth)
            else:
                found.append(self.term(depth))
            if self.peek() not in ("&", "|"):
                return found, joint, bracket
            if joint not in ("", self.peek()):
                raise UnknownConstraintError("& and | mixed")
            joint = self.take()

    def term(self, depth: int) -> _Test:
        word = self.take()
        if word == "(" and depth < 20:
            terms, joint, _ = self.terms(depth + 1)
            self.close(")")
            return _any(terms) if joint == "|" else _all(terms)
        if word in ("", "(", ")", "[", "]", "&", "|"):
            raise UnknownConstraintError(word)
        return lambda features: word in features

    def bracket(self, depth: int) -> list[_Test]:
        self.take()
        terms, joint, _ = self.terms(depth + 1)
        self.close("]")
        if joint == "&":  # only counts give it a meaning
            raise UnknownConstraintError("[a&b]")
        return terms

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        word = self.peek()
        self.at += 1
        return word

    def close(self, word: str) -> None:
        if self.take() != word:
            raise UnknownConstraintError("parentheses that do not match")


def _always(features: Collection[str]) -> bool:
    return True


def _any(terms: list[_Test]) -> _Test:
    return lambda features: any(term(features) for term in terms)


def _all(terms: list[_Test]) -> _Test:
    return lambda features: all(term(features) for term in terms)
