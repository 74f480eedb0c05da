"""`gsub why JOB`: a page out of what Slurm, the service and the job's own logs tell, whichever of them is there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsub import recall, why_job
from gsub.cli import main
from gsub.errors import UserError
from gsub.service import NoRecordError
from gsub.why_job import known_of
from gsub.why_view import facts, lines
from profiler.answers import (
    DecisionAnswer,
    FreeGpus,
    Jobs,
    JobSummary,
    QueuePosition,
    Resubmissions,
    RuleTold,
    Similar,
    Usage,
    Verdict,
    VerdictAnswer,
)
from profiler.findings import Evidence, Finding
from profiler.resubmissions import Resubmission
from slurm_plugins.client.errors import NoSuchJob, SlurmUnreachable
from slurm_plugins.client.states import ExitStatus
from slurm_plugins.client.values import AccountingRecord, Job, JobState
from slurm_plugins.service.keeper.carrying_out import withhold
from tests.unit.slurm_plugins.client.fake import only

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
AGO = NOW - timedelta(minutes=5)
MISSING = Finding(
    "import_error",
    0.95,
    "explicit",
    (
        Evidence(
            "ModuleNotFoundError: No module named 'einops'", "/home/ada/slurm-7.out", 41, rank=3, node="n2"
        ),
    ),
    advice="Install it.",
    rank=3,
    node="n2",
    fingerprint="f1",
)


@dataclass
class FakeSlurm:
    live: Sequence[Job] = ()
    rows: Sequence[AccountingRecord] = ()
    error: Exception | None = None
    queue: Sequence[Job] = ()
    asked: list[str] = field(default_factory=list)

    def jobs(
        self,
        *,
        ids: object = None,
        state: JobState | None = None,
        partition: str | None = None,
        values: Collection[str] | None = None,
    ) -> Sequence[Job]:
        if self.error:
            raise self.error
        if partition is not None and values is not None:
            self.asked.append(partition)
            return [only(one, values) for one in self.queue if one.state is state]
        return self.live

    def accounting(self, *, ids: Sequence[str] = (), duplicates: bool = True) -> Sequence[AccountingRecord]:
        # As sacct: what never started is found by the array's number alone
        return self.rows if ids[0].isdecimal() else [one for one in self.rows if one.array_tasks is None]

    def nodes(self) -> Sequence[object]:
        self.asked.append("nodes")
        return ()


@dataclass
class FakeService:
    """The service knows these verdicts, by the job's id as it is shown."""

    answers: dict[str, VerdictAnswer] = field(default_factory=dict)
    decided: dict[str, object] | None = None
    runs: tuple[JobSummary, ...] = ()
    error: UserError | None = None
    asked: int = 0
    followed: tuple[Resubmission, ...] = ()
    undecided: JobSummary | None = None
    told: tuple[RuleTold, ...] = ()
    positions: dict[int, QueuePosition] = field(default_factory=dict)
    followed_by: dict[str, tuple[Resubmission, ...]] = field(default_factory=dict)

    def verdict(self, job: str, restarts: int | None = None) -> VerdictAnswer:
        self.asked += 1
        if self.error:
            raise self.error
        if job not in self.answers or restarts not in (None, self.answers[job].job.restarts):
            raise NoRecordError("there is no such job")
        return self.answers[job]

    def decision(self, job: str) -> DecisionAnswer:
        if self.undecided is not None and job == str(self.undecided.job_id):
            return DecisionAnswer(self.undecided, self.decided)
        return DecisionAnswer(self.verdict(job).job, self.decided)

    def resubmissions(self, job: str) -> Resubmissions:
        self.verdict(job)
        return Resubmissions(self.followed_by.get(job, self.followed))

    def usage(self, job: str, restarts: int) -> Usage:
        return Usage(self.verdict(job, restarts).job, (), told=self.told)

    def position(self, job: int) -> QueuePosition:
        if job not in self.positions:
            raise NoRecordError("no pending job of yours")
        return self.positions[job]

    def jobs(self, **_: object) -> Jobs:
        return Jobs(self.runs)


def a_job(state: JobState = JobState.FAILED, **more: object) -> Job:
    known: dict[str, object] = {
        "id": 7, "name": "train", "user": "ada", "uid": os.geteuid(), "state": state, "partition": "gpu",
        "start": AGO, "end": NOW, "submitted": AGO, "exit": ExitStatus(1, 0),
    }  # fmt: skip
    return Job(**(known | more))  # type: ignore[arg-type]


def a_log(
    path: Path, text: str = "ModuleNotFoundError: No module named 'einops'\n", at: datetime = NOW
) -> str:
    """A log that was last written to at that time."""
    path.write_text(text)
    os.utime(path, (at.timestamp(), at.timestamp()))
    return str(path)


