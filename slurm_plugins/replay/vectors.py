"""What is free on a cluster's nodes where jobs state CPUs or memory, or have no GPUs: NumPy vectors over nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.needs import Level, Need, Parts, gang_leaves
from slurm_plugins.replay.values import Cluster

__all__ = ["Vectors"]

_EPS = 1e-6
Array = NDArray[Any]


class Vectors:
    """As `Room`, with CPUs, memory and exclusive nodes: each look goes over all nodes at once."""

    def __init__(self, cluster: Cluster, packing: str = "pack") -> None:
        self.packing = packing
        groups = cluster.nodes
        counts = [group.count for group in groups]
        leaves = {leaf: number for number, leaf in enumerate(dict.fromkeys(g.leaf for g in groups))}

        def spread(values: list[Any], kind: type) -> Array:
            return np.repeat(np.array(values, kind), counts)

        self._gpus = spread([g.gpus for g in groups], np.int64)
        self._cpus = spread([g.cpus for g in groups], np.float64)
        self._memory = spread([g.memory for g in groups], np.float64)
        self._leaf = spread([leaves[g.leaf] for g in groups], np.int64)
        self._group = spread(list(range(len(groups))), np.int64)
        self._leaves = len(leaves)
        self._fg, self._fc, self._fm = self._gpus.copy(), self._cpus.copy(), self._memory.copy()
        self._jobs = np.zeros(len(self._gpus), np.int64)
        self.nodes = len(self._gpus)
        self.gpus = self.free_gpus = int(self._gpus.sum())
        self.held_cpus = self.held_memory = 0.0
        self._able: dict[int, Array] = {}
        self._asks: dict[int, tuple[Any, Any]] = {}

    def copy(self) -> Vectors:
        """The same room, to try things in."""
        twin = object.__new__(Vectors)
        twin.__dict__.update(self.__dict__)
        twin._fg, twin._fc, twin._fm = self._fg.copy(), self._fc.copy(), self._fm.copy()
        twin._jobs = self._jobs.copy()
        return twin

    def _may(self, need: Need) -> Array:
        found = self._able.get(need.number)
        if found is None:
            found = self._able[need.number] = np.isin(self._group, need.groups)
        return found

    def _ask(self, need: Need) -> tuple[Any, Any]:
        """CPUs and memory on a node: as stated, else the share of the node that its GPUs are."""
        found = self._asks.get(need.number)
        if found is None:
            part = need.each / np.maximum(self._gpus, 1)
            found = self._asks[need.number] = (
                need.cpus or self._cpus * part,
                need.memory or self._memory * part,
            )
        return found

    def free_for(self, need: Need) -> int:
        """Free GPUs on all nodes that it may use."""
        return self.free_gpus if need.everywhere else int(self._fg[self._may(need)].sum())

    def holds(self, parts: Parts, need: Need) -> bool:
        """Whether just this place is free."""
        if need.exclusive:
            return all(not self._jobs[node] for node, _ in parts)
        return all(
            gpus <= self._fg[node]
            and all(
                asked <= free[node] + _EPS
                for asked, free in zip(self._share(need, node, gpus), (self._fc, self._fm), strict=True)
            )
            for node, gpus in parts
        )

    def most_on(self, node: int, need: Need) -> int:
        """GPUs of that node that the need could have now."""
        return int(self._most(need)[node])

    def view(self, need: Need, level: Level) -> tuple[int, ...]:
        """Nodes on which a gang may get its GPUs together."""
        most = self._most(need)
        if level == Level.ANY:
            order = np.argsort(-most, kind="stable")
            return tuple(order[most[order] > 0].tolist())
        able = self._gpus >= max(need.each, 1)
        if not need.everywhere:
            able &= self._may(need)
        worth = np.where(able, self._gpus if need.uneven else 1, 0)
        amounts = np.bincount(self._leaf, weights=worth, minlength=self._leaves)
        free = np.bincount(self._leaf, weights=most, minlength=self._leaves)
        chosen = gang_leaves(need, dict(enumerate(amounts.tolist())), free.tolist())
        nodes = np.flatnonzero(able & np.isin(self._leaf, chosen))
        sizes = self._gpus[nodes] if need.uneven else np.zeros(len(nodes))
        best = nodes[np.lexsort((nodes, -most[nodes], -sizes))]
        return tuple((best if level == Level.LEAF else best[: need.nodes]).tolist())

    def leaves(self, parts: Parts) -> int:
        """Leaves that the place is under."""
        return len({int(self._leaf[node]) for node, _ in parts})

    def largest(self) -> int:
        """Most free GPUs on one node."""
        return int(self._fg.max()) if self.nodes else 0

    # -- taking and giving

    def take(self, parts: Parts, need: Need) -> None:
        """The place is in use from here on."""
        self._change(parts, need, -1)

    def give(self, parts: Parts, need: Need) -> None:
        """The place is free again."""
        self._change(parts, need, 1)

    def _change(self, parts: Parts, need: Need, sign: int) -> None:
        for node, gpus in parts:
            if need.exclusive:
                gpus = int(self._gpus[node])  # noqa: PLW2901
                cpus, memory = float(self._cpus[node]), float(self._memory[node])
            else:
                cpus, memory = self._share(need, node, gpus)
            self._fg[node] += sign * gpus
            self._fc[node] += sign * cpus
            self._fm[node] += sign * memory
            self._jobs[node] -= sign
            if self._fg[node] < 0 or self._fc[node] < -_EPS * 1e3 or self._fm[node] < -1.0:
                raise ValueError(f"node {node} has less than {gpus} GPUs, {cpus:g} CPUs and {memory:g} MiB")
            if not self._jobs[node]:
                # What floating point left over.
                self._fc[node], self._fm[node] = self._cpus[node], self._memory[node]
            self.free_gpus += sign * gpus
            self.held_cpus -= sign * cpus
            self.held_memory -= sign * memory

    def _share(self, need: Need, node: int, gpus: int) -> tuple[float, float]:
        """CPUs and memory that go with so many GPUs of that node."""
        part = 1.0 if gpus == need.each else gpus * need.nodes / need.gpus
        of_node = gpus / max(int(self._gpus[node]), 1)
        return (
            need.cpus * part if need.cpus else float(self._cpus[node]) * of_node,
            need.memory * part if need.memory else float(self._memory[node]) * of_node,
        )

    # -- looking

    def _fit(self, need: Need) -> Array:
        """Nodes that have what one node of the need takes now."""
        if need.exclusive:
            ok = self._jobs == 0
            if need.each:
                ok &= self._gpus >= need.each
            if need.cpus:
                ok &= self._cpus >= need.cpus
            if need.memory:
                ok &= self._memory >= need.memory
        else:
            cpus, memory = self._ask(need)
            ok = (self._fg >= need.each) & (self._fc >= cpus - _EPS) & (self._fm >= memory - _EPS)
        if not need.everywhere:
            ok &= self._may(need)
        return np.flatnonzero(ok)

    def fits(self, need: Need, level: Level) -> bool:
        """Whether `find` would find a place."""
        return self.find(need, level) is not None

    def find(self, need: Need, level: Level) -> Parts | None:
        """A place that is free; None: there is none."""
        if need.gpus and self.free_gpus < need.gpus:
            return None
        if not need.uneven:
            parts = self._even(need, self._fit(need), level)
            if parts is not None or need.fixed or level == Level.COMPACT or need.gpus < 2 or need.exclusive:
                return parts
        return self._scattered(need, level)

    def _fullest(self, nodes: Array, need: Need) -> Array:
        """In the order in which they are taken: by free GPUs, then free CPUs, then number."""
        sign = 1 if self.packing == "pack" or (self.packing == "rank" and need.gpus < 2) else -1
        if self.packing == "rank" and sign < 0:
            free = np.bincount(self._leaf, weights=self._fg, minlength=self._leaves)
            return nodes[np.lexsort((nodes, -self._fc[nodes], -self._fg[nodes], -free[self._leaf[nodes]]))]
        return nodes[np.lexsort((nodes, sign * self._fc[nodes], sign * self._fg[nodes]))]

    def _even(self, need: Need, able: Array, level: Level) -> Parts | None:
        wanted = need.nodes
        if len(able) < wanted:
            return None
        if wanted == 1:
            best = self._fullest(able, need)[0]
            return ((int(best), need.each),)
        counts = np.bincount(self._leaf[able], minlength=self._leaves)
        if counts.max() >= wanted:
            enough = np.flatnonzero(counts >= wanted)
            leaf = enough[np.argmin(counts[enough]) if self.packing == "pack" else np.argmax(counts[enough])]
            leaves = [int(leaf)]
        else:
            if need.leaves == 1 and level != Level.ANY:
                return None
            order = np.argsort(-counts, kind="stable")
            number = int(np.searchsorted(np.cumsum(counts[order]), wanted)) + 1
            if level != Level.ANY and number > need.leaves:
                return None
            leaves = order[:number].tolist()
        nodes: list[int] = []
        for leaf_number in leaves:
            nodes += self._fullest(able[self._leaf[able] == leaf_number], need).tolist()
        return tuple((node, need.each) for node in nodes[:wanted])

    def _most(self, need: Need) -> Array:
        """Node -> GPUs that the need could have there, with the CPUs and memory that go with them."""
        room: Array = self._fg
        for free, whole, stated in ((self._fc, self._cpus, need.cpus), (self._fm, self._memory, need.memory)):
            share = stated * need.nodes / need.gpus if stated else whole / np.maximum(self._gpus, 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                most = np.where(share > 0, (free + _EPS) / share, self._fg)
            room = np.minimum(room, np.floor(most).astype(np.int64))
        if need.exclusive:
            room = np.where(self._jobs == 0, room, 0)
        return room if need.everywhere else np.where(self._may(need), room, 0)

    def _scattered(self, need: Need, level: Level) -> Parts | None:
        """Whatever GPUs are free with the CPUs and memory that go with them, emptiest nodes first."""
        room = self._most(need)
        if level != Level.ANY:
            by_leaf = np.bincount(self._leaf, weights=room, minlength=self._leaves)
            chosen = np.argsort(-by_leaf, kind="stable")[: need.leaves]
            room = np.where(np.isin(self._leaf, chosen), room, 0)
        order = np.argsort(-room, kind="stable")
        left, parts = need.gpus, []
        for node in order.tolist():
            most_here = int(room[node])
            if most_here <= 0:
                return None
            parts.append((node, min(most_here, left)))
            left -= most_here
            if left <= 0:
                return None if level == Level.COMPACT and len(parts) > need.nodes else tuple(parts)
        return None
