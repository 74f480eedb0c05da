"""Replays under Slurm's rules: two real stretches start by start, small cases by hand, and what holds of all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.cluster_of import cluster_of
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.recorded import nearness
from slurm_plugins.replay.slurm_rules import Partition, SlurmRules
from slurm_plugins.replay.slurm_run import Rhythm, run
from slurm_plugins.replay.traces import read
from slurm_plugins.replay.values import Cluster, Job, Replayed, Trace
from tests.paths import DATA
from tests.properties import examples
from tests.unit.slurm_plugins.replay.strategies import clusters, traces
from tests.unit.slurm_plugins.replay.test_invariants import gpus_in_use

RECORDED = DATA / "replay"
AT_ONCE = SlurmRules(multifactor=False, batch_delay_s=0.0, tick_s=0.0, bf_interval_s=1.0)
"""The main loop looks the moment something happens."""


@dataclass(frozen=True)
class Lived:
    """A stretch of a development cluster: its export, and the moments that slurmctld's log told."""

    trace: Trace
    cluster: Cluster
    rules: SlurmRules
    moments: dict[str, Any]


@pytest.fixture(scope="module", params=["slurm-22.05", "slurm-24.11"])
def lived(request) -> Lived:
    folder = RECORDED / request.param
    moments = json.loads((folder / "moments.json").read_text())
    tables = {name: (folder / f"{name}.psv").read_text() for name in ("qos", "sshare")}
    major, minor = moments["release"].split(".")[:2]
    rules = SlurmRules.parse((folder / "slurm.conf").read_text(), **tables)
    rules = replace(
        rules, completing_s=0.02, release=(int(major), int(minor)), calc_at=moments["boot"] + 1.25
    )
    return Lived(read(folder / "export.psv").trace, cluster_of(folder / "slurm.conf").cluster, rules, moments)


@pytest.mark.slow
def test_with_moments_to_a_millisecond_every_start_is_slurms(lived):
    known = lived.moments["jobs"]
    trace = Trace.of(
        (
            replace(
                job, arrival=known[str(job.job)][0], began=known[str(job.job)][1], work=known[str(job.job)][2]
            )
            for job in lived.trace
        ),
        zero=lived.trace.zero,
    )
    rhythm = Rhythm(tuple(lived.moments["main"]), tuple(lived.moments["backfill"]))
    rules = replace(lived.rules, calc_at=lived.moments["calc_at"])
    assert most(run(trace, lived.cluster, rules, rhythm=rhythm), trace) < 0.2
    # the policy matters: by another one jobs start at other times
    others = (replace(rules, multifactor=False), replace(rules, bf_reserve=1), replace(rules, age=0.0))
    assert [most(run(trace, lived.cluster, other, rhythm=rhythm), trace) > 10 for other in others] == [
        True
    ] * 3
    idle = Rhythm(rhythm.main, ())
    assert most(run(trace, lived.cluster, rules, rhythm=idle), trace) > 10


def most(done: Replayed, trace: Trace) -> float:
    """The largest error of a start; inf: not all have started."""
    return float(np.nan_to_num(np.abs(done.started - trace["began"]), nan=np.inf).max())


@pytest.mark.slow
def test_from_the_export_alone_starts_are_near(lived):
    own = nearness(
        lived.trace, [run(lived.trace, lived.cluster, lived.rules, seed=seed) for seed in range(3)]
    )
    assert own.jobs == 150
    assert own.median <= 8
    assert own.rank > 0.9
    assert abs(own.wait_replayed - own.wait) < 0.25 * own.wait
    fifo = replace(lived.rules, multifactor=False, backfill=False)
    assert nearness(lived.trace, [run(lived.trace, lived.cluster, fifo)]).median > 3 * own.median


def test_a_replay_is_a_function_of_its_seed(lived):
    few = lived.trace.only(lived.trace["arrival"] < 60, "later")
    one, same, other = (run(few, lived.cluster, lived.rules, seed=seed) for seed in (1, 1, 2))
    assert (one.started == same.started).all()
    assert (one.started != other.started).any()


