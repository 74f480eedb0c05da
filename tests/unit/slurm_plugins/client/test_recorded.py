"""What Slurm printed, release by release, and what it means: the same values from all of them."""

from __future__ import annotations

from datetime import timedelta
from functools import cache

import pytest

from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import NoSuchJob, SlurmFormatError, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.runner import Completed
from slurm_plugins.client.states import EXIT_ZERO, ExitStatus, JobFlag, JobState, NodeState
from slurm_plugins.client.values import AccountingRecord, Job
from slurm_plugins.client.versions import Version
from tests.slurm.client.record import COMMENT, HOSTILE, REASON
from tests.unit.slurm_plugins.client.recording import RELEASES, Replay

GIB = 1 << 30
pytestmark = pytest.mark.parametrize("release", RELEASES)


def client(release: str, *names: str) -> CommandClient:
    return CommandClient({}, run=Replay(release, *names))


@cache
def jobs(release: str) -> dict[str, Job]:
    """By name; of the array the part that waits."""
    return {
        job.name + (f"+{job.het_offset}" if job.het_offset else ""): job for job in reversed(_jobs(release))
    }


@cache
def _jobs(release: str) -> tuple[Job, ...]:
    return client(release, "jobs").jobs()


def test_version(release: str) -> None:
    version = client(release).version()
    assert f"{version.major:02d}.{version.minor:02d}" == release
    assert Version(22, 5) <= version


def test_all_jobs_are_there_in_order(release: str) -> None:
    assert len(_jobs(release)) == 12
    assert [job.id for job in _jobs(release)] == sorted(job.id for job in _jobs(release))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            HOSTILE,
            {
                "id": 1,
                "state": JobState.RUNNING,
                "flags": frozenset(),
                "comment": COMMENT,
                "user": "user1",
                "num_nodes": 2,
                "gpus": 4,
                "time_limit": 600,
                "partition": "gpu",
                "reason": None,
                "exclusive": None,
                "dependency": None,
                "features": None,
                "admin_comment": None,
                "exit": EXIT_ZERO,
                "restarts": 0,
                "array_job_id": None,
                "het_job_id": None,
                "batch": True,
                "requeue": True,
            },
        ),
        (
            "array",
            {
                "id": 2,
                "state": JobState.PENDING,
                "array_job_id": 2,
                "array_task_id": None,
                "array_tasks": "2-4%2",
                "reason": "JobArrayTaskLimit",
                "cpus_per_task": 4,
                "gpus": 1,
                "time_limit": 7200,
                "start": None,
                "shown_id": "2",
            },
        ),
        (
            "failed",
            {
                "state": JobState.FAILED,
                "exit": ExitStatus(3),
                "reason": "NonZeroExitCode",
                "gpus": 0,
                "ended": True,
            },
        ),
        (
            "waiting",
            {
                "state": JobState.PENDING,
                "switches": 1,
                "switches_wait": 120,
                "exclusive": "NODE",
                "nice": 50,
                "time_limit": 93600,
                "admin_comment": "jobstats:{a|b}",
                "dependency": "afterok:1(unfulfilled)",
                "held": False,
            },
        ),
        ("het", {"het_offset": 0, "num_nodes": 1, "gpus": 0, "shown_id": "5+0"}),
        ("het+1", {"het_job_id": 5, "het_offset": 1, "num_nodes": 2, "gpus": 4, "id": 6, "shown_id": "5+1"}),
        (
            "per-gpu",
            {"gpus": 3, "cpus_per_gpu": 4, "memory_per_gpu": 2 * GIB, "num_cpus": 12, "time_limit": 1800},
        ),
        (
            "held",
            {
                "held": True,
                "time_limit": None,
                "num_tasks": 3,
                "partition": "urgent",
                "reason": "JobHeldUser",
            },
        ),
        ("cancelled", {"state": JobState.CANCELLED, "ended": True, "start": None}),
        (
            "requeued",
            {
                "state": JobState.PENDING,
                "state_text": "SPECIAL_EXIT",
                "flags": frozenset({JobFlag.SPECIAL_EXIT}),
                "restarts": 1,
                "held": True,
                "ended": False,
                "reason": "job requeued in held state",
            },
        ),
    ],
)
def test_jobs(release: str, name: str, expected: dict[str, object]) -> None:
    job = jobs(release)[name]
    found = {field: getattr(job, field) for field in expected}
    assert found == expected


