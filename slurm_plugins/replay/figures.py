"""What a replay comes to: completion times, delays by size and cause, use, locality, what failed. Pure.

Each figure says on how many jobs it rests, and is nan where it rests on none. Quantiles interpolate linearly, as
NumPy's do. Use is that of the time in which jobs arrive: after the last one a cluster only runs empty, and how long
that takes is the makespan's to tell.

What really happened (`recorded`) has the same figures, as far as a trace tells of it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.values import CAUSES, Cluster, Floats, Replayed, Trace

__all__ = [
    "BOUNDS", "RECORDED", "SIZES", "Cause", "Course", "Figures", "Sized", "Spread", "Use", "course", "figures",
    "recorded",
]  # fmt: skip

RECORDED: Final = "as recorded"
SIZES: Final = ("0", "1", "2-4", "5-8", "9-16", "17+")
"""GPUs of a job, in the classes of `gsub admin audit`."""
BOUNDS: Final = (0, 1, 4, 8, 16)
"""The most GPUs of each class; the last has none."""
_LEAST_S: Final = 1.0
"""A wait of less than a second is none: it is what events of one moment may differ by."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a time in seconds is spread over jobs."""

    jobs: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Of those values that are known.

        >>> Spread.of(np.array([1.0, 3.0, math.nan])).mean
        2.0
        """
        known = values[np.isfinite(values)]
        if not len(known):
            return cls(0, math.nan, math.nan, math.nan, math.nan)
        p50, p95, p99 = (float(one) for one in np.quantile(known, (0.5, 0.95, 0.99)))
        return cls(len(known), float(known.mean()), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class Cause:
    """Who waited for one cause, of the jobs that started: how many, and their seconds together."""

    cause: str
    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sized:
    """Jobs of one size: their delays in the queue, and what for."""

    size: str
    wait: Spread
    causes: tuple[Cause, ...]
    """In the order of `CAUSES`; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of the whole in the mean over the time in which jobs arrive; nan: not known."""

    gpus: float
    cpus: float
    memory: float
    idle_with_queue: float
    """GPUs that stood free while jobs waited."""
    fragmentation: float
    """Of the free GPUs' largest block on one node, what it lacks to a whole node or, with fewer free, to these."""
    waiting: float
    """Jobs in the queue."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of a trace under one policy. Times are seconds."""

    policy: str
    jobs: int
    """Of the trace."""
    finished: int
    never: int
    """Never started, or were given up."""
    why_never: tuple[tuple[str, int], ...]
    jct: Spread
    """From arrival to end."""
    wait: Spread
    """From arrival to the first start."""
    by_size: tuple[Sized, ...]
    makespan: float
    """From the first arrival to the last end."""
    use: Use
    gangs: int
    """Jobs with several GPUs that started, which locality is told of."""
    on_fewest_nodes: float
    """Share of them on as few nodes as hold them."""
    nodes_over_fewest: float
    """Nodes over fewest nodes, in the mean."""
    under_fewest_leaves: float
    leaves_over_fewest: float
    deadlines: int
    """Jobs that have one."""
    deadlines_met: int
    attempts: int
    retried: int
    """Jobs that ran more than once."""
    gpu_hours: float
    lost_gpu_hours: float
    """Of attempts that failed and left nothing, of restarts, of smoke runs."""
    out_of_order: int
    start_error: Spread
    """How far the first start is from the recorded one."""
    start_bias: float
    """The same in the mean, later being positive."""
    took_s: float


def figures(trace: Trace, cluster: Cluster, done: Replayed) -> Figures:
    """All of them."""
    arrival, gpus = trace["arrival"], trace["gpus"]
    started = np.isfinite(done.started)
    wait = np.maximum(done.started - arrival, 0.0)
    why = Counter(reason for reason in done.gave_up if reason)
    off = done.started - trace["began"]
    gangs, nodes, leaves = _locality(trace, cluster, done)
    dated = np.isfinite(trace["deadline"])
    return Figures(
        policy=done.policy,
        jobs=len(trace),
        finished=int(np.isfinite(done.ended).sum()),
        never=int((~started).sum()),
        why_never=tuple(why.most_common()),
        jct=Spread.of(done.ended - arrival),
        wait=Spread.of(wait),
        by_size=tuple(_sized(size, gpus, wait, done) for size in SIZES if _of_size(gpus, size).any()),
        makespan=_last(done.ended) - float(arrival.min()),
        use=_use(trace, cluster, done),
        gangs=gangs,
        on_fewest_nodes=_share(nodes),
        nodes_over_fewest=_mean(nodes),
        under_fewest_leaves=_share(leaves),
        leaves_over_fewest=_mean(leaves),
        deadlines=int(dated.sum()),
        deadlines_met=int((done.ended[dated] <= trace["deadline"][dated]).sum()),
        attempts=int(done.attempts.sum()),
        retried=int((done.attempts > 1).sum()),
        gpu_hours=float(done.gpu_s.sum()) / 3600,
        lost_gpu_hours=float(done.lost_gpu_s.sum()) / 3600,
        out_of_order=done.out_of_order,
        start_error=Spread.of(np.abs(off)),
        start_bias=_mean(off[np.isfinite(off)]),
        took_s=done.took_s,
    )


def recorded(trace: Trace) -> Replayed | None:
    """What really happened, as far as the trace tells; None where it tells of no start."""
    began = trace["began"]
    if not np.isfinite(began).any():
        return None
    count, ran = len(trace), np.where(np.isfinite(began), trace["work"], 0.0)
    none = np.zeros(count, np.int64)
    return Replayed(
        policy=RECORDED,
        seed=0,
        started=began,
        ended=began + trace["work"],
        run_s=ran,
        gpu_s=ran * trace["gpus"],
        lost_gpu_s=np.zeros(count),
        attempts=np.isfinite(began).astype(np.int64),
        nodes=none,
        leaves=none,
        waited={},
    )