def test_waits_sum_up_to_the_wait(lived):
    few = lived.trace.only(lived.trace["arrival"] < 60, "later")
    done = run(few, lived.cluster, lived.rules)
    waited = np.sum(list(done.waited.values()), axis=0)
    assert waited == pytest.approx(done.started - few["arrival"], abs=1e-6)


# --- by hand --------------------------------------------------------------------------------------------------------


def small(*jobs: Job, rules: SlurmRules = AT_ONCE, nodes: int = 1, **more) -> list[float]:
    """Starts on nodes of 8 GPUs."""
    trace = Trace.of(jobs)
    starts: list[float] = run(trace, Cluster.alike(nodes, 8, 64.0, 8000.0), rules, **more).started.tolist()
    return starts


def test_backfill_plans_with_limits_and_lives_with_run_times():
    first = Job(1, 0.0, 1000.0, gpus=4, limit=6000.0)
    wide = Job(2, 1.0, 100.0, gpus=8, limit=600.0)
    # its limit says that it would be in the way at 6000; the run time says nothing to Slurm
    fits, does_not = Job(3, 2.0, 100.0, gpus=4, limit=5000.0), Job(4, 3.0, 100.0, gpus=4, limit=7000.0)
    started = small(first, wide, fits, does_not)
    assert started[0] == 0.0
    assert started[1] == 1000.0
    assert 2.0 <= started[2] <= 4.0
    assert started[3] == 1100.0


def test_without_backfill_nobody_goes_ahead():
    rules = replace(AT_ONCE, backfill=False)
    jobs = [Job(1, 0.0, 100.0, gpus=4), Job(2, 1.0, 100.0, gpus=8), Job(3, 2.0, 10.0, gpus=4)]
    assert small(*jobs, rules=rules) == [0.0, 100.0, 200.0]


def test_the_main_loop_waits_for_its_tick_and_its_delay():
    rules = replace(SlurmRules(multifactor=False), backfill=False)
    starts = small(Job(1, 10.0, 5.0), Job(2, 10.5, 5.0), rules=rules)
    assert all(10.0 < start <= 14.5 for start in starts)


def test_a_job_ends_at_its_limit():
    trace = Trace.of([Job(1, 0.0, 5000.0, limit=600.0), Job(2, 0.0, 610.0, limit=600.0)])
    done = run(trace, Cluster.alike(1, 8, 64.0, 8000.0), AT_ONCE)
    # what was recorded a little over it is how Slurm was that late
    assert done.ended.tolist() == [600.0, 610.0]


def test_tiers_come_before_priority():
    rules = replace(AT_ONCE, partitions={"low": Partition(100.0, 1), "high": Partition(1.0, 2)})
    jobs = [
        Job(1, 0.0, 100.0, gpus=8),
        Job(2, 1.0, 10.0, gpus=8, queue="low"),
        Job(3, 2.0, 10.0, gpus=8, queue="high"),
    ]
    assert small(*jobs, rules=rules) == [0.0, 110.0, 100.0]


def test_a_job_that_no_node_ever_holds_is_told_and_holds_nobody_up():
    trace = Trace.of(
        [Job(1, 0.0, 10.0, gpus=9, nodes=1), Job(2, 0.0, 10.0, gpus=1, gpu_type=""), Job(3, 0.0, 0.0)]
    )
    done = run(trace, Cluster.alike(2, 8, 64.0, 8000.0), AT_ONCE)
    assert np.isnan(done.started).tolist() == [True, False, True]
    assert done.gave_up[0] and not done.gave_up[1]


def test_further_attempts_queue_again():
    trace = Trace.of([Job(1, 0.0, 100.0, gpus=8), Job(2, 1.0, 50.0, gpus=8)])
    attempts = Attempts.of([[(30.0, 0.0, 0, False), (100.0, 10.0, 0, True)], [(50.0, 0.0, 0, True)]])
    done = run(trace, Cluster.alike(1, 8, 64.0, 8000.0), AT_ONCE, attempts=attempts)
    assert done.started.tolist() == [0.0, 30.0]
    assert done.ended.tolist() == [180.0, 80.0]
    assert done.attempts.tolist() == [2, 1]
    assert done.lost_gpu_s.tolist() == [240.0, 0.0]