def summary(job: int = 7, state: str = "FAILED", **more: object) -> JobSummary:
    known: dict[str, object] = {
        "cluster": "lab", "job_id": job, "name": "train", "uid": os.geteuid(), "state": state, "nodes": "n[1-2]",
        "exit_code": 1, "started": AGO.timestamp(), "ended": NOW.timestamp(),
    }  # fmt: skip
    return JobSummary(**(known | more))  # type: ignore[arg-type]


def answer(
    finding: Finding | None = MISSING, similar: Similar | None = None, **more: object
) -> VerdictAnswer:
    job = summary(**more)  # type: ignore[arg-type]
    verdict = Verdict("lab", job.job_id, 0, finding) if finding is not None else None
    return VerdictAnswer(job, verdict, similar)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch):
    def look(slurm: FakeSlurm, service: FakeService | None = None, job: str = "7") -> list[str]:
        def records() -> FakeService:
            if service is None:
                raise UserError("there are no records of jobs here", why="there is no site file")
            return service

        monkeypatch.setattr(why_job, "records", records)
        known = known_of(job, slurm, NOW)  # type: ignore[arg-type]
        json.dumps(facts(known))  # whatever it is, it is JSON
        return list(lines(known))

    return look


def test_a_verdict_is_told_with_evidence_place_and_advice(ask) -> None:
    similar = Similar(2, 30, "5", AGO.timestamp(), 0)
    page = "\n".join(ask(FakeSlurm([a_job()]), FakeService({"7": answer(similar=similar)})))
    assert page.startswith('job 7 "train" on n[1-2]: FAILED after 5 min, exit code 1\n')
    assert "  why        import_error, surely: a Python module or name cannot be imported\n" in page
    assert "slurm-7.out:41: ModuleNotFoundError: No module named 'einops'" in page
    assert "first to fail: rank 3 on n2" in page and "told by its own logs" in page
    assert "  try        Install it." in page
    assert (
        "2 more failures with the same evidence in the 30 days before or since, the last 5 min ago (job 5); "
        "no run of that name has ended well since" in page
    )


def test_a_rule_on_use_that_its_user_was_told_of_is_told(ask) -> None:
    told = RuleTold("idle_after_activity", 1.7e9, "has stopped using its GPUs.\n", "idle_s 2 h", 1.7e9)
    page = ask(FakeSlurm([a_job()]), FakeService({"7": answer()}, told=(told,)))
    (line,) = [line for line in page if line.startswith("  told ")]
    assert "rule idle_after_activity, told by mail on 2023-11-1" in line
    assert line.endswith("has stopped using its GPUs (idle_s 2 h); it was cancelled for that")


def test_its_last_checkpoint_is_told(ask) -> None:
    kept = msgspec.structs.replace(MISSING, checkpoint="/s/9.pt\x1b[2J", resumes=True)
    page = ask(FakeSlurm([a_job()]), FakeService({"7": answer(kept)}))
    assert "  saved      /s/9.pt (its script goes on from there)" in page


def test_what_was_decided_is_told_in_its_mode(ask) -> None:
    decided = {
        "mode": "observe",
        "enforced": False,
        "changes": [
            {"field": "min_nodes", "after": 2, "reason": "2 nodes hold 16 GPUs evenly", "stage": "gang"}
        ],
        "notes": [
            {"text": "internal", "advice": False},
            {"text": "ask for less", "advice": True, "stage": "limits"},
        ],
    }
    page = "\n".join(ask(FakeSlurm([a_job()]), FakeService({"7": answer()}, decided)))
    assert "gsub would have set --nodes=2: 2 nodes hold 16 GPUs evenly (gang)" in page
    assert "note: ask for less (limits)" in page and "internal" not in page


def test_a_job_that_waits(ask) -> None:
    job = a_job(JobState.PENDING, reason="QOSMaxGRESPerUser", start=None, end=None, exit=ExitStatus(0, 0))
    page = "\n".join(ask(FakeSlurm([job]), FakeService()))
    assert "its QOS's limit is reached: at most so many GPUs or other GRES of one user" in page
    assert "(Slurm: QOSMaxGRESPerUser)" in page and "  why " not in page


def test_without_service_its_log_is_read_as_its_user(ask, tmp_path: Path) -> None:
    text = "Traceback (most recent call last):\n  File 'a'\nModuleNotFoundError: No module named 'einops'\n"
    log = a_log(tmp_path / "slurm-7.out", text)
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log)])))
    assert "import_error" in page and "slurm-7.out:3: ModuleNotFoundError" in page
    assert "not known  what gsub's service keeps: there is no site file" in page


