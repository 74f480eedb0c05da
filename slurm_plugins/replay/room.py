"""What is free on a cluster's nodes where GPUs are all that counts: nodes by free GPUs, as bits of whole numbers.

A cell is the nodes of one size under one leaf. For each cell and each count of free GPUs a whole number has a bit for
each node; for each count another has a bit for each cell that has such a node. To find the fullest node that holds a
job, to take it and to give it back costs the same on ten nodes and on ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_plugins.replay.needs import Level, Need, Parts, gang_leaves
from slurm_plugins.replay.values import Cluster

__all__ = ["Room"]


class Room:
    """Free GPUs by node; packing is "pack", "rank" or "spread" as in `Policy`."""

    def __init__(self, cluster: Cluster, packing: str = "pack") -> None:
        self.packing = packing
        self.top = max((group.gpus for group in cluster.nodes), default=0)
        leaves = {leaf: number for number, leaf in enumerate(dict.fromkeys(g.leaf for g in cluster.nodes))}
        self._free: list[int] = []
        self._cell: list[int] = []
        self._bit: list[int] = []
        self._first: list[int] = []  # number of a cell's first node
        self._leaf: list[int] = []  # by cell
        self._size: list[tuple[int, float, float]] = []  # GPUs, CPUs and memory of a node, by cell
        for group in cluster.nodes:
            self._first.append(len(self._free))
            self._leaf.append(leaves[group.leaf])
            self._size.append((group.gpus, group.cpus, group.memory))
            self._free += [group.gpus] * group.count
            self._cell += [len(self._leaf) - 1] * group.count
            self._bit += [1 << bit for bit in range(group.count)]
        cells = len(self._leaf)
        self.nodes = len(self._free)
        self._leaves = len(leaves)
        self._one_cell_a_leaf = self._leaves == cells
        self._cells_of: list[list[int]] = [[] for _ in leaves]
        for cell, leaf in enumerate(self._leaf):
            self._cells_of[leaf].append(cell)
        counts = [group.count for group in cluster.nodes]
        self._count = counts
        gpus = [group.gpus for group in cluster.nodes]
        self._with = [[0] * (self.top + 1) for _ in range(cells)]  # cell -> free GPUs -> its nodes
        self._cells = [0] * (self.top + 1)  # free GPUs -> cells that have such a node
        for cell, (count, most) in enumerate(zip(counts, gpus, strict=True)):
            self._with[cell][most] = (1 << count) - 1
            if count:
                self._cells[most] |= 1 << cell
        # free GPUs or more -> cell -> nodes, and over all cells
        self._least = [
            [count if most >= least else 0 for count, most in zip(counts, gpus, strict=True)]
            for least in range(self.top + 1)
        ]
        self._least_all = [sum(row) for row in self._least]
        self._cell_free = [count * most for count, most in zip(counts, gpus, strict=True)]
        self.gpus = self.free_gpus = sum(self._cell_free)
        self.held_cpus = self.held_memory = 0.0
        self._every = (1 << cells) - 1
        self._able: dict[int, tuple[int, frozenset[int]]] = {}

    def copy(self) -> Room:
        """The same room, to try things in."""
        twin = object.__new__(Room)
        twin.__dict__.update(self.__dict__)
        twin._free = self._free.copy()
        twin._with = [row.copy() for row in self._with]
        twin._cells = self._cells.copy()
        twin._least = [row.copy() for row in self._least]
        twin._least_all = self._least_all.copy()
        twin._cell_free = self._cell_free.copy()
        return twin

    def _may(self, need: Need) -> tuple[int, frozenset[int]]:
        """Cells that the need may use, as bits and as a set."""
        found = self._able.get(need.number)
        if found is None:
            bits = sum(1 << cell for cell in need.groups)
            found = self._able[need.number] = bits, frozenset(need.groups)
        return found

    def free_for(self, need: Need) -> int:
        """Free GPUs on all nodes that it may use."""
        if need.everywhere:
            return self.free_gpus
        return sum(self._cell_free[cell] for cell in need.groups)

    def holds(self, parts: Parts, need: Need) -> bool:
        """Whether just this place is free."""
        return all(gpus <= self._free[node] for node, gpus in parts)

    def most_on(self, node: int, need: Need) -> int:
        """GPUs of that node that the need could have now."""
        return self._free[node] if need.everywhere or self._cell[node] in self._may(need)[1] else 0

    def view(self, need: Need, level: Level) -> tuple[int, ...]:
        """Nodes on which a gang may get its GPUs together."""
        may = self._may(need)[1]
        if level == Level.ANY:
            found: list[int] = []
            left = need.gpus
            for free in range(self.top, 0, -1):
                for cell in sorted(may, key=lambda c: (-self._cell_free[c], c)) if self._cells[free] else ():
                    for node in self._listed(cell, (free,)):
                        found.append(node)
                        left -= free
                        if left <= 0:
                            return tuple(found)
            return tuple(found)
        amounts: dict[int, int] = {}
        for cell in need.groups:
            gpus, nodes = self._size[cell][0], self._count[cell]
            if gpus >= max(need.each, 1):
                leaf = self._leaf[cell]
                amounts[leaf] = amounts.get(leaf, 0) + (gpus * nodes if need.uneven else nodes)
        leaves = gang_leaves(need, amounts, self._leaf_free())
        able = [
            c for leaf in leaves for c in self._cells_of[leaf] if c in may and self._size[c][0] >= need.each
        ]
        keys = [
            (-self._size[cell][0] if need.uneven else 0, -self._free[node], node)
            for cell in able
            for node in range(self._first[cell], self._first[cell] + self._count[cell])
        ]
        ordered = [node for _, _, node in sorted(keys)]
        return tuple(ordered if level == Level.LEAF else ordered[: need.nodes])

    def leaves(self, parts: Parts) -> int:
        """Leaves that the place is under."""
        if len(parts) < 2:
            return len(parts)
        return len({self._leaf[self._cell[node]] for node, _ in parts})

    def largest(self) -> int:
        """Most free GPUs on one node."""
        return next((free for free in range(self.top, 0, -1) if self._cells[free]), 0)

    # -- taking and giving

    def take(self, parts: Parts, need: Need) -> None:
        """The place is in use from here on."""
        for node, gpus in parts:
            free = self._free[node]
            if gpus > free:
                raise ValueError(f"node {node} has {free} free GPUs, not {gpus}")
            self._move(node, free, free - gpus)

    def give(self, parts: Parts, need: Need) -> None:
        """The place is free again."""
        for node, gpus in parts:
            free = self._free[node]
            if free + gpus > self._size[self._cell[node]][0]:
                raise ValueError(f"node {node} gets {gpus} GPUs back that nobody took")
            self._move(node, free, free + gpus)

    def _move(self, node: int, before: int, after: int) -> None:
        cell, bit = self._cell[node], self._bit[node]
        row = self._with[cell]
        row[before] ^= bit
        if not row[before]:
            self._cells[before] ^= 1 << cell
        if not row[after]:
            self._cells[after] |= 1 << cell
        row[after] ^= bit
        self._free[node] = after
        if after < before:
            for least in range(after + 1, before + 1):
                self._least[least][cell] -= 1
                self._least_all[least] -= 1
        else:
            for least in range(before + 1, after + 1):
                self._least[least][cell] += 1
                self._least_all[least] += 1
        change = after - before
        self._cell_free[cell] += change
        self.free_gpus += change
        gpus, cpus, memory = self._size[cell]
        self.held_cpus -= change * cpus / gpus
        self.held_memory -= change * memory / gpus

    # -- looking

    def fits(self, need: Need, level: Level) -> bool:
        """Whether `find` would find a place."""
        if need.uneven:
            return self.find(need, level) is not None
        if need.nodes == 1 and (level == Level.COMPACT or need.fixed or need.gpus == 1):
            return self._has(need)
        if level == Level.ANY and not need.fixed:
            return self.free_for(need) >= need.gpus
        return self.find(need, level) is not None

    def _has(self, need: Need) -> bool:
        if need.everywhere:
            return self._least_all[need.each] > 0
        row = self._least[need.each]
        return any(row[cell] for cell in need.groups)

    def find(self, need: Need, level: Level) -> Parts | None:
        """A place that is free; None: there is none."""
        if not need.uneven:
            parts = self._one(need) if need.nodes == 1 else self._even(need, level)
            if parts is not None or need.fixed or level == Level.COMPACT:
                return parts
            if need.gpus == 1:
                return None
        return self._scattered(need, level)

    def _one(self, need: Need) -> Parts | None:
        each = need.each
        mask = self._every if need.everywhere else self._may(need)[0]
        if self.packing == "pack" or (self.packing == "rank" and each == 1):
            frees: Iterable[int] = range(each, self.top + 1)
        elif self.packing == "rank":
            return self._emptiest(need)
        else:
            frees = range(self.top, each - 1, -1)
        for free in frees:
            cells = self._cells[free] & mask
            if cells:
                cell = (cells & -cells).bit_length() - 1
                nodes = self._with[cell][free]
                return ((self._first[cell] + (nodes & -nodes).bit_length() - 1, each),)
        return None

    def _emptiest(self, need: Need) -> Parts | None:
        """The emptiest node of the emptiest leaf that has one."""
        row, frees = self._least[need.each], self._leaf_free()
        able = [cell for cell in need.groups if row[cell]]
        if not able:
            return None
        cell = max(able, key=lambda c: (frees[self._leaf[c]], -c))
        return ((next(iter(self._emptied(cell, need.each))), need.each),)

    def _leaf_free(self) -> Sequence[int]:
        if self._one_cell_a_leaf:
            return self._cell_free
        return [sum(self._cell_free[cell] for cell in cells) for cells in self._cells_of]

    def _emptied(self, cell: int, least: int) -> Iterable[int]:
        """A cell's nodes that have so many free GPUs, emptiest first."""
        return self._listed(cell, range(self.top, least - 1, -1))

    def _listed(self, cell: int, frees: Iterable[int]) -> Iterable[int]:
        first = self._first[cell]
        for free in frees:
            nodes = self._with[cell][free]
            while nodes:
                low = nodes & -nodes
                yield first + low.bit_length() - 1
                nodes ^= low

    def _even(self, need: Need, level: Level) -> Parts | None:
        """So many nodes with so many GPUs each, under as few leaves as the level asks for."""
        wanted, each = need.nodes, need.each
        if self._least_all[each] < wanted:
            return None
        counts = self._counts(need)
        if self.packing == "spread" and level == Level.ANY:
            return self._over(need, sorted(range(len(counts)), key=lambda leaf: -counts[leaf]))
        if max(counts) >= wanted:
            if self.packing == "rank":
                frees = self._leaf_free()
                best = max((frees[leaf], -leaf) for leaf, count in enumerate(counts) if count >= wanted)
                return self._over(need, [-best[1]])
            return self._over(need, [min((n, leaf) for leaf, n in enumerate(counts) if n >= wanted)[1]])
        if need.leaves == 1 and level != Level.ANY:
            return None
        order = sorted(range(len(counts)), key=lambda leaf: -counts[leaf])
        taken = 0
        for number, leaf in enumerate(order, 1):
            taken += counts[leaf]
            if taken >= wanted:
                return (
                    self._over(need, order[:number]) if level == Level.ANY or number <= need.leaves else None
                )
        return None

    def _counts(self, need: Need) -> Sequence[int]:
        """Leaf -> its nodes that have what one node of the need takes."""
        row = self._least[need.each]
        if self._one_cell_a_leaf and need.everywhere:
            return row
        counts = [0] * self._leaves
        for cell in need.groups:
            counts[self._leaf[cell]] += row[cell]
        return counts

    def _over(self, need: Need, leaves: Iterable[int]) -> Parts:
        """The need's nodes from these leaves, which have enough."""
        frees = range(need.each, self.top + 1)
        if self.packing != "pack":
            frees = frees[::-1]
        parts: list[tuple[int, int]] = []
        may = self._may(need)[1]
        for leaf in leaves:
            for cell in self._cells_of[leaf]:
                if cell in may:
                    for node in self._listed(cell, frees):
                        parts.append((node, need.each))
                        if len(parts) == need.nodes:
                            return tuple(parts)
        raise AssertionError("fewer nodes are free than were counted")

    def _scattered(self, need: Need, level: Level) -> Parts | None:
        """Whatever GPUs are free, emptiest nodes first, under as few leaves as the level asks for."""
        if self.free_for(need) < need.gpus:
            return None
        frees = [0] * self._leaves
        for cell in need.groups:
            frees[self._leaf[cell]] += self._cell_free[cell]
        order = sorted(range(self._leaves), key=lambda leaf: -frees[leaf])
        most = need.leaves if level != Level.ANY else self._leaves
        if level == Level.ANY:
            whole = [leaf for leaf in order if frees[leaf] >= need.gpus]
            order = whole[:1] or order
        parts = self._emptiest_of([c for leaf in order[:most] for c in self._cells_of[leaf]], need)
        if parts is None or (level == Level.COMPACT and len(parts) > need.nodes):
            return None
        return parts

    def _emptiest_of(self, cells: Iterable[int], need: Need) -> Parts | None:
        left = need.gpus
        parts: list[tuple[int, int]] = []
        may = self._may(need)[1]
        able = [cell for cell in cells if cell in may]
        for free in range(self.top, 0, -1):
            for cell in able:
                for node in self._listed(cell, (free,)):
                    parts.append((node, min(free, left)))
                    left -= free
                    if left <= 0:
                        return tuple(parts)
        return None