def test_attempts_of_another_trace():
    trace = Trace.of([Job(1, 0.0, 1.0)])
    with pytest.raises(ValueError, match="attempts of 0 jobs"):
        run(trace, Cluster.alike(1, 8, 64.0, 8000.0), AT_ONCE, attempts=Attempts.of([]))


def test_nothing_to_replay():
    done = run(Trace.of([]), Cluster.alike(1, 8, 64.0, 8000.0), AT_ONCE)
    assert len(done.started) == 0
    with pytest.raises(ValueError, match="no job"):
        nearness(Trace.of([]), [done])


def test_looks_that_end_leave_the_rest_waiting():
    trace = Trace.of([Job(1, 0.0, 10.0), Job(2, 5.0, 10.0)])
    done = run(trace, Cluster.alike(1, 8, 64.0, 8000.0), SlurmRules(), rhythm=Rhythm((1.0,), ()))
    assert done.started[0] == 1.0
    assert done.gave_up[1] == "still waits at the end"


# --- what holds of all ----------------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(traces(vectors=True), clusters(), st.integers(0, 3), st.booleans())
def test_jobs_work_and_capacity(trace, cluster, seed, easy):
    policy = replace(Policy.parse("slurm"), slurm=replace(SlurmRules(), bf_reserve=int(easy)))
    done = replay(trace, cluster, policy, seed=seed)
    never = np.isnan(done.started)
    told = np.array([bool(why) for why in done.gave_up]) if done.gave_up else np.zeros(len(trace), bool)
    assert (never == told).all()
    ran = ~never
    assert (done.started[ran] >= trace["arrival"][ran]).all()
    assert done.run_s[ran] == pytest.approx(trace["work"][ran])
    # a job whose GPUs do not divide over its nodes holds more than it asked for, never fewer
    assert (done.gpu_s[ran] >= (trace["work"] * trace["gpus"])[ran] - 1e-6).all()
    assert gpus_in_use(trace, done) <= cluster.gpus
    again = replay(trace, cluster, policy, seed=seed)
    assert np.array_equal(done.started, again.started, equal_nan=True)


def test_words_of_a_policy_say_what_no_slurm_conf_tells():
    one, jobs = Cluster.alike(1, 8, 8, 8), [Job(1, 0.0, 60.0, gpus=8), Job(2, 1.0, 60.0, gpus=8)]
    later = [
        float(replay(Trace.of(jobs), one, Policy.parse(text)).started[1] - 60)
        for text in ("slurm", "slurm+epilog=40")
    ]
    assert later[1] - later[0] == pytest.approx(40, abs=4)  # the looks are some seconds apart

    # the second waits for both nodes, and the third fits beside the first until that has ended
    two = Cluster.alike(2, 8, 8, 8)
    asked = [
        Job(1, 0.0, 3600.0, gpus=8, nodes=1, limit=7200.0, queue="a"),
        Job(2, 1.0, 600.0, gpus=16, nodes=2, limit=1200.0, queue="a"),
        Job(3, 2.0, 600.0, gpus=8, nodes=1, limit=1200.0, queue="a"),
    ]
    assert replay(Trace.of(asked), two, Policy.parse("slurm")).started[2] < 120
    assert replay(Trace.of(asked), two, Policy.parse("slurm+none")).started[2] > 3600


@pytest.mark.slow
@pytest.mark.parametrize("words", ["slurm", "slurm+none", "slurm+reserve=1", "slurm+epilog=0.02"])
def test_a_policy_and_its_words_are_the_rules_that_they_name(lived, words):
    plain = replace(lived.rules, completing_s=0.0)
    as_rules = {
        "slurm": plain,
        "slurm+none": replace(plain, backfill=False),
        "slurm+reserve=1": replace(plain, bf_reserve=1),
        "slurm+epilog=0.02": lived.rules,
    }
    policy = replace(Policy.parse(words), slurm=plain)
    told = replay(lived.trace, lived.cluster, policy)
    assert told.started.tolist() == run(lived.trace, lived.cluster, as_rules[words]).started.tolist()