def test_the_default_name_is_tried_where_slurm_has_forgotten_the_job(ask, tmp_path: Path) -> None:
    a_log(tmp_path / "slurm-40_3.out")
    row = AccountingRecord(
        id=43, name="train", user="ada", uid=os.geteuid(), state=JobState.FAILED, array_job_id=40, array_task_id=3,
        work_dir=str(tmp_path), start=AGO, end=NOW, exit=ExitStatus(2, 0),
    )  # fmt: skip
    page = "\n".join(ask(FakeSlurm(rows=[row]), job="40_3"))
    assert "import_error" in page and "slurm-40_3.out:1" in page


def test_the_nodes_blindness_is_made_up_for(ask, tmp_path: Path) -> None:
    log = a_log(tmp_path / "out")
    blind = Finding("no_signature", 0.5, unseen=("/home/ada/out may not be read",))
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log)]), FakeService({"7": answer(blind)})))
    assert "import_error" in page and "may not be read" not in page


def test_what_the_nodes_saw_counts_beside_a_log_that_is_read_here(ask, tmp_path: Path) -> None:
    log = a_log(tmp_path / "out", "RuntimeError: CUDA error: unspecified launch failure\n")
    seen = Evidence("GPU 1: Xid 79 (GPU has fallen off the bus)", node="n2", what="xid", source="root")
    half = Finding("gpu_hardware", 0.9, "explicit", (seen,), unseen=("/home/ada/out may not be read",))
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log)]), FakeService({"7": answer(half)})))
    assert "why        gpu_hardware, surely" in page and "Xid 79" in page


def test_anothers_log_is_not_looked_at(ask, tmp_path: Path) -> None:
    others: dict[str, Any] = {
        "stdout": a_log(tmp_path / "out"),
        "uid": os.geteuid() + 1,
        "end": AGO,
        "start": AGO,
    }
    page = "\n".join(ask(FakeSlurm([a_job(**others)]), FakeService()))
    assert "import_error" not in page and "nothing that is known says why it failed" in page
    assert "not seen   its logs, which are another user's" in page
    page = "\n".join(ask(FakeSlurm([a_job(JobState.TIMEOUT, **others)]), FakeService()))
    assert "why        time_limit, surely" in page, "Slurm does say"


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (AGO - timedelta(hours=1), "was last written to before this job began"),
        (NOW + timedelta(hours=1), "was changed 1 h after the end, maybe by another run"),
    ],
)
def test_a_log_of_another_run_by_the_same_name_is_not_this_ones(
    ask, tmp_path: Path, at: datetime, says: str
) -> None:
    page = "\n".join(ask(FakeSlurm([a_job(stdout=a_log(tmp_path / "train.out", at=at))])))
    assert "import_error" not in page and f"train.out {says}" in page


def test_a_reason_that_may_change_is_not_told_as_known(ask, tmp_path: Path) -> None:
    """The service has not judged a job that ended a moment ago."""
    fresh = FakeService({"7": answer(None)})
    known = ask(FakeSlurm([a_job(stdout=a_log(tmp_path / "plain"))]), fresh)
    assert "  why        import_error, surely: a Python module or name cannot be imported" in known
    log = a_log(tmp_path / "vague", "RuntimeError: CUDA error: unspecified launch failure\n")
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log)]), fresh))
    assert "why        not known yet: it has only just ended" in page and "so far     cuda_failure" in page
    page = "\n".join(ask(FakeSlurm([a_job(stdout=a_log(tmp_path / "empty", ""))]), fresh))
    assert "why        not known yet" in page and "so far" not in page and "no_signature" not in page
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log)])))
    assert "why        cuda_failure" in page, "there is no service to say more"
    a_log(tmp_path / "slurm-7.out")
    untold = answer(None, state=None, exit_code=None, work_dir=str(tmp_path))
    page = "\n".join(ask(FakeSlurm(), FakeService({"7": untold})))
    assert "why        not known yet" in page and "so far     import_error" in page, "Slurm has not spoken"
    os.utime(log, (AGO.timestamp(), AGO.timestamp()))
    page = "\n".join(ask(FakeSlurm([a_job(stdout=log, start=AGO, end=AGO)]), FakeService()))
    assert "why        cuda_failure" in page, "it ended five minutes ago"


