"""What every `SlurmClient` promises: the same tests for the fake, for the commands, and for pyslurm where it
imports.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import NoSuchJob, SlurmError, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.pyslurm_client import PyslurmClient
from slurm_plugins.client.runner import Completed, run_command
from slurm_plugins.client.states import JobFlag, JobState, NodeState
from slurm_plugins.client.values import AccountingRecord, Job
from slurm_plugins.client.versions import OLDEST, Version
from tests.client.fake import FakeClient

NOWHERE = 99999999

# What users write into names and comments, and what it must not do to us.
HOSTILE = [
    "plain",
    "a|b|c",
    "key=value JobId=5 JobState=FAILED ",
    "quotes \" and ' and `backticks` and $HOME",
    "two\nlines\nJobId=5 JobName=other",
    "tab\tand\x1funit separator",
    "é ü 日本語 🎉",
    "%j %x %%",
    "(null)x",
    "comma,separated:.20",
    "C" * 900,
]


# Runs until a file appears, 5 minutes at most.
SCRIPT = """#!/bin/sh
touch "begun-$SLURM_JOB_ID"
for turn in $(seq 3000); do [ -e "end-$SLURM_JOB_ID" ] && exit 0; sleep 0.1; done
"""


@dataclass
class Bench:
    """A client, and what a test does behind its back."""

    client: SlurmClient
    user: str
    home: str
    succeed: Callable[[int], object]
    down: Callable[[str], AbstractContextManager[None]]

    def submit(self, *options: str, script: str = SCRIPT) -> int:
        argv = [f"--chdir={self.home}", "--job-name=contract", *options]
        submission = self.client.submit(argv, stdin=script)
        assert submission.job_id is not None
        return submission.job_id

    def until(self, number: int, ready: Callable[[Job], bool], *, seconds: float = 60) -> Job:
        deadline = time.monotonic() + seconds
        while True:
            job = self.client.job(number)
            if ready(job):
                return job
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds} s; last seen: {job}")
            time.sleep(0.1)

    def accounted(
        self, number: int, ready: Callable[[AccountingRecord], bool], *, seconds: float = 60
    ) -> tuple[AccountingRecord, ...]:
        deadline = time.monotonic() + seconds
        while True:
            records = self.client.accounting(ids=[number])
            if records and ready(records[-1]):
                return records
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds} s; last seen: {records}")
            time.sleep(0.2)


class Contract:
    """The tests; each back end is a subclass with a fixture ``bench``."""

    def test_it_is_a_client(self, bench: Bench) -> None:
        assert isinstance(bench.client, SlurmClient)
        assert bench.client.version() >= OLDEST
        assert bench.client.ping()

    def test_nodes(self, bench: Bench) -> None:
        nodes = bench.client.nodes()
        assert [node.name for node in nodes] == [f"n{number}" for number in range(1, 9)]
        for node in nodes:
            assert node.state in (NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED)
            assert (node.cpus, node.memory, node.gpus) == (64, 512000 << 20, 8)
            assert "gpu" in node.partitions
            assert node.available

    def test_partitions(self, bench: Bench) -> None:
        partitions = {partition.name: partition for partition in bench.client.partitions()}
        gpu = partitions["gpu"]
        assert gpu.is_default
        assert gpu.state == "UP"
        assert (gpu.total_nodes, gpu.total_cpus, len(gpu.nodes)) == (8, 512, 8)
        assert [partition.name for partition in partitions.values() if partition.is_default] == ["gpu"]

    def test_a_job_from_submission_to_cancellation(self, bench: Bench) -> None:
        begin = datetime.now(timezone.utc) - timedelta(seconds=5)
        number = bench.submit(
            "--nodes=2", "--gpus-per-node=3", "--time=7", "--comment=hello", "--output=log-%j"
        )
        job = bench.until(number, lambda job: job.state is JobState.RUNNING)
        assert (job.id, job.shown_id, job.name, job.user) == (number, str(number), "contract", bench.user)
        assert (job.partition, job.comment, job.time_limit) == ("gpu", "hello", 420)
        assert (job.num_nodes, len(job.nodes), job.gpus, job.tres.gpus) == (2, 2, 6, 6)
        assert job.submitted is not None
        assert job.start is not None
        assert begin <= job.submitted <= job.start <= datetime.now(timezone.utc) + timedelta(seconds=5)
        assert (job.work_dir, job.stdout) == (bench.home, f"{bench.home}/log-{number}")
        assert (job.restarts, bool(job.exit), job.ended, job.held) == (0, False, False, False)
        bench.client.cancel([number])
        job = bench.until(number, lambda job: job.state is JobState.CANCELLED and not job.flags)
        assert job.ended
        assert job.end is not None
        # cancelling what has ended is no error: what was asked for is so
        bench.client.cancel([number])

    def test_a_held_job(self, bench: Bench) -> None:
        number = bench.submit("--hold")
        job = bench.client.job(number)
        assert job.state is JobState.PENDING
        assert job.held
        assert not job.nodes
        assert job.gpus == 0
        bench.client.cancel([number])

    def test_lists_of_jobs(self, bench: Bench) -> None:
        first, second = bench.submit("--hold"), bench.submit("--hold")
        assert [job.id for job in bench.client.jobs(ids=[second, first])] == [first, second]
        assert {first, second} <= {job.id for job in bench.client.jobs()}
        assert {first, second} <= {job.id for job in bench.client.jobs(user=bench.user)}
        assert bench.client.jobs(ids=[]) == ()
        # one id that is gone, and one beside one that is not
        assert bench.client.jobs(ids=[NOWHERE]) == ()
        assert [job.id for job in bench.client.jobs(ids=[NOWHERE, first])] == [first]
        bench.client.cancel([first, second])

    def test_no_such_job(self, bench: Bench) -> None:
        with pytest.raises(NoSuchJob) as caught:
            bench.client.job(NOWHERE)
        assert str(caught.value.job_id) == str(NOWHERE)
        held = bench.submit("--hold")
        with pytest.raises(NoSuchJob):
            bench.client.cancel([NOWHERE, held])
        assert bench.until(held, lambda job: job.state is JobState.CANCELLED)
        assert bench.client.accounting(ids=[NOWHERE]) == ()

    @pytest.mark.parametrize("text", ["-u", "1,2", "", "abc", "1;2", "$(id)", "--all", "1 2"])
    def test_what_is_no_id_reaches_no_command(self, bench: Bench, text: str) -> None:
        for ask in (bench.client.job, lambda job_id: bench.client.cancel([job_id])):
            with pytest.raises(NoSuchJob):
                ask(text)

    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    def test_hostile_names_and_comments(self, bench: Bench, text: str) -> None:
        number = bench.submit("--hold", f"--comment={text}", "--job-name", text)
        other = bench.submit("--hold", "--comment=innocent")
        for job in (bench.client.job(number), bench.client.jobs(ids=[number, other])[0]):
            # Slurm itself may trim a name's end; what is there must be the user's
            assert job.id == number
            assert job.name.strip() == text.strip()
            assert (job.comment or "").strip() == text.strip()
            assert job.state is JobState.PENDING
            assert job.user == bench.user
        assert bench.client.job(other).comment == "innocent"
        bench.client.cancel([number, other])

    def test_refusal_keeps_slurms_words(self, bench: Bench) -> None:
        with pytest.raises(SlurmRefused) as caught:
            bench.submit("--partition=nowhere")
        assert "partition" in caught.value.message
        assert "nowhere" in caught.value.message
        assert "sbatch: error" not in str(caught.value)

    def test_test_only_submits_nothing(self, bench: Bench) -> None:
        before = {job.id for job in bench.client.jobs(user=bench.user)}
        estimate = bench.client.test_only([f"--chdir={bench.home}", "--nodes=2"], stdin="#!/bin/sh\n")
        assert estimate.start is not None
        assert abs(estimate.start - datetime.now(timezone.utc)) < timedelta(days=1)
        assert (estimate.partition, len(estimate.nodes)) == ("gpu", 2)
        assert {job.id for job in bench.client.jobs(user=bench.user)} == before

    def test_quiet_submissions_have_no_id(self, bench: Bench) -> None:
        submission = bench.client.submit(
            ["--quiet", "--hold", f"--chdir={bench.home}", "--job-name=quiet"], stdin="#!/bin/sh\n"
        )
        assert submission.job_id is None
        quiet = [
            job.id for job in bench.client.jobs(user=bench.user) if job.name == "quiet" and not job.ended
        ]
        assert len(quiet) == 1
        bench.client.cancel(quiet)

    def test_accounting(self, bench: Bench) -> None:
        begin = datetime.now(timezone.utc) - timedelta(seconds=5)
        number = bench.submit("--gpus-per-node=2", "--time=3")
        bench.until(number, lambda job: job.state is JobState.RUNNING)
        bench.succeed(number)
        # a job's end can reach slurmdbd before its start: until that too is there, it has no name and no partition
        (record,) = bench.accounted(number, lambda record: record.ended and bool(record.partition))
        assert (record.id, record.name, record.user, record.partition) == (
            number,
            "contract",
            bench.user,
            "gpu",
        )
        assert record.state is JobState.COMPLETED
        assert not record.exit
        assert record.gpus == 2
        assert (record.attempt, record.work_dir) == (0, bench.home)
        assert record.submitted is not None
        assert record.end is not None
        assert begin <= record.submitted <= record.end
        by_user = bench.client.accounting(user=bench.user, since=begin)
        assert number in {found.id for found in by_user}
        early = bench.client.accounting(
            ids=[number], since=begin - timedelta(hours=2), until=begin - timedelta(hours=1)
        )
        assert early == ()
        assert bench.client.accounting(ids=[]) == ()

    def test_a_silent_controller_is_neither_empty_nor_no_such_job(self, bench: Bench) -> None:
        number = bench.submit("--hold")
        client = bench.client
        questions: dict[str, Callable[[], object]] = {
            "jobs": client.jobs,
            "jobs(ids)": partial(client.jobs, ids=[number]),
            "job": partial(client.job, number),
            "job that never was": partial(client.job, NOWHERE),
            "nodes": client.nodes,
            "partitions": client.partitions,
            "ping": client.ping,
            "cancel": partial(client.cancel, [number]),
            "submit": partial(client.submit, ["--hold", f"--chdir={bench.home}"], stdin="#!/bin/sh\n"),
        }
        client.version()
        # side by side: each command tries for 10 s (MessageTimeout)
        with bench.down("slurmctld"), ThreadPoolExecutor(len(questions)) as pool:
            answers = {name: pool.submit(ask) for name, ask in questions.items()}
            # slurmdbd answers on its own
            assert client.accounting(ids=[NOWHERE]) == ()
            for name, answer in answers.items():
                error = answer.exception()
                assert isinstance(error, SlurmUnreachable), (name, error)
                assert error.daemon == "slurmctld", name
        assert client.job(number).state is JobState.PENDING
        client.cancel([number])

    def test_a_silent_database_is_not_an_empty_history(self, bench: Bench) -> None:
        with bench.down("slurmdbd"):
            with pytest.raises(SlurmUnreachable) as caught:
                bench.client.accounting(ids=[1])
            assert caught.value.daemon == "slurmdbd"
            # the controller answers on its own
            assert bench.client.nodes()


class TestFake(Contract):
    @pytest.fixture
    def bench(self) -> Bench:
        client = FakeClient()

        @contextmanager
        def down(daemon: str) -> Iterator[None]:
            client.down.add(daemon)
            yield
            client.down.discard(daemon)

        return Bench(client, client.user, "/home/user1", client.finish, down)


def _through(cluster: Cluster, user: str | None) -> Callable[..., Completed]:
    """`runner.run_command`, inside the cluster and as its user."""

    def run(argv, *, env, **options):
        return run_command(cluster.argv(argv, user=user), env=env, **options)

    return run


def _environment(cluster: Cluster, user: str) -> dict[str, str]:
    home = str(cluster.home(user))
    # what a user may have set to see queues their way: it must not change what we read
    habits = {
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_SORT": "-i",
        "SQUEUE_STATES": "RUNNING",
        "SQUEUE_USERS": "nobody",
        "SACCT_FORMAT": "jobid",
        "SINFO_FORMAT": "%n",
        "SLURM_TIME_FORMAT": "relative",
        "TZ": "America/St_Johns",
    }
    return {"HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8", **cluster.env, **habits}


class Real(Contract):
    """The contract on a real Slurm, and what only that can show."""

    @contextmanager
    def silenced(self, cluster: Cluster, daemon: str) -> Iterator[None]:
        cluster.stop(daemon)
        try:
            yield
        finally:
            cluster.start(daemon)

    def begun(self, bench: Bench, number: int) -> None:
        """Wait until the script runs: 22.05 fails a job that is requeued between its start and its script's."""
        deadline = time.monotonic() + 60
        while not Path(bench.home, f"begun-{number}").exists():
            assert time.monotonic() < deadline, bench.client.job(number)
            time.sleep(0.05)

    def make(self, cluster: Cluster, client: SlurmClient, user: str) -> Bench:
        def succeed(number: int) -> None:
            (cluster.home(user) / f"end-{number}").touch()

        return Bench(client, user, str(cluster.home(user)), succeed, partial(self.silenced, cluster))


