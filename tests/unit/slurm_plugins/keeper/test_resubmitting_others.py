"""What others can do to a job's further attempts, and what a site's switch does to those that are planned already."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from site_configs.site import parse_site
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.again_look import is_stranger
from slurm_plugins.service.keeper.ask import ask
from slurm_plugins.service.keeper.deciding import decided
from tests.unit.profiler.store.records import CLUSTER
from tests.unit.slurm_plugins.act.fakes import job as any_job
from tests.unit.slurm_plugins.keeper.again import END, SITE, Again, a_failed_job


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Again]:
    one = Again(tmp_path, a_failed_job())
    yield one
    one.close()


@pytest.mark.parametrize(
    ("owner", "stop"),
    [
        ((2000, "elsewhere"), ""),
        ((2000, "lab"), "dependants"),  # a colleague's pipeline
        ((1000, "elsewhere"), "dependants"),  # its user's own, paid by another account
    ],
)
def test_a_stranger_cannot_keep_a_job_from_being_tried_again(
    again: Again, owner: tuple[int, str], stop: str
) -> None:
    """Anybody may submit `sbatch --dependency=afterany:8` with somebody else's number."""
    again.seen.waiting = {"8": ("9",)}
    again.seen.owners = {"9": owner}
    again.fail(8, "core_dump", uid=1000, account="lab")
    again.settle()
    assert again.row().stop == stop


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [
        ((1000, "lab"), (2000, "bio"), True),
        ((1000, "lab"), (2000, "LAB"), False),
        ((1000, ""), (2000, None), False),  # without accounting nobody knows who works with whom
        ((None, "lab"), (2000, "bio"), False),
        ((1000, "lab"), (2000, "(null)"), True),
    ],
)
def test_who_is_a_stranger(one: tuple[int | None, str], other: tuple[int, str | None], is_one: bool) -> None:
    assert is_stranger(one, other) is is_one


class _Client:
    def __init__(self, *jobs: Job) -> None:
        self._jobs = jobs

    def jobs(self, **_: object) -> tuple[Job, ...]:
        return self._jobs


def test_what_waited_before_the_end_is_remembered_without_strangers() -> None:
    def waits(number: int, uid: int, account: str, on: str) -> Job:
        waiting = any_job(number, JobState.PENDING, uid=uid, account=account)
        return replace(waiting, dependency=f"afterany:{on}(unfulfilled)")

    task = any_job("12_3", JobState.RUNNING, uid=1000, account="lab")
    client = _Client(
        any_job(8, JobState.RUNNING, uid=1000, account="lab"),
        replace(task, id=15, array_job_id=12, array_task_id=3),
        waits(20, 2000, "bio", "8"),
        waits(21, 1000, "lab", "8"),
        waits(22, 2000, "bio", "12_*"),
        waits(23, 2000, "bio", "99"),  # of whom nothing is known
    )
    assert ask(client, CLUSTER, (), END).waiting == {"8": (21,), "99": (23,)}  # type: ignore[arg-type]


def test_what_was_planned_is_not_begun_once_the_site_has_switched_it_off(again: Again) -> None:
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    assert again.row().state == "planned"
    again.site = parse_site(SITE + "[resubmit]\nenabled = false\n")
    again.start()
    again.settle()
    row = again.row()
    assert (row.state, row.stop, again.hand.asked) == ("stopped", "off", [])
    assert "switched resubmission off" in row.why


def test_what_was_begun_is_ended_all_the_same(again: Again) -> None:
    again.fail(8, "core_dump")
    again.until(lambda: again.row_or_none() is not None and again.row().state == "requeued")
    again.site = parse_site(SITE + "[resubmit]\nenabled = false\n")
    again.start()
    again.settle()
    assert again.row().state == "done"
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]


def test_an_old_end_that_only_slurm_knows_is_old(again: Again) -> None:
    """A site may keep records for a day (MinJobAge), and the store may not have the end."""
    again.change("8", end=datetime.fromtimestamp(END - 7200, timezone.utc))
    again.fail(8, "core_dump")
    (case,) = again.store.undecided(CLUSTER, 1, 4e9)
    row = decided(
        replace(case, job=msgspec.structs.replace(case.job, ended=None)),
        again.seen.look([8], ()),
        (),
        site=again.site,
        opted_out=False,
        off=False,
        now=again.time,
        chance=lambda: 0.5,
    )
    assert (row.state, row.stop, row.command) == ("stopped", "gone", "gsub resubmit 8")
    assert "too long ago" in row.why
