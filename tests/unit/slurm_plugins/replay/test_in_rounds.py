"""Replays in rounds: what a trace becomes in the tuner's simulation, and what of it is told back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.in_rounds import TUNINGS
from slurm_plugins.replay.policy import Policy, PolicyError
from slurm_plugins.replay.values import CAUSES, Cluster, Job, Nodes, Trace
from slurm_plugins.tuner.placing import tune
from slurm_plugins.tuner.rounds import Job as Run
from slurm_plugins.tuner.rounds import anew, simulate
from slurm_plugins.tuner.values import PROFILES, V100

ONE = Cluster.alike(1, 8, 24, 500 * 1024)
TWO = Cluster.alike(2, 8, 24, 500 * 1024, leaf_size=1)


def test_first_come_first_served_in_rounds():
    trace = Trace.of([Job(1, 0.0, 400.0, gpus=8), Job(2, 10.0, 100.0, gpus=8)])
    done = replay(trace, ONE, Policy.parse("fifo+tune"))
    assert done.started.tolist() == [0.0, 600.0]
    assert done.ended.tolist() == [400.0, 700.0]
    assert done.waited["resources"].tolist() == [0.0, 590.0]
    assert done.gpu_s.tolist() == [3200.0, 800.0]


def test_a_sensitive_workload_gets_what_the_frugal_leave():
    """An alexnet is 2.94 times as fast with 12 CPUs, which seven gnmt leave it."""
    rows = [Job(0, 0.0, 2940.0, gpus=1, workload="alexnet")]
    rows += [Job(n, 0.0, 2940.0, gpus=1, workload="gnmt") for n in range(1, 8)]
    ends = {
        tuning: replay(Trace.of(rows), ONE, Policy.parse(f"fifo+{tuning}")).ended.tolist()
        for tuning in TUNINGS
    }
    assert ends.pop("proportional") == [2940.0] * 8
    for tuned in ends.values():
        assert tuned == pytest.approx([1000.0, *[2940.0] * 7])


def test_a_workload_without_a_curve_neither_gains_nor_gives():
    rows = [
        Job(0, 0.0, 600.0, gpus=1, workload="alexnet"),
        *(Job(n, 0.0, 600.0, workload="ours") for n in range(1, 8)),
    ]
    assert replay(Trace.of(rows), ONE, Policy.parse("fifo+tune")).ended.tolist() == pytest.approx([600.0] * 8)


def test_a_share_below_its_curve_leaves_a_workload_without_one():
    """alexnet's begins at one CPU a GPU; here each has half of one."""
    poor = Cluster.alike(1, 8, 4, 500 * 1024)
    done = replay(Trace.of([Job(0, 0.0, 600.0, workload="alexnet")]), poor, Policy.parse("fifo+tune"))
    assert done.ended.tolist() == [600.0]


def test_attempts_follow_each_other_and_what_failed_is_lost():
    trace = Trace.of([Job(1, 0.0, 500.0, gpus=8)])
    attempts = Attempts.of([[(100.0, 0.0, 1, False), (500.0, 60.0, 0, True)]])
    done = replay(trace, ONE, Policy.parse("fifo+tune"), attempts=attempts)
    assert (done.started[0], done.ended[0]) == (0.0, 800.0)
    assert (done.attempts[0], done.run_s[0], done.gpu_s[0], done.lost_gpu_s[0]) == (2, 600.0, 4100.0, 100.0)


def test_spread_jobs_are_slower_unless_placement_costs_nothing():
    """Two jobs of five GPUs leave three on each of two nodes for one of six."""
    rows = [Job(1, 0.0, 1000.0, gpus=5), Job(2, 0.0, 1000.0, gpus=5), Job(3, 100.0, 500.0, gpus=6)]
    spread = replay(Trace.of(rows), TWO, Policy.parse("fifo+tune"))
    even = replay(Trace.of(rows), TWO, Policy.parse("fifo+tune+even"))
    assert (spread.nodes[2], spread.leaves[2]) == (2, 2)
    assert even.ended.tolist() == [1000.0, 1000.0, 800.0]
    assert spread.ended[2] > 800.0


