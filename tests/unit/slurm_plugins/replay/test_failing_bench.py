"""The bench of failures over traces: its intervals, and that it says what it cannot measure."""

from __future__ import annotations

import math
from random import Random

import pytest

from benchmarks import replay_failures as bench
from benchmarks.retries import Sums, by_table, three_times
from benchmarks.retries import tried as one_by_one
from benchmarks.retries_model import FailedJob
from profiler.early import TABLE7
from site_configs.site_model import Resubmit
from slurm_plugins.replay.failing import KINDS, VERDICTS, Supposed, strike
from slurm_plugins.replay.remedies import Bill, lived
from slurm_plugins.replay.retrying import RETRIES
from slurm_plugins.replay.traces.read import read
from slurm_plugins.replay.values import Job, Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trace of 400 jobs as ITP writes them."""
    found = tmp_path_factory.mktemp("traces")
    chance = Random(4)
    rows = [
        f"j{number},{60 * number},{round(10 ** chance.uniform(2, 5))},{chance.choice((1, 2, 8, 16))}"
        for number in range(400)
    ]
    text = "\n".join(("job_id,submission_time,duration,num_gpu", *rows)) + "\n"
    (found / "itp_cluster01.csv.gz").write_text(text, encoding="utf-8")
    return found


def test_an_interval_holds_the_mean_as_often_as_it_says():
    chance = Random(1)
    held = 0
    for _ in range(400):
        mean, half = bench.interval(chance.gauss(3.0, 2.0) for _ in range(8))
        held += abs(mean - 3.0) <= half
    assert held / 400 == pytest.approx(0.95, abs=0.04)
    assert math.isnan(bench.interval([1.0])[1])


def test_savings_are_seed_by_seed():
    lives = [
        {bench.FIRST: Bill(failed=3600.0 * n), bench.OURS: Bill(failed=3600.0 * (n - 5))}
        for n in (10, 900, 70)
    ]
    assert bench.saved(lives, bench.OURS, bench.FIRST) == "5 ± 0"
    assert bench.saved(lives, bench.FIRST, bench.OURS) == "-5 ± 0"


def test_smoke_runs_are_a_part_of_what_is_lost():
    lives = [{bench.FIRST: Bill(failed=7200.0), bench.OURS: Bill(failed=3600.0, smoke=5400.0)}] * 2
    assert bench.saved(lives, bench.OURS, bench.FIRST) == "-0 ± 0"
    assert lives[0][bench.OURS].lost == 9000.0


@pytest.mark.slow
def test_all_parts_are_told_of_a_trace(folder, monkeypatch, capsys):
    arguments = [
        "bench",
        "--data",
        str(folder),
        "--traces",
        "itp_cluster01",
        "--seeds",
        "2",
        "--replays",
        "2",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert "## itp_cluster01: 400 jobs" in out
    for retry, smoke in bench.PAIRS:
        assert f"| {bench.NAMES[retry.name]} | {smoke.name} |" in out
    for name in bench.OTHERWISE:
        assert f"| {name} |" in out
    assert "held jobs hear so much sooner" in out and "jobs above" in out and "(Fig. 9)" in out


def test_the_engine_loses_what_the_bill_says(folder):
    """The replay of a pair holds for nothing what its bill counts: failed runs, and a gate's smoke runs."""
    trace = read(folder / "itp_cluster01.csv.gz").trace
    cluster = bench.alike(trace, 0.5)
    (row,) = bench.replayed(trace, cluster, bench.ORDER, 1)
    (life,) = bench.lives(trace, Supposed(), 1, trace["arrival"] * 0.0)
    for name in (bench.FIRST, bench.PHILLY, bench.OURS, bench.key(RETRIES["gsub"], bench.GATE)):
        assert row[name].lost == pytest.approx(life[name].lost / 3600), name
    assert row[bench.key(RETRIES["philly"], bench.RACE)].lost <= row[bench.PHILLY].lost * (1 + 1e-9)


def test_without_traces_it_says_how_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    (sentence,) = str(ended.value.code).splitlines()
    assert sentence.startswith(f"philly_jobs.csv.gz is not found in {tmp_path}")
    assert "github.com/msr-fiddle/philly-traces" in sentence and capsys.readouterr().out == ""


def test_columns_and_one_job_after_the_other_come_to_the_same():
    """The bench of retries goes through each job by itself, with nodes by name: the same shares end well."""
    trace = Trace.of(Job(number, 60.0 * number, 1e6, (1, 2, 8, 16)[number % 4]) for number in range(6000))
    faults = strike(trace, Supposed(), 11)
    gpus = trace["gpus"][faults.row].tolist()
    jobs = [
        FailedJob(
            TABLE7[faults.reason[at]].name,
            KINDS[faults.cause[at]],
            VERDICTS[faults.verdict[at]],
            float(faults.confidence[at]),
            float(faults.seconds[at]) / 60,
            float(faults.seconds[at]) / 3600 * gpus[at],
            gpus[at],
            float(faults.needs[at]),
            float(faults.most[at]),
        )
        for at in range(len(faults))
    ]
    for name in ("three", "gsub"):
        sums = Sums()
        for number, job in enumerate(jobs):
            one_by_one(job, by_table(Resubmit()) if name == "gsub" else three_times, number, sums)
        bill = lived(trace, faults, RETRIES[name]).bill
        assert bill.recoverable == sums.recoverable
        assert bill.rescued / bill.recoverable == pytest.approx(sums.saved / sums.recoverable, abs=0.04)
        assert bill.failed_runs == pytest.approx(sums.attempts, rel=0.02)  # those that failed
