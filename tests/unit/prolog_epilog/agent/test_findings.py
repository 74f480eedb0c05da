"""What ended jobs' logs say: which files they are, read once, told once, whatever comes in between."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from profiler.findings import Evidence, Finding
from profiler.records import JobEnded, JobFinding, JobRef, JobStarted, identity
from prolog_epilog.agent import findings
from prolog_epilog.agent.beside import Beside
from prolog_epilog.agent.disk import Calls, Disk
from prolog_epilog.agent.edges import Attempt, Clock
from prolog_epilog.agent.findings import (
    TOO_OLD,
    Findings,
    LogReader,
    SlurmNames,
    ask_slurm,
    first_node,
    tells,
)
from prolog_epilog.agent.intake import parse
from prolog_epilog.agent.jobs import REMEMBER, SAVE_EVERY, Jobs
from prolog_epilog.agent.log_child import LogChild, NoAnswerError
from prolog_epilog.agent.parts import real_parts
from prolog_epilog.agent.reconcile import Found
from prolog_epilog.agent.registry import Registry
from prolog_epilog.failures.logfiles import JobNames, expand
from prolog_epilog.failures.question import Question
from tests.unit.prolog_epilog.agent.fakes import BOOT, FakeClock, FakeGpus, FakeSpool, hook_bytes, settings

T = TypeVar("T")
OOM = Finding("gpu_oom", 0.9, "explicit", (Evidence("CUDA out of memory", "/home/ada/slurm-7.out", 3),))
WELL = Finding("none", 0.9)
SILENT = Finding("no_signature")


class Node:
    """Jobs, and a reader of logs that says what a test tells it to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.spool = FakeSpool()
        self.calls = Calls()
        self.pid = 0
        self.says: Finding | Exception | None = OOM
        self.asked: list[Attempt] = []
        self.posted: list[Callable[[], None]] = []
        self.start()

    def start(self) -> None:
        """As after a kill."""
        clock = Clock(self.clock.wall, self.clock.mono)
        registry = Registry(self.folder / "jobs", Disk(self.calls))
        self.jobs = Jobs(settings(self.folder), registry, self.spool, FakeGpus(), clock, findings=True)
        assert self.jobs.restore() == []
        self.beside = Now(self.posted)
        self.findings = Findings(self.jobs, self.beside, self.read, clock)

    def read(self, attempt: Attempt) -> Finding | None:
        self.asked.append(attempt)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def hook(self, event: str, job: int = 7, **env: str) -> None:
        self.pid += 1
        restarts = env.setdefault("SLURM_JOB_RESTART_COUNT", "0")
        data = hook_bytes(event, BOOT=BOOT, SLURM_JOB_ID=f"{job}", **env)
        self.jobs.take(parse(Path(f"/x/{event}.{job}.{restarts}.{self.pid}"), data, self.clock.wall()), None)

    def job(self, job: int = 7, code: str = "256", nodes: str = "n[1-2]") -> None:
        """A job from start to end."""
        self.hook("prolog", job, SLURM_JOB_UID="1000", SLURM_JOB_NODELIST=nodes)
        self.clock.pass_(100)
        self.hook("epilog", job, SLURM_JOB_EXIT_CODE=code)

    def turn(self) -> None:
        """What the loop does, until there is nothing to be done."""
        self.findings.turn()
        while self.posted:
            self.posted.pop(0)()
            self.findings.turn()
        self.jobs.turn()

    def told(self) -> list[JobFinding]:
        return list(self.spool.of(JobFinding))