def test_what_can_never_run_says_why():
    trace = Trace.of([Job(1, 0.0, 10.0, gpus=9), Job(2, 0.0, 10.0, gpus=0), Job(3, 0.0, 10.0, gpus=1)])
    done = replay(trace, ONE, Policy.parse("fifo+tune"))
    assert list(done.gave_up) == ["9 GPUs of 8", "no GPUs: rounds hand out GPUs", ""]
    assert np.isnan(done.ended[:2]).all()
    assert done.ended[2] == 10.0


@pytest.mark.parametrize(
    "text",
    [
        "fair+tune",
        "multifactor+tune",
        "fifo+easy+tune",
        "fifo+strict+tune",
        "tiresias+tune",
        "las+keep+tune",
        "philly+tune",
        "fifo+elastic+tune",
        "fifo+tune+restart=300",
    ],
)
def test_what_rounds_do_not_know_is_refused(text):
    with pytest.raises(PolicyError):
        replay(Trace.of([Job(1, 0.0, 10.0)]), ONE, Policy.parse(text))


@pytest.mark.parametrize(
    "nodes",
    [
        (Nodes(1, 8, 24, 512000), Nodes(1, 4, 24, 512000)),
        (Nodes(1, 8, 24, 512000, partitions=frozenset({"a"})),),
        (Nodes(1, 0, 24, 512000),),
    ],
)
def test_nodes_must_be_alike_and_open_to_all(nodes):
    with pytest.raises(ValueError, match=r"alike|without GPUs"):
        replay(Trace.of([Job(1, 0.0, 10.0)]), Cluster("mixed", nodes), Policy.parse("fifo+tune"))


def test_a_trace_without_jobs():
    assert len(replay(Trace.of([]), ONE, Policy.parse("fifo+tune")).ended) == 0


def traces() -> st.SearchStrategy[Trace]:
    jobs = st.tuples(
        st.floats(0, 4000),
        st.floats(1, 2000),
        st.sampled_from([1, 1, 2, 4, 8, 12]),
        st.sampled_from(sorted(PROFILES)),
    )
    return st.lists(jobs, min_size=1, max_size=20).map(
        lambda rows: Trace.of([Job(n, a, w, gpus=g, workload=name) for n, (a, w, g, name) in enumerate(rows)])
    )


@pytest.mark.parametrize("order", ["fifo", "srtf", "las", "ftf"])
@pytest.mark.parametrize("tuning", sorted(TUNINGS))
@given(traces())
@settings(max_examples=20, deadline=None)
def test_every_job_ends_having_held_its_gpus_long_enough(order, tuning, trace):
    policy = Policy.parse(f"{order}+{tuning}+even+restart=30")
    done = replay(trace, TWO, policy)
    again = replay(trace, TWO, policy)
    assert done.ended.tolist() == again.ended.tolist()
    assert (done.started >= trace["arrival"]).all()
    for row, (work, gpus) in enumerate(zip(trace["work"], trace["gpus"], strict=True)):
        curve = PROFILES[trace.text("workload")[row]].curve
        fastest = 1.0 if tuning == "proportional" else curve.two(int(gpus), V100).fast
        assert done.run_s[row] >= work / fastest - 1e-6
        if tuning != "greedy":
            assert done.run_s[row] <= work + done.lost_gpu_s[row] / gpus * fastest + 1e-6
    busy = np.sum(done.gpu_s)
    assert busy <= TWO.gpus * (done.ended.max() - trace["arrival"].min()) + 1e-6
    assert set(done.waited) == set(CAUSES)


def test_a_trace_of_synergy_gives_what_its_own_simulation_gives():
    """The same jobs by hand: no cost of moving, TUNE from nothing in every round."""
    rows = [(0.0, 900.0, "alexnet"), (0.0, 1200.0, "gnmt"), (350.0, 700.0, "m5")]
    runs = [Run(n, a, w, 1, PROFILES[name]) for n, (a, w, name) in enumerate(rows)]
    direct = simulate(runs, "fifo", anew(tune), 1).ends
    trace = Trace.of([Job(n, a, w, gpus=1, workload=name) for n, (a, w, name) in enumerate(rows)])
    assert replay(trace, ONE, Policy.parse("fifo+tune+restart=0")).ended.tolist() == pytest.approx(
        [direct[n] for n in range(3)]
    )
