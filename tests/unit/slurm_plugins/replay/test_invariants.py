"""What holds of every replay, whatever the trace, cluster and policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.desk import Planner
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.values import Cluster, Replayed, Trace
from slurm_plugins.replay.waits import Waits
from tests.properties import examples
from tests.unit.slurm_plugins.replay.strategies import clusters, traces

ORDERS = [
    "fifo",
    "fifo+skip",
    "fifo+easy",
    "srtf",
    "las+skip",
    "ftf",
    "srtf+keep+skip",
    "tiresias",
    "philly",
    "philly+quotas",
    "philly+noquotas+strict",
    "philly+anywhere",
    "philly+worth",
    "fifo+relax+retries=1",
    "fifo+lend",
    "fair+wait=100+acquire=20+backoff=10",
]
QUICK = settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""Shrinking a trace takes minutes, and 25 jobs can be read."""
PACKINGS = st.sampled_from(("pack", "rank", "spread"))


def gpus_in_use(trace: Trace, done: Replayed) -> int:
    """Most GPUs at work at once; at one moment ends come before starts. For jobs that run once."""
    ran = ~np.isnan(done.started)
    times = np.concatenate([done.ended[ran], done.started[ran]])
    change = np.concatenate([-trace["gpus"][ran], trace["gpus"][ran]])
    return int(np.cumsum(change[np.lexsort((change, times))]).max(initial=0))


@contextmanager
def watched() -> Iterator[list[float]]:
    """Look at the nodes after each plan: what runs fits on them, and what is free is what is left.

    By sums over the jobs that run, not by what the room believes.
    """
    looked: list[float] = []
    plain = Waits.look

    def look(waits: Waits, planner: Planner) -> None:
        desk = waits.desk
        nodes = [(g.gpus, g.cpus, g.memory) for g in desk.cluster.nodes for _ in range(g.count)]
        used = np.zeros((len(nodes), 3))
        alone: set[int] = set()
        for job, parts in desk.where.items():
            need = desk.need[job]
            assert sum(gpus for _, gpus in parts) == need.gpus
            for node, gpus in parts:
                assert node not in alone
                whole = max(nodes[node][0], 1)
                share = gpus * need.nodes / need.gpus if need.gpus else 1.0
                used[node] += (
                    gpus,
                    need.cpus * share or nodes[node][1] * gpus / whole,
                    need.memory * share or nodes[node][2] * gpus / whole,
                )
                if need.exclusive:
                    alone.add(node)
        assert (used <= np.array(nodes) + 1e-3).all()
        looked.append(desk.now)
        plain(waits, planner)

    with patch.object(Waits, "look", look):
        yield looked


@pytest.mark.parametrize("order", ORDERS)
@settings(QUICK, max_examples=20)
@given(traces(), clusters(), PACKINGS, st.booleans())
def test_jobs_work_and_capacity(order, trace, cluster, packing, strict):
    check(trace, cluster, Policy.parse(f"{order}+{packing}{'+strict' * strict}"))


@pytest.mark.parametrize("order", ORDERS)
@settings(QUICK, max_examples=20)
@given(traces(vectors=True), clusters(), PACKINGS, st.booleans())
def test_jobs_work_and_capacity_with_cpus_and_memory(order, trace, cluster, packing, strict):
    check(trace, cluster, Policy.parse(f"{order}+{packing}{'+strict' * strict}"))


def check(trace: Trace, cluster: Cluster, policy: Policy) -> None:
    """No job is lost, none starts early, its work is done, and no more GPUs are used than there are."""
    with watched() as looked:
        done = replay(trace, cluster, policy)
    never = np.isnan(done.started)
    told = np.array([bool(why) for why in done.gave_up]) if done.gave_up else np.zeros(len(trace), bool)
    assert (never == told).all()
    ran = ~never
    assert looked or not ran.any()
    assert not np.isnan(done.ended[ran]).any()
    assert (done.started[ran] >= trace["arrival"][ran]).all()
    assert (done.run_s[ran] >= trace["work"][ran] - 1e-6).all()
    compact = ran & (done.attempts == 1) & (done.run_s <= trace["work"] + 1e-6)
    assert done.gpu_s[compact] == pytest.approx((trace["work"] * trace["gpus"])[compact])
    if (done.attempts <= 1).all():
        assert gpus_in_use(trace, done) <= cluster.gpus
    waited = np.sum(list(done.waited.values()), axis=0)
    assert waited[ran] == pytest.approx((done.started - trace["arrival"])[ran], abs=1e-6)
    if policy.locality == "strict":
        rows = ran & (trace["gpus"] > 0)
        lost = done.lost_gpu_s[rows] / trace["gpus"][rows]
        assert (done.run_s[rows] - lost) == pytest.approx(trace["work"][rows])


@settings(QUICK, max_examples=examples(30))
@given(traces(vectors=True), clusters(), st.sampled_from(ORDERS).map(Policy.parse))
def test_the_same_inputs_give_the_same_result(trace, cluster, policy):
    one, two = replay(trace, cluster, policy), replay(trace, cluster, policy)
    for name in ("started", "ended", "gpu_s", "nodes", "leaves"):
        assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True)
    assert all(np.array_equal(one.waited[c], two.waited[c]) for c in one.waited)
