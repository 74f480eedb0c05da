"""Figures of a replay, against sums done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from slurm_plugins.replay.figures import RECORDED, Course, course, figures, recorded
from slurm_plugins.replay.values import Cluster, Job, Replayed, Trace

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
        (0.0, 8, 96, 8e5, 0, 8),
        (10.0, 8, 96, 8e5, 1, 8),
        (20.0, 16, 192, 16e5, 1, 4),
        (90.0, 32, 0, 0, 0, 0),
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
    assert math.isnan(Course(flat, flat, flat, flat, flat, flat).mean(flat, 0.0, 1.0))
