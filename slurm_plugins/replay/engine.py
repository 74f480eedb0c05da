"""Replay a trace on a cluster under a policy: events from a heap, no process simulation.

>>> from slurm_plugins.replay.values import Job
>>> trace = Trace.of([Job(1, 0.0, 60.0, gpus=8), Job(2, 10.0, 30.0, gpus=8)])
>>> done = replay(trace, Cluster.alike(1, 8, 96, 512_000), Policy.parse("fifo+pack"))
>>> done.started.tolist(), done.ended.tolist(), done.waited["resources"].tolist()
([0.0, 60.0], [60.0, 90.0], [0.0, 50.0])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from slurm_plugins.replay import in_rounds, slurm_run
from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.desk import Desk, Planner
from slurm_plugins.replay.easy import Easy
from slurm_plugins.replay.orders import InOrder, Skipping
from slurm_plugins.replay.philly import Shares
from slurm_plugins.replay.policy import SLURMS_CHOICE, Policy, PolicyError
from slurm_plugins.replay.preempting import KEYS, Preempting
from slurm_plugins.replay.scaling import Elastic
from slurm_plugins.replay.values import CAUSES, Cluster, Replayed, Trace

__all__ = ["PLANNERS", "Progress", "replay"]

Progress = Callable[[float], None]
"""Told the share of the trace's jobs that have arrived, 0 to 1, about a hundred times."""

PLANNERS: Final[Mapping[tuple[str, str], Callable[[Desk], Planner]]] = {
    ("fifo", "none"): InOrder,
    ("fifo", "skip"): Skipping,
    ("fifo", "easy"): Easy,
    **{(order, backfill): Preempting for order in KEYS for backfill in ("none", "skip")},
}
"""(order, backfill) -> who plans."""


def replay(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    *,
    seed: int = 0,
    attempts: Attempts | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """What would have become of each job: a function of its arguments, and of nothing else.

    Parameters
    ----------
    attempts: the runs of each job; None: each that ran in the trace runs once.
    progress: told how far it is.

    Raises:
        PolicyError: nothing here plans by that policy.
        ValueError: attempts of other jobs than the trace's.
    """
    begun = time.perf_counter()
    if attempts is not None and len(attempts) != len(trace):
        raise ValueError(f"attempts of {len(attempts)} jobs for a trace of {len(trace)}")
    if policy.scaling != "none" and (policy.order, policy.tuning) != ("las", "none"):
        raise PolicyError(str(policy), "only order las scales jobs, and does not tune them: las+elastic")
    if policy.tuning == "none" and _shared(policy) and not _shares(policy):
        raise PolicyError(str(policy), "quotas, and relaxing, go with order fifo or fair, and not with easy")
    if policy.tuning != "none":
        return in_rounds.run(trace, cluster, policy, seed=seed, attempts=attempts, progress=progress)
    if policy.order == "slurm":
        if policy.backfill == "skip" or policy.packing != "pack" or policy.locality != "none":
            raise PolicyError(str(policy), SLURMS_CHOICE)
        return slurm_run.run(
            trace,
            cluster,
            policy.rules,
            seed=seed,
            attempts=attempts,
            progress=progress,
            name=str(policy),
        )
    desk = Desk(trace, cluster, policy, attempts or Attempts.once(trace), seed)
    desk.run(_planner(desk), _ticks(progress, len(trace)))
    return _outcome(desk, time.perf_counter() - begun)


def _planner(desk: Desk) -> Planner:
    policy = desk.policy
    if policy.scaling == "elastic":
        return Elastic(desk)
    if _shared(policy):
        return Shares(desk)
    make = PLANNERS.get((policy.order, policy.backfill))
    if make is None:
        raise PolicyError(str(policy), f"no planner for order {policy.order} with backfill {policy.backfill}")
    return make(desk)


def _shared(policy: Policy) -> bool:
    """Whether queues, or the patience of gangs, count."""
    return policy.order == "fair_share" or policy.quotas != "off" or policy.locality == "relaxed"


def _shares(policy: Policy) -> bool:
    """Whether the planner that knows of these can serve it: whoever fits passes those that wait."""
    return policy.order in ("fifo", "fair_share") and policy.backfill != "easy" and policy.scaling == "none"


def _ticks(progress: Progress | None, count: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    step, told = max(count // 100, 1), -1

    def tick(arrived: int) -> None:
        nonlocal told
        if arrived // step != told:
            told = arrived // step
            progress(arrived / count)

    return tick


def _outcome(desk: Desk, took_s: float) -> Replayed:
    count = len(desk.trace)
    waited = np.zeros((len(CAUSES), count))
    if desk.waits.seconds:
        rows = np.fromiter(desk.waits.seconds, np.int64, len(desk.waits.seconds))
        waited[:, rows] = np.array(list(desk.waits.seconds.values())).T
    return Replayed(
        policy=str(desk.policy),
        seed=desk.seed,
        started=np.array(desk.started, np.float64),
        ended=np.array(desk.finished, np.float64),
        run_s=np.array(desk.run_s, np.float64),
        gpu_s=np.array(desk.gpu_s, np.float64),
        lost_gpu_s=np.array(desk.lost_gpu_s, np.float64),
        attempts=np.array(desk.tries, np.int64),
        nodes=np.array(desk.on_nodes, np.int64),
        leaves=np.array(desk.on_leaves, np.int64),
        waited={cause: waited[code] for code, cause in enumerate(CAUSES)},
        gave_up=[desk.why.get(row, "") for row in range(count)] if desk.why else (),
        out_of_order=desk.out_of_order,
        samples=desk.samples.rows,
        took_s=took_s,
    )
