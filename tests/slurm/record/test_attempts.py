"""Jobs of unusual shape: array tasks, hetjobs, one that is requeued, one without GPUs, one that is cancelled."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

import pytest

from tests.slurm.record.load import utilisation
from tests.slurm.record.recorded import Recorded, near, uuids

pytestmark = pytest.mark.all_releases

MIB = 1 << 20
HOLDS_MIB, BURNS_S = 300, 12.0


@dataclass(frozen=True)
class Submitted:
    """Their ids; all run at the same time."""

    array: int
    requeued: int
    hetjob: int
    cpus: int
    cancelled: int
    by_array: dict[int, int]
    by_component: dict[int, int]


@pytest.fixture(scope="package")
def jobs(record: Recorded) -> Submitted:
    """The jobs, with what a test does to them done."""
    few = ("--cpus-per-gpu=1",)
    # the second attempt on another load: the record must tell them apart
    twice = (
        f'if [ "$SLURM_RESTART_COUNT" = 1 ]; then {record.load(8, "--factor=2", "--exit=4")}; '
        f"else {record.load(300)}; fi"
    )
    requeued = record.submit("-w", "n2", "--gpus=1", "--requeue", "--open-mode=append", *few, script=twice)
    cancelled = record.submit("-w", "n2", "--gpus=1", *few, script=record.load(300))
    array = record.submit("-w", "n1", "--gpus=1", "--array=3,5", *few, script=record.load(8, "--factor=1"))
    hetjob = record.submit(
        *("-w", "n1", "--gpus=1", *few, ":", "-w", "n3", "--gpus=2", "--mem=500", *few),
        script=f"srun --het-group=0,1 {record.load(8)}",
    )
    burning = record.load(BURNS_S, "--busy", f"--memory={HOLDS_MIB}")
    cpus = record.submit("-w", "n4", "-c", "3", "--mem=2000", script=burning)

    by_array = _ids(record, array, r"ArrayTaskId=(\d+) ")
    by_component = _ids(record, hetjob, r"HetJobOffset=(\d+) ")
    for job in (requeued, cancelled):
        record.given(job)
    record.wait_for("the first load", lambda: record.loaded("n2") >= 2 or None)
    # 22.05's accounting forgets the start of what ends before it knew of it: nobody can then say that it was requeued
    books = ["sacct", "-nXP", "-oStart", f"-j{requeued}"]
    record.wait_for("accounting", lambda: record.cluster.run(books).stdout.startswith("20") or None)
    record.cluster.run(["scancel", str(cancelled)], user=record.user, check=True)
    record.cluster.run(["scontrol", "requeue", str(requeued)], user=record.user, check=True)
    record.wait_for("the requeue", lambda: _restarts(record, requeued) == 1 or None)
    # Slurm holds a requeued job for two minutes. Not for none: 22.05 starts one at once without a prolog
    record.cluster.run(["scontrol", "update", f"jobid={requeued}", "StartTime=now+5"], check=True)
    return Submitted(array, requeued, hetjob, cpus, cancelled, by_array, by_component)


def _ids(record: Recorded, job: int, pattern: str) -> dict[int, int]:
    """The ids of an array's tasks or a hetjob's components, once all run."""

    def look() -> dict[int, int] | None:
        lines = record.cluster.run(["scontrol", "-o", "show", "job", str(job)]).stdout.splitlines()
        running = [line for line in lines if "JobState=RUNNING" in line]
        found = {
            int(n[1]): int(re.findall(r"JobId=(\d+)", line)[0])
            for line in running
            if (n := re.search(pattern, line))
        }
        return found if len(found) == 2 else None

    return record.wait_for(f"the two parts of job {job}", look)


def _restarts(record: Recorded, job: int) -> int:
    said = record.cluster.run(["scontrol", "-o", "show", "job", str(job)]).stdout
    return int(re.findall(r"Restarts=(\d+)", said)[0])


def test_array_tasks_are_jobs_of_their_own(record, jobs):
    seen = {}
    for task, job in jobs.by_array.items():
        usage = record.complete(job)
        assert (usage.job.array_job_id, usage.job.array_task_id) == (jobs.array, task)
        assert usage.job.state == "COMPLETED"
        (node,) = usage.nodes
        seen[task] = uuids(node.gpus)
        assert len(seen[task]) == 1
    assert {*seen} == {3, 5}
    assert not seen[3] & seen[5]


def test_a_requeued_job_has_two_records(record, jobs):
    first, second = (record.complete(jobs.requeued, restarts) for restarts in (0, 1))
    assert (second.job.state, second.job.exit_code) == ("FAILED", 4)
    assert first.job.state == "REQUEUED"
    assert first.job.ended <= second.job.started
    for usage, factor in ((first, 1), (second, 2)):
        (use,) = usage.nodes[0].gpus
        assert near(use.utilisation_p95, utilisation(use.gpu.minor or 0, factor))
    listed = [each for each in record.jobs() if each.job_id == jobs.requeued]
    assert sorted(each.restarts for each in listed) == [0, 1]


def test_components_of_a_hetjob_are_known_by_their_leader(record, jobs):
    nodes = {}
    for offset, job in jobs.by_component.items():
        usage = record.complete(job)
        assert usage.job.het_job_id == jobs.hetjob
        assert usage.job.het_offset == offset
        nodes[offset] = {node.node: len(node.gpus) for node in usage.nodes}
    assert nodes == {0: {"n1": 1}, 1: {"n3": 2}}


def test_a_cancelled_job_was_cancelled(record, jobs):
    usage = record.complete(jobs.cancelled)
    assert usage.job.state == "CANCELLED"
    (use,) = usage.nodes[0].gpus
    assert near(use.utilisation_p95, utilisation(use.gpu.minor or 0))


def test_a_job_without_gpus_has_none_and_its_cpus_and_memory_are_seen(record, jobs):
    usage = record.complete(jobs.cpus)
    assert usage.job.state == "COMPLETED"
    (node,) = usage.nodes
    assert node.gpus == ()
    assert usage.job.gpus in (0, None)
    assert usage.job.cpus == 3
    host = node.host
    assert host is not None
    did = record.did(jobs.cpus, "n4")
    # by /proc what a process did since the last look is lost with it; a cgroup keeps it
    assert abs(host.cpu_seconds - did["cpu_seconds"]) <= 0.05 * did["cpu_seconds"] + record.interval
    assert HOLDS_MIB * MIB <= host.memory_peak_bytes < (HOLDS_MIB + 100) * MIB
    assert usage.job.memory_peak_bytes == host.memory_peak_bytes


def test_a_user_sees_their_own_jobs_only(record, jobs):
    mine, other = record.cluster.users or pytest.skip("there is one user only")
    record.complete(jobs.cpus)
    status, body = record.ask(f"/v1/jobs/{jobs.cpus}", user=mine)
    assert (status, json.loads(body)["user"]) == (200, mine)
    assert record.ask(f"/v1/jobs/{jobs.cpus}", user=other)[0] == 404
    assert os.geteuid() == 0
