"""A job's records, whatever happens in between: twice, late, out of order, killed, restarted, without room."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from profiler.host import HostReading
from profiler.records import JobEnded, JobRef, JobSeries, JobStarted, JobUsage, Record
from prolog_epilog.agent.disk import Calls, Disk
from prolog_epilog.agent.edges import Clock
from prolog_epilog.agent.intake import HookFile, parse
from prolog_epilog.agent.jobs import REMEMBER, SAVE_EVERY, Jobs
from prolog_epilog.agent.reconcile import Found
from prolog_epilog.agent.registry import Registry
from tests.properties import examples
from tests.unit.prolog_epilog.agent.fakes import (
    BOOT,
    FakeClock,
    FakeGpus,
    FakeSpool,
    hook_bytes,
    sample,
    settings,
)

J7 = JobRef(7)


class Node:
    """A node's jobs, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.spool = FakeSpool()
        self.boot = BOOT
        self.name = "n1"
        self.pid = 1
        self.calls = Calls()
        self.gpus = FakeGpus()
        self.jobs: Jobs
        self.start()

    def rename(self, name: str) -> None:
        """As after a restart with --node."""
        self.name = name
        self.start()

    def start(self) -> None:
        """As after a kill: what was only in memory is gone."""
        self.jobs = Jobs(
            replace(settings(self.folder, boot=self.boot), node=self.name),
            Registry(self.folder / "jobs", Disk(self.calls)),
            self.spool,
            self.gpus,
            Clock(self.clock.wall, self.clock.mono),
        )
        assert self.jobs.restore() == []

    def hook(
        self, event: str, job: int = 7, restarts: int | None = 0, boot: str = "", **env: str
    ) -> HookFile:
        """What a hook says, each time another process."""
        self.pid += 1
        if restarts is not None:
            env["SLURM_JOB_RESTART_COUNT"] = str(restarts)
        data = hook_bytes(event, BOOT=boot or self.boot, SLURM_JOB_ID=str(job), **env)
        return parse(Path(f"/x/{event}.{job}.{restarts or 0}.{self.pid}"), data, self.clock.wall())

    def prolog(self, job: int = 7, restarts: int | None = 0, **env: str) -> None:
        self.jobs.take(self.hook("prolog", job, restarts, SLURM_JOB_GPUS="3", **env), None)

    def epilog(self, job: int = 7, restarts: int | None = 0, **env: str) -> None:
        self.jobs.take(self.hook("epilog", job, restarts, **env), None)

    def run(self, seconds: float, use: float = 80.0, host: dict[int, HostReading] | None = None) -> None:
        """Time passes, with a look each 10 s."""
        for _ in range(int(seconds // 10)):
            self.clock.pass_(10)
            self.look(use, host)
            self.jobs.turn()

    def look(self, use: float = 80.0, host: dict[int, HostReading] | None = None) -> None:
        self.jobs.sampled(sample(self.clock.mono(), {3: use}), self.clock.wall(), host or {})

    def finals(self) -> list[JobUsage]:
        return [record for record in self.spool.of(JobUsage) if record.final]

    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in self.spool.records]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_from_start_to_end(node: Node) -> None:
    node.prolog(SLURM_JOB_USER="ada")
    node.look(0.0)
    node.run(120, host={7: HostReading("proc", cpu_seconds=100.0, memory_bytes=1 << 30)})
    node.clock.pass_(5)
    node.epilog(SLURM_JOB_EXIT_CODE="256")
    node.look()
    (started,), (ended,) = node.spool.of(JobStarted), node.spool.of(JobEnded)
    assert (started.job, started.user, started.source) == (J7, "ada", "prolog")
    assert (ended.job, ended.exit_code, ended.source) == (J7, 1, "epilog")
    assert ended.at - started.at == 125.0
    (final,) = node.finals()
    assert final.until - final.since == 125.0 and final.unseen_seconds == 0.0
    (gpu,) = final.gpus
    assert gpu.gpu.minor == 3 and gpu.utilisation_mean == pytest.approx(80.0, abs=4.0)
    assert final.host is not None and final.host.memory_peak_bytes == 1 << 30
    serials = [record.serial for record in node.spool.of(JobUsage)]
    assert serials == sorted(set(serials)) and len(serials) == 3, "one a minute, and the final one"
    series = node.spool.of(JobSeries)
    assert [record.serial for record in series] == serials and series[-1].final
    assert len(node.jobs) == 0


def test_the_end_is_told_before_there_is_a_sample_and_usage_without_one_at_last(node: Node) -> None:
    node.prolog()
    node.run(60)
    node.epilog()
    assert node.kinds()[-1] == "JobEnded" and node.finals() == []
    due = node.jobs.due_in()
    assert due is not None and 0 < due <= 10
    node.clock.pass_(due)
    node.jobs.turn()
    (final,) = node.finals()
    assert final.gpus[0].samples > 0
    node.look()
    node.clock.pass_(30)
    node.jobs.turn()
    assert len(node.finals()) == 1 and node.jobs.due_in() is None


def test_what_comes_after_the_end_is_not_the_jobs(node: Node) -> None:
    node.prolog()
    node.look(50.0)
    node.run(60, 50.0)
    node.epilog()
    node.clock.pass_(5)
    node.look(100.0)
    (final,) = node.finals()
    assert final.until - final.since == 60.0
    assert final.gpus[0].utilisation_mean == pytest.approx(50.0, abs=1.0)


def test_a_driver_that_hangs_is_unseen_time_and_not_idle_time(node: Node) -> None:
    node.prolog()
    node.look(50.0)
    node.run(60, 50.0)
    node.clock.pass_(600)
    node.epilog()
    node.clock.pass_(10)
    node.jobs.turn()
    (final,) = node.finals()
    assert final.until - final.since == 660.0
    assert final.unseen_seconds == pytest.approx(600.0, abs=40.0)
    assert final.gpus[0].utilisation_mean == pytest.approx(50.0, abs=1.0)


def test_which_gpus_are_the_jobs_may_be_known_later(node: Node) -> None:
    node.gpus.blind = True
    node.prolog()
    node.run(20)
    assert node.spool.of(JobStarted)[0].gpus is None
    node.gpus.blind = False
    node.run(100)
    node.epilog()
    node.look()
    (final,) = node.finals()
    assert [use.gpu.minor for use in final.gpus] == [3] and final.gpus[0].utilisation_mean == pytest.approx(
        80, abs=1
    )
    assert final.unseen_seconds is not None and final.unseen_seconds <= 30


def test_which_gpus_are_the_jobs_may_be_known_only_after_its_end(node: Node) -> None:
    node.gpus.blind = True
    node.prolog()
    node.clock.pass_(20)
    node.epilog()
    node.gpus.blind = False
    node.clock.pass_(1)
    node.look()
    (final,) = node.finals()
    assert [use.gpu.minor for use in final.gpus] == [3] and final.until - final.since == 20.0


def test_what_was_cut_off_before_the_gpus_tells_of_none_nor_of_any(node: Node) -> None:
    hook = parse(Path("/x/prolog.7.0.9"), b"GSUB_HOOK=1\0EVENT=prolog\0SLURM_JO", 5.0, patient=False)
    node.jobs.take(hook, None)
    node.jobs.found(Found(JobRef(8), None, {}), None)
    node.look()
    assert [record.gpus for record in node.spool.of(JobStarted)] == [None, None]
    node.jobs.take(node.hook("prolog", 9), None)
    assert node.spool.of(JobStarted)[-1].gpus == ()


def test_a_prolog_twice_is_one_start(node: Node) -> None:
    node.prolog()
    node.run(20)
    node.prolog()
    assert len(node.spool.of(JobStarted)) == 1
    node.epilog()
    node.epilog()
    node.prolog()
    node.epilog()
    assert node.kinds().count("JobStarted") == node.kinds().count("JobEnded") == 1
    node.look()
    assert len(node.finals()) == 1 and len(node.jobs) == 0


def test_an_epilog_alone_is_an_end(node: Node) -> None:
    late = node.hook("prolog")
    node.clock.pass_(1)
    node.epilog(SLURM_JOB_EXIT_CODE2="0:9")
    (ended,) = node.spool.of(JobEnded)
    assert (ended.job, ended.signal) == (J7, 9)
    assert node.spool.of(JobUsage) == [] and len(node.jobs) == 0
    node.jobs.take(late, None)
    assert len(node.spool.of(JobStarted)) == 1 and node.jobs.running() == {}


def test_a_start_that_is_heard_of_after_the_end_has_a_last_report(node: Node) -> None:
    prolog = node.hook("prolog", 7)
    node.clock.pass_(20)
    node.epilog()
    node.clock.pass_(5)
    node.jobs.take(prolog, None)
    node.look()
    (final,) = node.finals()
    assert final.final and final.until - final.since == 20.0
    node.clock.pass_(60)
    node.jobs.turn()
    assert len(node.finals()) == 1 and len(node.jobs) == 0


def test_a_first_attempt_whose_end_is_before_its_start_by_the_clock_has_ended(node: Node) -> None:
    prolog = node.hook("prolog", SLURM_JOB_GPUS="3")
    node.clock.pass_(20)
    node.clock.at -= 3600.0
    node.epilog()  # sorted by time it comes first
    node.jobs.take(prolog, None)
    node.look()
    (final,) = node.finals()
    (started,) = node.spool.of(JobStarted)
    assert node.spool.of(JobEnded)[-1].at >= started.at and final.until >= final.since
    assert node.jobs.running() == {} and len(node.jobs) == 0


def test_a_requeued_job_is_another_attempt(node: Node) -> None:
    node.prolog()
    node.run(20)
    node.epilog()
    node.look()
    node.prolog(restarts=1)
    node.run(20)
    node.epilog(restarts=1)
    node.look()
    assert [record.job for record in node.spool.of(JobEnded)] == [JobRef(7, 0), JobRef(7, 1)]
    assert [record.job for record in node.finals()] == [JobRef(7, 0), JobRef(7, 1)]


def test_the_epilog_of_a_requeued_attempt_bears_the_count_of_the_next(node: Node) -> None:
    node.prolog(restarts=0)
    node.clock.pass_(10)
    first = node.hook("epilog", restarts=1, SLURM_JOB_EXIT_CODE="0", SLURM_JOB_DERIVED_EC="0")
    node.jobs.take(first, None)
    (ended,) = node.spool.of(JobEnded)
    assert ended.job == JobRef(7, 0) and ended.exit_code is ended.signal is ended.derived_exit_code is None
    node.clock.pass_(10)
    node.jobs.take(first, None)  # the same file, from the other folder
    node.start()
    node.jobs.take(first, None)
    assert [record.job for record in node.spool.of(JobEnded)] == [JobRef(7, 0)]
    node.prolog(restarts=1)
    node.clock.pass_(10)
    node.epilog(restarts=1)
    assert [record.job for record in node.spool.of(JobEnded)] == [JobRef(7, 0), JobRef(7, 1)]


def test_a_requeue_so_fast_that_slurmd_runs_no_prolog(node: Node) -> None:
    node.prolog(restarts=0)
    node.clock.pass_(10)
    node.epilog(restarts=1)
    node.clock.pass_(10)
    node.epilog(restarts=1)
    assert [record.job for record in node.spool.of(JobEnded)] == [JobRef(7, 0), JobRef(7, 1)]


def test_an_attempt_whose_count_an_unknown_one_had_is_measured(node: Node) -> None:
    node.epilog(restarts=1)  # of attempt 0, whose start nobody told
    node.clock.pass_(10)
    node.prolog(restarts=1)
    assert set(node.jobs.running()) == {JobRef(7, 1)}
    node.run(30)
    node.epilog(restarts=1)
    node.look()
    assert [record.job for record in node.finals()] == [JobRef(7, 1)]


def test_an_epilog_without_a_restart_count_ends_the_attempt_that_runs(node: Node) -> None:
    node.prolog(restarts=2)
    node.epilog(restarts=None)
    assert [record.job for record in node.spool.of(JobEnded)] == [JobRef(7, 2)]


def test_an_earlier_attempt_may_still_be_open_when_the_next_one_starts(node: Node) -> None:
    node.prolog(restarts=0)
    node.prolog(restarts=1)
    assert set(node.jobs.running()) == {JobRef(7, 0), JobRef(7, 1)}
    node.jobs.gone(JobRef(7, 0))
    (ended,) = node.spool.of(JobEnded)
    assert (ended.job, ended.source) == (JobRef(7, 0), "reconciled")
    assert set(node.jobs.running()) == {JobRef(7, 1)}


def test_a_job_that_was_found_running_starts_as_one(node: Node) -> None:
    node.jobs.found(Found(JobRef(7, 1), 1000, {"SLURM_JOB_GPUS": "3", "SLURM_JOB_USER": "ada"}), None)
    node.jobs.found(Found(JobRef(7, 1), 1000, {}), None)
    (started,) = node.spool.of(JobStarted)
    assert (started.source, started.uid, started.user, started.job.restarts) == ("reconciled", 1000, "ada", 1)
    assert started.gpus is not None and started.gpus[0].minor == 3
    node.epilog(restarts=1)
    assert [record.source for record in node.spool.of(JobEnded)] == ["epilog"]


def test_an_epilog_may_still_come_for_a_job_that_was_given_up(node: Node) -> None:
    node.prolog()
    node.jobs.gone(J7)
    node.epilog(SLURM_JOB_EXIT_CODE="256")
    assert [record.source for record in node.spool.of(JobEnded)] == ["reconciled", "epilog"]
    node.look()
    assert len(node.finals()) == 1


def test_an_ended_job_is_forgotten_after_a_while(node: Node) -> None:
    node.prolog()
    node.epilog()
    node.look()
    assert list(node.jobs.known()) == [J7]
    node.clock.pass_(REMEMBER + 1)
    node.jobs.turn()
    assert list(node.jobs.known()) == [] and list((node.folder / "jobs").iterdir()) == []


# --- kills, restarts, reboots ---


def test_a_restart_of_the_agent_goes_on_where_it_was(node: Node) -> None:
    node.prolog()
    node.look(50.0)
    node.run(90, 50.0)
    node.jobs.save_all()
    node.start()
    assert node.jobs.running() == {J7: 5000.0}
    node.run(90, 50.0)
    node.epilog()
    node.look()
    assert node.kinds().count("JobStarted") == 1
    (final,) = node.finals()
    assert final.gpus[0].seconds == pytest.approx(180.0, abs=1.0)
    assert final.gpus[0].utilisation_mean == pytest.approx(50.0, abs=1.0)
    serials = [record.serial for record in node.spool.of(JobUsage)]
    assert serials == sorted(set(serials))


def test_a_kill_costs_no_more_than_what_was_not_saved(node: Node) -> None:
    node.prolog()
    node.look(50.0)
    node.run(300, 50.0)
    node.start()  # as kill -9
    node.run(60, 50.0)
    node.epilog()
    node.look()
    (final,) = node.finals()
    assert final.unseen_seconds is not None and final.unseen_seconds <= SAVE_EVERY + 10
    serials = [record.serial for record in node.spool.of(JobUsage)]
    assert serials == sorted(serials) and serials[-1] > serials[-2]


def test_a_kill_between_end_and_last_sample_still_gives_a_final_report(node: Node) -> None:
    node.prolog()
    node.run(60)
    node.epilog()
    node.start()
    assert node.jobs.running() == {} and len(node.jobs) == 1
    node.jobs.turn()
    due = node.jobs.due_in()
    assert due is not None
    node.clock.pass_(due)
    node.jobs.turn()
    assert len(node.finals()) == 1 and node.kinds().count("JobEnded") == 1


def test_a_reboot_ends_the_jobs_of_before(node: Node) -> None:
    node.prolog()
    node.run(60)
    node.jobs.save_all()
    node.boot, node.clock.uptime = "b2", 30.0
    node.clock.at += 300
    node.start()
    (ended,) = node.spool.of(JobEnded)
    assert ended.source == "reboot" and ended.at == node.clock.at - 30
    (final,) = node.finals()
    assert "restarted" in final.note and final.gpus[0].samples > 0
    assert node.jobs.running() == {}


def test_a_prolog_of_before_the_reboot_starts_nothing_now(node: Node) -> None:
    hook = node.hook("prolog", boot="another")
    node.jobs.take(hook, None)
    node.jobs.end_of_other_boots()
    assert [record.source for record in node.spool.of(JobEnded)] == ["reboot"]
    assert node.jobs.running() == {} and len(node.spool.of(JobStarted)) == 1


def test_what_is_kept_of_the_meter_may_be_damaged(node: Node) -> None:
    node.prolog()
    node.run(60)
    node.jobs.save_all()
    (path,) = (node.folder / "jobs").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"since"', b'"sonce"'))
    node.start()
    node.run(60)
    node.epilog()
    node.look()
    assert len(node.finals()) == 1


def test_the_course_that_is_kept_may_be_damaged(node: Node) -> None:
    node.prolog()
    node.run(60)
    node.jobs.save_all()
    (path,) = (node.folder / "jobs").iterdir()
    kept = msgspec.json.decode(path.read_bytes())
    columns = kept["meter"]["series"]["columns"]
    assert columns
    kept["meter"]["series"]["columns"] = dict.fromkeys(columns, "AAAA")  # no compressed data
    path.write_bytes(msgspec.json.encode(kept))
    node.start()
    node.run(60)
    node.epilog()
    node.look()
    assert len(node.finals()) == 1


def test_a_job_ends_under_the_name_that_the_node_had_at_its_start(node: Node) -> None:
    node.prolog(7)
    node.prolog(8)
    node.rename("n2")
    node.epilog(7)
    node.jobs.gone(JobRef(8))
    node.look()
    node.prolog(9)
    assert {record.node for record in [*node.spool.of(JobEnded), *node.finals()]} == {"n1"}
    assert [record.node for record in node.spool.of(JobStarted)] == ["n1", "n1", "n2"]


# --- clocks and disks ---


@pytest.mark.parametrize("step", [-86400.0, -7.0, 7.0, 86400.0])
def test_a_clock_that_steps_loses_nothing_and_turns_no_time_round(node: Node, step: float) -> None:
    node.prolog()
    node.look(50.0)
    node.run(60, 50.0)
    node.clock.at += step
    node.run(60, 50.0)
    node.epilog()
    node.look()
    (ended,), (final,) = node.spool.of(JobEnded), node.finals()
    assert ended.at >= node.spool.of(JobStarted)[0].at and final.until >= final.since
    assert final.gpus[0].seconds == pytest.approx(120.0, abs=11.0)
    assert final.gpus[0].utilisation_mean == pytest.approx(50.0, abs=1.0)
    node.clock.pass_(REMEMBER + 1)
    node.jobs.turn()
    assert list(node.jobs.known()) == []


def test_a_disk_without_room_is_told_once_and_not_of_each_job(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for job in range(20):
        node.prolog(job + 1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            node.calls = Calls(write=full)
            node.jobs._registry._disk = Disk(node.calls)
            node.run(120)
            node.jobs._registry._disk = Disk()
            node.run(60)
    assert len(caplog.records) == 2


def test_without_room_for_the_registry_the_hooks_file_stays(node: Node) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    node.calls = Calls(write=full)
    node.start()
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            node.prolog()
    assert len(node.spool.of(JobStarted)) == 1 and set(node.jobs.running()) == {J7}
    node.run(60)  # measured all the same
    node.calls = Calls()
    node.start()  # killed: the hook's file is still there, and read again
    node.prolog()
    assert len({record.job for record in node.spool.of(JobStarted)}) == 1 and set(node.jobs.running()) == {J7}


def test_a_record_that_is_in_memory_only_keeps_the_hooks_file(node: Node) -> None:
    node.spool.durable = False
    with pytest.raises(OSError, match="memory"):
        node.prolog()
    node.spool.durable = True
    node.prolog()
    node.spool.durable = False
    with pytest.raises(OSError, match="memory"):
        node.epilog()
    node.spool.durable = True
    node.epilog()
    assert node.jobs.running() == {}


@pytest.mark.parametrize("room", [False, True], ids=["killed-before", "killed-after"])
def test_a_last_report_that_is_in_memory_only_is_made_again_after_a_kill(node: Node, room: bool) -> None:
    node.prolog()
    node.run(60)
    node.epilog()
    node.spool.durable = False
    node.run(10)
    (first,) = node.finals()
    node.spool.durable = True
    if room:  # it got there in the meantime
        node.clock.pass_(SAVE_EVERY)
        node.jobs.turn()
        assert node.finals() == [first, first]
    node.spool.records.clear()
    node.start()
    node.run(60)
    again = node.finals()
    assert len(again) == (0 if room else 1)
    for second in again:
        assert second.serial > first.serial
        assert (second.since, second.until, second.unseen_seconds) == (first.since, first.until, 0.0)
        # it was looked at once more since, which is not the job's time
        assert second.gpus == tuple(
            msgspec.structs.replace(gpu, samples=gpu.samples + 1) for gpu in first.gpus
        )


ACTIONS = ("prolog", "epilog", "look", "turn", "kill", "gone", "pass", "full", "room")


@rules(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 2), st.integers(0, 1)), max_size=25))
def test_whatever_happens_each_fact_is_told_and_told_once(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, int]]
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    happened: set[tuple[str, JobRef]] = set()
    waiting: list[Callable[[], None]] = []

    def try_(hook: HookFile) -> bool:
        try:
            node.jobs.take(hook, None)
        except OSError:
            return False
        return True

    files: list[HookFile] = []
    for action, job, restarts in actions:
        if action in ("prolog", "epilog"):
            files.append(node.hook(action, job, restarts))
            happened.add((action, JobRef(job, restarts)))
        elif action == "look":
            node.look()
        elif action == "turn":
            node.jobs.turn()
        elif action == "kill":
            node.start()
        elif action == "gone":
            try:
                node.jobs.gone(JobRef(job, restarts))
            except OSError:
                waiting.append(lambda: None)
        elif action == "pass":
            node.clock.pass_(17)
        else:
            node.spool.durable = action == "room"
        files = [hook for hook in files if not try_(hook)]
    node.spool.durable = True
    files = [hook for hook in files if not try_(hook)]
    node.clock.pass_(SAVE_EVERY + 10)
    node.jobs.turn()
    node.look()
    node.jobs.turn()
    assert files == []
    started = {record.job for record in node.spool.of(JobStarted)}
    ended = {record.job for record in node.spool.of(JobEnded)}
    assert started == {job for event, job in happened if event == "prolog"}
    for event, about in happened:
        if event == "epilog":  # its own attempt, or the one before it
            assert any(one.job_id == about.job_id and one.restarts <= about.restarts for one in ended)
    assert set(node.jobs.running()) <= started
    finals: dict[JobRef, set[int]] = {}
    for record in node.finals():
        finals.setdefault(record.job, set()).add(record.serial)
    # One that a kill took out of memory is made again, under a higher number
    in_memory_only = {"full", "kill"} <= {action for action, _, _ in actions}
    assert in_memory_only or all(len(serials) == 1 for serials in finals.values())
    serials_ok(node.spool.records)


def serials_ok(records: list[Record]) -> None:
    """No two reports of a job have one number and say different things about whether they are final."""
    seen: dict[tuple[JobRef, int], bool] = {}
    for record in records:
        if isinstance(record, JobUsage):
            assert seen.setdefault((record.job, record.serial), record.final) == record.final
