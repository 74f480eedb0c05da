"""`gsub watch JOB`: that it follows what was asked for; on a real Slurm it is in test_commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gsub.commands import watch
from gsub.errors import FAILED, UserError
from slurm_plugins.client.values import AccountingRecord, Job, JobState


@dataclass
class Slurm:
    """Answers each look with the next picture; sacct finds what never started by the array's number alone."""

    pictures: list[Sequence[Job]] = field(default_factory=list)
    rows: Sequence[AccountingRecord] = ()

    def jobs(self, *, ids: Sequence[str]) -> Sequence[Job]:
        return self.pictures.pop(0) if self.pictures else ()

    def accounting(self, *, ids: Sequence[str], duplicates: bool) -> Sequence[AccountingRecord]:
        return self.rows if ids[0].isdecimal() else [one for one in self.rows if one.shown_id == ids[0]]


def a_job(state: JobState, **more: object) -> Job:
    return Job(**({"id": 40, "name": "train", "user": "ada", "state": state} | more))  # type: ignore[arg-type]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch):
    def followed(slurm: Slurm, job: str) -> int:
        monkeypatch.setattr(watch, "connect", lambda: slurm)
        monkeypatch.setattr(watch, "POLL", 0.0)
        return watch.follow(job)

    return followed


REST = AccountingRecord(
    id=40, name="train", user="ada", state=JobState.CANCELLED, array_job_id=40, array_tasks="3-9%1"
)


def test_a_task_that_never_started_is_told_alone(follow, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(Slurm(rows=[REST]), "40_7") == FAILED
    assert capsys.readouterr().out == "job 40_7 CANCELLED\n"
    with pytest.raises(UserError, match="know nothing of task 2 of array 40"):
        follow(Slurm(rows=[REST]), "40_2")


def test_a_component_that_is_not_there_is_not_another_one(follow) -> None:
    parts = [a_job(JobState.COMPLETED, id=40 + n, het_job_id=40, het_offset=n) for n in (0, 1)]
    with pytest.raises(UserError, match="has no job 40\\+5"):
        follow(Slurm([parts]), "40+5")
    assert follow(Slurm([parts]), "40+1") == 0


def test_the_tasks_of_an_array_are_told_while_others_wait(follow, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest that waits has the array's number: it is not all of the array."""
    ended = a_job(JobState.FAILED, id=41, array_job_id=40, array_task_id=1)
    waits = a_job(JobState.PENDING, array_job_id=40, array_tasks="2-9%1")
    gone = a_job(JobState.CANCELLED, array_job_id=40, array_tasks="2-9%1")
    assert follow(Slurm([[waits, ended], [gone]]), "40") == FAILED
    out = capsys.readouterr().out
    assert out.index("job 40_1 FAILED") < out.index("job 40 CANCELLED")