class TestCommands(Real):
    @pytest.fixture
    def bench(self, cluster: Cluster, user: str | None) -> Iterator[Bench]:
        who = user or cluster.home().name
        client = CommandClient(_environment(cluster, who), run=_through(cluster, user))
        bench = self.make(cluster, client, who)
        yield bench
        self.tidy(bench)

    def tidy(self, bench: Bench) -> None:
        left = [job.id for job in bench.client.jobs(user=bench.user) if not job.ended]
        with suppress(NoSuchJob):
            bench.client.cancel(left)

    def test_version(self, cluster: Cluster, bench: Bench) -> None:
        assert bench.client.version() == Version.parse(cluster.version)

    def test_arrays(self, bench: Bench) -> None:
        number = bench.submit("--array=0-4%2", "--output=%x-%A_%a.log")
        deadline = time.monotonic() + 60
        while len(parts := bench.client.jobs(ids=[number])) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert {part.array_job_id for part in parts} == {number}
        assert sorted(part.array_task_id for part in parts if part.array_task_id is not None) == [0, 1]
        (waiting,) = [part for part in parts if part.array_tasks]
        assert waiting.array_tasks == "2-4%2"
        assert waiting.array_task_id is None
        task = bench.client.job(f"{number}_0")
        assert (task.shown_id, task.stdout) == (f"{number}_0", f"{bench.home}/contract-{number}_0.log")
        assert bench.client.job(number).id == number
        bench.client.cancel([number])
        assert bench.until(task.id, lambda job: job.state is JobState.CANCELLED)

    def test_heterogeneous_jobs(self, bench: Bench) -> None:
        number = bench.submit("--hold", "--gpus-per-node=1", ":", "--nodes=2", "--gpus-per-node=4")
        first, second = bench.client.jobs(ids=[number])
        assert [(part.het_job_id, part.het_offset, part.gpus) for part in (first, second)] == [
            (number, 0, 1),
            (number, 1, 8),
        ]
        assert bench.client.job(f"{number}+1").id == second.id
        assert bench.client.job(number).het_offset == 0
        bench.client.cancel([number])

    def test_what_was_asked_for(self, bench: Bench) -> None:
        gate = bench.submit("--hold")
        number = bench.submit(
            f"--dependency=afterok:{gate}",
            "--exclude=n3,n[7-8]",
            "--nodelist=n1",
            "--switches=1@2:00",
            "--exclusive",
            "--gpus=2",
            "--cpus-per-gpu=4",
            "--mem-per-gpu=2G",
            "--time=1-02:00:00",
            "--nice=50",
            "--begin=now+1hour",
            "--error=err-%j",
            "--no-requeue",
        )
        job = bench.client.job(number)
        assert job.dependency is not None
        assert job.dependency.startswith(f"afterok:{gate}")
        assert list(job.excluded_nodes) == ["n3", "n7", "n8"]
        assert list(job.required_nodes) == ["n1"]
        assert (job.switches, job.switches_wait) == (1, 120)
        assert job.exclusive == "NODE"
        assert (job.gpus, job.cpus_per_gpu, job.memory_per_gpu) == (2, 4, 2 << 30)
        assert (job.time_limit, job.nice, job.requeue) == (93600, 50, False)
        assert job.eligible is not None
        assert timedelta(minutes=55) < job.eligible - datetime.now(timezone.utc) < timedelta(minutes=65)
        assert job.stderr == f"{bench.home}/err-{number}"
        assert job.stdout == f"{bench.home}/slurm-{number}.out"
        shared = bench.client.job(gate)
        assert shared.exclusive is None
        assert shared.stderr == shared.stdout
        assert (shared.dependency, shared.switches, shared.cpus_per_gpu) == (None, None, None)
        bench.client.cancel([gate, number])

    @pytest.mark.parametrize(
        ("exit_line", "code", "signal"), [("exit 3", 3, 0), ("exit 137", 137, 0), ("kill -9 $$", 0, 9)]
    )
    def test_how_it_ended(self, bench: Bench, exit_line: str, code: int, signal: int) -> None:
        number = bench.submit(script=f"#!/bin/sh\n{exit_line}\n")
        job = bench.until(number, lambda job: job.state is JobState.FAILED and not job.flags)
        assert job.exit.code == code
        (record,) = bench.accounted(number, lambda record: record.ended)
        assert record.state is JobState.FAILED
        assert (record.exit.signal, job.exit.signal) == (signal, signal)
        # older sacct (seen up to 24.11) takes 128 away: 137 is shown as 9:0
        assert record.exit.code in (
            (code,) if bench.client.version() > Version(25, 11) else (code, code % 128)
        )

    def test_attempts_of_a_requeued_job(self, cluster: Cluster, bench: Bench) -> None:
        number = bench.submit("--requeue")
        self.begun(bench, number)
        assert cluster.run(["scontrol", "requeue", str(number)]).returncode == 0
        # 24.11 then notes the wrong number of restarts for an attempt that has not quite ended
        bench.until(number, lambda job: job.restarts == 1)
        cluster.run(["scontrol", "update", f"JobId={number}", "StartTime=now+60"], check=True)
        again = bench.until(number, lambda job: job.restarts == 1 and job.state is JobState.PENDING)
        assert again.restarts == 1
        # An attempt that starts in the second of the requeue fails with exit code 1 [measured, 22.05]: the first one's
        # credential was revoked in that second. Slurm's own delay of 120 s is there for that.
        assert again.submitted is not None
        while datetime.now(timezone.utc) < again.submitted + timedelta(seconds=2):
            time.sleep(0.1)
        # 22.05 tells slurmdbd of the second attempt when it starts
        cluster.run(["scontrol", "update", f"JobId={number}", "StartTime=now"])
        bench.until(number, lambda job: job.state is JobState.RUNNING)
        deadline = time.monotonic() + 60
        while len(records := bench.client.accounting(ids=[number])) < 2:
            assert time.monotonic() < deadline, records
            time.sleep(0.2)
        first, second = records
        assert (first.attempt, second.attempt) == (0, 1)
        assert {first.restarts, second.restarts} in ({None}, {0, 1})
        assert first.flags == frozenset({JobFlag.REQUEUED})
        assert first.ended
        assert not second.ended
        (last,) = bench.client.accounting(ids=[number], duplicates=False)
        assert (last.id, last.attempt, last.start) == (number, 1, second.start)
        bench.client.cancel([number])

    def test_hostile_text_in_accounting(self, bench: Bench) -> None:
        text = 'a|b\nJobId=5 "q" é'
        number = bench.submit(f"--comment={text}", "--job-name", text)
        # (of a job that was cancelled before slurmdbd heard of it, 22.05 keeps no name)
        bench.until(number, lambda job: job.state is JobState.RUNNING)
        bench.accounted(number, lambda record: record.state is JobState.RUNNING)
        bench.client.cancel([number])
        (record,) = bench.accounted(number, lambda record: record.ended)
        # slurmdbd stores " as ` (fixup of as_mysql)
        assert record.name.replace("`", '"') == text
        assert record.state is JobState.CANCELLED
        assert record.cancelled_by is not None
        assert record.submit_line is not None
        assert text in record.submit_line.replace("`", '"')

    def test_admin_texts_on_a_node(self, cluster: Cluster, bench: Bench) -> None:
        reason = "bad | fan State=IDLE Gres=gpu:99"
        cluster.run(["scontrol", "update", "nodename=n8", "state=drain", f"reason={reason}"], check=True)
        try:
            node = bench.client.nodes()[-1]
            assert (node.name, node.gpus, node.reason, node.available) == ("n8", 8, reason, False)
            assert "DRAIN" in node.flags
            assert node.reason_at is not None
            assert abs(node.reason_at - datetime.now(timezone.utc)) < timedelta(minutes=5)
        finally:
            cluster.run(["scontrol", "update", "nodename=n8", "state=resume"], check=True)
        deadline = time.monotonic() + 60
        while not bench.client.nodes()[-1].available:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def test_allocations_on_nodes(self, bench: Bench) -> None:
        number = bench.submit("--nodelist=n5", "--gpus-per-node=3", "--mem=1G")
        bench.until(number, lambda job: job.state is JobState.RUNNING)
        nodes = {node.name: node for node in bench.client.nodes()}
        assert (nodes["n5"].gpus_allocated, nodes["n5"].memory_allocated) == (3, 1 << 30)
        assert nodes["n6"].gpus_allocated == 0
        bench.client.cancel([number])

    def test_waiting_submissions_keep_their_job(self, bench: Bench) -> None:
        submission = bench.client.submit(
            ["--wait", f"--chdir={bench.home}"], stdin="#!/bin/sh\nexit 7\n", timeout=None
        )
        assert submission.job_id is not None
        assert bench.client.job(submission.job_id).exit.code == 7

    def test_no_slurm_at_all_is_said_to_be_so(self, tmp_path) -> None:
        from slurm_plugins.client.errors import SlurmNotInstalled

        empty = CommandClient({"PATH": str(tmp_path)})
        for ask in (empty.version, empty.jobs, partial(empty.submit, ["x"])):
            with pytest.raises(SlurmNotInstalled):
                ask()

    def test_no_configuration_is_said_to_be_so(
        self, cluster: Cluster, bench: Bench, user: str | None
    ) -> None:
        if cluster.run(["test", "-e", "/etc/slurm/slurm.conf"]).returncode == 0:
            pytest.skip("this machine has a Slurm of its own")
        env = _environment(cluster, bench.user)
        del env["SLURM_CONF"]
        with pytest.raises(SlurmError) as caught:
            CommandClient(env, run=_through(cluster, user)).nodes()
        assert isinstance(caught.value, SlurmUnreachable)
        assert caught.value.daemon == "config"


@pytest.mark.skipif(
    importlib.util.find_spec("pyslurm") is None, reason="pyslurm is not installed: none for this Slurm"
)
class TestPyslurm(Real):
    @pytest.fixture
    def bench(self, cluster: Cluster) -> Iterator[Bench]:
        if cluster.release != "host":
            pytest.skip("pyslurm speaks the host's Slurm only")
        who = cluster.home().name
        with PyslurmClient(_environment(cluster, who)) as client:
            yield self.make(cluster, client, who)
