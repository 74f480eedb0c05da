"""What every `SlurmClient` promises: the same tests for the fake, for the commands, and for pyslurm where it
imports.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from slurm_plugins.client.errors import NoSuchJob, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.purposes import POSITION, SUBMISSIONS
from slurm_plugins.client.queued import QueuedJob
from slurm_plugins.client.states import JobState, NodeState
from slurm_plugins.client.values import AccountingRecord, Job
from slurm_plugins.client.versions import OLDEST
from tests.waiting import wait_until

NOWHERE = 99999999
NOBODY = 1999999999

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
        job: Job | None = None

        def look() -> Job | None:
            nonlocal job
            job = self.client.job(number)
            return job if ready(job) else None

        try:
            return wait_until(look, seconds, f"job {number}")
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {job}") from None

    def accounted(
        self, number: int, ready: Callable[[AccountingRecord], bool], *, seconds: float = 60
    ) -> tuple[AccountingRecord, ...]:
        records: tuple[AccountingRecord, ...] = ()

        def look() -> tuple[AccountingRecord, ...] | None:
            nonlocal records
            records = self.client.accounting(ids=[number])
            return records if records and ready(records[-1]) else None

        try:
            return wait_until(look, seconds, f"the record of job {number}", pause=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {records}") from None


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
        uid = bench.client.job(first).uid
        assert uid is not None
        assert {first, second} <= {job.id for job in bench.client.jobs(user=[uid, NOBODY])}
        assert {job.uid for job in bench.client.jobs(user=[uid], values=SUBMISSIONS)} == {uid}
        assert bench.client.jobs(user=[NOBODY]) == ()
        assert bench.client.jobs(ids=[]) == ()
        # one id that is gone, and one beside one that is not
        assert bench.client.jobs(ids=[NOWHERE]) == ()
        assert [job.id for job in bench.client.jobs(ids=[NOWHERE, first])] == [first]
        bench.client.cancel([first, second])

    @pytest.mark.case("S5")
    def test_pending_jobs_of_a_partition(self, bench: Bench) -> None:
        def ask(partition: str) -> dict[int, QueuedJob]:
            jobs = bench.client.jobs(state=JobState.PENDING, partition=partition, values=POSITION)
            return {job.id: QueuedJob.of(job) for job in jobs}

        first, second, runs = bench.submit("--hold"), bench.submit("--hold"), bench.submit()
        bench.until(runs, lambda job: job.state is JobState.RUNNING)
        found = ask("gpu")
        assert runs not in found
        assert found[first] == QueuedJob(first, "gpu", 0, found[first].submitted), (
            "a held job has no priority"
        )
        assert 0 < found[first].submitted <= found[second].submitted
        assert {first, second} <= ask("nowhere,gpu").keys()
        assert first not in ask("nowhere")
        bench.client.cancel([first, second, runs])

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
