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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from site_configs.hostlist import HostlistError, expand
from slurm_plugins.decide.inventory import Inventory, Kind, Pool
from slurm_plugins.decide.request import Job

__all__ = ["Constraint", "Place", "Size", "UnknownConstraintError", "places"]

_MAX_HOSTS: Final = 4096  # names in one -x or -w that are looked at


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
    them. `kinds` hold only the nodes that fit the constraint and are not excluded. `required` are those of -w.
    """

    pool: Pool
    kinds: tuple[Kind, ...]
    required: tuple[str, ...] = ()
    _sizes: dict[str, tuple[Size, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def nodes(self) -> int:
        """How many nodes, those that are down too."""
        return sum(kind.count for kind in self.kinds)

    def sizes(self, gpu_type: str = "") -> tuple[Size, ...]:
        """Its nodes that have GPUs of that type, by size, largest first; a handful however many kinds there are."""
        if (found := self._sizes.get(gpu_type)) is None:
            found = _merged(self.kinds, gpu_type)
            if len(self._sizes) < 64:  # a user chooses the type
                self._sizes[gpu_type] = found
        return found

    def only_required(self) -> Place:
        """The same place, of its nodes only those that -w names."""
        wanted = frozenset(self.required)
        return replace(self, kinds=_keep(self.kinds, lambda name: name in wanted), _sizes={})


def places(job: Job, inventory: Inventory) -> tuple[Place, ...] | None:
    """Where Slurm may put the job; None when that is not known, empty when nothing fits the constraint."""
    pools = inventory.pools_of(job.partition)
    if not pools or job.reservation:
        return None
    found: list[Place] = []
    for pool in pools:
        of_pool = _places(job, pool) if job.exc_nodes or job.req_nodes else _by_constraint(job, pool)
        if of_pool is None:
            return None
        found += of_pool
    return tuple(found)


def _by_constraint(job: Job, pool: Pool) -> tuple[Place, ...] | None:
    # Lists of nodes are not remembered: each would keep its own copy of thousands of names.
    return pool.remember(("eligible", job.features or ""), lambda: _places(job, pool))


def _places(job: Job, pool: Pool) -> tuple[Place, ...] | None:
    try:
        excluded = frozenset(expand(job.exc_nodes, _MAX_HOSTS)) if job.exc_nodes else frozenset()
        required = expand(job.req_nodes, _MAX_HOSTS) if job.req_nodes else ()
        constraint = Constraint.read(job.features) if job.features else None
    except (HostlistError, UnknownConstraintError):
        return None
    kinds = _keep(pool.kinds, lambda name: name not in excluded) if excluded else pool.kinds
    if required and not set(required) <= {name for kind in kinds for name in kind.nodes}:
        return None
    if constraint is None:
        return (Place(pool, kinds, required),) if kinds else ()
    sets: dict[int, list[Kind]] = {}
    for kind in kinds:
        for number in constraint.sets(kind.features):
            sets.setdefault(number, []).append(kind)
    return tuple(Place(pool, tuple(sets[number]), required) for number in sorted(sets))


def _keep(kinds: Iterable[Kind], wanted: Callable[[str], bool]) -> tuple[Kind, ...]:
    kept = []
    for kind in kinds:
        names = tuple(filter(wanted, kind.nodes))
        if len(names) == kind.count:
            kept.append(kind)
        elif names:
            kept.append(replace(kind, nodes=names, usable=min(kind.usable, len(names))))
    return tuple(kept)


def _merged(kinds: Iterable[Kind], gpu_type: str) -> tuple[Size, ...]:
    merged: dict[tuple[int, int, int, int, int], tuple[int, int]] = {}
    for kind in kinds:
        if gpus := kind.gpus_of(gpu_type):
            like = (gpus, kind.gpus, kind.cpus, kind.memory, kind.threads)
            count, usable = merged.get(like, (0, 0))
            merged[like] = (count + kind.count, usable + kind.usable)
    return tuple(Size(*like, *merged[like]) for like in sorted(merged, reverse=True))


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
