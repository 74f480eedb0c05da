"""What holds of every replay, whatever the trace, cluster and policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.values import Cluster, Replayed, Trace
from tests.replay.strategies import clusters, traces

POLICIES = [
    f"{order}+{packing}+{locality}"
    for order in ("fifo", "fifo+skip")
    for packing in ("pack", "rank", "spread")
    for locality in ("anywhere", "strict")
]
policies = st.sampled_from(POLICIES).map(Policy.parse)


def gpus_in_use(trace: Trace, done: Replayed) -> int:
    """Most GPUs at work at once; at one moment ends come before starts. For jobs that run once."""
    ran = ~np.isnan(done.started)
    times = np.concatenate([done.ended[ran], done.started[ran]])
    change = np.concatenate([-trace["gpus"][ran], trace["gpus"][ran]])
    return int(np.cumsum(change[np.lexsort((change, times))]).max(initial=0))


@settings(max_examples=80, deadline=None)
@given(traces(), clusters(), policies)
def test_jobs_work_and_capacity(trace, cluster, policy):
    check(trace, cluster, policy)


@settings(max_examples=80, deadline=None)
@given(traces(vectors=True), clusters(), policies)
def test_jobs_work_and_capacity_with_cpus_and_memory(trace, cluster, policy):
    check(trace, cluster, policy)


def check(trace: Trace, cluster: Cluster, policy: Policy) -> None:
    """No job is lost, none starts early, its work is done, and no more GPUs are used than there are."""
    done = replay(trace, cluster, policy)
    never = np.isnan(done.started)
    told = np.array([bool(why) for why in done.gave_up]) if done.gave_up else np.zeros(len(trace), bool)
    assert (never == told).all()
    ran = ~never
    assert not np.isnan(done.ended[ran]).any()
    assert (done.started[ran] >= trace["arrival"][ran]).all()
    assert (done.run_s[ran] >= trace["work"][ran] - 1e-6).all()
    compact = ran & (done.attempts == 1) & (done.run_s <= trace["work"] + 1e-6)
    assert done.gpu_s[compact] == pytest.approx((trace["work"] * trace["gpus"])[compact])
    assert gpus_in_use(trace, done) <= cluster.gpus
    waited = np.sum(list(done.waited.values()), axis=0)
    assert waited[ran] == pytest.approx((done.started - trace["arrival"])[ran], abs=1e-6)
    if policy.locality == "strict":
        assert done.run_s[ran] == pytest.approx(trace["work"][ran])


@settings(max_examples=30, deadline=None)
@given(traces(vectors=True), clusters(), policies)
def test_the_same_inputs_give_the_same_result(trace, cluster, policy):
    one, two = replay(trace, cluster, policy), replay(trace, cluster, policy)
    for name in ("started", "ended", "gpu_s", "nodes", "leaves"):
        assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True)
    assert all(np.array_equal(one.waited[c], two.waited[c]) for c in one.waited)
