"""The reckoning of benchmarks/retries.py: its rules differ where they should, and its hours are the table's."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.retries import (
    RULES,
    Sums,
    bounds,
    by_table,
    counted,
    judged,
    lived,
    never,
    three_times,
    tried,
)
from benchmarks.retries_model import FailedJob, failed_jobs
from profiler.early import Reason
from site_configs.site_model import Resubmit
from slurm_plugins.replay.failing import Supposed


def row(name: str, jobs: int, gpus: tuple[int, int, int], minutes, gpu_minutes: float) -> Reason:
    p50, p90, p95 = (60.0 * one for one in minutes)
    return Reason(name, sum(gpus), sum(gpus[1:]), p50, p90, p95, jobs, gpus[2], 60.0 * gpu_minutes)


@pytest.fixture
def rows() -> tuple[Reason, ...]:
    return (
        row("Syntax error", 100, (160, 20, 20), (0.6, 5.0, 12.0), 60000),
        row("CPU out of memory", 100, (270, 15, 15), (13.5, 17.7, 34.0), 120000),
        row("GPU ECC error", 100, (30, 45, 75), (26.8, 671.9, 2035.0), 600000),
        row("MPI error", 100, (76, 37, 37), (1.6, 301.0, 514.0), 90000),
    )


def job(cause: str, reason: str, *, gpus: int = 1, needs: float = 1.0, most: float = 8.0) -> FailedJob:
    return FailedJob("x", cause, reason, 0.9, 10.0, 2.0, gpus, needs, most)  # type: ignore[arg-type]


def after(one: FailedJob, rule) -> Sums:
    sums = Sums()
    for seed in range(20):
        tried(one, rule() if rule is not by_table else by_table(Resubmit()), seed, sums)
    return sums


def test_the_hours_are_the_table_s(rows):
    jobs = failed_jobs(rows, Supposed(), Random(1))
    for row in rows:
        hours = [one.gpu_hours for one in jobs if one.name == row.name]
        assert len(hours) == row.jobs
        assert sum(hours) / len(hours) == pytest.approx(row.gpu_seconds / row.trials / 3600)
    minutes = sorted(one.minutes for one in failed_jobs(rows[:1], Supposed(), Random(2), share=100))
    assert minutes[len(minutes) // 2] == pytest.approx(0.6, rel=0.1)
    assert minutes[len(minutes) * 9 // 10] == pytest.approx(5.0, rel=0.15)


def test_what_cannot_be_saved_is_repeated_by_the_blind_rule_alone():
    bug = job("always", "syntax_error")
    assert after(bug, lambda: three_times).repeats == pytest.approx(20 * 3 * 2.0)
    assert after(bug, by_table) == Sums(attempts=20)
    assert after(bug, lambda: never) == Sums(attempts=20)


def test_memory_is_found_by_the_table_alone():
    small = job("memory", "cpu_oom", needs=2.0)
    assert after(small, lambda: three_times).saved == 0
    assert after(small, by_table).saved == 20
    assert after(job("memory", "cpu_oom", needs=2.0, most=1.0), by_table).attempts == 20


def test_a_broken_node_is_left_by_the_table():
    broken = job("node", "gpu_hardware")
    ours, blind = after(broken, by_table), after(broken, lambda: three_times)
    assert ours.saved == 20
    assert ours.repeats == 0
    assert blind.repeats > 0


def test_who_knows_the_cause_saves_all_that_can_be(rows):
    life = lived(rows, Supposed(), 3, 1.0)
    assert set(life) == set(RULES)
    assert life["who knows the cause"].saved == life["none"].recoverable
    assert life["none"].saved == 0
    assert life["gsub's table"].repeats < life["everything 3 times"].repeats


def test_the_same_seed_is_the_same_life(rows):
    assert lived(rows, Supposed(), 5, 0.5) == lived(rows, Supposed(), 5, 0.5)
    assert lived(rows, Supposed(), 5, 0.5) != lived(rows, Supposed(), 6, 0.5)


def test_the_gate_fails_where_the_table_is_no_better(rows, capsys):
    life = lived(rows, Supposed(), 7, 0.5)
    assert judged([life]) == 0
    assert judged([life | {"gsub's table": life["everything 3 times"]}]) == 1
    assert "no better" in capsys.readouterr().err


def test_what_the_table_says_by_itself(rows):
    # of 100 repeats of a syntax error, each with the mean of its trials; nothing else here is never tried again
    assert "100 of them repeated" in counted(rows)
    assert f"{100 * 60000 / 200 / 60:,.0f} GPU-hours" in counted(rows)


def test_bounds():
    assert bounds([float(value) for value in range(40)]) == (19.5, 1.0, 38.0)