def test_sizes_and_places(release: str) -> None:
    hostile, waiting = jobs(release)[HOSTILE], jobs(release)["waiting"]
    # the site gives 8 CPUs with each GPU
    assert hostile.tres == {"cpu": 32, "mem": 16 * GIB, "node": 2, "billing": 32, "gres/gpu": 4}
    assert hostile.tres_per_node == {"gres/gpu": 2}
    assert len(hostile.nodes) == 2
    assert hostile.batch_host == hostile.nodes.names[0]
    assert list(waiting.excluded_nodes) == ["n3", "n7", "n8"]
    assert not waiting.nodes
    assert jobs(release)["per-gpu"].tres_per_job == {"gres/gpu": 3}


def test_times(release: str) -> None:
    hostile, waiting, failed = jobs(release)[HOSTILE], jobs(release)["waiting"], jobs(release)["failed"]
    assert hostile.submitted is not None
    assert hostile.start is not None
    assert hostile.end == hostile.start + timedelta(minutes=10)
    assert hostile.submitted.utcoffset() == timedelta(0)
    assert waiting.submitted is not None
    assert waiting.eligible == waiting.submitted + timedelta(hours=1)
    assert waiting.deadline is None
    assert failed.start is not None
    assert failed.end is not None
    assert failed.start <= failed.end


def test_output_paths(release: str) -> None:
    by_name = jobs(release)
    home = by_name[HOSTILE].work_dir
    assert by_name[HOSTILE].stdout == f"{home}/{HOSTILE}-1.log"
    assert by_name["failed"].stdout == f"{home}/slurm-3.out"
    assert by_name["failed"].stderr == by_name["failed"].stdout
    assert by_name["per-gpu"].stderr == f"{home}/err"
    tasks = {job.array_task_id: job for job in _jobs(release) if job.array_task_id is not None}
    assert {number: job.stdout for number, job in tasks.items()} == {
        0: f"{home}/out-array-2_0.log",
        1: f"{home}/out-array-2_1.log",
    }
    assert {job.shown_id for job in tasks.values()} == {"2_0", "2_1"}
    # what still waits has no one path
    assert by_name["array"].stdout == f"{home}/out-array-2_%a.log"


def test_one_job_is_the_same_as_among_all(release: str) -> None:
    assert client(release, "job").job(1) == jobs(release)[HOSTILE]


def test_nodes(release: str) -> None:
    nodes = {node.name: node for node in client(release, "nodes").nodes()}
    assert list(nodes) == [f"n{number}" for number in range(1, 9)]
    for node in nodes.values():
        assert (node.cpus, node.memory, node.gpus, node.tres["gres/gpu"]) == (64, 512000 << 20, 8, 8)
        assert (node.sockets, node.cores_per_socket, node.threads_per_core) == (2, 32, 1)
        assert node.slurm_version is not None
        assert node.slurm_version.startswith(release)
        assert "gpu" in node.partitions
        assert node.booted is not None
        assert node.slurmd_started is not None
        assert node.booted < node.slurmd_started
    last = nodes.pop("n8")
    assert (last.reason, last.reason_by, last.comment, last.extra) == (
        REASON,
        "root",
        "hi Reason=x",
        "a=1 b=2",
    )
    assert last.reason_at is not None
    assert "DRAIN" in last.flags
    assert not last.available
    assert all(node.available and node.reason is None and node.comment is None for node in nodes.values())
    assert sum(node.gpus_allocated or 0 for node in nodes.values()) == 4 + 2 + 4 + 3
    assert {node.state for node in nodes.values()} <= {NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED}


def test_partitions(release: str) -> None:
    partitions = {partition.name: partition for partition in client(release, "partitions").partitions()}
    assert list(partitions) == ["gpu", "debug", "urgent"]
    gpu = partitions["gpu"]
    assert (gpu.is_default, gpu.state, gpu.total_nodes, gpu.total_cpus, len(gpu.nodes)) == (
        True,
        "UP",
        8,
        512,
        8,
    )
    assert gpu.tres.gpus == 64
    assert gpu.max_nodes is None
    assert gpu.exclusive is None
    assert gpu.allow_accounts is None
    assert not partitions["debug"].is_default
    assert partitions["urgent"].priority_tier > gpu.priority_tier  # type: ignore[operator]


@cache
def records(release: str) -> dict[str, list[AccountingRecord]]:
    found: dict[str, list[AccountingRecord]] = {}
    for record in client(release, "accounting").accounting(ids=range(1, 11)):
        found.setdefault(record.name, []).append(record)
    return found


