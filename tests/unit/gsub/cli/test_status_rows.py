"""The cells of `gsub status`, without a cluster."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pytest
from rich.console import Console

from gsub.commands.status import COLUMNS, _table, facts, my_jobs, row
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.values import Job, JobState
from tests.unit.slurm_plugins.client import slurm_rows

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"reason": "Priority"}, "(Priority)"),
        ({"reason": "BeginTime", "restarts": 1}, "(BeginTime, attempt 2)"),
        ({"restarts": 1}, ""),
        ({"state": JobState.RUNNING, "restarts": 2, "nodes": Hosts("n[1-2]")}, "n[1-2]"),
    ],
)
def test_a_job_that_was_queued_again_says_so(more: dict[str, object], where: str) -> None:
    known: dict[str, object] = {
        "id": 7,
        "name": "train",
        "user": "ada",
        "uid": 1000,
        "state": JobState.PENDING,
    }
    job = Job(**(known | {"partition": "gpu"} | more))  # type: ignore[arg-type]
    assert dict(zip(COLUMNS, row(job, NOW), strict=True))["WHERE"] == where


@pytest.mark.parametrize("width", [200, 120, 80, 60, 50, 40])
def test_a_narrow_terminal_keeps_what_counts(width: int) -> None:
    """Which job, what it is called, and why it waits are there at each width; an array's id is whole."""
    jobs = [
        Job(
            id=246,
            name="train_llama_7b_lr3e-4_seed1",
            user="ada",
            state=JobState.PENDING,
            partition="gpu",
            array_job_id=246,
            array_tasks="51-100%4",
            reason="JobArrayTaskLimit",
            num_nodes=1,
            time_limit=36_000,
        ),
        Job(id=7, name="hello", user="ada", state=JobState.PENDING, partition="gpu", reason="JobHeldUser"),
    ]
    screen = Console(width=width, file=io.StringIO(), highlight=False)
    with screen.capture() as told:
        screen.print(_table(jobs, width))
    lines = told.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "246_[51-100%4] train_l" in told.get() and "PENDING" in lines[2] and "(JobArr" in lines[2]
    assert lines[3].split()[:2] == ["7", "hello"] and "(JobHel" in lines[3]


@pytest.mark.case("S6")
@pytest.mark.parametrize("release", ["22.05.8", "24.11.5", "26.05.5"])
def test_slurm_is_asked_for_ones_own_jobs_and_what_is_shown_of_them(release: str) -> None:
    """Once, and with less than all fields; what is shown is the same as of all."""
    more = {
        "account": "lab", "qos": "normal", "nodes": "n[1-2]", "batch_host": "n1", "start": "1795236140",
        "end": "1795239740", "stdout": "/home/ada/%x-%N-%j", "tres": "cpu=4", "restarts": "2", "num_cpus": "4",
    }  # fmt: skip
    rows = [
        slurm_rows.job(7, **more),
        slurm_rows.job(8, **more | {"tres_per_task": "gres/gpu:2", "num_tasks": "3"}),
        slurm_rows.job(9, **more | {"tres_per_node": "gres/gpu:4", "num_nodes": "2"}),
        slurm_rows.job(10, **more | {"array_job_id": "10", "array_task": "3-5%2", "state": "PENDING"}),
        slurm_rows.job(11, **more | {"het_job_id": "10", "het_offset": "1", "state": "COMPLETED"}),
        slurm_rows.job(12, **more | {"batch": "0", "tres_per_job": "gres/gpu:5"}),
    ]
    slurm = slurm_rows.Answers(release, jobs=rows)
    client = CommandClient({}, run=slurm)
    shown = my_jobs(client, "ada", ended=True)
    asked = [words for words in slurm.asked if "--version" not in words]
    assert len(asked) == 1 and "--user=ada" in asked[0]
    assert "GroupName" not in asked[0][-1], "it costs a look-up of each job's group"
    every = client.jobs(user="ada")
    assert len(every) == len(rows)
    assert [(row(one, NOW), facts(one)) for one in shown] == [(row(one, NOW), facts(one)) for one in every]
