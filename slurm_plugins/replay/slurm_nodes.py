"""Which nodes Slurm's select/cons_tres takes for a job: best fit by leaf switch, or by runs of nodes.

Nodes are counted in the order of the cluster. Of those that have what a job takes on each node:

    tree            the leaf that holds the job with the fewest such nodes; where none does, the one with most, then
                    the next; within a leaf the first nodes (`_eval_nodes_topo`)
    consecutive     the same for runs of such nodes next to each other (`_eval_nodes_consec`)
    least loaded    the nodes with most idle CPUs (`_eval_nodes_lln`)

From 26.05 on a job of one node takes the first of them (`_get_one_res`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.values import Cluster, Trace

__all__ = ["Mask", "Need", "Places", "State", "needs"]

Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Need:
    """What a job takes on each of its nodes; `whole`: all of them to itself."""

    nodes: int
    gpus: int
    cpus: float
    memory: float
    gpu_type: str = ""
    queue: str = ""
    whole: bool = False


class State:
    """What is free on each node."""

    __slots__ = ("_fits", "cpus", "gpus", "jobs", "memory")

    def __init__(
        self, gpus: NDArray[np.int64], cpus: NDArray[np.float64], memory: NDArray[np.float64]
    ) -> None:
        self.gpus, self.cpus, self.memory = gpus, cpus, memory
        self.jobs = np.zeros(len(gpus), np.int64)
        self._fits: dict[Need, Mask] = {}

    def copy(self) -> State:
        """The same, to try things in."""
        twin = State(self.gpus.copy(), self.cpus.copy(), self.memory.copy())
        twin.jobs = self.jobs.copy()
        return twin

    def take(self, nodes: NDArray[np.int64], need: Need, sign: int = 1) -> None:
        """The job is there from now on; `sign` -1: no longer."""
        self.gpus[nodes] -= sign * need.gpus
        self.cpus[nodes] -= sign * need.cpus
        self.memory[nodes] -= sign * need.memory
        self.jobs[nodes] += sign
        self._fits.clear()

    def fits(self, need: Need) -> Mask:
        """Nodes with what the need takes on one of them; sums of shares are not exact, so 1/1000 CPU is none."""
        found = self._fits.get(need)
        if found is None:
            found = (
                (self.gpus >= need.gpus)
                & (self.cpus >= need.cpus - 1e-3)
                & (self.memory >= need.memory - 1e-3)
            )
            if need.whole:
                found &= self.jobs == 0
            self._fits[need] = found
        return found


class Places:
    """A cluster's nodes, and the choice among them."""

    def __init__(
        self,
        cluster: Cluster,
        topology: bool | None = None,
        *,
        least_loaded: bool = False,
        first_of_all: bool = False,
    ) -> None:
        """`topology`: by leaf; None: where there are several. `first_of_all`: jobs of one node, as in 26.05."""
        groups = [group for group in cluster.nodes if group.count]
        count = [group.count for group in groups]
        self.count = sum(count)
        self.gpus = np.repeat(np.array([g.gpus for g in groups], np.int64), count)
        self.cpus = np.repeat(np.array([g.cpus for g in groups], np.float64), count)
        self.memory = np.repeat(np.array([g.memory for g in groups], np.float64), count)
        leaves = {leaf: number for number, leaf in enumerate(dict.fromkeys(g.leaf for g in groups))}
        self.leaf = np.repeat(np.array([leaves[g.leaf] for g in groups], np.int64), count)
        self.leaves = len(leaves)
        self.tree = self.leaves > 1 if topology is None else topology
        self.least_loaded, self.first_of_all = least_loaded, first_of_all
        self.empty = self.idle()
        """With no job on it."""
        self._groups = groups
        self._counts = count
        self._may: dict[tuple[str, str], Mask] = {}

    @property
    def there(self) -> dict[str, float]:
        """The cluster's TRES, by Slurm's names."""
        return {
            "node": float(self.count),
            "cpu": float(self.cpus.sum()),
            "mem": float(self.memory.sum()),
            "gres/gpu": float(self.gpus.sum()),
        }

    def idle(self) -> State:
        """All free."""
        return State(self.gpus.copy(), self.cpus.copy(), self.memory.copy())

    def may(self, need: Need) -> Mask:
        """Nodes that its partition has and whose GPUs are of its type."""
        key = need.queue, need.gpu_type if need.gpus else ""
        found = self._may.get(key)
        if found is None:
            each = [
                (not g.partitions or need.queue in g.partitions or not need.queue)
                and (not key[1] or not g.gpu_type or key[1] == g.gpu_type)
                for g in self._groups
            ]
            found = self._may[key] = np.repeat(np.array(each, np.bool_), self._counts)
        return found

    def of_queue(self, queue: str) -> Mask:
        """Nodes of a partition."""
        return self.may(Need(1, 0, 0.0, 0.0, "", queue))

    def choose(self, fits: Mask, need: Need, state: State) -> NDArray[np.int64] | None:
        """The nodes that Slurm takes of these; None: too few."""
        nodes = np.flatnonzero(fits)
        if len(nodes) < need.nodes:
            return None
        if self.least_loaded:
            return np.sort(nodes[np.argsort(-state.cpus[nodes], kind="stable")[: need.nodes]])
        if need.nodes == 1 and self.first_of_all:
            return nodes[:1]
        # runs of nodes next to each other are told apart by how many gaps are before them
        gaps = np.cumsum(np.diff(nodes, prepend=nodes[0]) > 1, dtype=np.int64)
        return _best_fit(nodes, self.leaf[nodes] if self.tree else gaps, need.nodes)


