"""`las+elastic`: Elastic Tiresias on nodes, by the engine of every other policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.scaling import speeds
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy, PolicyError
from slurm_plugins.replay.values import Cluster, Job, Replayed, Trace
from tests.unit.slurm_plugins.replay.strategies import clusters, traces
from tests.unit.slurm_plugins.replay.test_invariants import PACKINGS, QUICK, watched

NODE = Cluster.alike(1, 8, 96, 512_000)


def ended(rows: list[Job], text: str, cluster: Cluster = NODE) -> Replayed:
    return replay(Trace.of(rows), cluster, Policy.parse(text))


def test_a_lone_job_has_all_that_helps_it():
    alone = [Job(1, 0.0, 3600.0, gpus=2, workload="resnet50", gpus_least=1, gpus_most=8)]
    curve = speeds("resnet50", 2, 8)
    done = ended(alone, "las+elastic+restart=0")
    assert done.ended[0] == pytest.approx(3600 * curve[2] / curve[8])
    assert done.attempts[0] == 1
    assert done.gpu_s[0] == pytest.approx(8 * done.ended[0])


def test_a_job_without_a_range_is_not_scaled_unless_the_policy_supposes_one():
    alone = [Job(1, 0.0, 3600.0, gpus=2, workload="resnet50")]
    assert ended(alone, "las+elastic").ended[0] == 3600
    assert ended(alone, "las+elastic+most=4").ended[0] < 2400
    assert ended([Job(1, 0.0, 3600.0, gpus=2, nodes=1)], "las+elastic+most=4").ended[0] == 3600, (
        "its own shape"
    )


def test_growing_costs_what_the_policy_says():
    rows = [
        Job(1, 0.0, 7200.0, gpus=4, workload="resnet50", gpus_least=4, gpus_most=8),
        Job(2, 0.0, 900.0, gpus=4, workload="bert"),
    ]
    free, second, stops = (
        ended(rows, f"las+elastic+{costs}").ended[0]
        for costs in ("restart=0", "restart=30+grow=1", "restart=30")
    )
    assert (second - free, stops - free) == (pytest.approx(1), pytest.approx(30))


def test_compaction_lets_a_queue_of_more_than_ten_in():
    long = Job(1, 0.0, 40_000.0, gpus=8, workload="vgg16", gpus_least=2, gpus_most=8)
    short = [Job(2 + n, 10_000.0, 900.0, gpus=2, workload="bert") for n in range(15)]
    # the upper queue would stop the long job; so these are of the lower one too
    old = [Job(50 + n, 10_000.0, 20_000.0, gpus=8, workload="vgg16", gpus_least=2) for n in range(12)]
    plain, elastic = (
        ended([long, *short, *old], text) for text in ("tiresias+round=60", "las+elastic+round=60")
    )
    assert elastic.gpu_s[0] != plain.gpu_s[0]
    assert np.nanmean(elastic.ended - 0.0) < np.nanmean(plain.ended - 0.0)


@pytest.mark.parametrize("text", ["fifo+elastic", "las+elastic+tune", "slurm+elastic"])
def test_what_does_not_scale_says_so(text):
    with pytest.raises(PolicyError, match=r"las\+elastic"):
        ended([Job(1, 0.0, 1.0)], text)


@pytest.mark.parametrize(
    "word", ["least=0", "least=2", "most=0.5", "most=inf", "grow=-1", "shrink=inf", "grow=x"]
)
def test_numbers_out_of_range_are_refused(word):
    with pytest.raises(PolicyError):
        Policy.parse(f"las+elastic+{word}")


@QUICK
@given(
    traces(vectors=True),
    clusters(),
    PACKINGS,
    st.sampled_from(("", "+restart=0", "+restart=90+grow=1+shrink=0")),
    st.sampled_from(("", "+least=0.25+most=4", "+most=2")),
    st.sampled_from(("", "+round=10")),
)
def test_nodes_hold_what_runs_and_every_job_ends_with_its_work_done(
    trace, cluster, packing, costs, bounds, rounds
):
    with watched():
        done = replay(trace, cluster, Policy.parse(f"las+elastic+{packing}+even{costs}{bounds}{rounds}"))
    for row, job in enumerate(trace):
        if done.gave_up and done.gave_up[row]:
            continue
        assert done.started[row] >= job.arrival
        # at four times its GPUs it is at most four times as fast
        assert done.run_s[row] >= job.work / (4 if "4" in bounds else 2 if bounds else 1) - 1e-6
        if not bounds and "restart=0" in costs:
            assert done.run_s[row] == pytest.approx(job.work)
            assert done.gpu_s[row] == pytest.approx(job.work * job.gpus)


@QUICK
@given(traces(), clusters())
def test_it_is_a_function_of_its_arguments(trace, cluster):
    policy = Policy.parse("las+elastic+least=0.5+most=2+round=20")
    one, two = (replay(trace, cluster, policy) for _ in range(2))
    assert np.array_equal(one.ended, two.ended, equal_nan=True)