def test_a_requeued_job_is_not_said_to_have_failed(ask) -> None:
    waits = a_job(
        JobState.PENDING, restarts=1, reason="BeginTime", start=None, end=None, exit=ExitStatus(0, 0)
    )
    page = ask(FakeSlurm([waits]), FakeService({"7": answer()}))
    assert page[0] == 'job 7 "train" (restart 1): PENDING, BeginTime'
    assert '  earlier    7 "train" on n[1-2]: FAILED after 5 min, exit code 1' in page
    assert any("import_error, surely" in line for line in page) and not any("  why " in line for line in page)


def test_of_a_heterogeneous_job_the_component_that_failed_is_told(ask) -> None:
    parts = [
        a_job(JobState.COMPLETED, id=7, het_job_id=7, het_offset=0, exit=ExitStatus(0, 0)),
        a_job(id=8, het_job_id=7, het_offset=1),
    ]
    known = {"7": VerdictAnswer(summary(state="COMPLETED")), "8": answer(job=8, het_job_id=7, het_offset=1)}
    page = ask(FakeSlurm(parts), FakeService(known))
    assert page[0].startswith('job 7+1 "train"') and any("import_error, surely" in line for line in page)


def test_the_failed_tasks_of_an_array_by_reason(ask) -> None:
    tasks = [
        a_job(
            id=40 + n,
            array_job_id=40,
            array_task_id=n,
            state=JobState.COMPLETED if n % 2 else JobState.FAILED,
        )
        for n in range(8)
    ]
    full = Finding("no_space", 0.9, "explicit", (Evidence("No space left on device", "/out", 2),))
    known = {f"40_{n}": answer(MISSING if n else full, job=40 + n) for n in (0, 2, 4)}
    page = "\n".join(ask(FakeSlurm(tasks), FakeService(known), "40"))
    assert "2 x import_error: 40_2, 40_4" in page
    assert "1 x no_space: 40_0" in page and "1 x not known (FAILED): 40_6" in page


def test_what_followed_is_told_of_all_tasks_of_an_array(ask) -> None:
    def task(number: int, state: JobState, **more: object) -> Job:
        return a_job(state, id=40 + number, array_job_id=40, array_task_id=number, **more)

    tasks = [task(n, JobState.FAILED) for n in (1, 2, 3)]
    tasks += [task(n, JobState.RUNNING, restarts=1, end=None) for n in (4, 5)]
    tasks += [task(6, JobState.COMPLETED), task(7, JobState.COMPLETED, restarts=1)]
    tasks += [a_job(JobState.PENDING, id=40, array_job_id=40, array_tasks="8-19%2", start=None, end=None)]
    known = {f"40_{n}": answer(job=40 + n) for n in (1, 2, 3)}
    known |= {f"40_{n}": answer(None, job=40 + n, state="RUNNING", restarts=1, ended=None) for n in (4, 5)}
    known["40_7"] = answer(None, job=47, state="COMPLETED", restarts=1)

    def row(number: int, state: str, why: str, **more: Any) -> Resubmission:
        return Resubmission("lab", 40 + number, 0, more.pop("reason"), "once", state, 0.0, why, **more)  # type: ignore[arg-type]

    stays = {"reason": "import_error", "stop": "never", "command": "gsub fix 40_1"}
    lost = {"reason": "node_failure"}
    followed: dict[str, tuple[Resubmission, ...]]
    followed = {f"40_{n}": (row(n, "stopped", "It would end the same way.", **stays),) for n in (1, 2, 3)}
    followed |= {f"40_{n}": (row(n, "done", "It is tried again away from n4.", **lost),) for n in (4, 5, 7)}
    service = FakeService(known, followed_by=followed)
    page = ask(FakeSlurm(tasks), service, "40")
    assert "  tasks      19: 12 PENDING, 3 FAILED, 2 RUNNING, 2 COMPLETED" in page
    text = "\n".join(page)
    assert "failed     3 x import_error: 40_1, 40_2, 40_3" in text
    assert "not tried again: all. 40_1: It would end the same way. Type: gsub fix 40_1" in text
    assert "failed     3 x node_failure: 40_4, 40_5, 40_7" in text
    assert "tried again (now 2 RUNNING, 1 COMPLETED): all. 40_4: It is tried again away from n4." in text
    assert not any(line.startswith("  again") for line in page), "that is one task's"
    told = facts(known_of("40", FakeSlurm(tasks), NOW))  # type: ignore[arg-type]
    assert told["task_states"] == {"PENDING": 12, "FAILED": 3, "RUNNING": 2, "COMPLETED": 2}
    assert [len(one["resubmissions"]) for one in told["tasks"]] == [1] * 6
    assert "attempt 1: " in "\n".join(ask(FakeSlurm(tasks[:1]), service, "40_1"))


