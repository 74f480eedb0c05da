"""The selftest without a cluster: its bounds, its end whatever happens, and what its file does not tell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.answers import JobSummary, NodeSeries, NodeUse, Series, Usage
from profiler.records import GpuRef, GpuUse
from site_configs.site_model import Site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmTimeout
from slurm_plugins.client.runner import Completed, Runner
from slurm_plugins.client.states import ExitStatus, JobState, NodeState
from slurm_plugins.client.values import Hosts, Job, Node
from slurm_plugins.install.finding import Finding
from slurm_plugins.install.host import Ran
from slurm_plugins.install.selftest import recording
from slurm_plugins.install.selftest.bounds import JOB_NAME, MOST_JOBS, Bounds
from slurm_plugins.install.selftest.halt import HaltError, LocalHalt, peer
from slurm_plugins.install.selftest.outcome import EndedError, Outcome, Result, Steps, ok
from slurm_plugins.install.selftest.queue import Queue, Submitter, Wish
from slurm_plugins.install.selftest.records import NoAnswerError
from slurm_plugins.install.selftest.report import Facts, Pseudonyms, document
from slurm_plugins.install.selftest.runner import run
from slurm_plugins.install.selftest.shown import differences, fields_of
from slurm_plugins.install.selftest.table import SCENARIOS, Scenario
from slurm_plugins.install.selftest.world import World
from tests.paths import REPOSITORY
from tests.unit.slurm_plugins.install.fakes import FakeHost
from tests.waiting import wait_until

# --- a Slurm in a dictionary ----------------------------------------------------------------------------------------


@dataclass
class FakeClock:
    """Time passes when somebody waits."""

    time: float = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakeSlurm(CommandClient):
    """Jobs as they were submitted; each starts at once, unless the cluster is full, and ends after a look."""

    clock: FakeClock = field(default_factory=FakeClock)
    full: bool = False
    refuses: str = ""
    """What sbatch says to every job."""
    says: str = ""
    """What gsub says to one that asks."""
    silent: bool = False
    stays: bool = False
    """Jobs cannot be cancelled."""
    all: dict[int, Job] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        """sbatch and scontrol."""
        self.lines.append(list(argv))
        if argv[0] == "scontrol":
            return Completed("scontrol", 0, f"JobId={argv[-1]} NumNodes=1 AdminComment=", "")
        if self.refuses:
            return Completed("sbatch", 1, "", f"sbatch: error: {self.refuses}\n")
        said = f"sbatch: {self.says}\n" if self.says and more["env"].get("GSUB") == "explain" else ""
        if "--test-only" in argv:
            return Completed("sbatch", 0, "", said)
        number = len(self.all) + 1
        comment = next(word.partition("=")[2] for word in argv if word.startswith("--comment="))
        self.all[number] = Job(id=number, name=JOB_NAME, user="ada", state=JobState.PENDING, comment=comment)
        return Completed("sbatch", 0, f"Submitted batch job {number}\n", said)

    def jobs(self, *, ids: Iterable[int | str] | None = None, **_: object) -> tuple[Job, ...]:
        if self.silent:
            raise SlurmTimeout("squeue", 20)
        if ids is not None:
            for number in ids:
                self.all[int(number)] = self._next(self.all[int(number)])
            return tuple(self.all[int(number)] for number in ids)
        return tuple(self.all.values())

    def _next(self, job: Job) -> Job:
        if self.full or job.ended:
            return replace(job, reason="Resources")
        if job.state is JobState.PENDING:
            return replace(job, state=JobState.RUNNING, nodes=Hosts("n1"))
        return replace(job, state=JobState.COMPLETED)

    def cancel(self, ids: Iterable[int | str], **more: Any) -> None:
        for number in map(int, ids):
            self.cancelled.append(number)
            if not self.stays:
                self.all[number] = replace(self.all[number], state=JobState.CANCELLED)

    def nodes(self) -> tuple[Node, ...]:
        return NODES


def node(name: str) -> Node:
    return Node(name=name, state=NodeState.IDLE, partitions=("gpu",))


NODES = (node("n1"), node("n2"))
ADA = Submitter("ada", 1000, 1000, "/home/ada", become=False)


@dataclass
class FakeRecords:
    """What the service would answer."""

    summary: JobSummary | None = None
    used: Usage | None = None
    course: Series | None = None
    nodes: Mapping[str, float] | None = None
    status: int | None = 404
    silent: str = ""

    def attempt(self, job: int | str, restarts: int) -> JobSummary | None:
        if self.silent:
            raise NoAnswerError(self.silent)
        return self.summary if job != "1_2" else None

    def usage(self, job: int, restarts: int) -> Usage | None:
        return self.used

    def series(self, job: int) -> Series | None:
        return self.course

    def heard(self) -> Mapping[str, float] | None:
        return self.nodes

    def status_for_other(self, job: int) -> int | None:
        return self.status


@dataclass
class FakeHalt:
    """Notes what was done to gsubd."""

    slurm: FakeSlurm
    done: list[str] = field(default_factory=list)
    fails: str = ""
    deaf: bool = False
    _says: str = ""

    def pause(self, seconds: float) -> None:
        if self.fails:
            raise HaltError(self.fails)
        self.done.append(f"pause {seconds:g}")
        self._says = self.slurm.says
        if not self.deaf:
            self.slurm.says = ""

    def resume(self) -> None:
        self.done.append("resume")
        self.slurm.says = self._says

    def stop(self) -> None:
        self.pause(0)

    def start(self) -> None:
        self.resume()


def world(slurm: FakeSlurm, records: FakeRecords | None = None, **more: Any) -> World:
    bounds = more.pop("bounds", Bounds("gpu", wait=30.0))
    runner = Runner({}, run=slurm.run)
    queue = Queue(slurm, runner, runner, ADA, bounds, slurm.clock, mark="feed")
    given: dict[str, Any] = {
        "site": Site(cluster="lab"), "mode": "observe", "bounds": bounds, "queue": queue, "records": records,
        "journal": None, "halt": None, "root": True, "config": {}, "nodes": NODES, "all_nodes": slurm.nodes,
    }  # fmt: skip
    return World(**{**given, **more})


def outcomes(found: World, *scenarios: Scenario) -> dict[str, Outcome]:
    results: list[Result] = []
    run(found, scenarios, results.append)
    return {one.name: one.outcome for one in results}


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


# --- bounds, and the end --------------------------------------------------------------------------------------------


def test_every_job_is_within_its_bounds():
    slurm = FakeSlurm()
    queue = world(slurm, bounds=Bounds("gpu", "lab", "low", minutes=2)).queue
    queue.submit(Wish("usage", gpus=1))
    (line,) = slurm.lines
    assert {
        "--job-name=gsub-selftest", "--partition=gpu", "--account=lab", "--qos=low", "--time=2", "--nice=100",
        "--gpus=1", "--output=/dev/null", "--no-requeue",
    } <= set(line)  # fmt: skip
    assert not any(word.startswith("--begin") for word in line)


def test_root_turns_into_the_user_and_hands_nothing_of_its_environment_on():
    who = replace(ADA, become=True)
    assert who.argv(["sbatch"])[:4] == ["setpriv", "--reuid=1000", "--regid=1000", "--init-groups"]
    env = who.environment(
        {"PATH": "/bin", "SLURM_CONF": "/c", "SSH_AUTH_SOCK": "/s", "HOME": "/root", "SECRET": "x"}
    )
    assert env == {
        "PATH": "/bin", "SLURM_CONF": "/c", "HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada",
        "SHELL": "/bin/sh", "LC_ALL": "C",
    }  # fmt: skip


def test_no_more_jobs_than_were_told():
    queue = world(FakeSlurm()).queue
    for _ in range(MOST_JOBS // 3):
        queue.submit(Wish("array", tasks=3))
    with pytest.raises(EndedError, match="jobs that this run may make"):
        queue.submit(Wish("array", tasks=3))


def test_what_the_site_refuses_anyway_is_skipped():
    with pytest.raises(EndedError) as caught:
        world(FakeSlurm(refuses="Invalid account")).queue.submit(Wish("usage"))
    assert caught.value.outcome.level == "skipped" and "Invalid account" in caught.value.outcome.seen


def test_what_is_refused_with_gsub_alone_is_a_failure():
    slurm = FakeSlurm()
    refused = slurm.run

    def with_gsub(argv: Sequence[str], **more: Any) -> Completed:
        return (
            refused(argv, **more)
            if more["env"].get("GSUB") == "off"
            else Completed("sbatch", 1, "", "error: no\n")
        )

    found = world(slurm)
    found.queue.writer = Runner({}, run=with_gsub)
    with pytest.raises(EndedError) as caught:
        found.queue.submit(Wish("usage"))
    assert caught.value.outcome.level == "failed"


def steps_of(body: Callable[[World], Iterator[None]]) -> Scenario:
    def one(found: World) -> Steps:
        """Shows something."""
        yield from body(found)
        return ok("done")

    return Scenario("one", "", one)


class Interrupt(BaseException):
    """As ^C."""


def test_whatever_ends_it_the_jobs_are_cancelled():
    slurm = FakeSlurm(full=True)

    def body(found: World) -> Iterator[None]:
        found.queue.submit(Wish("usage"))
        yield
        raise Interrupt

    # of another run, of the same user: not ours to cancel
    slurm.all[99] = Job(id=99, name=JOB_NAME, user="ada", state=JobState.RUNNING, comment=f"{JOB_NAME}:other")
    found = world(slurm)
    with pytest.raises(Interrupt):
        run(found, [steps_of(body)], lambda _: None)
    assert slurm.cancelled == found.queue.made == [2]


def test_a_job_whose_comment_the_site_writes_over_is_cancelled_too():
    slurm = FakeSlurm(full=True)
    found = world(slurm)
    found.queue.submit(Wish("usage", later=True))
    slurm.all[1] = replace(slurm.all[1], comment="of the site's job_submit.lua")
    assert found.queue.others() == ()
    assert found.queue.clear(1.0) == () and slurm.cancelled == [1]


def test_a_job_whose_submission_was_cut_off_is_cancelled_too():
    slurm = FakeSlurm(full=True)
    found = world(slurm, FakeRecords())

    def cut(argv: Sequence[str], **more: Any) -> Completed:
        slurm.run(argv, **more)
        raise Interrupt

    found.queue.writer = Runner({}, run=cut)
    with pytest.raises(Interrupt):
        run(found, [scenario("exit-code")], lambda _: None)
    assert found.queue.made == [] and slurm.cancelled == [1]


def test_a_fault_of_one_does_not_end_the_others():
    def broken(found: World) -> Iterator[None]:
        yield
        raise ZeroDivisionError

    found = outcomes(world(FakeSlurm()), steps_of(broken), scenario("cleanup"))
    assert found["one"].level == "failed" and "ZeroDivisionError" in found["one"].seen
    assert found["cleanup"].level == "ok"


def test_one_that_never_ends_is_ended():
    def hangs(found: World) -> Iterator[None]:
        while True:
            yield

    found = outcomes(world(FakeSlurm()), steps_of(hangs))
    assert found["one"].level == "failed" and "not over" in found["one"].seen


def test_a_silent_slurm_ends_nothing_early_and_hangs_nothing():
    slurm = FakeSlurm(silent=True)
    found = outcomes(world(slurm, FakeRecords()), scenario("exit-code"), scenario("cleanup"))
    assert found["exit-code"].level == "skipped"
    assert found["cleanup"].level == "failed" and "scancel" in found["cleanup"].remedy


def test_jobs_that_stay_are_told():
    there = world(FakeSlurm(stays=True, full=True), FakeRecords())
    found = outcomes(there, scenario("exit-code"), scenario("cleanup"))
    assert there.queue.left == "1 are still there"
    assert found["cleanup"].level == "failed" and "1 jobs" in found["cleanup"].seen


def test_a_full_cluster_is_no_failure():
    slurm = FakeSlurm(full=True)
    found = outcomes(world(slurm, FakeRecords()), *(one for one in SCENARIOS if "service.url" in one.needs))
    assert {outcome.level for outcome in found.values()} == {"skipped"}
    assert "no start within 30 s (Slurm says: Resources)" in found["usage"].seen


# --- what the record must say ---------------------------------------------------------------------------------------

GPU = GpuUse(GpuRef(uuid="GPU-1"), samples=3, seconds=5.0)
SUMMARY = JobSummary(
    cluster="lab", job_id=1, user="ada", uid=1000, state="COMPLETED", exit_code=0, started=100.0, ended=105.0,
    complete=True,
)  # fmt: skip
USE = NodeUse("n1", since=100.0, until=105.3, final=True, ended_by="epilog", gpus=(GPU,))
COURSE = Series(SUMMARY, (NodeSeries("n1", 100.0, 1.0),))


def recorded(summary: Mapping[str, Any] | None = None, use: Mapping[str, Any] | None = None) -> FakeRecords:
    import msgspec

    told = msgspec.structs.replace(SUMMARY, **(summary or {}))
    return FakeRecords(told, Usage(told, (msgspec.structs.replace(USE, **(use or {})),)), COURSE)


WRONG: tuple[tuple[str, FakeRecords, str], ...] = (
    ("usage", recorded({"user": "bob", "uid": 1001}), "its user"),
    ("usage", recorded({"state": "FAILED"}), "its end"),
    ("usage", recorded(use={"node": "elsewhere"}), "its node"),
    ("usage", recorded(use={"gpus": ()}), "its GPUs"),
    ("usage", recorded(use={"gpus": (GpuUse(GpuRef(uuid="GPU-1")),)}), "never looked at"),
    ("usage", replace(recorded(), course=None), "its course over time"),
    ("usage", replace(recorded(), summary=None), "there is no record of it"),
    (
        "usage",
        replace(recorded(), summary=None, nodes={"n2": 1.0}),
        "1 of 2 nodes of the partition were never heard",
    ),
    ("usage", recorded({"complete": False}), "its record has no end"),
    ("usage", recorded({"state": None}), "Slurm's word"),
    ("usage", replace(recorded(), silent="it cannot be reached"), "it cannot be reached"),
    ("hooks", recorded(use={"ended_by": "reconciled"}), "the epilog did not tell"),
    ("hooks", recorded(use={"since": None}), "no begin"),
    ("hooks", recorded(use={"until": 120.0}), "jobs are held up"),
    ("exit-code", recorded({"state": "FAILED", "exit_code": 1}), "exit code 1"),
    ("cancelled", recorded({"state": "COMPLETED"}), "the record says COMPLETED"),
    ("two-nodes", recorded(), "1 of its 2 nodes"),
    ("array", recorded({"array_job_id": 1, "array_task_id": 1}), "task 2 of the array"),
    ("authorisation", replace(recorded(), status=200), "answered with status 200"),
)


@pytest.mark.parametrize(
    ("name", "records", "words"), WRONG, ids=[f"{name}: {words}" for name, _, words in WRONG]
)
def test_a_record_that_is_wrong_is_found(name, records, words):
    slurm = Runs() if name == "cancelled" else FakeSlurm()
    (found,) = outcomes(world(slurm, records), scenario(name)).values()
    assert found.level == "failed", found
    assert words in found.seen
    assert found.remedy


class Runs(FakeSlurm):
    """Jobs run until they are cancelled."""

    def _next(self, job: Job) -> Job:
        return job if job.ended else replace(job, state=JobState.RUNNING, nodes=Hosts("n1"))


@pytest.mark.parametrize("name", ["usage", "hooks", "authorisation"])
def test_a_record_that_is_right_is_well(name):
    (found,) = outcomes(world(FakeSlurm(), recorded()), scenario(name)).values()
    assert found.level == "ok", found


def test_slow_hooks_of_the_site_are_not_held_against_gsub():
    found = world(FakeSlurm(), recorded(use={"until": 120.0}), config={"Prolog": "/etc/slurm/prolog.d/*"})
    (outcome,) = outcomes(found, scenario("hooks")).values()
    assert outcome.level == "skipped" and outcome.facts["around_script_seconds"] == 15.0


DELAYS = {"SchedulerParameters": "bf_interval=2,requeue_delay=7", "AuthInfo": "cred_expire=30"}


@pytest.mark.parametrize(
    ("config", "delay"),
    [
        ({}, 120),
        ({"AuthInfo": "socket=/run/munge,cred_expire=30"}, 30),
        (DELAYS | {"SLURM_VERSION": "22.05.8"}, 30),
        (DELAYS | {"SLURM_VERSION": "24.11.5"}, 30),
        (DELAYS | {"SLURM_VERSION": "25.05.1"}, 30),
        (DELAYS | {"SLURM_VERSION": "26.05.5"}, 7),
    ],
)
def test_slurms_requeue_delay(config, delay):
    assert world(FakeSlurm(), config=config).requeue_delay() == delay


def test_a_site_without_requeue_is_skipped():
    class Refuses(FakeSlurm):
        def _next(self, job: Job) -> Job:
            if job.state is JobState.PENDING:
                return super()._next(job)
            return replace(job, state=JobState.FAILED, exit=ExitStatus(recording._REFUSED))

    (found,) = outcomes(world(Refuses(), recorded()), scenario("requeue")).values()
    assert found.level == "skipped" and "requeue itself" in found.seen


# --- a silent gsubd -------------------------------------------------------------------------------------------------

SAYS = "gsub: nothing to change about this job (mode observe)"


def test_gsubd_goes_on_whatever_the_submission_does():
    slurm = FakeSlurm(says=SAYS)
    halt = FakeHalt(slurm)
    (found,) = outcomes(world(slurm, halt=halt), scenario("hung-service")).values()
    assert found.level == "ok", found
    assert halt.done == ["pause 3", "resume"]

    halt = FakeHalt(slurm)
    there = world(slurm, halt=halt)
    asking = there.queue.writer._run

    def interrupted(argv: Sequence[str], **more: Any) -> Completed:
        if halt.done:
            raise Interrupt
        return asking(argv, **more)

    there.queue.writer = Runner({}, run=interrupted)
    with pytest.raises(Interrupt):
        outcomes(there, scenario("hung-service"))
    assert halt.done == ["pause 3", "resume"]


def test_a_slow_submission_while_gsubd_hangs_is_a_failure():
    slurm = FakeSlurm(says=SAYS)
    asking = slurm.run

    def slow(argv: Sequence[str], **more: Any) -> Completed:
        slurm.clock.sleep(0.1 if slurm.says else 1.4)
        return asking(argv, **more)

    found = world(slurm, halt=FakeHalt(slurm))
    found.queue.writer = Runner({}, run=slow)
    (outcome,) = outcomes(found, scenario("hung-service")).values()
    assert outcome.level == "failed" and "1.40 s while gsubd was silent" in outcome.seen


def test_an_answer_while_gsubd_hangs_is_a_failure():
    slurm = FakeSlurm(says=SAYS)
    (found,) = outcomes(world(slurm, halt=FakeHalt(slurm, deaf=True)), scenario("hung-service")).values()
    assert found.level == "failed" and "somebody else" in found.seen


@pytest.mark.parametrize(
    ("bounds", "halt", "says", "words"),
    [
        (Bounds("gpu", pause=False), True, SAYS, "--no-pause"),
        (Bounds("gpu"), False, SAYS, "only root"),
        (Bounds("gpu"), True, "", "no decisions as it is"),
    ],
)
def test_when_gsubd_is_not_stopped(bounds, halt, says, words):
    slurm = FakeSlurm(says=says)
    stops = FakeHalt(slurm)
    (found,) = outcomes(
        world(slurm, halt=stops if halt else None, bounds=bounds), scenario("hung-service")
    ).values()
    assert found.level == "skipped" and words in found.seen
    assert stops.done == []


def test_the_unit_is_stopped_only_where_the_site_says_so():
    slurm = FakeSlurm(says=SAYS)
    halt = FakeHalt(slurm)
    (found,) = outcomes(world(slurm, halt=halt), scenario("dead-service")).values()
    assert (found.level, halt.done) == ("skipped", [])
    stops = world(slurm, halt=halt, bounds=Bounds("gpu", stop_service=True))
    (found,) = outcomes(stops, scenario("dead-service")).values()
    assert (found.level, halt.done) == ("ok", ["pause 0", "resume"])


# --- a process that stands still ------------------------------------------------------------------------------------

LISTENS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind(sys.argv[1])
    sock.listen(8)
    print(flush=True)
    sys.stdin.read()
"""
PAUSES = """
import os, signal, sys
from pathlib import Path
from slurm_plugins.install.host import LocalHost
from slurm_plugins.install.selftest.halt import LocalHalt
LocalHalt(Path(sys.argv[1]), os.getuid(), LocalHost()).pause(1.0)
print(flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def listener(tmp_path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    path = tmp_path / "socket"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LISTENS, str(path)], text=True, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline()
        try:
            yield path, child
        finally:
            child.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(ready: Callable[[], bool], seconds: float = 10) -> None:
    wait_until(ready, seconds, pause=0.02)


def test_it_stands_still_and_goes_on(listener):
    path, child = listener
    halt = LocalHalt(path, os.getuid(), FakeHost())
    assert peer(path) == (child.pid, os.getuid())
    halt.pause(3)
    wait_for(lambda: state(child.pid) == "T")
    halt.resume()
    wait_for(lambda: state(child.pid) != "T")


def test_it_goes_on_by_itself_when_its_time_is_over(listener):
    path, child = listener
    halt = LocalHalt(path, os.getuid(), FakeHost())
    halt.pause(0.5)
    wait_for(lambda: state(child.pid) == "T")
    wait_for(lambda: state(child.pid) != "T")
    halt.resume()


def test_it_goes_on_when_we_are_killed(listener):
    path, child = listener
    ours = subprocess.run([sys.executable, "-c", PAUSES, str(path)], capture_output=True, text=True)
    assert (ours.returncode, ours.stderr) == (-signal.SIGKILL, "")
    assert ours.stdout == "\n"
    wait_for(lambda: state(child.pid) != "T")


def test_only_gsubd_under_its_own_user_is_stopped(listener, tmp_path):
    path, child = listener
    with pytest.raises(HaltError, match="under its own user"):
        LocalHalt(path, os.getuid() + 1, FakeHost()).pause(3)
    assert state(child.pid) != "T"
    with pytest.raises(HaltError, match="does not listen"):
        LocalHalt(tmp_path / "none", os.getuid(), FakeHost()).pause(3)


def test_the_unit_is_started_again(tmp_path):
    host = FakeHost()
    host.says("systemctl is-active", "active")
    host.says("systemctl stop", "")
    host.says("systemctl start", "")
    halt = LocalHalt(tmp_path / "socket", 0, host)
    halt.stop()
    (child,) = halt._children
    halt.start()
    assert [call.argv[1] for call in host.calls] == ["is-active", "stop", "start"]
    assert child.returncode is not None  # it would have started the unit 20 s later

    host.answers[("systemctl", "stop")] = Ran(1, err="no")
    with pytest.raises(HaltError, match="could not be stopped"):
        halt.stop()
    assert host.calls[-1].argv[1] == "start"

    with pytest.raises(HaltError, match="there is no gsubd"):
        LocalHalt(tmp_path / "socket", 0, FakeHost()).stop()


# --- the file -------------------------------------------------------------------------------------------------------

FACTS = Facts("0.1", "22.05.8", "observe", 2, 1, True, 12, 0, False)
WORDS = st.text(
    st.characters(codec="utf-8", categories=("L", "N"), include_characters="_-"), min_size=2, max_size=12
)


@given(st.lists(WORDS, min_size=1, max_size=6, unique=True), st.data())
def test_no_known_name_is_in_the_file(known, data):
    kinds = {kind: data.draw(st.lists(st.sampled_from(known))) for kind in ("node", "user", "account")}
    named = {name for names in kinds.values() for name in names} - {
        "root",
        "slurm",
        "munge",
        "gsub",
        "nobody",
    }
    seen = " ".join(data.draw(st.lists(st.sampled_from([*known, "the", "job,", "/x/y", "(n)"]), max_size=12)))
    cleaned = Pseudonyms(kinds).clean(seen)
    words = set(re.split(r"[^\w-]+", re.sub(r"<[a-z]+( \d+)?>", " ", cleaned)))
    assert not words & named


@pytest.mark.parametrize(
    "text",
    [
        "ada may not: user ada's job on gpu07.cluster.example.org",
        "/home/ada/.bashrc: no such file",
        "no answer at http://ctl.example.org:6831/v1",
        "gpu07, gpu[01-12] drained by 10.1.2.3",
        "mail ada@example.org",
        "account=physics,ada uid=1234",
        "(ada)",
        "ada:physics",
        "~/ada/x",
    ],
)
def test_what_is_a_sites_is_not_told(text):
    names = Pseudonyms({"node": ["gpu07"], "user": ["ada"], "account": ["physics"]})
    results = [Result("usage", "shows", Outcome("failed", text, "try ada"), 1.0)]
    findings = [Finding("spool-space", "error", text, "rm /home/ada/x")]
    told = json.dumps(document(FACTS, results, findings, names))
    assert not re.search(r"ada|gpu07|gpu\[|physics|example|10\.1|1234|bashrc", told), told


def test_words_of_ours_stay():
    names = Pseudonyms({"node": ["n1"], "user": ["root", "gsub"]})
    for text in (
        "refused, as without gsub; gsub adds 2 lines", "gres/gpu is counted", "22.05.8", "60 s after the end",
        "is the disk full? slurm.conf says so",
    ):  # fmt: skip
        assert names.clean(text) == text


# --- small parts ----------------------------------------------------------------------------------------------------


def test_the_table_is_whole():
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS) >= 14
    assert all(one.shows.endswith(".") and len(one.shows) < 110 for one in SCENARIOS)


def test_fields_with_spaces_and_odd_keys():
    text = (
        "JobId=7 JobName=x AllocNode:Sid=n1:9 ReqB:S:C:T=0:0:*:* Comment=a b SubmitLine=sbatch -N 1 --x=Y=2"
    )
    assert fields_of(text)["SubmitLine"] == "sbatch -N 1 --x=Y=2"
    assert fields_of(text)["ReqB:S:C:T"] == "0:0:*:*"
    assert differences(fields_of(text), {**fields_of(text), "JobId": "8", "AllocNode:Sid": "n2:1"}) == ()


def test_the_guide_has_the_table():
    guide = (REPOSITORY / "docs/selftest.md").read_text()
    rows = [f"| `{one.name}` | {one.shows} | {one.needs} |" for one in SCENARIOS]
    assert "\n".join(rows) + "\n\n" in guide
    assert f"at most {MOST_JOBS} jobs" in guide
