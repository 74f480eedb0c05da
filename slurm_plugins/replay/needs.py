"""What jobs ask for, worked out once for all jobs that ask alike: the shape by `decide`'s grid, and where it may go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from profiler.counting import count
from slurm_plugins.decide import grid
from slurm_plugins.decide.alike import Group
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.decide.eligible import Place
from slurm_plugins.decide.inventory import Pool
from slurm_plugins.decide.request import Job as Asked
from slurm_plugins.decide.shape import Shape
from slurm_plugins.replay.values import Cluster, Nodes, Trace

__all__ = ["Level", "Need", "Needs", "Parts", "Rooms", "gang_leaves"]

_FIELDS: Final = ("gpus", "nodes", "cpus", "memory", "exclusive", "gpu_type", "queue")


@dataclass(frozen=True, slots=True)
class Need:
    """A shape: `nodes` x `each` GPUs, and CPUs and memory on each node.

    `each` is 0 for a job without GPUs and for GPUs that do not divide evenly (`uneven`): those go to as few nodes
    as hold them, `nodes` at best.
    """

    number: int
    gpus: int
    nodes: int
    each: int
    cpus: float = 0.0
    """On each node; 0: its GPUs' share of the node."""
    memory: float = 0.0
    exclusive: bool = False
    fixed: bool = False
    """So many nodes were asked for: it is never spread over more."""
    uneven: bool = False
    leaves: int = 1
    """Fewest leaves that can ever hold it."""
    groups: tuple[int, ...] = field(default=(), repr=False)
    """The cluster's groups of nodes that it may use."""
    everywhere: bool = True
    """It may use them all."""
    why: str = ""
    """Why no place can ever hold it; empty: one can."""


Parts: TypeAlias = tuple[tuple[int, int], ...]
"""Where a job runs: (node, GPUs there)."""


class Level(IntEnum):
    """How near each other a job's GPUs must be."""

    COMPACT = 0
    """On as few nodes, under as few leaves, as could hold it."""
    LEAF = 1
    """Under as few leaves as could hold it, on any of their nodes."""
    ANY = 2
    """Wherever GPUs are free; compact where that is to be had at the moment."""


class Rooms(Protocol):
    """Free GPUs, CPUs and memory by node, and how a need is placed on them."""

    nodes: int
    gpus: int
    free_gpus: int
    held_cpus: float
    held_memory: float

    def free_for(self, need: Need) -> int:
        """Free GPUs on all nodes that it may use."""
        ...

    def fits(self, need: Need, level: Level) -> bool:
        """Whether `find` would find a place."""
        ...

    def find(self, need: Need, level: Level) -> Parts | None:
        """A place that is free; None: there is none. Nothing is taken yet."""
        ...

    def take(self, parts: Parts, need: Need) -> None:
        """The place is in use from here on."""
        ...

    def give(self, parts: Parts, need: Need) -> None:
        """The place is free again."""
        ...

    def holds(self, parts: Parts, need: Need) -> bool:
        """Whether just this place is free."""
        ...

    def view(self, need: Need, level: Level) -> tuple[int, ...]:
        """Nodes on which a gang may get its GPUs together, emptiest first: at `COMPACT` as many as it needs, of the
        emptiest leaves, free or not; at `LEAF` all of those leaves; at `ANY` as many as have the free GPUs."""
        ...

    def most_on(self, node: int, need: Need) -> int:
        """GPUs of that node that the need could have now."""
        ...

    def leaves(self, parts: Parts) -> int:
        """Leaves that the place is under."""
        ...

    def largest(self) -> int:
        """Most free GPUs on one node."""
        ...

    def copy(self) -> Rooms:
        """The same room, to try things in."""
        ...