def _best_fit(nodes: NDArray[np.int64], parts: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """`wanted` of the nodes: from the part that just holds what is still wanted, else from the largest.

    >>> _best_fit(np.arange(5), np.array([0, 0, 0, 1, 1]), 2).tolist()
    [3, 4]
    """
    first = parts[0]
    if wanted == len(nodes) or parts[-1] == first == parts.min() == parts.max():
        return nodes[:wanted]
    counts = np.bincount(parts)
    found: list[NDArray[np.int64]] = []
    while wanted > 0:
        enough = np.flatnonzero(counts >= wanted)
        part = int(enough[np.argmin(counts[enough])]) if len(enough) else int(np.argmax(counts))
        taken = nodes[parts == part][:wanted]
        found.append(taken)
        wanted -= len(taken)
        counts[part] = 0
    return np.sort(np.concatenate(found))


def needs(trace: Trace, places: Places) -> list[Need | None]:
    """What each job takes on a node, in the trace's order; None: the cluster never has it.

    A job that names no nodes gets as few as hold its GPUs, one that has GPUs and names no CPUs or memory their share
    of the node. GPUs that do not divide evenly over the nodes are rounded up on each.
    """
    known: dict[_Asked, Need | None] = {}
    found = []
    columns = [trace[name].tolist() for name in ("gpus", "nodes", "cpus", "memory", "exclusive")]
    texts = [trace.text(name).tolist() for name in ("gpu_type", "queue")]
    for key in zip(*columns, *texts, strict=True):
        if key not in known:
            known[key] = _need(places, key)
        found.append(known[key])
    return found


_Asked: TypeAlias = tuple[int, int, float, float, bool, str, str]


def _need(places: Places, asked: _Asked) -> Need | None:
    gpus, nodes, cpus, memory, exclusive, gpu_type, queue = asked
    may = places.may(Need(1, gpus, 0, 0, gpu_type, queue))
    most, most_cpus = places.gpus[may].max(initial=0), places.cpus[may].max(initial=0.0)
    if not may.any() or (gpus and not most):
        return None
    count = nodes or max(1, math.ceil(gpus / most) if gpus else math.ceil(cpus / max(most_cpus, 1)))
    each = math.ceil(gpus / count)
    able = np.flatnonzero(may & (places.gpus >= each))
    if not len(able):
        return None
    share = each / float(places.gpus[able[0]]) if gpus else 0.0
    one = Need(
        count,
        each,
        cpus / count if cpus else share * float(places.cpus[able[0]]) if gpus else 1.0,
        memory / count if memory else share * float(places.memory[able[0]]),
        gpu_type,
        queue,
        exclusive,
    )
    enough = np.count_nonzero(may & places.empty.fits(one)) >= count
    return one if enough else None
