"""The cells of `gsub status`, without a cluster."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from gsub.commands.status import COLUMNS, row
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