# --- over time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """What is in use and waits, in the mean from each of `times` to the next; a column of nan is not known."""

    times: Floats
    gpus: Floats
    cpus: Floats
    memory: Floats
    waiting: Floats
    idle: Floats
    """GPUs that stand free while jobs wait."""
    fragmentation: Floats
    """As in `Use`."""

    def mean(self, values: Floats, since: float, until: float) -> float:
        """The mean of a column over a span of time; nan without one."""
        if until <= since or not len(self.times) or np.isnan(values).any():
            return math.nan
        edges = np.clip(np.append(self.times, until), since, until)
        return float((np.diff(edges) * values).sum() / (until - since))

    def means(self, edges: Floats, values: Floats) -> Floats:
        """The means of a column from each edge to the next; 0 before the first moment, nan of what is not known."""
        if not len(self.times) or np.isnan(values).any():
            return np.full(len(edges) - 1, math.nan)
        times = np.append(self.times, max(float(edges[-1]), float(self.times[-1]) + 1.0))
        whole = np.concatenate([[0.0], np.cumsum(np.diff(times) * values)])
        found: Floats = np.diff(np.interp(edges, times, whole)) / np.diff(edges)
        return found


def course(trace: Trace, done: Replayed) -> Course:
    """What the replay noted; else the same from starts and ends, where all jobs ran at a stretch."""
    if len(done.samples):
        return Course(*done.samples.T)
    ran = np.isfinite(done.started) & np.isfinite(done.ended)
    begin, end = done.started[ran], done.ended[ran]
    held, arrival = trace["gpus"][ran].astype(np.float64), trace["arrival"][ran]
    times, order = np.unique(np.concatenate([arrival, begin, end]), return_inverse=True)
    count = len(arrival)

    def steps(at: NDArray[np.int64], change: Floats) -> Floats:
        return np.cumsum(np.bincount(at, change, len(times)))

    ones = np.ones(count)
    waiting = steps(order[: 2 * count], np.concatenate([ones, -ones]))
    gpus = steps(order[count:], np.concatenate([held, -held]))
    unknown = np.full(len(times), math.nan)
    # What ran in pieces held nothing in between, and nobody says when
    stretch = bool(np.allclose(done.run_s[ran], end - begin, rtol=1e-6, atol=1.0))
    held_then = gpus if stretch else unknown
    return Course(times, held_then, unknown, unknown, waiting, unknown, unknown)


def _use(trace: Trace, cluster: Cluster, done: Replayed) -> Use:
    first, last = float(trace["arrival"].min()), float(trace["arrival"].max())
    if last <= first:  # all at once: the time in which the queue is worked off
        last = _last(done.ended)
    over = course(trace, done)
    cpus = sum(group.count * group.cpus for group in cluster.nodes)
    memory = sum(group.count * group.memory for group in cluster.nodes)
    # From starts and ends the moments are known one by one; what was noted are means, of this too
    idle = np.where(over.waiting > 0, np.maximum(cluster.gpus - over.gpus, 0.0), 0.0)
    return Use(
        gpus=over.mean(over.gpus, first, last) / max(cluster.gpus, 1),
        cpus=over.mean(over.cpus, first, last) / max(cpus, 1.0),
        memory=over.mean(over.memory, first, last) / max(memory, 1.0),
        idle_with_queue=over.mean(over.idle if len(done.samples) else idle, first, last)
        / max(cluster.gpus, 1),
        fragmentation=over.mean(over.fragmentation, first, last),
        waiting=over.mean(over.waiting, first, last),
    )


# --- sizes and places -----------------------------------------------------------------------------------------------


def _of_size(gpus: NDArray[Any], size: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.searchsorted(BOUNDS, gpus) == SIZES.index(size)
    return found


def _sized(size: str, gpus: NDArray[Any], wait: Floats, done: Replayed) -> Sized:
    rows = _of_size(gpus, size) & np.isfinite(wait)
    causes = tuple(
        Cause(cause, int((done.waited[cause][rows] >= _LEAST_S).sum()), float(done.waited[cause][rows].sum()))
        for cause in CAUSES
        if cause in done.waited
    )
    return Sized(size, Spread.of(wait[rows]), causes)


def _locality(trace: Trace, cluster: Cluster, done: Replayed) -> tuple[int, Floats, Floats]:
    """How many gangs there are, and their nodes and leaves over the fewest that could hold each."""
    rows = (done.nodes > 0) & (trace["gpus"] > 1)
    gpus, insisted = trace["gpus"][rows], trace["nodes"][rows]
    most = max((group.gpus for group in cluster.nodes), default=0)
    if not rows.any() or not most:
        return 0, np.zeros(0), np.zeros(0)
    fewest = np.maximum(-(-gpus // most), insisted)
    rooms: Counter[str] = Counter()
    for group in cluster.nodes:
        rooms[group.leaf] += group.count * group.gpus
    holds = np.cumsum(sorted(rooms.values(), reverse=True))
    leaves = np.minimum(np.searchsorted(holds, gpus), len(holds) - 1) + 1
    return int(rows.sum()), done.nodes[rows] / fewest, done.leaves[rows] / leaves


def _share(ratios: Floats) -> float:
    return float((ratios <= 1).mean()) if len(ratios) else math.nan


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _last(ended: Floats) -> float:
    known = ended[np.isfinite(ended)]
    return float(known.max()) if len(known) else math.nan
