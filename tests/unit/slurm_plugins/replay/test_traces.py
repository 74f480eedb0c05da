"""Excerpts of published traces, the generator, and files that are none of them."""

from __future__ import annotations

import csv
import gzip
import random
import shutil

import numpy as np
import pytest

from slurm_plugins.replay.traces import TraceError, read
from slurm_plugins.replay.traces.generate import Drawn, generate, generated
from slurm_plugins.replay.traces.openb import is_nodes, nodes_of
from slurm_plugins.tuner.draws import poisson
from tests.paths import DATA

TRACES = DATA / "traces"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


@pytest.mark.parametrize(
    ("name", "kind", "jobs", "gpus", "gpu_seconds"),
    [
        ("philly_jobs.csv", "philly", 412, 516, 7_645_510),
        ("itp_cluster01.csv.gz", "itp", 319, 647, 11_912_356),
        ("openb_pods.csv", "openb", 350, 329, 16_966_884),
        ("synergy_static_100jobs.csv", "synergy", 100, 100, 1_068_420.176),
    ],
)
def test_excerpts_of_published_traces(name, kind, jobs, gpus, gpu_seconds):
    made = read(TRACES / name)
    trace = made.trace
    assert (made.kind, len(trace)) == (kind, jobs)
    assert trace["gpus"].sum() == gpus
    assert (trace["gpus"] * trace["work"]).sum() == pytest.approx(gpu_seconds)
    assert (
        trace["arrival"].min() >= 0 and (np.diff(trace["arrival"]) >= 0).all() and (trace["work"] > 0).all()
    )


def test_alibabas_pods_and_the_nodes_beside_them():
    pods, nodes = TRACES / "openb_pods.csv", TRACES / "openb_nodes.csv"
    made = read(pods)
    assert made.trace.left_out == {"never started": 58}
    assert made.notes[0].startswith("130 jobs asked for a part of a GPU") and "openb_nodes" in made.notes[-1]
    assert made.cluster is not None and made.cluster.gpus == 626
    assert sum(group.count for group in made.cluster.nodes) == 122
    assert is_nodes(nodes) and not is_nodes(pods) and nodes_of(nodes) == made.cluster


def test_pods_without_nodes_beside_them_have_no_cluster(tmp_path):
    shutil.copy(TRACES / "openb_pods.csv", tmp_path)
    made = read(tmp_path / "openb_pods.csv")
    assert made.cluster is None and len(made.trace) == 350
    assert made.notes[-1].startswith("130 jobs asked for a part of a GPU")


def test_synergys_work_is_iterations_times_a_step():
    trace = read(TRACES / "synergy_static_100jobs.csv").trace
    first = trace.job(0)
    assert (first.workload, first.gpus) == ("alexnet", 1) and first.work == pytest.approx(3349 * 0.6)


@pytest.mark.parametrize(
    ("head", "good", "bad", "why"),
    [
        (
            PHILLY,
            "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
            "2017-10-09 07:01:55,nan,1,66.0,x",
            "cannot be read",
        ),
        (
            PHILLY,
            "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
            "2017-10-99 07:01:55,66,1,66.0,x",
            "cannot be read",
        ),
        (PHILLY, "2017-10-09 07:01:55,66.0,1,66.0,11cb48", "2017-10-09 07:01:55,0,1,0,x", "no run time"),
        (PHILLY, "2017-10-09 07:01:55,66.0,1,66.0,11cb48", "2017-10-09 07:0", "fewer fields"),
        (
            PHILLY,
            "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
            '2017-10-09 07:01:55,66.0,1,66.0,"a',
            "fewer fields",
        ),
        ("job_id,submission_time,duration,num_gpu", "a,5,6,1", "b,5,-6,1", "no run time"),
        ("job_id,submission_time,duration,num_gpu", "a,5,6,1", "b,5,6,1e300", "cannot be read"),
        ("job_id,submission_time,duration,num_gpu", "a,5,6,1", "b,5,6,1.5", "cannot be read"),
        ("job_id,submission_time,duration,num_gpu", "a,5,6,1", "b,5,1e200,1", "cannot be read"),
        ("job,model,arrival_s,iterations,gpus", "0,gnmt,0,10,1", "9e30,gnmt,0,10,1", "cannot be read"),
        ("job_id,submission_time,duration,num_gpu", "a,5,6,1", "b,5,6,many", "cannot be read"),
        ("job,model,arrival_s,iterations,gpus", "0,gnmt,0,10,1", "1,gpt9,0,10,1", "without a profile"),
        ("job,model,arrival_s,iterations,gpus", "0,gnmt,0,10,1", "x,gnmt,0,10,1", "cannot be read"),
        (PODS, "p,1000,10,1,1000,,LS,Running,0,9,1", "p,1000,10,1,1000,,LS,Pending,0,9,", "never started"),
        (PODS, "p,1000,10,1,1000,,LS,Running,0,9,1", "p,1000,10,1,1000,,LS,Running,0,,1", "has not ended"),
        (PODS, "p,1000,10,1,1000,,LS,Running,0,9,1", "p,1000,10,1,1000,,LS,Running,0,1,1", "no run time"),
        (PODS, "p,1000,10,1,1000,,LS,Running,0,9,1", "p,1e400,10,1,1000,,LS,Running,0,3,1", "cannot be read"),
    ],
)
def test_rows_that_cannot_be_read_are_counted(tmp_path, head, good, bad, why):
    path = tmp_path / "trace.csv"
    path.write_text(f"{head}\n{good}\n{bad}\n\n{good}\n")
    trace = read(path).trace
    ((told, count),) = trace.left_out.items()
    assert len(trace) == 2 and count == 1 and why in told
    path.write_text(f"{head}\n{bad}\n")
    with pytest.raises(TraceError, match="no job in it can be replayed"):
        read(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b", "cut off or damaged"),
        (gzip.compress(b"", mtime=0)[:12], "cut off or damaged"),
        (b"hello\nworld\n", "no trace of a known kind"),
        (bytes(range(256)) * 40, "no trace of a known kind"),
        (b"x" * 2_000_000, "a line of more than"),
        (b"1|2|3\n", "no trace of a known kind"),
        (PHILLY.encode(), "no job in it"),
        (b"sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,x\n", "no trace of a known kind"),
    ],
)
def test_files_that_are_none(tmp_path, content, why):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=why):
        read(path)


