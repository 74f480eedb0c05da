"""What goes into a replay, and what comes out: a trace of jobs, a cluster, and what became of each job.

Times are seconds from the trace's own zero, memory is MiB. NumPy is needed here and in all of `replay`: the extra
`replay`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CAUSES", "SAMPLED", "Cluster", "Job", "Nodes", "Replayed", "Trace"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CAUSES: Final = ("fair_share", "fragmentation", "resources", "order", "other")
"""What a job waits for. Philly's two: fair_share, its queue's quota is used up; fragmentation, as many GPUs are free
as it asks for, and not where it may have them. resources: too few are free. order: it would fit, and others come
first. other: its retry's delay, an end of maintenance."""
SAMPLED: Final = 7
"""Columns of `Replayed.samples`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its trace tells it. None, "" and nan stand for what the trace does not tell."""

    job: int
    arrival: float
    """When it could first have started: submitted, and what it depends on was met."""
    work: float
    """Run time of all of it, on as few nodes as hold it and with its GPUs' share of CPUs and memory."""
    gpus: int = 1
    """In all; 0 for a job without GPUs."""
    limit: float = math.inf
    """Time limit, which backfill plans with."""
    nodes: int = 0
    """Exactly so many nodes; 0: as few as hold it."""
    cpus: float = 0.0
    """In all; 0: its GPUs' share of a node."""
    cpus_asked: float = 0.0
    """In all, as it asked in words; 0: `cpus`. Slurm's first priority counts these, not what comes with GPUs."""
    memory: float = 0.0
    """In all; 0: its GPUs' share of a node."""
    exclusive: bool = False
    """Its nodes are shared with nobody."""
    gpu_type: str = ""
    queue: str = ""
    """Partition, or virtual cluster: whose quota it counts against."""
    user: str = ""
    account: str = ""
    qos: str = ""
    workload: str = ""
    """Names its curve and its class of locality."""
    weight: float = 0.0
    """What is added to Slurm's priority beside its own factors: minus nice, a site's factor."""
    priority: float = math.nan
    """Slurm's, as recorded: from it follows what no other column tells, nice above all."""
    deadline: float = math.nan
    gpus_least: int = 0
    gpus_most: int = 0
    """The range within which it may be scaled; 0: it may not."""
    outcome: str = ""
    """As recorded: completed, failed, cancelled, timeout, node_fail, preempted..."""
    began: float = math.nan
    """When it really started."""

    @property
    def ran(self) -> bool:
        """Whether the trace tells of a run."""
        return self.work > 0


_TEXTS: Final = ("gpu_type", "queue", "user", "account", "qos", "workload", "outcome")


