"""The simulator of rounds against cases worked out by hand, and against what Synergy's artifact prints."""

import csv
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.draws import in_turn, poisson, published
from slurm_plugins.tuner.placing import proportional, tune, tune_as_shipped
from slurm_plugins.tuner.rounds import ORDERS, PLAIN, SHIPPED, Job, Rounds, Times, anew, simulate
from slurm_plugins.tuner.values import PROFILES, V100, Profile
from tests.paths import DATA
from tests.properties import examples

EASY, SENSITIVE = PROFILES["gnmt"], PROFILES["alexnet"]
TRACE = DATA / "traces/synergy_static_100jobs.csv"

EVEN, TUNED, AS_SHIPPED = anew(proportional), anew(tune), anew(tune_as_shipped)


def jobs(*works: float, profile: Profile = EASY, gpus: int = 8) -> list[Job]:
    return [Job(n, 0.0, work, gpus, profile) for n, work in enumerate(works)]


def test_a_queue_of_two_starts_the_second_at_the_next_round():
    ran = simulate(jobs(400.0, 100.0), "fifo", EVEN, 1)
    assert ran.ends == {0: 400.0, 1: 700.0}
    assert ran.starts == {0: 0.0, 1: 600.0}
    assert ran.held == {0: 400.0, 1: 100.0}


def test_srtf_runs_the_short_one_first():
    assert simulate(jobs(400.0, 100.0), "srtf", EVEN, 1).ends == {1: 100.0, 0: 700.0}


def test_las_takes_turns():
    assert simulate(jobs(500.0, 500.0), "las", EVEN, 1).ends == {0: 800.0, 1: 1100.0}


def test_a_pause_costs_a_restart():
    """500 s of work in rounds of 300: each is paused once, and comes back 60 s late."""
    ran = simulate(jobs(500.0, 500.0), "las", EVEN, 1, rounds=Rounds(restart_s=60.0))
    assert ran.ends == {0: 860.0, 1: 1160.0}
    assert ran.restarts == {0: 1, 1: 1}


def test_a_restart_as_long_as_a_round_is_refused():
    """Two that take turns would never get on."""
    with pytest.raises(ValueError, match="leaves nothing"):
        simulate(jobs(500.0, 500.0), "las", EVEN, 1, rounds=Rounds(restart_s=300.0))


def test_ftf_gives_the_turn_to_whoever_is_furthest_behind_its_time_alone():
    # the long one runs first; then the short one stands at (300 + 400) / 400, and at 600 s at (600 + 100) / 400,
    # before (600 + 300) / 600; the long one's last 300 s fill the round that begins at 900 s
    assert simulate(jobs(600.0, 400.0), "ftf", EVEN, 1).ends == {0: 1200.0, 1: 700.0}


def test_tune_is_faster_where_cpus_are_spare():
    one = jobs(2940.0, profile=SENSITIVE, gpus=1)
    assert simulate(one, "fifo", EVEN, 1).ends[0] == 2940.0
    assert simulate(one, "fifo", TUNED, 1).ends[0] == pytest.approx(1000.0)


def test_the_artifact_counts_whole_steps_and_whole_rounds():
    """gnmt does 2,500 steps of 0.12 s in a round; res50 384 of 0.78 s, and loses 0.48 s of it."""
    assert simulate(jobs(300.0), "fifo", EVEN, 1, rounds=SHIPPED).ends[0] == 300.0
    assert simulate(jobs(300.1), "fifo", EVEN, 1, rounds=SHIPPED).ends[0] == 600.0
    assert simulate(jobs(299.9, profile=PROFILES["res50"]), "fifo", EVEN, 1, rounds=SHIPPED).ends[0] == 600.0


def test_times_are_hours_from_arrival():
    times = Times.of(jobs(1.0, 1.0), {0: 3600.0, 1: 7200.0})
    assert (times.mean, times.makespan) == (1.5, 2.0)
    assert times.p99 == pytest.approx(1.99)


@pytest.mark.parametrize(
    ("order", "make", "mean", "p99", "makespan"),
    [
        ("fifo", EVEN, 5.63, 12.94, 15.25),
        ("fifo", AS_SHIPPED, 5.08, 10.59, 11.00),
        ("srtf", EVEN, 4.41, 13.09, 14.08),
        ("srtf", AS_SHIPPED, 4.11, 12.34, 12.92),
    ],
)
def test_the_static_trace_gives_what_the_artifact_prints(order, make, mean, p99, makespan):
    """Every figure of papers.md 2.8 to the digit; the artifact's first round of a static trace is at 1 s."""
    with TRACE.open() as file:
        rows = list(csv.DictReader(file))
    trace = [
        Job(
            int(row["job"]),
            float(row["arrival_s"]),
            int(row["iterations"]) * PROFILES[row["model"]].step_s,
            int(row["gpus"]),
            PROFILES[row["model"]],
        )
        for row in rows
    ]
    ran = simulate(trace, order, make, 4, rounds=replace(SHIPPED, first=1.0))
    times = Times.of(trace, ran.ends)
    assert (round(times.mean, 2), round(times.p99, 2), round(times.makespan, 2)) == (mean, p99, makespan)


def test_models_are_dealt_by_weight_and_in_turn():
    models = in_turn((20, 70, 10))
    names = [next(models).name for _ in range(1000)]
    tasks = [PROFILES[name].task for name in names]
    assert [tasks.count(task) for task in ("image", "language", "speech")] == [200, 700, 100]
    assert names.count("alexnet") == names.count("shufflenet") == 40


def test_the_drawn_jobs_have_the_load_asked_for():
    drawn = poisson(1, 4000, 9.0)
    assert 4000 / (drawn[-1].arrival / 3600) == pytest.approx(9.0, rel=0.05)
    ours, other = published(1, 50, 9.0), published(2, 50, 9.0)
    assert [j.work for j in ours] == [j.work for j in other]
    assert [j.arrival for j in ours] != [j.arrival for j in other]


@pytest.mark.parametrize(
    ("order", "bad"),
    [("lifo", {}), ("fifo", {"gpus": 9}), ("fifo", {"gpus": 0}), ("fifo", {"work": 0.0})],
)
def test_what_cannot_be_simulated_is_refused(order, bad):
    with pytest.raises(ValueError):
        simulate([replace(jobs(1.0)[0], **bad)], order, EVEN, 1)


@pytest.mark.parametrize("order", ORDERS)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 5000),
            st.floats(1, 3000),
            st.sampled_from([1, 1, 2, 4, 8, 12]),
            st.sampled_from(sorted(PROFILES)),
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([PLAIN, SHIPPED, Rounds(restart_s=30.0)]),
)
@settings(max_examples=examples(25), deadline=None)
def test_every_job_ends_and_none_did_less_than_its_work(order, rows, rounds):
    drawn = [
        Job(n, arrival, work, gpus, PROFILES[name]) for n, (arrival, work, gpus, name) in enumerate(rows)
    ]
    ran = simulate(drawn, order, TUNED, 2, rounds=rounds)
    assert ran.ends.keys() == {job.job for job in drawn}
    for job in drawn:
        fastest = job.profile.curve.two(job.gpus, V100).fast
        assert ran.starts[job.job] >= job.arrival
        assert ran.ends[job.job] - ran.starts[job.job] >= ran.held[job.job] - 1e-6
        assert ran.held[job.job] >= job.work / fastest - 1e-6
        paid = rounds.restart_s * ran.restarts[job.job]
        if not rounds.whole_steps:
            # nobody is below proportional speed
            assert ran.held[job.job] <= job.work + paid * fastest + 1e-6