def test_what_is_no_file(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "no")
    with pytest.raises(TraceError, match="is a folder"):
        read(tmp_path)


def test_what_is_drawn_is_a_function_of_the_seed():
    one, again, other = (
        generate(Drawn(jobs=400, seed=seed, sizes="philly", limit=3.0)) for seed in (1, 1, 2)
    )
    for name in one.columns:
        assert (one[name] == again[name]).all() or np.isnan(one[name]).all()
    assert (one["work"] != other["work"]).any()
    assert ((one["limit"] >= one["work"]) & (one["limit"] <= 3 * one["work"])).all()
    assert one["gpus"].max() > 1


def test_gavels_jobs_are_those_of_the_tuners_simulator():
    jobs = poisson(5, 200, 30.0, (33, 33, 33))
    trace = generate(Drawn(jobs=200, per_hour=30.0, seed=5, split=(33, 33, 33)))
    assert trace["work"].tolist() == [job.work for job in jobs]
    assert trace["arrival"].tolist() == [job.arrival for job in jobs]
    assert trace.text("workload").tolist() == [job.profile.name for job in jobs]
    assert set(trace["gpus"].tolist()) == {1}


def test_phillys_run_times_and_sizes_are_the_traces():
    """As quantiles of all 82,247 jobs: of those with 1, with 2 to 4, and with 5 to 8 GPUs."""
    drawn = generate(Drawn(jobs=30_000, like="philly", seed=3))
    with (TRACES / "philly_durations.csv").open() as file:
        rows = list(csv.DictReader(file))
    total = sum(int(row["jobs"]) for row in rows)
    assert total == 82_247 and [row["gpus"] for row in rows] == ["1", "2-4", "5-8", "9-128"]
    for row in rows[:3]:
        low, _, high = row["gpus"].partition("-")
        work = drawn["work"][(drawn["gpus"] >= int(low)) & (drawn["gpus"] <= int(high or low))]
        assert len(work) / len(drawn) == pytest.approx(int(row["jobs"]) / total, rel=0.15)
        for part in (25, 50, 75, 90):
            real = float(row[f"p{part}"])
            assert np.quantile(work, part / 100) == pytest.approx(real, rel=0.4), (low, part)


def test_arrivals_are_as_often_as_asked_for():
    drawn = generated("generate:jobs=4000,per_hour=120,seed=2").trace
    assert drawn["arrival"][-1] / 3600 == pytest.approx(4000 / 120, rel=0.1)


@pytest.mark.parametrize(
    "text",
    ["jobs=0", "jobs=x", "jobs", "job=1", "per_hour=0", "per_hour=nan", "per_hour=inf", "like=me", "sizes=xl",
     "split=1/2", "split=0/0/0", "split=-1/1/1", "limit=0.5", "limit=nan", "jobs=1,=", "jobs=99999999999"],
)  # fmt: skip
def test_what_cannot_be_drawn(text):
    with pytest.raises(TraceError) as told:
        generated(f"generate:{text}")
    assert told.value.problem


def test_random_bytes_are_no_trace(tmp_path):
    rng = random.Random(3)
    for head in (PHILLY, PODS, "job_id,submission_time,duration,num_gpu"):
        path = tmp_path / "bytes"
        path.write_bytes(head.encode() + b"\n" + rng.randbytes(5000))
        with pytest.raises(TraceError):
            read(path)
