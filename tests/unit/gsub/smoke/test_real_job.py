"""What is held, and what is never: jobs that have started meanwhile, jobs of others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from gsub.smoke.real_job import Slurm
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.values import Job, JobState


def job(state: JobState, *, priority: int = 9, user: str = "ada") -> Job:
    return Job(id=7, name="t", user=user, state=state, priority=priority)


@dataclass
class Answers:
    """squeue: one answer a look, the last for all further ones."""

    ahead: list[Sequence[Job]] = field(default_factory=list)

    def jobs(self, *, ids: object = None, user: object = None) -> Sequence[Job]:
        return self.ahead.pop(0) if len(self.ahead) > 1 else self.ahead[0]


WAITS, HELD = job(JobState.PENDING), job(JobState.PENDING, priority=0)
RUNS = job(JobState.RUNNING, priority=0)


@pytest.mark.parametrize(
    ("answers", "held", "said"),
    [
        ([[WAITS], [HELD]], True, ["uhold 7"]),
        ([[WAITS], [WAITS], [HELD]], True, ["uhold 7", "uhold 7"]),
        ([[WAITS], [RUNS]], False, ["uhold 7", "release 7"]),
        ([[WAITS], [RUNS, HELD]], False, ["uhold 7", "release 7"]),
        ([[RUNS]], False, []),
        ([[]], False, []),
        ([[WAITS], []], False, ["uhold 7"]),
        ([[WAITS]], False, ["uhold 7"] * 3),
        ([[job(JobState.PENDING, user="eve")]], False, []),
    ],
)
def test_only_the_users_own_and_only_while_it_waits(
    tmp_path: Path, answers: list[Sequence[Job]], held: bool, said: list[str]
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n')
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}
    slurm = Slurm(cast("SlurmClient", Answers(answers)), environ)
    assert slurm.hold(7, "ada") is held
    told = tmp_path / "said"
    assert (told.read_text().splitlines() if told.exists() else []) == said
