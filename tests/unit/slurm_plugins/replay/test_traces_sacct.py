"""Exports of sacct: which rows become jobs, and what becomes of the others."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_plugins.client.versions import NEWEST, OLDEST, fields_for
from slurm_plugins.replay.traces import TraceError, read
from slurm_plugins.replay.traces import sacct as ours
from slurm_plugins.replay.traces.files import Reading
from slurm_plugins.replay.values import Job
from tests.paths import DATA
from tests.properties import examples

T = 1_790_000_000
"""When the file begins."""
HEAD = (
    "JobIDRaw|JobID|Cluster|User|Account|QOS|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|NNodes|"
    "NodeList|ReqTRES|AllocTRES"
)
RECORDED = DATA / "slurm"


def row(**changes: object) -> str:
    """A job of eight GPUs on two nodes that waited 30 s and ran 100 s, with these fields changed."""
    fields = {
        "JobIDRaw": 7,
        "JobID": changes.get("JobIDRaw", 7),
        "Cluster": "lab",
        "User": "ada",
        "Account": "vision",
        "QOS": "normal",
        "Partition": "gpu",
        "State": "COMPLETED",
        "Submit": T,
        "Eligible": T,
        "Start": T + 30,
        "End": T + 130,
        "ElapsedRaw": 100,
        "TimelimitRaw": 60,
        "NNodes": 2,
        "NodeList": "n[1-2]",
        "ReqTRES": "billing=16,cpu=16,gres/gpu=8,mem=64G,node=2",
        "AllocTRES": "billing=16,cpu=16,gres/gpu=8,gres/gpu:a100=8,mem=64G,node=2",
        **changes,
    }
    return "|".join(str(fields[name]) for name in HEAD.split("|"))


def reading(tmp_path: Path, *rows: str, head: str = HEAD) -> Reading:
    path = tmp_path / "october.psv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return read(path)


def only(tmp_path: Path, **changes: object) -> Job:
    (job,) = reading(tmp_path, row(**changes)).trace
    return job


def test_a_row_is_a_job(tmp_path):
    made = reading(tmp_path, row())
    assert (made.kind, made.notes, dict(made.trace.left_out)) == ("sacct", (), {})
    assert made.trace.zero == T and made.trace.name == "october"
    job = made.trace.job(0)
    assert (job.job, job.arrival, job.work, job.began) == (7, 0, 100, 30)
    assert (job.gpus, job.gpu_type, job.cpus, job.memory, job.nodes) == (8, "a100", 16, 65536, 2)
    assert job.qos == "normal"
    assert (job.user, job.account, job.queue, job.outcome, job.limit) == (
        "ada",
        "vision",
        "gpu",
        "completed",
        3600,
    )


@pytest.mark.parametrize(
    ("tres", "gpus", "gpu_type"),
    [
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4,mem=1G", 4, "a100"),
        ("cpu=4,gres/gpu:a100=2,gres/gpu:v100=1", 3, ""),
        ("cpu=4,gres/gpu=3,gres/gpu:a100=2", 3, "a100"),
        ("cpu=4,mem=1G,node=1,billing=4", 0, ""),
        ("billing=1,cpu=1,gres/gpu=1,gres/gpumem=0,gres/gpuutil=0,gres/shard=2", 1, ""),
        ("cpu=2K,gres/gpu=1", 1, ""),
    ],
)
def test_gpus_are_counted_once(tmp_path, tres, gpus, gpu_type):
    job = only(tmp_path, AllocTRES=tres, ReqTRES=tres)
    assert (job.gpus, job.gpu_type) == (gpus, gpu_type)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("60", 3600), ("UNLIMITED", math.inf), ("Partition_Limit", math.inf), ("", math.inf), ("0", math.inf)],
)
def test_limits(tmp_path, limit, seconds):
    assert only(tmp_path, TimelimitRaw=limit).limit == seconds


def test_limits_and_run_times_in_words(tmp_path):
    head = "JobID|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES"
    (job,) = reading(
        tmp_path,
        "9|TIMEOUT|2026-10-01T12:00:00|2026-10-01T12:00:30|2026-10-02T12:01:30|1-00:01:00|1-00:00:00|cpu=1,gres/gpu=1",
        head=head,
    ).trace
    assert (job.arrival, job.began, job.work, job.limit, job.outcome) == (0, 30, 86460, 86400, "timeout")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"JobID": "7.batch", "JobIDRaw": "7.batch"}, ours.STEP),
        ({"JobID": "7.0", "JobIDRaw": "7.0"}, ours.STEP),
        ({"JobID": "7.extern", "JobIDRaw": "7.extern"}, ours.STEP),
        ({"State": "PENDING", "Start": "Unknown", "End": "Unknown", "JobID": "7_[3-9%2]"}, ours.WAITS),
        ({"State": "PENDING", "Start": T + 900, "End": "Unknown", "NodeList": "None assigned"}, ours.WAITS),
        ({"State": "RUNNING", "End": "Unknown"}, ours.RUNS),
        ({"State": "SUSPENDED", "End": "Unknown"}, ours.RUNS),
        (
            {"State": "CANCELLED by 1000", "Start": "None", "NodeList": "None assigned", "AllocTRES": ""},
            ours.NEVER,
        ),
        # 22.05 gives its end as its start
        ({"State": "CANCELLED", "Start": T + 130, "NodeList": "None assigned", "AllocTRES": ""}, ours.NEVER),
        ({"State": "REVOKED"}, ours.REVOKED),
        ({"Submit": "Unknown", "Eligible": "Unknown"}, ours.NO_TIME),
        ({"AllocTRES": "", "ReqTRES": ""}, ours.NOTHING),
        ({"Start": "Thu Oct"}, ours.UNREADABLE),
        ({"Start": "2026-13-01T00:00:00"}, ours.UNREADABLE),
        ({"End": 10**18}, ours.RUNS),
        ({"AllocTRES": "cpu=x"}, ours.UNREADABLE),
        ({"AllocTRES": "cpu=1,gres/gpu=99999999999999999999"}, ours.UNREADABLE),
        ({"JobIDRaw": "9" * 30}, ours.UNREADABLE),
        ({"JobIDRaw": "", "JobID": "99999999999_5"}, ours.UNREADABLE),
        ({"ElapsedRaw": "9" * 40}, ours.UNREADABLE),
        ({"TimelimitRaw": "soon"}, ours.UNREADABLE),
        ({"JobID": "total", "JobIDRaw": ""}, ours.NO_ID),
        ({"User": "a|b"}, ours.MORE),
    ],
)
def test_what_is_no_run_is_counted(tmp_path, changes, why):
    made = reading(tmp_path, row(), row(**{"JobIDRaw": 8, **changes}))
    assert (len(made.trace), dict(made.trace.left_out)) == (1, {why: 1})
    with pytest.raises(TraceError, match="no job in it can be replayed") as told:
        reading(tmp_path, row(**changes))
    assert why in told.value.remedy


def test_a_record_of_several_lines_and_one_that_was_cut(tmp_path):
    head = HEAD + "|JobName"
    whole = [f"{row(JobIDRaw=n)}|name" for n in range(4)]
    broken = whole[1].replace("|name", "|a\nb\n\nc")
    cut = whole[2][:40]
    made = reading(tmp_path, whole[0], broken, cut, whole[3], whole[2][:60], head=head)
    assert made.trace["job"].tolist() == [0, 1, 3]
    assert dict(made.trace.left_out) == {ours.FEWER: 2}


def test_a_line_end_before_the_last_field_joins(tmp_path):
    head = HEAD.replace("Cluster", "JobName")
    made = reading(tmp_path, row(Cluster="a\n\nb"), row(JobIDRaw=8, Cluster="c\n"), head=head)
    assert made.trace["job"].tolist() == [7, 8] and not made.trace.left_out


def test_arrays_have_numbers_of_their_own_without_raw_ids(tmp_path):
    head = "JobID|State|Submit|Start|End|AllocTRES"
    rows = [
        f"{name}|COMPLETED|{T}|{T}|{T + 5}|cpu=1"
        for name in ("10_0", "10_1", "10", "11", "12+0", "12+1", "4_10")
    ]
    made = reading(tmp_path, *rows, head=head)
    assert len(made.trace) == 6 == len(set(made.trace["job"].tolist()))
    assert any("heterogeneous" in note for note in made.notes)


def test_attempts_at_one_job_are_replayed_each(tmp_path):
    again = row(State="COMPLETED", Submit=T + 200, Eligible=T + 320, Start=T + 330, End=T + 430)
    made = reading(tmp_path, row(State="REQUEUED"), again, row(State="REQUEUED"))
    assert made.trace["arrival"].tolist() == [0, 320]
    assert made.trace.text("outcome").tolist() == ["requeued", "completed"]
    assert dict(made.trace.left_out) == {ours.TWICE: 1}
    assert "further attempts" in made.notes[0]


def test_a_resized_job_is_one(tmp_path):
    first = row(State="RESIZING", End=T + 60, ElapsedRaw=30)
    rest = row(Start=T + 60, ElapsedRaw=70, AllocTRES="cpu=8,gres/gpu=4,node=1", NodeList="n1")
    made = reading(tmp_path, first, rest)
    (job,) = made.trace
    assert (job.gpus, job.work, job.began, job.outcome) == (8, 100, 30, "completed")
    assert "resized" in made.notes[0]


def test_components_start_together(tmp_path):
    made = reading(
        tmp_path,
        row(JobIDRaw=10, JobID="10+0"),
        row(JobIDRaw=11, JobID="10+1", NNodes=1, NodeList="n3", ElapsedRaw=90, AllocTRES="cpu=32,mem=1G,node=1",
            ReqTRES="cpu=32,mem=1G,node=1"),
    )  # fmt: skip
    (job,) = made.trace
    assert (job.job, job.gpus, job.cpus, job.memory, job.nodes, job.work) == (10, 8, 48, 66560, 0, 100)


def test_a_start_before_it_could_is_no_negative_wait(tmp_path):
    assert only(tmp_path, Eligible=T + 40).arrival == only(tmp_path, Eligible=T + 40).began == 0
    assert only(tmp_path, Eligible=T + 20).began == 10, "held by a dependency is not waiting"
    assert only(tmp_path, Eligible="Unknown").began == 30
    assert only(tmp_path, ElapsedRaw=0, End=T + 30).work == 1


def test_nodes_are_seen(tmp_path):
    one = {
        "NNodes": 1,
        "ReqTRES": "cpu=4,gres/gpu=1,mem=8G,node=1",
        "AllocTRES": "cpu=4,gres/gpu=1,mem=8G,node=1",
    }
    made = reading(
        tmp_path,
        *(row(JobIDRaw=n, NodeList="n1", **one) for n in range(3)),
        # Begins as the others end: it takes no room beside them
        *(row(JobIDRaw=n, NodeList="n1", **one, Start=T + 130, End=T + 230) for n in (4, 5)),
        row(JobIDRaw=6, NodeList="n2", **one),
        row(JobIDRaw=7, NodeList="c1", Partition="cpu", NNodes=1, ReqTRES="cpu=4,mem=8G,node=1",
            AllocTRES="cpu=4,mem=8G,node=1"),
    )  # fmt: skip
    assert made.cluster is not None and made.cluster.name == "lab" and made.cluster.gpus == 6
    cpu, gpu = made.cluster.nodes
    assert (gpu.count, gpu.gpus, gpu.cpus, gpu.memory, gpu.names) == (2, 3, 12, 24576, ("n1", "n2"))
    assert (cpu.gpus, cpu.partitions) == (0, frozenset({"cpu"}))


def test_two_clusters_are_told_apart(tmp_path):
    with pytest.raises(TraceError, match="2 clusters: gpu, lab"):
        reading(tmp_path, row(), row(JobIDRaw=8, Cluster="gpu"))


def test_a_head_is_needed(tmp_path):
    with pytest.raises(TraceError, match="no names of fields") as told:
        reading(tmp_path, row(), head=row(JobIDRaw=3))
    assert "--noheader" in told.value.remedy


@pytest.mark.parametrize("missing", ["State", "Start", "Submit|Eligible", "ReqTRES|AllocTRES"])
def test_a_field_that_is_needed(tmp_path, missing):
    head = "|".join(name for name in HEAD.split("|") if name not in missing.split("|"))
    with pytest.raises(TraceError, match=missing.split("|")[0]) as told:
        reading(tmp_path, row(), head=head)
    assert "sacct" in told.value.remedy


def test_all_that_may_separate_and_end_a_line(tmp_path):
    path = tmp_path / "a"
    for separator in ("|", "\t", ";", "||", "\x1f"):
        for end in ("\n", "\r\n"):
            text = end.join(line.replace("|", separator) for line in (HEAD + "|", row() + "|")) + end
            path.write_bytes(b"\xef\xbb\xbf" + text.encode())
            assert read(path).trace["gpus"].tolist() == [8], (separator, end)
    path.write_bytes(gzip.compress(f"{HEAD}\n{row()}\n".encode()))
    assert len(read(path).trace) == 1
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match="cut off or damaged"):
        read(path)
    path.write_bytes(
        f"{HEAD}\n{row()}\n{row(JobIDRaw=8, User='x')}".encode().replace(b"|x|", b"|\xff\x00\xfe|")
    )
    assert len(read(path).trace) == 2


def test_the_export_that_is_told_of_asks_each_release_for_what_it_has():
    for version in (OLDEST, NEWEST):
        known = {name.lower() for name in fields_for(version).sacct.values()}
        assert {name.lower() for name in ours.FIELDS} <= known
    assert not {"JobName", "Comment", "SubmitLine", "WorkDir", "AdminComment"} & set(ours.FIELDS)


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_what_each_release_printed(tmp_path, release):
    """Recorded outputs, with the names of their fields ahead as without --noheader."""
    (recorded, *_) = json.loads((RECORDED / release / "accounting.json").read_text())
    head = next(word for word in recorded["argv"] if word.startswith("--format="))[9:].replace(",", "\x1f")
    path = tmp_path / "a"
    path.write_text(head + "\x1f\n" + recorded["stdout"].replace("{separator}", "\x1f"))
    made = read(path)
    left = dict(made.trace.left_out)
    assert (
        len(made.trace) >= 2
        and left[ours.RUNS] >= 1
        and left[ours.WAITS] >= 1
        and ours.UNREADABLE not in left
    )
    assert {"failed", "cancelled", "completed", "timeout"} & set(made.trace.text("outcome").tolist())
    assert (made.trace["work"] > 0).all()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("7|T\n:-_+[]1K=,/gpuresT .UnknoPDI\x00é", max_size=120), max_size=6))
def test_no_text_breaks_it(tmp_path, texts):
    path = tmp_path / "a"
    path.write_text(
        "\n".join([HEAD, row(JobIDRaw=1), *texts, row(JobIDRaw=2)]), encoding="utf-8", newline="\n"
    )
    made = read(path)
    assert 1 in made.trace["job"] and 2 in made.trace["job"]
    lines = sum(1 for text in texts for line in text.split("\n") if "|" in line)
    assert bool(made.trace.left_out) or not lines