class Now(Beside):
    """Does at once what it is asked to do; what then is to be done waits for the loop."""

    def __init__(self, posted: list[Callable[[], None]]) -> None:
        super().__init__("logs", posted.append)

    def ask(
        self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> bool:
        done = super().ask(work, then, failed)
        if done:
            self._asked.get()()
        return done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_ended_jobs_logs_are_read_once_and_told_once(node: Node) -> None:
    node.job()
    node.turn()
    (record,) = node.told()
    assert (record.job, record.node, record.cluster, record.serial) == (JobRef(7), "n1", "lab", 1)
    assert record.finding == OOM and record.at == node.clock.at
    for _ in range(5):
        node.clock.pass_(SAVE_EVERY)
        node.turn()
        node.start()
    assert len(node.told()) == 1 and len(node.asked) == 1
    (attempt,) = node.asked
    assert attempt.started.uid == 1000 and attempt.ended.exit_code == 1


def test_a_running_job_is_left_alone_and_an_ended_one_is_forgotten_as_before(node: Node) -> None:
    node.hook("prolog", SLURM_JOB_UID="1000")
    node.turn()
    assert node.asked == []
    node.hook("epilog", SLURM_JOB_EXIT_CODE="256")
    node.clock.pass_(20)
    node.turn()
    node.turn()
    node.clock.pass_(REMEMBER + 20)
    node.turn()
    assert len(node.told()) == 1 and not node.jobs.known() and not list((node.folder / "jobs").iterdir())


def test_several_are_read_one_after_another_as_they_ended(node: Node) -> None:
    for job in (9, 7, 8):
        node.job(job)
    node.findings.turn()
    assert [each.ended.job.job_id for each in node.asked] == [9], "one at a time"
    node.turn()
    assert [each.ended.job.job_id for each in node.asked] == [9, 7, 8]
    assert [each.job.job_id for each in node.told()] == [9, 7, 8]


def test_who_ends_many_jobs_keeps_nobody_else_waiting(node: Node) -> None:
    for job, uid in ((1, "1000"), (2, "1000"), (3, "1000"), (4, "1001"), (5, "1002"), (6, "1001")):
        node.hook("prolog", job, SLURM_JOB_UID=uid)
        node.clock.pass_(1)
        node.hook("epilog", job, SLURM_JOB_EXIT_CODE="256")
    node.turn()
    assert [each.ended.job.job_id for each in node.asked] == [1, 4, 5, 2, 6, 3]


@pytest.mark.parametrize("nodes", ["n[2-3]", "n2,n1", "gpu1,n1"])
def test_only_the_batch_host_reads(node: Node, nodes: str) -> None:
    node.job(nodes=nodes)
    node.turn()
    assert node.asked == [] and node.told() == []
    for seconds in (20, REMEMBER + 20):
        node.clock.pass_(seconds)
        node.turn()
        node.turn()
    assert not node.jobs.known(), "nothing waits for ever"


def test_of_a_heterogeneous_job_the_first_component_has_the_script(node: Node) -> None:
    for job in (20, 21):
        node.hook("prolog", job, SLURM_JOB_UID="1000", SLURM_JOB_NODELIST="n1", SLURM_HET_JOB_ID="20")
        node.clock.pass_(10)
        node.hook("epilog", job, SLURM_JOB_EXIT_CODE="256")
    node.turn()
    assert [each.ended.job.job_id for each in node.asked] == [20]


@pytest.mark.parametrize("on", [True, False])
def test_a_site_says_whether_logs_are_read(on: bool, tmp_path: Path) -> None:
    told = settings(tmp_path)
    site = replace(told.site, agent=replace(told.site.agent, findings=on))
    assert (real_parts(replace(told, site=site)).read_logs is not None) is on


@pytest.mark.parametrize(
    "finding,code,worth",
    [
        (OOM, "256", True),
        (OOM, "0", True),  # a cancelled job has 0, too
        (OOM, "", True),
        (WELL, "0", False),
        (WELL, "256", True),
        (SILENT, "0", False),
        (SILENT, "256", True),
        (SILENT, "9", True),  # a signal
        (SILENT, "", True),  # how it ended is not known
        (None, "256", False),
    ],
)
def test_what_is_worth_telling(node: Node, finding: Finding | None, code: str, worth: bool) -> None:
    node.says = finding
    node.job(code=code)
    node.turn()
    assert len(node.told()) == worth and len(node.asked) == 1
    node.start()
    node.turn()
    assert len(node.asked) == 1, "not again after a restart"


def test_a_job_that_ended_while_the_agent_was_killed_is_read_after_it(node: Node) -> None:
    node.job()
    node.start()
    node.turn()
    assert len(node.told()) == 1 and len(node.asked) == 1


def test_a_log_that_takes_the_agent_with_it_does_so_twice_at_most(node: Node) -> None:
    node.job()
    for _ in range(4):
        node.findings.turn()  # the answer never comes: the agent is killed meanwhile
        node.posted.clear()
        node.start()
    assert len(node.asked) == 2
    (record,) = node.told()
    assert record.finding.reason == "no_signature"
    assert record.finding.unseen == ("the logs were not read: twice the agent was ended meanwhile",)


def test_who_gives_no_answer_is_not_asked_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.says = NoAnswerError("were not read within 10 s")
    node.job(code="0")
    node.job(8)
    node.turn()
    node.start()
    node.turn()
    assert [each.ended.job.job_id for each in node.asked] == [7, 8]
    (record,) = node.told()
    assert record.job == JobRef(8) and record.finding == Finding(
        "no_signature", unseen=("the logs were not read within 10 s",)
    )
    assert "job 8: its logs were not read within 10 s" in caplog.text


def test_a_fault_of_ours_is_a_finding_that_says_so(node: Node) -> None:
    node.says = ValueError("/secret path")
    node.job()
    node.turn()
    assert node.told()[0].finding.unseen == ("the logs were not read: ValueError",)


def test_without_room_on_the_disk_nothing_is_lost(node: Node) -> None:
    node.job()
    full = OSError(errno.ENOSPC, "full")

    def write(*args: object) -> int:
        raise full

    node.calls = replace(node.calls, write=write)
    node.jobs._registry = Registry(node.folder / "jobs", Disk(node.calls))
    node.spool.durable = False  # in memory only
    node.turn()
    assert len(node.told()) == 1
    node.spool.records.clear()
    node.calls = Calls()
    node.start()  # killed before there was room
    node.turn()
    assert len(node.told()) == 1 and len(node.asked) == 2
    node.spool.records.clear()
    node.start()  # the registry has it now, and knows that the spool has not
    node.spool.durable = True
    node.clock.pass_(SAVE_EVERY)
    node.turn()
    node.clock.pass_(SAVE_EVERY)
    node.turn()
    assert len(node.told()) == 1 and len(node.asked) == 2
    node.clock.pass_(SAVE_EVERY)
    node.turn()
    assert len(node.told()) == 1


def test_an_end_that_is_known_better_is_read_again_and_counts_more(node: Node) -> None:
    node.hook("prolog", SLURM_JOB_UID="1000")
    node.clock.pass_(100)
    node.jobs.gone(JobRef(7))
    node.turn()
    node.says = SILENT
    node.clock.pass_(5)
    node.hook("epilog", SLURM_JOB_EXIT_CODE="256")
    node.turn()
    assert [(each.serial, each.finding.reason) for each in node.told()] == [
        (1, "gpu_oom"),
        (2, "no_signature"),
    ]
    assert [each.ended.source for each in node.asked] == ["reconciled", "epilog"]


def test_an_answer_about_an_end_that_is_known_better_meanwhile_is_passed_over(node: Node) -> None:
    node.hook("prolog", SLURM_JOB_UID="1000")
    node.clock.pass_(100)
    node.jobs.gone(JobRef(7))
    node.findings.turn()
    node.hook("epilog", SLURM_JOB_EXIT_CODE="256")
    node.turn()
    (record,) = node.told()
    assert record.serial == 1 and len(node.asked) == 2


def test_each_attempt_of_a_requeued_job_has_its_own(node: Node) -> None:
    node.job()
    node.turn()
    node.hook("prolog", SLURM_JOB_UID="1000", SLURM_JOB_RESTART_COUNT="1")
    node.clock.pass_(50)
    node.hook("epilog", SLURM_JOB_EXIT_CODE="256", SLURM_JOB_RESTART_COUNT="1")
    node.turn()
    assert [each.job for each in node.told()] == [JobRef(7), JobRef(7, 1)]


def test_what_ended_days_ago_is_not_read(node: Node) -> None:
    node.job()
    node.clock.pass_(TOO_OLD + 1)
    node.turn()
    assert node.asked == [] and node.told() == []


def test_whose_a_job_is_that_no_prolog_told_is_the_kernels_word(node: Node) -> None:
    """A user may write any uid into the environment of their own processes."""
    lie = {"SLURM_JOB_UID": "0", "SLURM_JOB_GID": "0", "SLURM_JOB_WORK_DIR": "/root"}
    node.jobs.found(Found(JobRef(7), 1000, lie), None)
    node.jobs.found(Found(JobRef(8), None, lie), None)
    seven, eight = node.spool.of(JobStarted)
    assert (seven.uid, seven.gid) == (1000, None) and (eight.uid, eight.gid) == (None, None)
    node.clock.pass_(100)
    node.jobs.gone(JobRef(7))
    node.turn()
    asked = LogReader(names=lambda job: None).question(node.asked[0])
    assert asked is not None and (asked.uid, asked.gid) == (1000, None)


# --- which files ---

NAMES = JobNames(17, "ada", "gpu03.lab", "train", 12, 4)


@pytest.mark.parametrize(
    "pattern,path",
    [
        ("slurm-%j.out", "slurm-17.out"),
        ("slurm-%A_%a.out", "slurm-12_4.out"),
        ("%06j|%3a|%010A", "000017|004|0000000012"),
        ("%99999999999j", "0000000017"),
        ("%u/%x-%N-%n-%t.log", "ada/train-gpu03-0-0.log"),
        ("%5u%3x", "adatrain"),
        ("%b", "4"),
        ("100%%", "100%"),
        ("%%j", "%j"),
        ("plain.out", "plain.out"),
        ("a%", "a%"),
        ("a% j", "a% j"),
        (r"\%j", "%j"),
        (r"a\%x%j", "a%x%j"),
        ("%q", None),
        ("%J", None),
        ("%s-%j", None),
    ],
)
def test_patterns_become_names_as_slurm_makes_them(pattern: str, path: str | None) -> None:
    assert expand(pattern, NAMES) == path


@pytest.mark.parametrize("symbol", ["%A", "%a", "%b", "%x", "%u", "%N"])
def test_what_is_not_known_makes_no_name(symbol: str) -> None:
    assert expand(f"{symbol}-%j", JobNames(17)) is None


@pytest.mark.parametrize(
    "hosts,first",
    [
        ("n1", "n1"),
        ("n[1-4]", "n1"),
        ("n[03,05-07],m1", "n03"),
        ("b2,a1", "b2"),
        ("r[1-2]n[8,9],x", "r1n8"),
        ("n[1-2]-ib", "n1-ib"),
        ("", ""),
    ],
)
def test_the_batch_host_is_the_first_of_slurms_list(hosts: str, first: str) -> None:
    assert first_node(hosts) == first


def attempt(**known: str) -> Attempt:
    started = JobStarted(
        id="0" * 32,
        cluster="lab",
        node="n1",
        at=1000.0,
        job=JobRef(17),
        uid=1000,
        gid=100,
        user="ada",
        work_dir="/home/ada",
    )
    ended = JobEnded(id="1" * 32, cluster="lab", node="n1", at=2000.0, job=JobRef(17), exit_code=1)
    return Attempt(msgspec.structs.replace(started, **known), ended)


def asked(names: SlurmNames | None = None, **env: str) -> tuple[Question | None, list[int]]:
    """The question to the child, and the jobs that Slurm was asked for."""
    jobs: list[int] = []

    def slurm(job: int) -> SlurmNames | None:
        jobs.append(job)
        return names

    return LogReader(names=slurm).question(attempt(**env)), jobs


def test_slurm_is_asked_for_what_the_prolog_does_not_know_and_for_nothing_else() -> None:
    question, jobs = asked(stdout="logs/%j.out", stderr="/var/%u/%j.err")
    assert question is not None and jobs == []
    assert question.files == ("/home/ada/logs/17.out", "/var/ada/17.err")
    assert (question.uid, question.gid, question.ids) == (1000, 100, ("17",))
    assert (question.since, question.until) == (1000.0, 2000.0)
    told = SlurmNames("/home/ada/12_4-train.out", "/home/ada/12_4-train.out", "12_4")
    question, jobs = asked(told, stdout="%A_%a-%x.out", stderr="%A_%a-%x.out")
    assert question is not None and jobs == [17]
    assert question.files == ("/home/ada/12_4-train.out",) and question.ids == ("17", "12_4")
    assert question.unseen == ()


def test_what_scontrol_leaves_in_a_name_is_filled_in() -> None:
    """22.05.8 tells ``arr-12-%3a.txt`` of ``arr-%A-%3a.txt``."""
    told = SlurmNames("/home/ada/arr-12-%3a.txt", "/home/ada/%q.err", "12_4")
    question, _ = asked(told, stdout="arr-%A-%3a.txt")
    assert question is not None and question.files == ("/home/ada/arr-12-004.txt", "/home/ada/%q.err")


def test_where_slurm_does_not_answer_the_rest_is_read_and_said() -> None:
    question, _ = asked(None, stdout="%x.out", stderr="%j.err")
    assert question is not None and question.files == ("/home/ada/17.err",)
    assert question.unseen == (
        "the name of its output file is not known: it has what only Slurm can fill in",
    )
    question, jobs = asked(None)  # nothing is told of what the user did not give
    assert question is not None and jobs == [17] and question.files == ("/home/ada/slurm-17.out",)
    question, _ = asked(None, stdout="%j.out", work_dir="")
    assert question is not None and question.files == ()
    assert question.unseen == ("where its output went is not known: Slurm did not tell its folder",)


def test_a_job_whose_script_slurm_could_not_begin_is_known_by_its_signal() -> None:
    for signal, not_begun in ((53, True), (0, False), (9, False), (None, False)):
        one = attempt(stdout="%j.out")
        one = Attempt(one.started, msgspec.structs.replace(one.ended, signal=signal))
        question = LogReader(names=lambda job: None).question(one)
        assert question is not None and question.not_begun is not_begun


def test_a_job_without_a_script_has_no_log() -> None:
    assert asked(SlurmNames(batch=False)) == (None, [17])


def test_whose_job_is_not_known_is_not_read() -> None:
    one = attempt(stdout="%j.out")
    nobody = Attempt(msgspec.structs.replace(one.started, uid=None), one.ended)
    with pytest.raises(NoAnswerError, match="whose job it was is not known"):
        LogReader(names=lambda job: None).question(nobody)


SCONTROL = """JobId=17 ArrayJobId=12 ArrayTaskId=4 JobName=a StdOut=/etc/shadow
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   BatchFlag=%d
   Command=/home/ada/a b.sh
   StdErr=/home/ada/x y.err
   StdIn=/dev/null
   StdOut=/home/ada/x y.out
"""


@pytest.mark.parametrize(
    "program,names",
    [
        ("cat <<'E'\n" + SCONTROL % 1 + "E", SlurmNames("/home/ada/x y.out", "/home/ada/x y.err", "12_4")),
        (
            "cat <<'E'\n" + SCONTROL % 0 + "E",
            SlurmNames("/home/ada/x y.out", "/home/ada/x y.err", "12_4", False),
        ),
        ("echo Invalid job id specified >&2; exit 1", None),
        ("exec sleep 600", None),
        ("printf '\\377\\n'", SlurmNames()),
    ],
)
def test_what_scontrol_says(
    program: str, names: SlurmNames | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask_slurm(17, deadline=0.5 if "sleep" in program else 10.0) == names


def test_a_host_without_scontrol_knows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(findings, "_BIN", "/nonexistent")
    assert ask_slurm(17) is None


def test_the_child_is_asked_in_the_end() -> None:
    class Child(LogChild):
        def ask(self, question: Question) -> Finding:
            assert question.files == ("/home/ada/17.out",) and question.signatures == ("/etc/gsub/s.toml",)
            return OOM

    assert LogReader(Child(), ("/etc/gsub/s.toml",))(attempt(stdout="%j.out")) == OOM


def test_what_tells_something() -> None:
    ended = attempt().ended
    assert tells(SILENT, ended) and tells(OOM, ended) and tells(WELL, ended)


class KilledError(BaseException):
    """The agent is ended here and now."""


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_killed_at_any_of_its_disks_calls_it_tells_all_the_same(call: str, tmp_path: Path) -> None:
    for number in range(1, 100):
        node = Node(tmp_path / f"{number}")
        left = [number]

        def counted(*args: object, left: list[int] = left, **more: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError
            return getattr(Calls(), call)(*args, **more)

        node.calls = replace(Calls(), **{call: counted})
        try:
            node.start()
            node.job()
            node.turn()
        except KilledError:
            node.calls = Calls()
            node.posted.clear()
            node.start()
            if JobRef(7) in node.jobs.running() or JobRef(7) not in node.jobs.known():
                node.job()  # a hook's file is there until it was taken in
            node.turn()
        assert {identity(record) for record in node.told()} == {("job_finding", "lab", 7, 0, "n1")}
        assert {record.serial for record in node.told()} == {1} and len(node.asked) <= 2
        if left[0] > 0:
            break
    assert 3 < number < 99, "each of them was tried"