@pytest.mark.case("users 3")
def test_tasks_that_wait_for_a_gsub_act_that_is_away_are_not_promised(ask) -> None:
    tasks = [a_job(JobState.FAILED, id=41, array_job_id=40, array_task_id=1)]
    row = withhold(
        Resubmission("lab", 41, 0, "cpu_oom", "once", "planned", 0.0, "It is short: it is tried again.")
    )
    service = FakeService({"40_1": answer(job=41)}, followed_by={"40_1": (row,)})
    text = "\n".join(ask(FakeSlurm(tasks), service, "40_1"))
    assert "would be tried again, but gsub-act does not answer" in text
    assert "is tried again" not in text and "to be done" not in text and "to be tried" not in text


def test_of_a_thousand_tasks_some_of_each_way_to_end_are_looked_at(ask) -> None:
    tasks = [
        a_job(
            JobState.TIMEOUT if n == 999 else JobState.FAILED,
            id=2000 + n, array_job_id=2000, array_task_id=n, exit=ExitStatus(1 + n % 2, 0),
        )
        for n in range(1000)
    ]  # fmt: skip
    service = FakeService({f"2000_{n}": answer(job=2000 + n) for n in range(999)})
    page = "\n".join(ask(FakeSlurm(tasks), service, "2000"))
    assert "1 x not known (TIMEOUT): 2000_999" in page and "23 x import_error: 2000_0, 2000_1" in page
    assert "976 more that failed were not looked at (976 FAILED): gsub why ARRAY_TASK" in page
    assert service.asked < 80


def test_tasks_that_slurmctld_has_forgotten_count(ask) -> None:
    """Of a long array those that failed first, and have been purged, are in slurmdbd alone."""
    runs = a_job(JobState.RUNNING, id=49, array_job_id=40, array_task_id=9)
    old = AccountingRecord(
        id=41, name="train", user="ada", state=JobState.FAILED, array_job_id=40, array_task_id=1, start=AGO, end=AGO
    )  # fmt: skip
    page = "\n".join(ask(FakeSlurm([runs], [old]), FakeService({"40_1": answer(job=41)}), "40"))
    assert "1 x import_error: 40_1" in page


def test_a_service_that_is_silent_is_waited_for_once(ask) -> None:
    tasks = [a_job(id=40 + n, array_job_id=40, array_task_id=n) for n in range(8)]
    service = FakeService(error=UserError("the gsub service at http://c:1 does not answer"))
    page = "\n".join(ask(FakeSlurm(tasks), service, "40"))
    assert service.asked == 1 and "8 x not known (FAILED)" in page


def test_a_run_that_ended_well_has_no_reason(ask) -> None:
    job = a_job(JobState.COMPLETED, exit=ExitStatus(0, 0))
    done = VerdictAnswer(summary(state="COMPLETED", exit_code=0))
    page = "\n".join(ask(FakeSlurm([job]), FakeService({"7": done})))
    assert "COMPLETED" in page and "  why " not in page


def test_what_cannot_be_asked_is_said(ask) -> None:
    service = FakeService(error=UserError("the gsub service at http://c:1 does not answer"))
    page = "\n".join(ask(FakeSlurm([a_job()]), service))
    assert page.count("the gsub service at http://c:1 does not answer") == 1
    slurm = FakeSlurm(error=SlurmUnreachable("slurmctld", "slurmctld does not answer"))
    page = "\n".join(ask(slurm, FakeService({"7": answer()})))
    assert "import_error" in page and "what Slurm knows of it" in page


def test_a_job_that_nobody_knows(ask) -> None:
    with pytest.raises(UserError):
        ask(FakeSlurm(), FakeService())


def test_evil_words_do_not_reach_the_terminal(ask) -> None:
    evil = Finding("traceback", 0.5, "implicit", (Evidence("\x1b]0;x\x07boom\r\n", "/a\x1b[2J", 1),))
    page = "\n".join(ask(FakeSlurm([a_job(name="\x1b[31mevil")]), FakeService({"7": answer(evil)})))
    assert "\x1b" not in page and "\r" not in page and "boom" in page


def test_a_name_that_is_no_utf8_is_told_all_the_same(ask, tmp_path: Path) -> None:
    log = a_log(tmp_path / "train\udcff.out")
    page = "\n".join(ask(FakeSlurm([a_job(name="train\udcff", stdout=log)])))
    assert "import_error" in page and "\udcff" not in page


# --- arrays of which some never started, and what is not there ---


def a_task(number: int, state: JobState = JobState.FAILED, **more: object) -> Job:
    return a_job(state, **({"id": 40 + number, "array_job_id": 40, "array_task_id": number} | more))


