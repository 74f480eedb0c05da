"""The clients of a real Slurm keep the contract of all clients."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import NoSuchJob, SlurmError, SlurmUnreachable
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.pyslurm_client import PyslurmClient
from slurm_plugins.client.runner import Completed, run_command
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.versions import Version
from tests.fuzz import sbatch
from tests.unit.slurm_plugins.client.contract import Bench, Contract
from tests.waiting import wait_until

pytestmark = pytest.mark.all_releases


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
        wait_until(Path(bench.home, f"begun-{number}").exists, message=f"the script of job {number}")

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
        wait_until(lambda: len(bench.client.jobs(ids=[number])) >= 3, message="two tasks to start")
        parts = bench.client.jobs(ids=[number])
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

    @pytest.mark.case("P9")
    def test_a_task_that_waits_to_run_again_is_listed_by_itself(self, cluster: Cluster, bench: Bench) -> None:
        number = bench.submit("--array=0-5%2", "--requeue")
        wait_until(lambda: len(bench.client.jobs(ids=[number])) >= 3, message="two tasks to start")
        task = bench.client.job(f"{number}_0")
        self.begun(bench, task.id)
        assert cluster.run(["scontrol", "requeue", f"{number}_0"]).returncode == 0
        bench.until(task.id, lambda job: job.restarts == 1 and job.state is JobState.PENDING)
        wait_until(lambda: bench.client.job(f"{number}_2").state is JobState.RUNNING, message="the next task")
        for asked in (None, [number], [number, task.id]):
            parts = {job.shown_id: job for job in bench.client.jobs(ids=asked)}
            assert (parts[f"{number}_0"].id, parts[f"{number}_0"].restarts) == (task.id, 1), asked
            assert (parts[str(number)].array_tasks or "").partition("%")[0] == "3-5", asked
        bench.client.cancel([number])

    @pytest.mark.case("T2")
    def test_ids_that_slurm_refuses_do_not_lose_the_rest(self, bench: Bench) -> None:
        number = bench.submit("--hold")
        for odd in (
            0,
            67108864,
            4294901759,
            4294901760,
            4294952826,
            4294967295,
            99999999999,
            f"{number}_65535",
        ):
            assert [job.id for job in bench.client.jobs(ids=[odd, number])] == [number], odd
            assert bench.client.accounting(ids=[odd]) == (), odd
        for odd in (0, 4294952826, 99999999999):
            with pytest.raises(NoSuchJob):
                bench.client.job(odd)
            with pytest.raises(NoSuchJob):
                bench.client.cancel([odd])
        bench.client.cancel([number])

    @pytest.mark.case("P11")
    def test_an_interactive_job_has_no_output_file(
        self, cluster: Cluster, bench: Bench, user: str | None
    ) -> None:
        name = "interactive"
        srun = cluster.popen(["srun", f"--job-name={name}", "-n1", "-t1", "sleep", "60"], user=user)
        try:
            (job,) = wait_until(
                lambda: [one for one in bench.client.jobs() if one.name == name], message="srun's job"
            )
            assert (job.batch, job.stdout, job.stderr) == (False, None, None)
        finally:
            with suppress(NameError):
                bench.client.cancel([job.id])
            srun.wait(30)

    @pytest.mark.case("A2", "S1")
    def test_no_submission_loses_the_others(self, cluster: Cluster, bench: Bench, user: str | None) -> None:
        found = sbatch.run(cluster, user, Path(bench.home), 60, 20_210_806)
        assert len(found.tried) > 50, f"{found}: the generator tries too little"

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
        apart = again.submitted + timedelta(seconds=2)
        wait_until(lambda: datetime.now(timezone.utc) >= apart, message="another second than the requeue's")
        # 22.05 tells slurmdbd of the second attempt when it starts
        cluster.run(["scontrol", "update", f"JobId={number}", "StartTime=now"])
        bench.until(number, lambda job: job.state is JobState.RUNNING)
        wait_until(lambda: len(bench.client.accounting(ids=[number])) == 2, message="both attempts")
        first, second = bench.client.accounting(ids=[number])
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
        wait_until(lambda: bench.client.nodes()[-1].available, message="node n8")

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
