"""The cells of `gsub status`, without a cluster."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pytest
from rich.console import Console

from gsub.commands.status import COLUMNS, _table, row
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.values import Job, JobState

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