def never_started(tasks: str | None = "7-9%2", state: JobState = JobState.CANCELLED, **more: object) -> Job:
    """The rest of array 40; `tasks` None: as 26.05 keeps it where nothing waits any more."""
    known: dict[str, object] = {
        "id": 40, "array_job_id": 40, "array_tasks": tasks, "start": None, "exit": ExitStatus(0, 0),
        "reason": "JobArrayTaskLimit", "stdout": "/home/ada/slurm-40_4294967294.out",
    }  # fmt: skip
    return a_job(state, **(known | more))


def a_row(**more: object) -> AccountingRecord:
    known: dict[str, object] = {
        "id": 40, "name": "train", "user": "ada", "uid": os.geteuid(), "state": JobState.CANCELLED,
        "array_job_id": 40, "submitted": AGO, "end": NOW, "work_dir": "/home/ada",
        "stdout": "/home/ada/slurm-40_%a.out",
    }  # fmt: skip
    return AccountingRecord(**(known | more))  # type: ignore[arg-type]


REST = a_row(array_tasks="3-9:2%1")


@pytest.mark.parametrize(
    "rest",
    [
        never_started(),
        never_started(None),
        never_started(state=JobState.PENDING, end=None),
    ],
)
def test_of_an_array_the_task_that_failed_goes_before_the_rest(ask, rest: Job) -> None:
    ended = [a_task(5, JobState.CANCELLED), a_task(6), a_task(4, JobState.COMPLETED)]
    page = ask(FakeSlurm([rest, *ended]), FakeService({"40_6": answer(job=46)}), "40")
    assert page[0].startswith("job 46 "), "the service knows it by this number"
    assert any("import_error, surely" in line for line in page)
    forgotten = a_row(id=46, array_task_id=6, state=JobState.FAILED, start=AGO, exit=ExitStatus(1, 0))
    page = ask(FakeSlurm([rest, ended[0], ended[2]], [forgotten]), job="40")
    assert page[0].startswith('job 40_6 "train": FAILED')


def test_of_an_array_of_which_none_has_failed_the_rest_is_told(ask) -> None:
    waits = never_started(state=JobState.PENDING, end=None)
    page = ask(FakeSlurm([waits, a_task(1, JobState.COMPLETED)]), job="40")
    assert "PENDING, JobArrayTaskLimit" in page[0]


@pytest.mark.parametrize("rest", [never_started(), never_started(None)])
def test_what_never_started_has_no_log_to_miss(ask, rest: Job) -> None:
    page = ask(FakeSlurm([rest]), job="40")
    assert page[0].startswith('job 40 "train": CANCELLED before it started')
    assert not any("not seen" in line or ".out" in line for line in page)
    page = ask(FakeSlurm(rows=[REST]), job="40")
    assert "CANCELLED before it started" in page[0] and not any(".out" in line for line in page)


def test_the_array_as_such_is_none_of_its_tasks(ask) -> None:
    page = ask(FakeSlurm([never_started(None), a_task(1)], [REST]), job="40")
    assert "  tasks      5: 4 CANCELLED, 1 FAILED" in page


def test_a_task_that_never_started_is_found_in_the_row_of_them_all(ask) -> None:
    page = ask(FakeSlurm(rows=[REST]), job="40_7")
    assert page[0].startswith('job 40_7 "train": CANCELLED before it started')
    assert any("why        cancelled, surely" in line for line in page)


@pytest.mark.parametrize("rows", [[REST], [a_row(array_tasks="3-9", state=JobState.PENDING, end=None)]])
def test_a_task_without_any_record(ask, rows: list[AccountingRecord]) -> None:
    """`scancel 40_4` of a task that waits takes it out of the array; nothing tells of it afterwards."""
    with pytest.raises(
        UserError, match=r"know nothing of task 4 of array 40: .* cancelled before it started"
    ):
        ask(FakeSlurm(rows=rows), job="40_4")


@pytest.mark.parametrize("job", ["7+5", "7_5", "9+0"])
def test_another_jobs_part_is_not_taken_for_it(ask, job: str) -> None:
    parts = [a_job(id=7 + n, het_job_id=7, het_offset=n) for n in (0, 1)]
    with pytest.raises(UserError, match=re.escape(f"has no job {job}:")):
        ask(FakeSlurm([a_job(id=9)] if job == "9+0" else parts), job=job)


def test_accounting_is_asked_where_the_controller_is_silent(ask) -> None:
    silent = SlurmUnreachable("slurmctld", "it is away")
    page = ask(FakeSlurm(rows=[a_row(id=7, array_job_id=None, start=AGO)], error=silent))
    assert page[0].startswith('job 7 "train": CANCELLED after 5 min')
    assert any("not known  what Slurm knows of it: Slurm's controller" in line for line in page)
    with pytest.raises(UserError, match="does not answer: it is away"):
        ask(FakeSlurm(error=silent))