@dataclass(frozen=True)
class Trace:
    """Jobs in order of arrival, a column each; texts are codes into `words`."""

    name: str
    columns: Mapping[str, NDArray[Any]]
    words: Mapping[str, tuple[str, ...]]
    """Column -> its texts by code."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Why rows of the file are not in here -> how many."""
    zero: float = 0.0
    """The trace's zero in seconds since 1970; backfill rounds its plan to whole minutes of the clock."""

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job],
        name: str = "",
        left_out: Mapping[str, int] | None = None,
        zero: float = 0.0,
    ) -> Trace:
        """From jobs in any order.

        >>> trace = Trace.of([Job(2, 60.0, 10.0, user="b"), Job(1, 0.0, 10.0, user="a")])
        >>> len(trace), trace.columns["job"].tolist(), trace.text("user").tolist()
        (2, [1, 2], ['a', 'b'])

        Raises ValueError for a job without end or with less than nothing of anything.
        """
        rows = sorted(jobs, key=lambda j: (j.arrival, j.job))
        for row in rows:
            if not (math.isfinite(row.arrival) and 0 <= row.work < math.inf and row.limit > 0):
                raise ValueError(f"job {row.job}: arrival {row.arrival}, work {row.work}, limit {row.limit}")
            if min(row.gpus, row.nodes, row.cpus, row.memory, row.gpus_least, row.gpus_most) < 0:
                raise ValueError(f"job {row.job} asks for less than nothing")
        columns: dict[str, NDArray[Any]] = {}
        words: dict[str, tuple[str, ...]] = {}
        for one in fields(Job):
            values = [getattr(row, one.name) for row in rows]
            if one.name in _TEXTS:
                codes = {word: code for code, word in enumerate(sorted(set(values)))}
                words[one.name] = tuple(codes)
                columns[one.name] = np.array([codes[word] for word in values], np.int32)
            else:
                kind = {"int": np.int64, "bool": np.bool_}.get(str(one.type), np.float64)
                columns[one.name] = np.array(values, kind)
        return cls(name, columns, words, dict(left_out or {}), zero)

    def __len__(self) -> int:
        return len(self.columns["job"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def text(self, name: str) -> NDArray[np.str_]:
        """A column of texts, spelt out."""
        spelt: NDArray[np.str_] = np.array(self.words[name] or ("",), np.str_)[self.columns[name]]
        return spelt

    def job(self, row: int) -> Job:
        """One row as a value."""
        told = {
            name: self.words[name][column[row]] if name in self.words else column[row].item()
            for name, column in self.columns.items()
        }
        return Job(**told)

    def only(self, rows: NDArray[np.bool_], why: str) -> Trace:
        """The jobs of these rows; the others are left out for this reason."""
        left = dict(self.left_out)
        if gone := len(self) - int(rows.sum()):
            left[why] = left.get(why, 0) + gone
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Trace(self.name, columns, self.words, left, self.zero)

    def __iter__(self) -> Iterator[Job]:
        return (self.job(row) for row in range(len(self)))


@dataclass(frozen=True, slots=True)
class Nodes:
    """So many alike nodes under one leaf switch."""

    count: int
    gpus: int
    cpus: float
    memory: float
    gpu_type: str = ""
    leaf: str = ""
    partitions: frozenset[str] = frozenset()
    """Queues that may use them; empty: all."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes by group, and the GPUs that each queue may count on (a queue that is not named: all)."""

    name: str
    nodes: tuple[Nodes, ...]
    quotas: Mapping[str, int] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(group.count * group.gpus for group in self.nodes)

    @classmethod
    def alike(
        cls, count: int, gpus: int, cpus: float, memory: float, *, leaf_size: int = 0, name: str = "cluster"
    ) -> Cluster:
        """`count` alike nodes, `leaf_size` under each leaf switch (0: one switch for all).

        >>> Cluster.alike(5, 8, 96, 512_000, leaf_size=2).gpus
        40
        """
        size = leaf_size or count
        return cls(
            name,
            tuple(
                Nodes(min(size, count - first), gpus, cpus, memory, leaf=f"leaf{number}")
                for number, first in enumerate(range(0, count, size))
            ),
        )


@dataclass(frozen=True)
class Replayed:
    """What became of each job of the trace, in the trace's order; nan for what did not happen."""

    policy: str
    seed: int
    started: Floats
    """First start."""
    ended: Floats
    """Last end, of the attempt that finished the job or after which it was given up."""
    run_s: Floats
    """Seconds in which it held its GPUs, all attempts together."""
    gpu_s: Floats
    """GPU-seconds that it held."""
    lost_gpu_s: Floats
    """GPU-seconds of attempts that failed and left nothing, of restarts, of smoke runs."""
    attempts: Ints
    nodes: Ints
    """Nodes of the last attempt; 0: it never started."""
    leaves: Ints
    waited: Mapping[str, Floats]
    """Cause (`CAUSES`) -> seconds before the first start."""
    gave_up: Sequence[str] = ()
    """By row why a job never ran or never passed; empty: none."""
    out_of_order: int = 0
    """Starts of a job while one that is before it in the queue waited on."""
    samples: Floats = field(default_factory=lambda: np.zeros((0, SAMPLED)))
    """Rows of time, and what there was in the mean from then to the next row's: GPUs held, CPUs held, memory held, jobs
    waiting, GPUs free while jobs wait, fragmentation (`Use`)."""
    took_s: float = 0.0
    """Seconds of this machine's time."""
