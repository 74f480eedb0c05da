"""Figures of a replay, against sums done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.figures import RECORDED, Course, course, figures, recorded
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.values import SAMPLED, Cluster, Job, Replayed, Trace

CLUSTER = Cluster.alike(4, 8, 96, 800_000, leaf_size=2)
NAN = math.nan


def trace() -> Trace:
    return Trace.of(
        [
            Job(1, 0.0, 100.0, gpus=8, began=5.0, deadline=100.0),
            Job(2, 10.0, 50.0, gpus=16, began=20.0, deadline=300.0),
            Job(3, 20.0, 10.0, gpus=1, nodes=0),
            Job(4, 40.0, 10.0, gpus=4),
        ]
    )


def done(**changes: object) -> Replayed:
    """The first starts at once, the second after 90 s on too many nodes, the third runs twice, the last never."""
    plain = Replayed(
        policy="p",
        seed=0,
        started=np.array([0.0, 100.0, 20.0, NAN]),
        ended=np.array([100.0, 150.0, 60.0, NAN]),
        run_s=np.array([100.0, 50.0, 20.0, 0.0]),
        gpu_s=np.array([800.0, 800.0, 20.0, 0.0]),
        lost_gpu_s=np.array([0.0, 0.0, 10.0, 0.0]),
        attempts=np.array([1, 1, 2, 0]),
        nodes=np.array([1, 3, 1, 0]),
        leaves=np.array([1, 2, 1, 0]),
        waited={
            "fair_share": np.array([0.0, 60.0, 0.0, 0.0]),
            "fragmentation": np.array([0.0, 30.0, 0.0, 0.0]),
            "resources": np.zeros(4),
            "order": np.zeros(4),
            "other": np.zeros(4),
        },
        gave_up=["", "", "", "no node has so much"],
        took_s=0.5,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_times_rest_on_the_jobs_that_have_them():
    made = figures(trace(), CLUSTER, done())
    assert (made.jobs, made.finished, made.never) == (4, 3, 1)
    assert made.why_never == (("no node has so much", 1),)
    assert (made.jct.jobs, made.jct.mean, made.jct.p50) == (3, (100 + 140 + 40) / 3, 100.0)
    assert [made.jct.p95, made.jct.p99] == pytest.approx([136.0, 139.2])
    assert made.wait.mean == 30 and made.wait.jobs == 3 and made.makespan == 150
    assert (made.attempts, made.retried, made.took_s) == (4, 1, 0.5)
    assert made.gpu_hours == pytest.approx(1620 / 3600) and made.lost_gpu_hours == pytest.approx(10 / 3600)


def test_waits_by_size_and_cause():
    by_size = {one.size: one for one in figures(trace(), CLUSTER, done()).by_size}
    assert list(by_size) == ["1", "2-4", "5-8", "9-16"]
    assert by_size["2-4"].wait.jobs == 0 and math.isnan(by_size["2-4"].wait.mean), "it never started"
    causes = {one.cause: (one.jobs, one.seconds) for one in by_size["9-16"].causes}
    assert causes["fair_share"] == (1, 60.0) and causes["fragmentation"] == (1, 30.0)
    assert causes["resources"] == (0, 0.0)


def test_locality_is_against_the_fewest_that_hold_a_job():
    made = figures(trace(), CLUSTER, done())
    assert made.gangs == 2, "jobs of one GPU have none"
    assert (made.on_fewest_nodes, made.nodes_over_fewest) == (0.5, 1.25)
    assert (made.under_fewest_leaves, made.leaves_over_fewest) == (0.5, 1.5)
    wanted = Trace.of([replace(trace().job(1), nodes=3)])
    one = done(**{name: getattr(done(), name)[1:2] for name in
                  ("started", "ended", "run_s", "gpu_s", "lost_gpu_s", "attempts", "nodes", "leaves")},
               waited={}, gave_up=())  # fmt: skip
    assert figures(wanted, CLUSTER, one).on_fewest_nodes == 1, "as many as it insists on"


def test_deadlines_and_the_recorded_starts():
    made = figures(trace(), CLUSTER, done())
    assert (made.deadlines, made.deadlines_met) == (2, 2)
    assert made.start_error.jobs == 2 and made.start_error.mean == (5 + 80) / 2
    assert made.start_bias == (-5 + 80) / 2
    late = figures(trace(), CLUSTER, done(ended=np.array([100.5, NAN, 60.0, NAN])))
    assert late.deadlines_met == 0


def test_use_is_that_of_the_time_in_which_jobs_arrive():
    """From 0 to 40: 8 GPUs at first, 16 from 20 s on, of 32; somebody waits from 10 s on; 8, then 4 in a block."""
    rows = [
        (0.0, 8, 96, 8e5, 0, 0, 0.0),
        (10.0, 8, 96, 8e5, 1, 24, 0.0),
        (20.0, 16, 192, 16e5, 1, 16, 0.5),
        (90.0, 32, 0, 0, 0, 0, 0.0),
    ]
    use = figures(trace(), CLUSTER, done(samples=np.array(rows))).use
    assert [use.gpus, use.cpus, use.memory] == pytest.approx([12 / 32, 144 / 384, 12e5 / 32e5])
    assert use.idle_with_queue == pytest.approx((10 * 24 + 20 * 16) / 40 / 32)
    assert use.fragmentation == pytest.approx(20 * 0.5 / 40)
    assert use.waiting == 30 / 40


def test_without_samples_use_is_of_starts_and_ends():
    whole = done(ended=np.array([100.0, 150.0, 40.0, NAN]))
    over = course(trace(), whole)
    edges = np.array([-10.0, 0.0, 20.0, 40.0, 100.0, 150.0, 200.0])
    assert over.means(edges, over.gpus).tolist() == pytest.approx([0, 8, 9, 8, 16, 0])
    assert over.means(edges, over.waiting).tolist() == pytest.approx([0, 0.5, 1, 1, 0, 0])
    assert np.isnan(over.means(edges, over.cpus)).all()
    assert figures(trace(), CLUSTER, whole).use.gpus == pytest.approx((8 * 40 + 20) / 40 / 32)
    assert math.isnan(figures(trace(), CLUSTER, whole).use.cpus)
    assert math.isnan(figures(trace(), CLUSTER, done()).use.gpus), (
        "the third ran in two pieces, nobody says when"
    )


def test_what_really_happened_has_figures_too():
    was = recorded(trace())
    assert was is not None and was.policy == RECORDED
    made = figures(trace(), CLUSTER, was)
    assert (made.finished, made.wait.mean, made.jct.mean) == (2, 7.5, (105 + 60) / 2)
    assert made.start_error.p99 == 0 and made.gangs == 0 and math.isnan(made.on_fewest_nodes)
    assert made.by_size[0].causes == ()
    assert recorded(Trace.of([Job(1, 0.0, 1.0)])) is None


def test_nothing_is_not_zero():
    none = done(started=np.full(4, NAN), ended=np.full(4, NAN), nodes=np.zeros(4, np.int64))
    made = figures(trace(), CLUSTER, none)
    assert made.jct.jobs == 0 and math.isnan(made.jct.p99) and math.isnan(made.makespan)
    assert made.gangs == 0 and math.isnan(made.nodes_over_fewest) and made.deadlines_met == 0


def test_all_at_once_use_is_until_the_queue_is_empty():
    at_once = Trace.of([Job(1, 0.0, 10.0, gpus=32), Job(2, 0.0, 10.0, gpus=16)])
    run = Replayed("p", 0, np.array([0.0, 10.0]), np.array([10.0, 20.0]), np.full(2, 10.0), np.array([320.0, 160.0]),
                   np.zeros(2), np.ones(2, np.int64), np.array([4, 2]), np.array([2, 1]), {})  # fmt: skip
    assert figures(at_once, CLUSTER, run).use.gpus == 0.75


def test_a_mean_over_no_time_is_not_known():
    flat = np.zeros(0)
    assert math.isnan(Course(*[flat] * 7).mean(flat, 0.0, 1.0))


def drawn(gaps: list[float], works: list[float]) -> Trace:
    """A job for each gap and run time, of 1 to 12 GPUs in turn."""
    arrivals = np.cumsum(gaps)
    return Trace.of(
        Job(n + 1, float(at), work, gpus=1 + 5 * n % 12)
        for n, (at, work) in enumerate(zip(arrivals, works, strict=True))
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 70.0, 86_400.0]), st.floats(1, 90_000)), min_size=2, max_size=40
    ),
    st.sampled_from(["fifo+pack", "fifo+easy", "fifo+skip"]),
)
def test_use_is_that_of_starts_and_ends(jobs, policy):
    """However far apart events are: what was noted over time says what starts and ends say."""
    trace = drawn(*map(list, zip(*jobs, strict=True)))
    cluster = Cluster.alike(2, 8, 8, 8)
    ran = replay(trace, cluster, Policy.parse(policy + "+even"))
    noted = figures(trace, cluster, ran).use
    exact = figures(trace, cluster, replace(ran, samples=np.zeros((0, SAMPLED)))).use
    assert noted.gpus == pytest.approx(exact.gpus, abs=1e-6)
    assert noted.waiting == pytest.approx(exact.waiting, abs=1e-6)
    assert noted.idle_with_queue == pytest.approx(exact.idle_with_queue, abs=1e-6)


def test_use_under_slurm_is_that_of_starts_and_ends_too():
    """Its books have whole seconds: ten minutes of eight GPUs a day."""
    trace = Trace.of(Job(n + 1, 86_400.0 * n, 600.0, gpus=8) for n in range(5))
    used = figures(trace, CLUSTER, replay(trace, CLUSTER, Policy.parse("slurm"))).use
    assert used.gpus == pytest.approx(600 / 86_400 * 8 / 32, rel=0.01)
    assert used.waiting < 1e-3


def test_a_long_drain_thins_the_rows_and_not_the_means():
    """9,000 jobs arrive within 9,000 s and are worked off for 25 days: more rows than are kept."""
    trace = drawn([1.0] * 9000, [500.0 + n % 7 for n in range(9000)])
    cluster = Cluster.alike(2, 8, 8, 8)
    ran = replay(trace, cluster, Policy.parse("fifo+pack+even"))
    assert 2000 < len(ran.samples) <= 6001
    noted = figures(trace, cluster, ran).use
    exact = figures(trace, cluster, replace(ran, samples=np.zeros((0, SAMPLED)))).use
    assert [noted.gpus, noted.waiting] == pytest.approx([exact.gpus, exact.waiting], rel=1e-9)
    over = course(trace, ran)
    gpu_s = float((np.diff(over.times) * over.gpus[:-1]).sum())
    assert gpu_s == pytest.approx(float(ran.gpu_s.sum()), rel=1e-9)