# --- at the next submission -----------------------------------------------------------------------------------------


def test_the_last_runs_of_a_name_are_recalled() -> None:
    runs = (summary(9), summary(8), summary(7, "COMPLETED"), summary(6))
    similar = Similar(1, 30, "8", AGO.timestamp(), 0)
    told = recall.of_runs(runs, answer(similar=similar, job=9), NOW.timestamp() + 60)
    assert told[0] == (
        "note: the last 2 runs of this name failed (import_error, 1 min ago, as 1 more before): "
        "ModuleNotFoundError: No module named 'einops'"
    )
    assert "gsub why 9" in told[1]


@pytest.mark.parametrize(
    "finding", [None, Finding("no_signature", 0.5), Finding("nccl_error", 0.4, "cascade")]
)
def test_what_may_pass_by_itself_is_not_recalled_after_one_run(finding: Finding | None) -> None:
    assert recall.of_runs((summary(9),), answer(finding, job=9), NOW.timestamp()) == []


def test_another_name_or_a_success_since_keeps_it_silent() -> None:
    service = FakeService({"9": answer(job=9)}, runs=(summary(9, name="other"),))
    assert recall._asked("train", service, NOW.timestamp()) == []  # type: ignore[arg-type]
    service.runs = (summary(9), summary(10, "COMPLETED", ended=NOW.timestamp() + 5))
    assert recall._asked("train", service, NOW.timestamp()) == []  # type: ignore[arg-type]
    service.runs = (summary(9),)
    assert recall._asked("train", service, NOW.timestamp())  # type: ignore[arg-type]


def test_it_is_switched_off_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def look(*_: object) -> list[str]:
        called.append(1)
        return ["x"]

    monkeypatch.setattr(recall, "_look", look)
    assert recall.recall("train", {"GSUB_HINTS": "off"}) == [] and not called
    assert recall.recall("train", {}) == ["x"]

    def fails(*_: object) -> list[str]:
        raise NoSuchJob("7")

    monkeypatch.setattr(recall, "_look", fails)
    assert recall.recall("train", {}) == []


def test_it_is_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--help"]) == 0
    assert "--log" in capfd.readouterr().out


# What followed


def followed(restarts: int = 0, state: str = "done", **more: object) -> Resubmission:
    """With more memory, the first time."""
    known: dict[str, object] = {
        "reason": "cpu_oom", "action": "more_memory", "at": NOW.timestamp(), "nth": 1, "budget": 3,
        "why": "The host's memory was not enough: it is tried again with 48G instead of 32G for each node (1 of 3).",
    }  # fmt: skip
    return Resubmission("lab", 7, restarts, state=state, **(known | more))  # type: ignore[arg-type]


NEVER: dict[str, object] = {
    "state": "stopped", "stop": "never", "command": "gsub fix 7",
    "why": "A Python module cannot be imported: another attempt would end the same way.",
}  # fmt: skip


def test_what_followed_each_attempt_is_told_in_their_order(ask) -> None:
    rows = (followed(), followed(1, **NEVER))  # type: ignore[arg-type]
    page = ask(FakeSlurm([a_job(restarts=1)]), FakeService({"7": answer(restarts=1)}, followed=rows))
    again = [line for line in page if line.startswith("  again")]
    assert again == [f"  again      attempt {number}: {row.why}" for number, row in enumerate(rows, 1)]
    assert page[page.index(again[1]) + 1] == "  type       gsub fix 7"
    assert "1 of 3" in again[0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"state": "planned"}, "(this is still to be done)"),
        ({"state": "planned", "said": "Slurm is away"}, "(this is still to be done; so far: Slurm is away)"),
        ({"state": "requeued"}, "(it is queued again, its change is still to be made)"),
        ({"state": "done", "command": "gsub resubmit 7"}, "(1 of 3)."),
    ],
)
def test_how_far_it_has_come(ask, more: dict[str, Any], says: str) -> None:
    page = ask(FakeSlurm([a_job()]), FakeService({"7": answer()}, followed=(followed(**more),)))
    (again,) = [line for line in page if line.startswith("  again")]
    assert again.endswith(says) and not any(line.startswith("  type") for line in page)


def test_a_job_that_runs_again_tells_of_its_attempts_before(ask) -> None:
    running = a_job(JobState.RUNNING, restarts=1, end=None, exit=ExitStatus(0, 0))
    service = FakeService({"7": answer()}, followed=(followed(),))
    assert any(
        line.startswith("  again      attempt 1: The host's") for line in ask(FakeSlurm([running]), service)
    )


