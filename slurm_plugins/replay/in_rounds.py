"""A replay in rounds: who is at the head of the queue gets GPUs, and CPUs and memory as a tuner hands them out.

The simulation and the placings are those of `slurm_plugins.tuner`; here a trace is told to them, and what came of it
told back. A workload that is named as one of the curves given (else one of Synergy's models) has that curve, relative
to its speed with the proportional share, which is what a trace's work is; others neither gain from more nor give any.
What else a job asks for (nodes, CPUs, memory, a type of GPU, to be alone) is passed over.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from profiler.spread import slowdown
from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.policy import Policy, PolicyError
from slurm_plugins.replay.values import CAUSES, Cluster, Nodes, Replayed, Trace
from slurm_plugins.tuner.market import market
from slurm_plugins.tuner.placing import greedy
from slurm_plugins.tuner.rounds import ORDERS, Job, Maker, Ran, Rounds, anew, simulate
from slurm_plugins.tuner.shares import tune_by_curves
from slurm_plugins.tuner.standing import standing
from slurm_plugins.tuner.values import PROFILES, Curve, Profile, Shape

__all__ = ["TUNINGS", "run"]

TUNINGS: Final[Mapping[str, Maker]] = {
    "proportional": standing(),
    "greedy": anew(greedy),
    "tune": standing(),
    "fill": standing(whole=True),
    "curves": anew(tune_by_curves),
    "market": anew(market),
}
"""Tuning -> who places. For `proportional` all jobs have the curve that neither gains nor gives."""

_ONLY: Final[Mapping[str, object]] = {
    "quotas": "off",
    "backfill": "none",
    "locality": "none",
    "scaling": "none",
    "las_levels": (),
}
_SHIPPED: Final = {name: profile.curve for name, profile in PROFILES.items()}
_MIB_A_GB: Final = 1024.0


def run(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    *,
    seed: int = 0,
    attempts: Attempts | None = None,
    progress: Callable[[float], None] | None = None,
    curves: Mapping[str, Curve] = _SHIPPED,
) -> Replayed:
    """What rounds make of the trace on the cluster; a function of all arguments but `progress`.

    `curves`: by workload, speeds by CPUs and GB a GPU.

    Raises:
        PolicyError: rounds do not know its order, its tuning, quotas or locality.
        ValueError: nodes that are not alike, or not open to all; attempts of other jobs.
    """
    began = time.perf_counter()
    attempts = Attempts.once(trace) if attempts is None else attempts
    if len(attempts) != len(trace):
        raise ValueError(f"attempts of {len(attempts)} jobs for a trace of {len(trace)}")
    if policy.order not in ORDERS:
        raise PolicyError(policy.order, f"rounds order by {', '.join(ORDERS)}")
    if policy.tuning not in TUNINGS:
        raise PolicyError(policy.tuning, f"tuning is one of {', '.join(TUNINGS)}")
    for field, only in _ONLY.items():
        if getattr(policy, field) != only:
            raise PolicyError(str(policy), f"{policy.tuning} goes in rounds, which know no {field}")
    if not policy.preempt and policy.order != "fifo":
        raise PolicyError(
            str(policy), f"rounds in order {policy.order} stop who is behind: they cannot keep jobs"
        )
    if policy.restart_s >= policy.round_s:
        raise PolicyError(
            str(policy),
            f"a restart of {policy.restart_s:g} s leaves nothing of a round of {policy.round_s:g} s",
        )
    told = _Told(trace, attempts, policy, cluster, {} if policy.tuning == "proportional" else curves)
    rounds = Rounds(
        length=policy.round_s, restart_s=policy.restart_s, pace=told.pace if policy.slowdown else None
    )
    ran = simulate(
        told.firsts(),
        policy.order,
        TUNINGS[policy.tuning],
        sum(group.count for group in cluster.nodes),
        shape=told.shape,
        rounds=rounds,
        after=told.after,
        progress=_ticks(progress, len(attempts.work)),
    )
    return told.outcome(ran, seed, began)


def _alike(cluster: Cluster) -> Nodes:
    kinds = {(group.gpus, group.cpus, group.memory, group.partitions) for group in cluster.nodes}
    if len(kinds) != 1 or cluster.nodes[0].partitions:
        raise ValueError(f"{cluster.name}: rounds want nodes that are alike and open to all queues")
    if min(cluster.nodes[0].gpus, cluster.nodes[0].cpus, cluster.nodes[0].memory) <= 0:
        raise ValueError(f"{cluster.name} has nodes without GPUs, CPUs or memory")
    return cluster.nodes[0]


def _ticks(progress: Callable[[float], None] | None, count: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    step, last = max(count // 100, 1), -1

    def tick(arrived: int) -> None:
        nonlocal last
        if arrived // step != last:
            last = arrived // step
            progress(min(arrived / count, 1.0))

    return tick


def _curve(found: Curve | None, shape: Shape) -> Curve:
    """Relative to the proportional share; of one that tells nothing of so small a share nothing is known."""
    fair = shape.proportional
    if found is None or found.speed(fair) <= 0:
        return Curve((fair.cpus,), (fair.memory,), ((1.0,),))
    return found.relative(fair)


class _Told:
    """The trace as jobs of a simulation: one a run of the attempts, with the run's place in them as its number."""

    def __init__(
        self,
        trace: Trace,
        attempts: Attempts,
        policy: Policy,
        cluster: Cluster,
        curves: Mapping[str, Curve],
    ) -> None:
        self.trace, self.attempts, self.policy, self.cluster = trace, attempts, policy, cluster
        nodes = _alike(cluster)
        self.shape = Shape(nodes.gpus, nodes.cpus, nodes.memory / _MIB_A_GB)
        self.gpus = cluster.gpus
        self.offsets: list[int] = attempts.offsets.tolist()
        self.work: list[float] = attempts.work.tolist()
        self.delay: list[float] = attempts.delay.tolist()
        self.asked: list[int] = attempts.gpus.tolist()
        self.own: list[int] = trace["gpus"].tolist()
        self.workload: list[int] = trace["workload"].tolist()
        self.names = trace.words["workload"] or ("",)
        self.profiles = [Profile(name, "", 1.0, _curve(curves.get(name), self.shape)) for name in self.names]
        self.why: dict[int, str] = {}
        self._paces: dict[tuple[int, int, int], float] = {}

    def row(self, number: int) -> int:
        """Whose run that is."""
        return bisect_right(self.offsets, number) - 1

    def job(self, row: int, number: int, since: float) -> Job | None:
        """A run that may queue from `since` on, or None where it cannot: then the row says why."""
        gpus = self.asked[number] or self.own[row]
        if not 0 < gpus <= self.gpus:
            self.why[row] = f"{gpus} GPUs of {self.gpus}" if gpus else "no GPUs: rounds hand out GPUs"
            return None
        # a run of no length holds its GPUs for a moment all the same
        work = max(self.work[number], 1e-3)
        return Job(number, since + self.delay[number], work, gpus, self.profiles[self.workload[row]])

    def firsts(self) -> list[Job]:
        """The first run of each job that has one."""
        arrival: list[float] = self.trace["arrival"].tolist()
        found = [
            self.job(row, first, arrival[row])
            for row, (first, last) in enumerate(zip(self.offsets, self.offsets[1:], strict=False))
            if first < last
        ]
        return [job for job in found if job is not None]

    def after(self, number: int, end: float) -> Job | None:
        """The run that follows."""
        row = self.row(number)
        return self.job(row, number + 1, end) if number + 1 < self.offsets[row + 1] else None

    def pace(self, number: int, parts: Mapping[int, int]) -> float:
        """What spreading leaves of a run's speed."""
        row = self.row(number)
        key = self.workload[row], sum(parts.values()), len(parts)
        if key not in self._paces:
            each = min(key[1], self.shape.gpus)
            self._paces[key] = 1 / slowdown(self.names[key[0]], key[1], key[2], gpus_a_node=each)
        return self._paces[key]

    def outcome(self, ran: Ran, seed: int, began: float) -> Replayed:
        """By row of the trace."""
        count = len(self.trace)
        started, ended = np.full(count, np.nan), np.full(count, np.nan)
        run_s, gpu_s, lost = np.zeros(count), np.zeros(count), np.zeros(count)
        tries, nodes, leaves = (np.zeros(count, np.int64) for _ in range(3))
        leaf = [group.leaf for group in self.cluster.nodes for _ in range(group.count)]
        for number in sorted(ran.ends):
            row = self.row(number)
            if np.isnan(started[row]):
                started[row] = ran.starts[number]
            ended[row] = ran.ends[number]
            run_s[row] += ran.held[number]
            gpus = self.asked[number] or self.own[row]
            gpu_s[row] += gpus * ran.held[number]
            kept = self.attempts.kept[number]
            spent = self.policy.restart_s * ran.restarts[number] if kept else ran.held[number]
            lost[row] += gpus * min(spent, ran.held[number])
            tries[row] += 1
            nodes[row] = len(ran.servers[number])
            leaves[row] = len({leaf[server] for server in ran.servers[number]})
        waits = np.nan_to_num(started - self.trace["arrival"])
        zero = np.zeros(count)
        return Replayed(
            policy=str(self.policy),
            seed=seed,
            started=started,
            ended=ended,
            run_s=run_s,
            gpu_s=gpu_s,
            lost_gpu_s=lost,
            attempts=tries,
            nodes=nodes,
            leaves=leaves,
            waited={cause: waits if cause == "resources" else zero for cause in CAUSES},
            gave_up=[self.why.get(row, "") for row in range(count)] if self.why else (),
            took_s=time.perf_counter() - began,
        )
