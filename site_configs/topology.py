"""How a cluster's nodes hang together: leaves, distances, and how few leaves can hold a job.

A `Topology` is a value: it is read once (`load_topologies`) and never changes. Every source ends in the same
shape, a forest whose lowest level holds the nodes:

=========== ==================== ==========================================
kind        a leaf is            what joins leaves
=========== ==================== ==========================================
tree        a leaf switch        the switches above it
block       a block              the aggregated blocks of BlockSizes
features    a feature (leaf1)    one unnamed network
flat        the whole cluster    nothing to join
ring        a ring               nothing: a job stays inside one ring
torus3d     a torus              nothing: a job stays inside one torus
=========== ==================== ==========================================

>>> topology = Topology.tree({"leaf1": ["n1", "n2"], "leaf2": ["n3"]}, {"leaf1": "spine", "leaf2": "spine"})
>>> topology.leaf_of("n3"), topology.distance("n1", "n2"), topology.distance("n1", "n3")
('leaf2', 1, 3)
>>> topology.fewest_leaves({"n1": 8, "n2": 8, "n3": 8}, gpus=24)
2
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, overload

from site_configs.hostlist import fold, natural

__all__ = ["Kind", "Topologies", "Topology", "TopologyError", "load_topologies"]

Kind = Literal["tree", "block", "flat", "features", "ring", "torus3d"]


class TopologyError(Exception):
    """A topology that cannot be used.

    The message is at most three lines: where and what, then the remedy. `file`, `line` (from 1, 0 when the
    whole file is meant), `text` (the faulty piece, shortened), `problem` and `remedy` are kept apart for
    programs.
    """

    def __init__(self, problem: str, remedy: str, *, file: str = "", line: int = 0, text: str = "") -> None:
        self.file = file
        self.line = line
        self.text = _printable(text)
        self.problem = problem
        self.remedy = remedy
        where = f"{file or 'topology'}:{line}" if line else file or "topology"
        said = f"\n  {self.text}" if self.text else ""
        super().__init__(f"{where}: {problem}{said}\n{remedy}")


def _printable(text: str, width: int = 100) -> str:
    """One line that a terminal shows as it is: what comes from a file may hold anything."""
    line = "".join(char if char.isprintable() else "?" for char in text.strip())
    return line if len(line) <= width else line[: width - 1] + "…"


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes, the leaves that hold them, and what joins the leaves.

    Build one with `tree`, `block`, `flat`, `from_features`, or read one with `load_topologies`.
    """

    kind: Kind
    leaves: Mapping[str, frozenset[str]] = field(hash=False)
    """Leaf -> its nodes; leaves in natural order. No node is under two leaves."""
    parents: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Switch or aggregate -> the one above it; a root is no key."""
    block_sizes: tuple[int, ...] = ()
    """BlockSizes of a block topology in nodes, smallest first; empty otherwise."""
    name: str = ""
    """Its name in topology.yaml; empty where there is only one."""
    _leaf_of: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _paths: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the value once. Raises TopologyError where it would contradict itself."""
        leaf_of: dict[str, str] = {}
        for leaf, nodes in self.leaves.items():
            for node in nodes:
                if node in leaf_of:
                    raise TopologyError(
                        f"node {node} is under two leaves, {leaf_of[node]} and {leaf}",
                        "Leave it under one of them: distances and --switches have no meaning otherwise.",
                        text=leaf,
                    )
                leaf_of[node] = leaf
        object.__setattr__(self, "_leaf_of", leaf_of)
        paths = {switch: self._climb(switch) for switch in (*self.leaves, *self.parents)}
        object.__setattr__(self, "_paths", {leaf: paths[leaf] for leaf in self.leaves})

    def _climb(self, switch: str) -> tuple[str, ...]:
        """A switch and all above it, the root last."""
        path = {switch: None}
        while (above := self.parents.get(next(reversed(path)))) is not None:
            if above in path:
                raise TopologyError(
                    f"the switches {' -> '.join([*path, above])} form a circle",
                    "A switch cannot be above itself: remove one of these links.",
                    text=above,
                )
            path[above] = None
        return tuple(path)

    # How to build one

    @classmethod
    def tree(
        cls, leaves: Mapping[str, Iterable[str]], parents: Mapping[str, str], name: str = ""
    ) -> Topology:
        """A tree: leaf switch -> nodes, switch -> the one above it. Several roots are fine, as in Slurm."""
        return cls("tree", _ordered(leaves), dict(parents), name=name)

    @classmethod
    def block(
        cls, blocks: Mapping[str, Iterable[str]], sizes: Iterable[int] = (), name: str = ""
    ) -> Topology:
        """Blocks in the order of the file, and the planning sizes that join neighbours into aggregates.

        With sizes 4 and 16, four blocks in a row make an aggregate of 16 (topology.conf(5), BlockSizes).
        Beyond the largest size one network joins everything: a job may span it.
        """
        sizes = tuple(sizes)
        parents: dict[str, str] = {}
        below = list(blocks)
        for level, (size, smaller) in enumerate(zip(sizes[1:], sizes, strict=False), start=1):
            width = max(size // smaller, 1)
            aggregates = [f"aggregate {level}.{i // width}" for i in range(len(below))]
            parents.update(zip(below, aggregates, strict=True))
            below = list(dict.fromkeys(aggregates))
        if len(below) > 1:
            parents.update(dict.fromkeys(below, _NETWORK))
        return cls("block", _ordered(blocks), parents, sizes, name)

    @classmethod
    def flat(cls, nodes: Iterable[str] = (), name: str = "") -> Topology:
        """All nodes are equally near: topology/flat, called topology/none or default before 25.05."""
        nodes = frozenset(nodes)
        return cls("flat", {"all": nodes} if nodes else {}, name=name)

    @classmethod
    def islands(
        cls, kind: Literal["ring", "torus3d"], leaves: Mapping[str, Iterable[str]], name: str = ""
    ) -> Topology:
        """Rings or tori, none of which reaches another."""
        return cls(kind, _ordered(leaves), name=name)

    @classmethod
    def from_features(cls, features: Mapping[str, Iterable[str]], prefix: str = "leaf") -> Topology:
        """Leaves from node -> its features, where Slurm has no topology plugin; `prefix` marks a leaf's name.

        >>> Topology.from_features({"n1": ["a100", "leaf1"], "n2": ["leaf2"]}).leaf_of("n2")
        'leaf2'

        Raises TopologyError for a node with no or several such features.
        """
        leaves: dict[str, set[str]] = {}
        for node, words in features.items():
            found = sorted({word for word in words if word.startswith(prefix) and word != prefix})
            if len(found) != 1:
                has = (
                    f"two features that name a leaf, {found[0]} and {found[1]}"
                    if found
                    else "no feature that names a leaf"
                )
                raise TopologyError(
                    f"node {node} has {has}",
                    f'Give each node one feature that starts with "{prefix}" (Features= in slurm.conf).',
                    file="node features",
                    text=",".join(words),
                )
            leaves.setdefault(found[0], set()).add(node)
        return cls("features", _ordered(leaves), dict.fromkeys(leaves, _NETWORK) if len(leaves) > 1 else {})

    # What to ask one

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes in natural order."""
        return tuple(sorted(self._leaf_of, key=natural))

    @property
    def fabrics(self) -> tuple[frozenset[str], ...]:
        """Leaves that reach each other, as one set a fabric. Slurm places no job across two of them."""
        by_root: dict[str, set[str]] = {}
        for leaf, path in self._paths.items():
            by_root.setdefault(path[-1], set()).add(leaf)
        return tuple(frozenset(leaves) for leaves in by_root.values())

    def __contains__(self, node: object) -> bool:
        return node in self._leaf_of

    def __len__(self) -> int:
        return len(self._leaf_of)

    def __bool__(self) -> bool:
        """True: a flat topology that lists no nodes is still a topology."""
        return True

    def __str__(self) -> str:
        return " ".join(f"{leaf}={fold(nodes)}" for leaf, nodes in self.leaves.items()) or self.kind

    def leaf_of(self, node: str) -> str | None:
        """The leaf that holds a node; None for a node that the topology does not know."""
        return self._leaf_of.get(node)

    def distance(self, a: str, b: str) -> float:
        """Switches between two nodes: 0 to itself, 1 under one leaf, 3 over one spine, inf without a way.

        A metric over the known nodes. For a flat topology without nodes every two nodes are 1 apart.
        """
        if a == b:
            return 0
        if self.kind == "flat" and not self._leaf_of:
            return 1
        here, there = self._leaf_of.get(a), self._leaf_of.get(b)
        if here is None or there is None:
            return math.inf
        up = {switch: steps for steps, switch in enumerate(self._paths[here])}
        for down, switch in enumerate(self._paths[there]):
            if switch in up:
                return up[switch] + down + 1
        return math.inf

    def leaves_of(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The leaves that nodes span, in natural order; a node that the topology does not know adds none."""
        return tuple(
            sorted({leaf for node in nodes if (leaf := self._leaf_of.get(node)) is not None}, key=natural)
        )

    @overload
    def fewest_leaves(self, free: Mapping[str, int], *, gpus: int) -> int | None: ...
    @overload
    def fewest_leaves(self, free: Mapping[str, int], *, nodes: int, gpus_per_node: int) -> int | None: ...
    def fewest_leaves(
        self, free: Mapping[str, int], *, gpus: int = 0, nodes: int = 0, gpus_per_node: int = 0
    ) -> int | None:
        """The k of ``--switches=k``: fewest leaves of one fabric that can hold a job, or None when none can.

        `free` is GPUs per node (free ones, or all of them for "could ever"). The job is either `gpus` in any
        shape, or `nodes` nodes with `gpus_per_node` each. In a ring or torus this is a lower bound: Slurm
        also wants neighbours there. Raises ValueError for a job of nothing.
        """
        need = gpus or nodes
        if need < 1 or (nodes and gpus_per_node < 1) or (gpus and nodes):
            raise ValueError(
                f"not the shape of a job: gpus={gpus} nodes={nodes} gpus_per_node={gpus_per_node}"
            )
        holds: Callable[[int], int] = (lambda n: max(n, 0)) if gpus else (lambda n: int(n >= gpus_per_node))
        if self.kind == "flat" and not self._leaf_of:
            return 1 if sum(map(holds, free.values())) >= need else None
        room = dict.fromkeys(self.leaves, 0)
        for node, count in free.items():
            if (leaf := self._leaf_of.get(node)) is not None:
                room[leaf] += holds(count)
        # The largest leaves first is optimal: any k leaves hold at most what the k largest hold.
        answers = [
            _count_until(need, sorted((room[leaf] for leaf in fabric), reverse=True))
            for fabric in self.fabrics
        ]
        return min((k for k in answers if k is not None), default=None)


_NETWORK = "(network)"  # joins what a source leaves unnamed; no switch can be called so


def _ordered(leaves: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {leaf: frozenset(leaves[leaf]) for leaf in sorted(leaves, key=natural)}


def _count_until(need: int, rooms: list[int]) -> int | None:
    for k, room in enumerate(rooms, start=1):
        need -= room
        if need <= 0:
            return k
    return None


def load_topologies(path: str | os.PathLike[str], nodes: Iterable[str] = ()) -> Topologies:
    """Read topology.yaml (a name that ends so, or in .yml) or topology.conf.

    `nodes` are the cluster's, for flat topologies, which list none. Raises TopologyError, for an unreadable
    file too.
    """
    if os.fspath(path).endswith((".yaml", ".yml")):
        from site_configs import topology_yaml  # PyYAML is a tenth of what gsub imports

        return topology_yaml.load(path, nodes)
    from site_configs import topology_conf

    topology = topology_conf.load(path)
    return Topologies({topology.name: topology}, topology.name)


@dataclass(frozen=True, slots=True)
class Topologies:
    """The topologies of one cluster by name, and which one a partition gets that names none."""

    by_name: Mapping[str, Topology] = field(hash=False)
    default: str

    def of(self, name: str | None = None) -> Topology:
        """The topology that a partition names (``Topology=``), or the cluster's default. Raises KeyError."""
        return self.by_name[self.default if name is None else name]