class Needs:
    """The needs of a trace on a cluster: `of` is each job's number into `listed`."""

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        self.cluster = cluster
        by_queue = any(group.partitions for group in cluster.nodes)
        codes = np.zeros(len(trace), np.int64)
        for name in _FIELDS:
            if name == "queue" and not by_queue:
                continue
            _, code = np.unique(trace[name], return_inverse=True)
            if len(code) and code.max():
                # Renumbered at each column: the codes stay below jobs x jobs.
                _, codes = np.unique(codes * (int(code.max()) + 1) + code, return_inverse=True)
        _, first, of = np.unique(codes, return_index=True, return_inverse=True)
        self.of: NDArray[np.int64] = of.astype(np.int64)
        self.listed: list[Need] = []
        self._settled = 0
        self._sized: dict[tuple[int, int], int] = {}
        self._grids: dict[tuple[object, ...], int | None] = {}
        for row in first.tolist():
            job = trace.job(row)
            groups = self._groups(job.gpu_type, job.queue if by_queue else "")
            asked = job.gpus, job.nodes, job.cpus, job.memory, job.exclusive
            self._add(asked, groups, job.gpu_type)

    @property
    def by_gpus_alone(self) -> bool:
        """Whether GPUs are all that jobs ask for: then a node is its free GPUs, and no more."""
        return all(
            need.gpus > 0 and not need.cpus and not need.memory and not need.exclusive
            for need in self.listed
            if not need.why
        )

    def sized(self, need: Need, gpus: int, idle: Rooms) -> Need:
        """The need of the same job on other GPUs, CPUs and memory in proportion; itself where no place holds that."""
        if gpus == need.gpus:
            return need
        key = need.number, gpus
        if key not in self._sized:
            part = gpus / need.gpus if need.gpus else 1.0
            cpus, memory = need.cpus * need.nodes * part, need.memory * need.nodes * part
            self._sized[key] = self._add((gpus, 0, cpus, memory, False), need.groups).number
            self.settle(idle)
        found = self.listed[self._sized[key]]
        return need if found.why else found

    def _groups(self, gpu_type: str, queue: str) -> tuple[int, ...]:
        return tuple(
            number
            for number, group in enumerate(self.cluster.nodes)
            if (not gpu_type or group.gpu_type == gpu_type)
            and (not group.partitions or not queue or queue in group.partitions)
        )

    def settle(self, idle: Rooms) -> None:
        """Of those not looked at yet: how few leaves of the idle cluster hold it, or why none does."""
        for number in range(self._settled, len(self.listed)):
            need = self.listed[number]
            if not need.why:
                self.listed[number] = self._at_best(need, idle)
        self._settled = len(self.listed)

    def _at_best(self, need: Need, room: Rooms) -> Need:
        if room.find(need, Level.ANY) is not None:
            for leaves in range(1, len(self.cluster.nodes) + 1):
                best = replace(need, leaves=leaves)
                parts = room.find(best, Level.LEAF if need.uneven else Level.COMPACT)
                if parts is not None:
                    if not need.uneven:
                        return best
                    # GPUs that do not divide evenly: as few nodes as those under so few leaves.
                    nodes, part = len(parts), need.nodes / len(parts)
                    return replace(best, nodes=nodes, cpus=need.cpus * part, memory=need.memory * part)
        words = [count(need.gpus if need.uneven else need.each, "GPU")] if need.gpus else []
        words += [f"{need.cpus:g} CPUs"] * bool(need.cpus) + [f"{need.memory:g} MiB"] * bool(need.memory)
        asked = " with ".join((words[0], ", ".join(words[1:]))) if words[1:] else words[0]
        if need.nodes > 1 and not need.uneven:
            asked = f"{need.nodes} nodes of {asked}"
        return replace(need, why=f"the cluster has no {asked} that it may use")

    def _add(
        self, asked: tuple[int, int, float, float, bool], groups: tuple[int, ...], gpu_type: str = ""
    ) -> Need:
        gpus, nodes, cpus, memory, exclusive = asked
        where = [self.cluster.nodes[number] for number in groups if self.cluster.nodes[number].count]
        why, uneven = "", False
        if gpus and nodes and gpus % nodes:
            nodes = 0
        fixed = nodes > 0
        if not where:
            why, nodes = "no node is of its kind", 1
        elif gpus and not nodes:
            shape = self._grid(gpus, cpus, memory, where, gpu_type)
            uneven, nodes = shape is None, shape or _fewest(gpus, where)
        elif not nodes:
            most = max(group.cpus for group in where)
            nodes = max(1, math.ceil(cpus / most)) if most else 1
        need = Need(
            len(self.listed),
            gpus,
            nodes,
            0 if uneven else gpus // nodes,
            cpus / nodes if cpus or gpus else 1.0,
            memory / nodes,
            exclusive,
            fixed,
            uneven,
            groups=groups,
            everywhere=len(groups) == len(self.cluster.nodes),
            why=why,
        )
        self.listed.append(need)
        return need

    def _grid(self, gpus: int, cpus: float, memory: float, where: list[Nodes], gpu_type: str) -> int | None:
        """Nodes of `decide`'s closed shape; None: they do not divide evenly over the nodes there are."""
        key = gpus, cpus, memory, gpu_type, tuple(id(group) for group in where)
        if key not in self._grids:
            groups = tuple(
                Group(
                    ((group.gpu_type, group.gpus),) if group.gpus else (),
                    int(group.cpus),
                    int(group.memory),
                    frozenset(),
                    # only how many they are counts
                    nodes=("",) * group.count,
                    usable=group.count,
                )
                for group in where
            )
            shape = Shape(
                gpus,
                gpu_type,
                cpus_per_gpu=math.ceil(cpus / gpus) or None,
                memory_per_gpu=math.ceil(memory / gpus) or None,
            )
            ask = grid.Ask(Asked(), shape, SlurmFacts())
            found = grid.close(ask, Place(Pool("replay"), groups))
            self._grids[key] = found.nodes if isinstance(found, grid.Grid) else None
        return self._grids[key]


def gang_leaves(need: Need, amounts: Mapping[int, float], free: Sequence[float]) -> list[int]:
    """Leaves on which a gang gets its GPUs together: the emptiest that could hold it, or the largest few.

    `amounts` are, by leaf, the nodes that could hold a part of it; GPUs where it is uneven.
    """
    wanted = need.gpus if need.uneven else need.nodes
    able = [leaf for leaf, amount in amounts.items() if amount >= wanted]
    if need.leaves == 1 and able:
        return [max(able, key=lambda leaf: (free[leaf], -leaf))]
    return sorted(amounts, key=lambda leaf: (-amounts[leaf], leaf))[: need.leaves]


def _fewest(gpus: int, where: list[Nodes]) -> int:
    """Fewest nodes, largest first, that have so many GPUs together."""
    nodes = 0
    for group in sorted(where, key=lambda g: -g.gpus):
        if not group.gpus:
            break
        taken = min(group.count, -(-gpus // group.gpus))
        nodes += taken
        gpus -= taken * group.gpus
        if gpus <= 0:
            break
    return max(nodes, 1)
