"""Nodes that are alike in what they have, whatever their features: what is left to look at once a constraint is met.

A site may give each of 10,000 hosts a feature of its own, which makes 10,000 kinds of nodes, and still has a handful
of groups. Every stage works on groups; only a constraint reads kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from slurm_plugins.decide.inventory import Kind, Memory, Pool

__all__ = ["Group", "groups_of", "merged", "only", "without"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group(Kind):
    """Nodes with the same GPUs, CPUs, memory and threads; `features` are those that all of them have.

    One that lacks some nodes of another knows which (`whole`, `missing`): what was counted once is not counted again.
    """

    whole: Group | None = field(default=None, repr=False, compare=False)
    missing: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    _memory: Memory = field(default_factory=Memory, repr=False, compare=False)

    def remember(self, key: Hashable, work: Callable[[], T]) -> T:
        """As `Pool.remember`, for as long as this group is there."""
        return self._memory(key, work)

    def among(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that are its nodes."""
        if self.whole is not None:
            return self.whole.among(names) - self.missing
        return self.remember("names", lambda: frozenset(self.nodes)).intersection(names)


def groups_of(pool: Pool) -> tuple[Group, ...]:
    """All nodes of a partition."""
    return pool.remember("groups", lambda: merged(pool.kinds))


def merged(kinds: Iterable[Kind]) -> tuple[Group, ...]:
    """Kinds of nodes without regard to their features."""
    found: dict[tuple[tuple[tuple[str, int], ...], int, int, int], list[Kind]] = {}
    for kind in kinds:
        found.setdefault((kind.gpu_types, kind.cpus, kind.memory, kind.threads), []).append(kind)
    return tuple(
        Group(
            gpu_types,
            cpus,
            memory,
            frozenset.intersection(*(kind.features for kind in alike)),
            nodes=tuple(name for kind in alike for name in kind.nodes),
            usable=sum(kind.usable for kind in alike),
            threads=threads,
            all_cpus=max(kind.all_cpus for kind in alike),
        )
        for (gpu_types, cpus, memory, threads), alike in found.items()
    )


def without(groups: Iterable[Group], excluded: Collection[str]) -> tuple[Group, ...]:
    """The groups less the nodes of these names."""
    kept = []
    for group in groups:
        if gone := group.among(excluded):
            nodes = tuple(name for name in group.nodes if name not in gone)
            if nodes:
                usable = min(group.usable, len(nodes))
                kept.append(
                    replace(group, nodes=nodes, usable=usable, whole=group, missing=gone, _memory=Memory())
                )
        else:
            kept.append(group)
    return tuple(kept)


def only(groups: Iterable[Group], wanted: Collection[str]) -> tuple[Group, ...]:
    """Of the groups only the nodes of these names."""
    kept = []
    for group in groups:
        if nodes := tuple(sorted(group.among(wanted))):
            usable = min(group.usable, len(nodes))
            kept.append(
                replace(group, nodes=nodes, usable=usable, whole=None, missing=frozenset(), _memory=Memory())
            )
    return tuple(kept)
