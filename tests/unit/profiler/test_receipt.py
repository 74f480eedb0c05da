"""Receipts: six lines that are true, with advice only where one run is evidence enough."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.answers import JobSummary, NodeUse, RuleTold, Usage
from profiler.receipt import LINES, receipt
from profiler.records import GpuRef, GpuUse, HostUse
from profiler.resubmissions import SILENT, Resubmission
from profiler.wording import plain, size, span, time_option

GIB = 1 << 30
HOUR = 3600.0


def gpu(minor: int, utilisation: float | None = 80.0, **more: Any) -> GpuUse:
    facts: dict[str, Any] = {
        "gpu": GpuRef(minor, f"GPU-{minor}"),
        "samples": 360,
        "seconds": HOUR,
        "utilisation_mean": utilisation,
        "memory_peak_bytes": 34 * GIB,
        "memory_total_bytes": 80 * GIB,
    }
    return GpuUse(**(facts | more))


def node(name: str = "n1", gpus: tuple[GpuUse, ...] = (gpu(0), gpu(1)), **more: Any) -> NodeUse:
    host = HostUse(source="cgroup2", cpu_seconds=20 * HOUR, memory_peak_bytes=90 * GIB)
    facts: dict[str, Any] = {
        "since": 1e9,
        "until": 1e9 + HOUR,
        "final": True,
        "host": host,
        "unseen_seconds": 0.0,
    }
    return NodeUse(name, gpus=gpus, **(facts | more))


def usage(*nodes: NodeUse, **more: Any) -> Usage:
    nodes = nodes or (node(),)
    gpus = [one for each in nodes for one in each.gpus]
    known = [one.utilisation_mean for one in gpus if one.utilisation_mean is not None]
    hosts = [each.host for each in nodes if each.host is not None]
    facts: dict[str, Any] = {
        "cluster": "dev",
        "job_id": 12,
        "name": "train",
        "state": "COMPLETED",
        "exit_code": 0,
        "started": 1e9,
        "ended": 1e9 + HOUR,
        "time_limit": 1.5 * HOUR,
        "nodes": ",".join(each.node for each in nodes),
        "cpus": 32 * len(nodes),
        "gpus": len(gpus),
        "memory_asked_bytes": 100 * GIB * len(nodes),
        "complete": True,
        "gpus_known": len(gpus),
        "utilisation_mean": sum(known) / len(known) if known else None,
        "gpu_memory_peak_bytes": 34 * GIB if gpus else None,
        "gpu_memory_total_bytes": 80 * GIB if gpus else None,
        "memory_peak_bytes": max((host.memory_peak_bytes or 0 for host in hosts), default=None),
    }
    return Usage(JobSummary(**(facts | more)), nodes)


def host(**facts: Any) -> HostUse:
    return HostUse(source="cgroup2", **facts)


def advice(of: Usage) -> str:
    return receipt(of)[-1].removeprefix("  next time").strip()


def test_a_job_that_fitted():
    assert receipt(usage()) == (
        'job 12 "train" on n1: COMPLETED after 1 h, exit code 0',
        "  GPUs        2 for 1 h (2.0 GPU-hours), utilisation 80 %",
        "  GPU memory  at most 34 GiB of 80 GiB on one GPU (42 %)",
        "  host        20.0 of 32 CPUs busy; memory at most 90 GiB of 100 GiB asked for (90 %)",
        "  not known   nothing: all was watched from start to end",
        "  next time   the same: what it held fitted",
    )


def test_one_is_not_told_as_several():
    assert receipt(usage(cpus=1))[3].startswith("  host        20.0 of 1 CPU busy; ")


def test_idle_stretches_are_those_of_the_gpu_that_waited_longest_and_count_only_when_long():
    waited = gpu(
        0, idle_at_start_seconds=600, idle_after_seconds=240, idle_at_end_seconds=59, stuck_seconds=400
    )
    line = receipt(usage(node(gpus=(gpu(1, idle_at_start_seconds=30), waited))))[1]
    assert "idle for 10 min at the start, idle for 4 min amid the work" in line and "at the end" not in line
    assert "stuck for 6 min 40 s" in line


# What is asked for next, by what was seen. None: nothing of the kind is advised.
ADVICE: list[tuple[str, Usage, str]] = [
    ("one of two GPUs", usage(node(gpus=(gpu(0), gpu(1, 0.0)))), "--gpus=1 (1 of 2 GPUs never used)"),
    (
        "half of each node's GPUs",
        usage(node("n1", (gpu(0), gpu(1, 0.0))), node("n2", (gpu(0, 0.0), gpu(1)))),
        "--gpus-per-node=1 (2 of 4 GPUs never used)",
    ),
    (
        "a whole node",
        usage(node("n1"), node("n2", (gpu(0, 0.0), gpu(1, 0.0)))),
        "--nodes=1 (2 of 4 GPUs never used)",
    ),
    (
        "unevenly",
        usage(node("n1"), node("n2", (gpu(0), gpu(1, 0.0)))),
        "--gpus=3 (1 of 4 GPUs never used)",
    ),
    ("all", usage(node(gpus=(gpu(0, 0.0), gpu(1, 0.0)))), "no GPU, or find out why none was used"),
    (
        "a MIG instance without a process",
        usage(node(gpus=(gpu(0, None, busy_seconds=0.0), gpu(1, None, busy_seconds=60.0)))),
        "--gpus=1 (1 of 2 GPUs never used)",
    ),
    (
        "memory: the peak without what the kernel could take back",
        usage(
            node(host=host(cpu_seconds=20 * HOUR, memory_peak_bytes=90 * GIB, memory_working_bytes=41 * GIB))
        ),
        "--mem=50G (peak 41 GiB + 20 %)",
    ),
    (
        "memory that was nearly too little",
        usage(node(host=host(cpu_seconds=20 * HOUR, memory_peak_bytes=99 * GIB))),
        "--mem=119G (peak 99 GiB + 20 %)",
    ),
    (
        "CPUs",
        usage(node(host=host(cpu_seconds=3 * HOUR, memory_peak_bytes=90 * GIB))),
        "a quarter of --cpus-per-task (3.0 of 32 CPUs busy in the mean)",
    ),
    (
        "CPUs that GPUs wait for",
        usage(node(gpus=(gpu(0, 20.0),), host=host(cpu_seconds=31 * HOUR, memory_peak_bytes=90 * GIB))),
        "more --cpus-per-task (all CPUs were busy, the GPUs 20 % of the time)",
    ),
    ("time", usage(time_limit=24 * HOUR), "--time=1:15:00 (took 1 h of 1 d)"),
    (
        "out of memory",
        usage(
            node(host=host(memory_peak_bytes=100 * GIB, oom_kills=1)),
            state="OUT_OF_MEMORY",
            exit_code=None,
            signal=9,
        ),
        "more memory, or a smaller batch: --mem=120G or more (the kernel ended it for want of memory)",
    ),
    (
        "out of time",
        usage(state="TIMEOUT"),
        "a longer --time than 1 h 30 min, or a checkpoint to go on from (its time ran out)",
    ),
]


@pytest.mark.parametrize(("of", "said"), [row[1:] for row in ADVICE], ids=[row[0] for row in ADVICE])
def test_advice(of: Usage, said: str):
    assert advice(of) == said


# One run is no evidence: each of these would have had the advice "--gpus=1" and "--mem".
IDLE = (gpu(0), gpu(1, 0.0))
NO_EVIDENCE = [
    (usage(node(gpus=IDLE), state="FAILED", exit_code=1), "it did not complete"),
    (usage(node(gpus=IDLE), state="CANCELLED"), "it did not complete"),
    (usage(node(gpus=IDLE), state=None), "how it ended is not known yet"),
    (usage(node(gpus=IDLE), ended=1e9 + 200), "it ran for less than 5 min"),
    (usage(node(gpus=IDLE), complete=False), "not all of its nodes have told"),
    (usage(node(gpus=IDLE, final=False)), "not all of its nodes have told"),
    (usage(node(gpus=IDLE, unseen_seconds=600.0)), "it was not watched for long enough"),
    (usage(node(gpus=IDLE, unseen_seconds=None)), "it was not watched for long enough"),
    (usage(node(gpus=IDLE), state="RUNNING", ended=None, complete=False), "it has not ended"),
]


@pytest.mark.parametrize(("of", "why"), NO_EVIDENCE, ids=range(len(NO_EVIDENCE)))
def test_no_advice_without_evidence(of: Usage, why: str):
    assert advice(of) == f"no advice: {why}"


@pytest.mark.parametrize(
    ("state", "step", "said"),
    [
        ("planned", "requeue", "to be tried again as attempt 2 (gsub why 12)"),
        ("requeued", "update", "tried again as attempt 2 (gsub why 12)"),
        ("done", "", "tried again as attempt 2 (gsub why 12)"),
        ("stopped", "update", "tried again as attempt 2 (gsub why 12)"),
        (
            "stopped",
            "requeue",
            "a longer --time than 1 h 30 min, or a checkpoint to go on from (its time ran out)",
        ),
        ("stopped", "", "a longer --time than 1 h 30 min, or a checkpoint to go on from (its time ran out)"),
    ],
)
def test_a_job_that_is_tried_again_needs_no_advice(state: Any, step: Any, said: str):
    row = Resubmission("dev", 12, 0, "time_limit", "from_checkpoint", state, 1e9, "", step=step)
    of = msgspec.structs.replace(usage(state="TIMEOUT"), resubmission=row)
    assert advice(of) == said and len(receipt(of)) == LINES


@pytest.mark.case("users 3")
def test_no_attempt_is_promised_while_nobody_would_make_it():
    row = Resubmission("dev", 12, 0, "time_limit", "from_checkpoint", "planned", 1e9, "", said=SILENT)
    of = msgspec.structs.replace(usage(state="TIMEOUT"), resubmission=row)
    assert "again" not in advice(of) and "a longer --time" in advice(of)


def test_a_job_that_slurm_has_not_spoken_of_since_its_end():
    one = usage(node(), state=None, exit_code=0)
    assert receipt(one)[0].endswith(": ended after 1 h, exit code 0, Slurm has not said yet how")


def test_a_gpu_that_nobody_knows_of_is_not_called_idle():
    assert advice(usage(node(gpus=(gpu(0, None), gpu(1, 0.0))))) == "the same: what it held fitted"
    assert advice(usage(node(gpus=(gpu(1, 0.0), gpu(0))), gpus=4)) == "the same: what it held fitted"


def test_what_is_missing_is_said_and_never_nought():
    lines = receipt(
        usage(
            node(gpus=(gpu(0, None),), host=None, note="The driver hung.", unseen_seconds=120.0, final=False),
            gpus=2, complete=False, gpu_memory_peak_bytes=None, cpus=None,
        )
    )  # fmt: skip
    assert lines[1].endswith("2 for 1 h (2.0 GPU-hours), utilisation n/a")
    assert lines[2].endswith("n/a") and "n/a CPUs busy; memory at most n/a" in lines[3]
    assert lines[4] == (
        "  not known   its end on n1; 1 of its GPUs; utilisation of 1 of 1 GPU; "
        "how busy its CPUs were; its memory; 2 min in which nobody looked; The driver hung"
    )
    bare = receipt(Usage(JobSummary("dev", 7), ()))
    assert bare[0] == "job 7: its state is not known" and "no node has told of it" in bare[4]
    assert bare[1] == "  GPUs        n/a"


def test_rules_that_its_user_was_told_of_come_first_in_what_to_do():
    told = RuleTold("idle\x1b[31m", 1.7e9, "uses its GPUs little.", "util_mean 9 %")
    line = receipt(msgspec.structs.replace(usage(), told=(told,)))[5]
    assert "next time   mind rule idle?[31m, told by mail on 2023-11-1" in line
    assert ": uses its GPUs little (util_mean 9 %); the same" in line
    gone = receipt(msgspec.structs.replace(usage(), told=(RuleTold("r", 1.7e9, "a", cancelled=1.7e9),)))
    assert ": a; it was cancelled for that; " in gone[5] and len(gone) == LINES


def test_ids_and_endings():
    assert receipt(usage(array_job_id=10, array_task_id=3))[0].startswith("job 10_3 ")
    assert receipt(usage(het_job_id=12, het_offset=1, restarts=2))[0].startswith(
        'job 12+1 "train" (restart 2)'
    )
    assert receipt(usage(state="FAILED", exit_code=0, signal=9))[0].endswith("FAILED after 1 h, signal 9")
    assert receipt(usage(gpus=0))[1:3] == ("  GPUs        none", "  GPU memory  none")


_TEXT = st.text(max_size=300)
_SECONDS = st.none() | st.floats(0, 1e9)
_BYTES = st.none() | st.integers(0, 1 << 50)


@given(
    name=_TEXT, nodes=_TEXT, state=st.none() | _TEXT, reason=_TEXT, note=_TEXT, node_name=_TEXT,
    started=_SECONDS, ended=_SECONDS, limit=_SECONDS, held=st.none() | st.integers(0, 64), asked=_BYTES, peak=_BYTES,
    utilisation=st.none() | st.floats(0, 100), stuck=_SECONDS, unseen=_SECONDS, cpu=_SECONDS,
    complete=st.booleans(), parts=st.integers(0, 3),
)  # fmt: skip
def test_any_usage_gives_six_harmless_lines(
    name, nodes, state, reason, note, node_name, started, ended, limit, held, asked, peak, utilisation, stuck, unseen,
    cpu, complete, parts,
):  # fmt: skip
    job = JobSummary(
        "dev", 1, name=name, nodes=nodes, state=state, reason=reason, started=started, ended=ended, time_limit=limit,
        gpus=held, memory_asked_bytes=asked, memory_peak_bytes=peak, complete=complete, cpus=held,
    )  # fmt: skip
    use = GpuUse(gpu=GpuRef(0), utilisation_mean=utilisation, stuck_seconds=stuck, seconds=1.0)
    one = NodeUse(
        node_name, gpus=(use,), host=host(cpu_seconds=cpu, memory_peak_bytes=peak), unseen_seconds=unseen,
        note=note, final=complete,
    )  # fmt: skip
    lines = receipt(Usage(job, (one,) * parts))
    assert len(lines) == LINES
    assert all(line.isprintable() for line in lines), lines


def test_words_of_figures():
    assert [span(59.6), span(0), span(90061)] == ["1 min", "0 s", "1 d 1 h"]
    assert [size(1023), size(1024), size(9.96 * GIB), size(10.4 * GIB)] == [
        "1023 B",
        "1 KiB",
        "10 GiB",
        "10 GiB",
    ]
    assert time_option(23.9 * HOUR) == "1-00:00:00"
    assert plain("x" * 300).endswith("...") and len(plain("x" * 300)) == 200
    assert "\x1b" not in plain("\x1b]0;evil\x07\u202e\ud800")


def test_a_usage_as_the_api_sends_it():
    sent = msgspec.json.encode(usage())
    assert receipt(msgspec.json.decode(sent, type=Usage)) == receipt(usage())
