"""The nodes of a cluster from what jobs held on them: as large as the most that was ever in use on one at once.

A lower bound. Nodes in the same partitions with the same type of GPU are taken to be alike, as large as the largest
of them; a node on which no job of the file ran is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from site_configs.hostlist import HostlistError, expand
from slurm_plugins.replay.values import Cluster, Job, Nodes

__all__ = ["Seen"]

Floats = NDArray[np.float64]


class Node(NamedTuple):
    """A node: partitions and type of GPU of its jobs, and the most GPUs, CPUs and MiB that were in use at once."""

    queues: frozenset[str]
    gpu_type: str
    gpus: int
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Nodes by name."""

    nodes: dict[str, Node]

    @classmethod
    def of(cls, runs: Iterable[tuple[Job, str]]) -> Seen:
        """From jobs that ran, with their nodes as Slurm writes them (``n[1-3]``)."""
        numbers: dict[str, int] = {}
        queues: list[set[str]] = []
        types: list[set[str]] = []
        held = array("d")  # six numbers a node and job: there may be millions
        for job, expression in runs:
            names = _names(expression)
            for name in names:
                number = numbers.setdefault(name, len(numbers))
                if number == len(queues):
                    queues.append(set())
                    types.append(set())
                if job.queue:
                    queues[number].add(job.queue)
                if job.gpu_type:
                    types[number].add(job.gpu_type)
                share = len(names)
                held.extend(
                    (
                        number,
                        job.began,
                        job.began + job.work,
                        job.gpus / share,
                        job.cpus / share,
                        job.memory / share,
                    )
                )
        if not held:
            return cls({})
        table = np.frombuffer(held).reshape(-1, 6)
        most = np.ceil(
            np.round([_most(table[:, 0], table[:, 1], table[:, 2], table[:, k]) for k in (3, 4, 5)], 3)
        )
        return cls(
            {
                name: Node(
                    frozenset(queues[n]),
                    min(types[n]) if len(types[n]) == 1 else "",
                    *(int(one) for one in most[:, n]),
                )
                for name, n in numbers.items()
            }
        )

    def cluster(self, name: str) -> Cluster | None:
        """The nodes in groups, all under one switch; None where there are none."""
        groups: dict[tuple[frozenset[str], str], list[str]] = {}
        for one, node in self.nodes.items():
            groups.setdefault((node.queues, node.gpu_type), []).append(one)
        made = []
        for (queues, gpu_type), names in sorted(groups.items(), key=lambda item: item[1]):
            of = [self.nodes[one] for one in names]
            gpus, cpus = max(one.gpus for one in of), max(one.cpus for one in of)
            memory = max(one.memory for one in of)
            made.append(
                Nodes(len(names), gpus, cpus, memory, gpu_type, partitions=queues, names=tuple(names))
            )
        return Cluster(name, tuple(made)) if made else None


def _most(node: Floats, begin: Floats, end: Floats, amount: Floats) -> NDArray[Any]:
    """The most that was held at once, by node."""
    nodes, times = np.concatenate([node, node]), np.concatenate([begin, end])
    change = np.concatenate([amount, -amount])
    # What ends at a moment has made room before what begins at it
    order = np.lexsort((change, times, nodes))
    # Each node's changes come to nothing, so one sum over all begins anew with each
    total = np.cumsum(change[order])
    starts = np.searchsorted(nodes[order], np.arange(int(node.max()) + 1))
    return np.maximum.reduceat(total, starts)


@lru_cache(maxsize=65536)
def _names(expression: str) -> tuple[str, ...]:
    try:
        return expand(expression)
    except HostlistError:
        return ()
