"""The simulator of rounds against cases worked out by hand."""

import pytest

from slurm_plugins.tuner.placing import proportional, tune
from slurm_plugins.tuner.rounds import Job, Times, poisson, simulate
from slurm_plugins.tuner.values import PROFILES, Profile

EASY, SENSITIVE = PROFILES["gnmt"], PROFILES["alexnet"]


def jobs(*works: float, profile: Profile = EASY, gpus: int = 8) -> list[Job]:
    return [Job(n, 0.0, work, gpus, profile) for n, work in enumerate(works)]


def test_a_queue_of_two_starts_the_second_at_the_next_round():
    assert simulate(jobs(400.0, 100.0), "fifo", proportional, 1) == {0: 400.0, 1: 700.0}


def test_srtf_runs_the_short_one_first():
    assert simulate(jobs(400.0, 100.0), "srtf", proportional, 1) == {1: 100.0, 0: 700.0}


def test_las_takes_turns():
    assert simulate(jobs(500.0, 500.0), "las", proportional, 1) == {0: 800.0, 1: 1100.0}


def test_ftf_gives_the_turn_to_whoever_is_furthest_behind_its_time_alone():
    # the long one runs first; then the short one stands at (300 + 400) / 400, and at 600 s at (600 + 100) / 400,
    # before (600 + 300) / 600; the long one's last 300 s fill the round that begins at 900 s
    assert simulate(jobs(600.0, 400.0), "ftf", proportional, 1) == {0: 1200.0, 1: 700.0}


def test_tune_is_faster_where_cpus_are_spare():
    one = jobs(2940.0, profile=SENSITIVE, gpus=1)
    assert simulate(one, "fifo", proportional, 1)[0] == 2940.0
    assert simulate(one, "fifo", tune, 1)[0] == pytest.approx(1000.0)


def test_times_are_hours_from_arrival():
    times = Times.of(jobs(1.0, 1.0), {0: 3600.0, 1: 7200.0})
    assert (times.mean, times.makespan) == (1.5, 2.0)
    assert times.p99 == pytest.approx(1.99)


def test_the_drawn_jobs_have_the_load_and_mix_asked_for():
    drawn = poisson(1, 4000, 9.0, (20, 70, 10))
    assert 4000 / (drawn[-1].arrival / 3600) == pytest.approx(9.0, rel=0.05)
    assert sum(j.profile.task == "language" for j in drawn) / 4000 == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize(("policy", "gpus"), [("lifo", 1), ("fifo", 9)])
def test_what_cannot_be_simulated_is_refused(policy, gpus):
    with pytest.raises(ValueError):
        simulate(jobs(1.0, gpus=gpus), policy, proportional, 1)