def test_accounting(release: str) -> None:
    (hostile,) = records(release)[HOSTILE]
    assert (hostile.id, hostile.state, hostile.gpus, hostile.num_nodes) == (1, JobState.RUNNING, 4, 2)
    assert (hostile.end, hostile.ended, hostile.time_limit) == (None, False, 600)
    assert hostile.submit_line is not None
    assert "JobState=FAILED JobId=5 é" in hostile.submit_line
    (failed,) = records(release)["failed"]
    assert (failed.state, failed.exit, failed.ended, failed.reason) == (
        JobState.FAILED,
        ExitStatus(3),
        True,
        None,
    )
    # of a job that was cancelled before slurmdbd heard of it, 22.05 has no name
    (cancelled,) = records(release).get("cancelled") or records(release)["allocation"]
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.cancelled_by == cancelled.uid
    assert (cancelled.start, bool(cancelled.nodes)) == (None, False)
    assert {record.shown_id for record in records(release)["array"]} == {"2_0", "2_1", "2"}
    assert {record.shown_id for record in records(release)["het"]} == {"5+0", "5+1"}


def test_history_of_a_user(release: str) -> None:
    found = {record.name for record in client(release, "history").accounting(user="user1")}
    # What was never eligible (held, then cancelled) has no place in time, says sacct.
    assert {HOSTILE, "array", "failed", "het", "requeued"} <= found
    assert "cancelled" not in found


def test_attempts(release: str) -> None:
    first = records(release)["requeued"][0]
    assert (first.attempt, first.state_text, first.ended) == (0, "REQUEUED", True)
    assert first.flags == {JobFlag.REQUEUED}
    # 22.05 tells slurmdbd of the second attempt only when it starts
    assert [record.attempt for record in records(release)["requeued"]] in ([0], [0, 1])
    if release != "22.05":
        assert [record.restarts for record in records(release)["requeued"]] == [0, 1]


def test_estimate(release: str) -> None:
    from tests.slurm.client.record import RUNNING

    replay = Replay(release, "test_only")
    home = jobs(release)[HOSTILE].work_dir
    estimate = CommandClient({}, run=replay).test_only(["--nodes=2", f"--chdir={home}"], stdin=RUNNING)
    assert estimate.start is not None
    assert (len(estimate.nodes), estimate.partition, estimate.cpus) == (2, "gpu", 2)


def test_ping(release: str) -> None:
    assert len(client(release, "ping").ping()) == 1


def test_empty_and_no_such_job_differ(release: str) -> None:
    empty = client(release, "empty")
    assert [job.id for job in empty.jobs(ids=[1, 99999999])] == [1]
    assert empty.accounting(ids=[99999999]) == ()
    with pytest.raises(NoSuchJob):
        empty.job(99999999)


def test_refused(release: str) -> None:
    home = jobs(release)[HOSTILE].work_dir
    with pytest.raises(SlurmRefused) as caught:
        client(release, "refused").submit(["--partition=nowhere", f"--chdir={home}"])
    assert caught.value.message == (
        "invalid partition specified: nowhere\nBatch job submission failed: Invalid partition name specified"
    )


def test_cancel(release: str) -> None:
    with pytest.raises(NoSuchJob) as caught:
        client(release, "cancel").cancel([3, 99999999])
    assert caught.value.job_id == "99999999"


def test_no_controller(release: str) -> None:
    down = client(release, "no_controller")
    for ask in (down.jobs, lambda: down.job(1), down.nodes, down.ping, lambda: down.cancel([1])):
        with pytest.raises(SlurmUnreachable) as caught:
            ask()
        assert caught.value.daemon == "slurmctld"
        assert len(str(caught.value).splitlines()) == 1


def test_no_database(release: str) -> None:
    with pytest.raises(SlurmUnreachable) as caught:
        client(release, "no_database").accounting(ids=[1])
    assert caught.value.daemon == "slurmdbd"


def test_a_release_without_a_field_is_read_without_it(release: str) -> None:
    replay = Replay(release, "jobs")

    def lacking(argv: list[str], **options: object) -> Completed:
        """A squeue that does not know Prefer: it says so and prints the rest."""
        if "-O" not in argv:
            return replay(argv)
        done = replay(argv)
        separator = argv[-1].rpartition(":")[2]
        column = [field.partition(":")[0] for field in argv[-1].split(",")].index("Prefer")
        *fields, _ = done.stdout.split(separator)
        width = argv[-1].count(separator)
        kept = [field for number, field in enumerate(fields) if number % width != column]
        complaint = "squeue: error: Invalid job format specification: Prefer\n"
        return Completed(done.command, 0, "".join(field + separator for field in kept) + "\n", complaint)

    assert CommandClient({}, run=lacking).jobs() == _jobs(release)


def test_a_cut_answer_is_no_answer(release: str) -> None:
    replay = Replay(release, "jobs")

    def cut(argv: list[str], **options: object) -> Completed:
        done = replay(argv)
        return Completed(done.command, 0, done.stdout[: len(done.stdout) // 2], "") if "-O" in argv else done

    with pytest.raises(SlurmFormatError):
        CommandClient({}, run=cut).jobs()