def test_attempts_of_another_job_with_this_number_are_not_told(ask) -> None:
    fresh = a_job(JobState.RUNNING, end=None, exit=ExitStatus(0, 0))
    service = FakeService({"7": answer(state="RUNNING", ended=None)}, followed=(followed(), followed(3)))
    assert "again" not in "\n".join(ask(FakeSlurm([fresh]), service))


def test_what_followed_steers_no_terminal_and_is_there_for_programs(ask) -> None:
    wild = followed(0, "stopped", why="a\x1b[31m\nb", stop="slurm", command="gsub why 7\n\x07")
    service = FakeService({"7": answer()}, followed=(wild,))
    page = "\n".join(ask(FakeSlurm([a_job()]), service))
    assert "\x1b" not in page and "\x07" not in page and "attempt 1: a b" in page
    known = known_of("7", FakeSlurm([a_job()]), NOW)  # type: ignore[arg-type]
    assert [one["why"] for one in facts(known)["resubmissions"]] == ["a\x1b[31m\nb"]


@pytest.mark.case("F7")
@pytest.mark.parametrize(
    ("state", "text", "shown"),
    [
        (JobState.SUSPENDED, "SUSPENDED", "SUSPENDED"),
        (JobState.UNKNOWN, "COMPLETING", "COMPLETING"),
        (JobState.PENDING, "PENDING", "PENDING"),
        (JobState.RUNNING, "RUNNING", "RUNNING"),
    ],
)
def test_a_job_is_called_what_it_is_now(state: JobState, text: str, shown: str) -> None:
    """The service has looked before: then it ran."""
    live = Job(id=7, name="train", user="ada", state=state, state_text=text)
    answer = VerdictAnswer(JobSummary("lab", 7, state="RUNNING", name="train"))
    assert why_job._summary(live, None, answer).state == shown


@pytest.mark.case("F7")
def test_a_first_attempt_that_waits_has_its_decision(ask) -> None:
    live = Job(id=7, name="train", user="ada", uid=os.geteuid(), state=JobState.PENDING, reason="Priority")
    change = {"field": "min_nodes", "after": 2, "reason": "the fewest", "stage": "gang"}
    decided = {"mode": "enforce", "enforced": True, "changes": [change]}
    service = FakeService(undecided=JobSummary("lab", 7), decided=decided)
    assert any("gsub set --nodes=2" in line for line in ask(FakeSlurm(live=[live]), service, job="7"))


WAITS: dict[str, Any] = {
    "state": JobState.PENDING,
    "reason": "Priority",
    "priority": 100,
    "start": None,
    "gpus": 4,
}
QUEUE = tuple(a_job(**WAITS, id=number, submitted=AGO) for number in (6, 7, 8))


@pytest.mark.case("S5")
def test_where_the_service_knows_the_queue_slurm_is_not_asked_for_it(ask) -> None:
    slurm = FakeSlurm(live=[a_job(**WAITS)], queue=QUEUE)
    free = FreeGpus(5, 24, 3, 1)
    known = {7: QueuePosition(70_000, 3, NOW.timestamp() - 9, free)}
    page = "\n".join(ask(slurm, FakeService(positions=known)))
    assert slurm.asked == []
    assert "70000 waiting jobs of its partition have a higher priority (seen 9 s ago)" in page
    assert "free now: 5 of 24 GPUs, at most 3 on one node; 1 node cannot be used" in page


@pytest.mark.case("S5")
@pytest.mark.parametrize("service", [None, FakeService()], ids=["no service", "it does not know it yet"])
def test_else_slurm_is_asked_for_one_partition(ask, service: FakeService | None) -> None:
    slurm = FakeSlurm(live=[a_job(**WAITS)], queue=QUEUE)
    page = "\n".join(ask(slurm, service))
    assert slurm.asked == ["gpu", "nodes"]
    assert "1 waiting job of its partition has the same priority and came before it" in page
    slurm = FakeSlurm(live=[a_job(**WAITS | {"gpus": 0})], queue=QUEUE)
    ask(slurm, service)
    assert slurm.asked == ["gpu"], "the nodes have no news of a job without GPUs"


@pytest.mark.case("S5")
def test_the_queue_is_not_asked_for_where_it_is_not_what_a_job_waits_for(ask) -> None:
    for more in ({"reason": "Dependency"}, {"priority": 0}, {"state": JobState.RUNNING}):
        slurm = FakeSlurm(live=[a_job(**WAITS | more)], queue=QUEUE)
        ask(slurm)
        assert slurm.asked == [], more
