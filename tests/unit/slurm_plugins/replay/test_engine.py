"""Replays small enough to do by hand, and what faster clusters and other clocks must not change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy, PolicyError
from slurm_plugins.replay.values import Cluster, Job, Nodes, Replayed, Trace
from tests.properties import examples
from tests.unit.slurm_plugins.replay.strategies import clusters, traces
from tests.unit.slurm_plugins.replay.test_invariants import QUICK


def run(policy: str, *jobs: Job, nodes: int = 1, gpus: int = 4, leaf: int = 0, **quotas: int) -> Replayed:
    cluster = Cluster.alike(nodes, gpus, gpus * 8.0, gpus * 1000.0, leaf_size=leaf)
    return replay(Trace.of(jobs), dataclasses.replace(cluster, quotas=quotas), Policy.parse(policy))


def other(trace: Trace, **columns: np.ndarray) -> Trace:
    return dataclasses.replace(trace, columns={**trace.columns, **columns})


@settings(QUICK, max_examples=examples(100))
@given(traces(), clusters(), st.integers(0, 3), st.lists(st.floats(0.1, 1.0), min_size=25, max_size=25))
def test_a_faster_cluster_starts_no_job_later_under_fifo(trace, cluster, more, shares):
    """A theorem for gangs too, where any free GPUs will do and spreading costs nothing: fifo+anywhere+even.

    Let F(x) be how many GPUs are free for good from time x on, were nobody else to start. In order of arrival a job
    starts at the first moment, not before the one ahead of it, with F >= its GPUs. With shorter runs or more nodes F is
    nowhere smaller, so no start is later, so F after it is nowhere smaller: by induction no job starts or ends later,
    and the makespan is no worse. It does not hold under a constraint of locality, where a start elsewhere can cut a
    whole node in two, nor with backfill, nor where spread jobs run slower.
    """
    policy = Policy.parse("fifo+pack+anywhere+even")
    trace = trace.only(trace["gpus"] <= cluster.gpus, "larger than the cluster")
    slow = replay(trace, cluster, policy)
    larger = dataclasses.replace(cluster, nodes=(*cluster.nodes, Nodes(more, 4, 32.0, 4000.0, leaf="new")))
    faster = other(trace, work=np.round(trace["work"] * np.array(shares[: len(trace)]), 3))
    for there, jobs in ((larger, trace), (cluster, faster), (larger, faster)):
        fast = replay(jobs, there, policy)
        assert (fast.started <= slow.started + 1e-6).all()
        assert (fast.ended <= slow.ended + 1e-6).all()


@settings(QUICK, max_examples=examples(40))
@given(traces(), clusters(), st.sampled_from(("fifo", "fifo+skip", "fifo+easy", "fifo+strict")))
def test_a_clock_at_half_speed_gives_the_same_replay(trace, cluster, policy):
    double = other(trace, **{name: trace[name] * 2 for name in ("arrival", "work", "limit")})
    one, two = (replay(jobs, cluster, Policy.parse(policy)) for jobs in (trace, double))
    assert np.array_equal(one.started * 2, two.started, equal_nan=True)
    assert np.array_equal(one.nodes, two.nodes)


def test_fifo_holds_up_the_rest_and_skip_does_not():
    jobs = Job(1, 0.0, 100.0, gpus=3), Job(2, 1.0, 10.0, gpus=4), Job(3, 2.0, 10.0)
    assert run("fifo", *jobs).started.tolist() == [0, 100, 110]
    skipped = run("fifo+skip", *jobs)
    assert skipped.started.tolist() == [0, 100, 2]
    assert skipped.out_of_order == 1


def test_backfill_goes_by_limits_and_never_puts_off_the_first():
    head = Job(1, 0.0, 50.0, gpus=3, limit=100.0), Job(2, 1.0, 10.0, gpus=4, limit=10.0)
    short, long = Job(3, 2.0, 90.0, limit=98.0), Job(4, 2.0, 90.0, limit=99.0)
    assert run("fifo+easy", *head, short).started.tolist() == [0, 92, 2]
    assert run("fifo+easy", *head, long).started.tolist() == [0, 50, 60]


def test_backfill_beside_the_reservation():
    jobs = Job(1, 0.0, 50.0, gpus=3, limit=50.0), Job(2, 1.0, 10.0, gpus=3, limit=10.0), Job(3, 2.0, 500.0)
    done = run("fifo+easy", *jobs)
    assert done.started.tolist() == [0, 50, 2]


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        # at the round of 300 s the short one takes the place, for 60 s of restart
        ("srtf+restart=60", [1000 + 100 + 60, 400]),
        ("srtf+keep", [1000, 1100]),
        ("las+restart=0", [1100, 400]),
        ("fifo", [1000, 1100]),
    ],
)
def test_orders_that_preempt(policy, ends):
    done = run(policy, Job(1, 0.0, 1000.0, gpus=4), Job(2, 10.0, 100.0, gpus=4))
    assert done.ended.tolist() == ends
    assert done.run_s.sum() == pytest.approx(1100 + done.lost_gpu_s.sum() / 4)


def test_finish_time_fairness_serves_whom_the_wait_hurts_most():
    jobs = Job(1, 0.0, 200.0, gpus=4), Job(2, 10.0, 4000.0, gpus=4), Job(3, 20.0, 50.0, gpus=4)
    assert run("ftf+keep", *jobs).started.tolist() == [0, 250, 200]


def test_failures_retries_and_smoke_runs():
    trace = Trace.of([Job(1, 0.0, 100.0, gpus=4), Job(2, 1.0, 30.0, gpus=3), Job(3, 2.0, 5.0)])
    runs = Attempts.of([[(20.0, 5.0, 1, False), (100.0, 0.0, 0, True)], [(10.0, 0.0, 0, False)] * 2, []])
    done = replay(trace, Cluster.alike(1, 4, 32, 4000), Policy.parse("fifo"), attempts=runs)
    # the smoke run of one GPU goes beside the second job, whose retry ends before there are four GPUs
    assert done.started[:2].tolist() == [5, 1]
    assert done.ended[:2].tolist() == [125, 21]
    assert done.attempts.tolist() == [2, 2, 0]
    assert done.lost_gpu_s.tolist() == [20, 60, 0]
    assert done.gpu_s.tolist() == [420, 60, 0]
    assert done.waited["other"].tolist() == [5, 0, 0]
    assert done.gave_up == ["", "", "given up before it ran"]


def test_waits_by_cause():
    jobs = [
        Job(1, 0.0, 100.0, gpus=3),
        Job(2, 0.0, 100.0, gpus=3),
        Job(3, 10.0, 5.0, gpus=2),
        Job(4, 20.0, 5.0),
    ]
    done = run("fifo+strict", *jobs, nodes=2)
    assert done.waited["fragmentation"].tolist() == [0, 0, 90, 0]
    assert done.waited["order"].tolist() == [0, 0, 0, 80]
    more = run("fifo", *jobs[:2], Job(3, 10.0, 5.0, gpus=4), nodes=2)
    assert more.waited["resources"][2] == 90
    capped = run("fair+quotas", Job(1, 0.0, 50.0, gpus=2, queue="a"), Job(2, 5.0, 5.0, queue="a"), a=2)
    assert capped.waited["fair_share"].tolist() == [0, 45]


def test_a_gang_relaxes_after_its_retries_and_holds_what_it_has_meanwhile():
    busy = [Job(n, 0.0, 5000.0, gpus=3) for n in (1, 2)]
    gang, late = Job(3, 10.0, 100.0, gpus=2), Job(4, 20.0, 1.0)
    strict = run("philly+strict", *busy, gang, nodes=2)
    assert strict.started[2] == 5000 or 5000 < strict.started[2] < 5300
    # one try of 120 to 180 s, 120 s of back-off, then any nodes of the rack
    relaxed = run("philly+retries=1", *busy, gang, nodes=2)
    assert 250 <= relaxed.started[2] <= 310
    assert relaxed.nodes[2] == 2
    assert relaxed.run_s[2] > 100
    # the strict gang holds one node's free GPU; the late job takes the other node's
    more = run("philly+retries=1", *busy, gang, late, Job(5, 20.5, 1.0), nodes=2)
    assert more.started[3] == 20
    assert more.started[4] == 21


def test_lent_gpus_go_back_when_their_queue_needs_them():
    lent = [Job(n, 0.0, 1000.0, queue="b") for n in range(1, 5)]
    done = run("philly+restart=60", *lent, Job(9, 100.0, 10.0, gpus=2, queue="a"), a=2, b=2)
    assert done.started[4] == 100
    assert sorted(done.ended.tolist()) == [110, 1000, 1000, 1070, 1070]
    assert run("philly+quotas", *lent, a=2, b=2).started.tolist() == [0, 0, 1000, 1000]
    # four of five GPUs in use is less than 90 %, and there is one for whoever asks for one
    few = run("philly", *lent, Job(9, 100.0, 10.0, gpus=2, queue="a"), a=2, b=3, gpus=5)
    assert few.started[4] > 100


def test_a_job_larger_than_its_quota_is_told():
    done = run("philly+quotas", Job(1, 0.0, 5.0, gpus=4, queue="a"), a=2)
    assert done.gave_up == ["4 GPUs are more than its queue's quota of 2"]


def test_jobs_that_no_place_holds_are_told():
    jobs = (
        Job(1, 0.0, 5.0, gpus=9),
        Job(2, 0.0, 5.0, gpu_type="h100"),
        Job(3, 0.0, 5.0, cpus=33),
        Job(4, 0.0, 0.0),
    )
    done = run("fifo", *jobs, nodes=2)
    assert done.gave_up == [
        "the cluster has no 9 GPUs that it may use",
        "no node is of its kind",
        "the cluster has no 1 GPU with 33 CPUs that it may use",
        "it did not run in the trace",
    ]


def test_partitions_and_types():
    old = Nodes(1, 4, 32, 4000, "v100", "leaf0", frozenset({"a", "b"}))
    new = Nodes(1, 4, 32, 4000, "h100", "leaf0", frozenset({"b"}))
    jobs = [Job(n, 0.0, 10.0, gpus=4, queue="a") for n in (1, 2)] + [
        Job(3, 0.0, 10.0, gpus=4, queue="b", gpu_type="h100")
    ]
    done = replay(Trace.of(jobs), Cluster("two", (old, new)), Policy.parse("fifo+skip"))
    assert done.started.tolist() == [0, 10, 0]


def test_shapes_are_those_of_the_gang_stage():
    """12 GPUs on nodes of 8 go to two nodes with 6 each, as `decide` has it; 13 divide over no nodes evenly."""
    done = run("fifo", Job(1, 0.0, 10.0, gpus=12), Job(2, 0.0, 10.0, gpus=2), nodes=2, gpus=8)
    assert done.nodes.tolist() == [2, 1]
    assert run("fifo+strict", Job(1, 0.0, 10.0, gpus=13), nodes=2, gpus=8).run_s.tolist() == [10]


def test_progress_is_told_and_ends_at_all():
    shares: list[float] = []
    trace = Trace.of(Job(n, float(n), 1.0) for n in range(1000))
    replay(trace, Cluster.alike(1, 8, 8, 8), Policy.parse("fifo"), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert 90 <= len(shares) <= 110


@pytest.mark.parametrize(
    ("text", "word"),
    [("fifo+nonsense", "nonsense"), ("", ""), ("fifo+restart=x", "restart=x"), ("fifo+restart=-1", "restart"),
     ("philly+backoff=0", "backoff"), ("fifo+color=3", "color"), ("philly+reclaim=2", "reclaim"),
     ("philly+acquire=nan", "acquire=nan"), ("fifo+round=inf", "round"), ("philly+retries=1e3", "retries=1e3"),
     ("slurm+epilog=-1", "epilog"), ("slurm+epilog=inf", "epilog"), ("slurm+reserve=-1", "reserve"),
     ("slurm+pack", "pack"), ("multifactor+easy+anywhere", "anywhere"), ("slurm+rank+reserve=1", "rank"),
     ("fifo+epilog=30", "fifo"), ("fifo+reserve=1", "fifo")],
)  # fmt: skip
def test_bad_policies_name_the_word(text, word):
    with pytest.raises(PolicyError) as found:
        Policy.parse(text)
    assert found.value.word == word


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("srtf+easy", "no planner"),
        ("fair+easy", "quotas, and relaxing"),
        ("fifo+easy+relax", "quotas, and relaxing"),
        ("srtf+quotas", "quotas, and relaxing"),
        ("slurm+lend", "quotas, and relaxing"),
        ("slurm+strict", "Slurm's own choice"),
        ("slurm+spread", "Slurm's own choice"),
        ("slurm+skip", "Slurm's own choice"),
    ],
)
def test_what_nobody_would_obey_is_refused(policy, why):
    with pytest.raises(PolicyError, match=why):
        run(policy, Job(1, 0.0, 1.0))


def test_attempts_of_another_trace_are_refused():
    trace = Trace.of([Job(1, 0.0, 1.0)])
    with pytest.raises(ValueError, match="attempts of 2 jobs"):
        replay(trace, Cluster.alike(1, 1, 1, 1), Policy(), attempts=Attempts.of([[], []]))


def test_an_empty_trace():
    done = replay(Trace.of([]), Cluster.alike(1, 8, 8, 8), Policy.parse("philly"))
    assert len(done.started) == 0
