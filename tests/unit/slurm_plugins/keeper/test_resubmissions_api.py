"""What is answered of what followed a job's failures: to whom, and of which attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from profiler.answers import Resubmissions
from profiler.resubmissions import Resubmission
from tests.unit.profiler.store.records import T0, ended, started
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, CLUSTER, OPERATOR, Door

TARGET = "/v1/jobs/1/resubmissions"


def row(restarts: int, **more: Any) -> Resubmission:
    values: dict[str, Any] = {"reason": "cpu_oom", "action": "more_memory", "state": "done", "at": T0} | more
    return Resubmission(CLUSTER, 1, restarts, why=f"attempt {restarts}", **values)


def filled(door: Door, *owners: int) -> Door:
    """Job 1 has one attempt of each of these, the last one goes on."""
    for restarts, uid in enumerate(owners):
        asyncio.run(door.bring(started(1, uid=uid, restarts=restarts), ended(1, restarts=restarts)))
    door.storing.store.put_resubmissions([row(restarts) for restarts in range(len(owners) - 1)], T0)
    return door


def test_each_attempts_row_the_oldest_first(both: Door) -> None:
    filled(both, ADA, ADA, ADA)
    changed = row(
        1, memory_mib=49152, memory_was_mib=32768, memory_per="node", nth=2, budget=3, avoid=("n1",)
    )
    both.storing.store.put_resubmissions([changed], T0)
    got = asyncio.run(both.ask(ADA, "GET", TARGET))
    assert got.status == 200
    assert msgspec.json.decode(got.body, type=Resubmissions).resubmissions == (row(0), changed)
    assert got.body == asyncio.run(both.ask(OPERATOR, "GET", TARGET)).body


def test_of_a_number_that_came_again_each_user_sees_the_own_ones(door: Door) -> None:
    filled(door, BOB, ADA, ADA)
    assert [one["why"] for one in asyncio.run(door.ask(ADA, "GET", TARGET)).json["resubmissions"]] == [
        "attempt 1"
    ]
    assert asyncio.run(door.ask(BOB, "GET", TARGET)).status == 404, "the last attempt is not bob's"
    assert len(asyncio.run(door.ask(OPERATOR, "GET", TARGET)).json["resubmissions"]) == 2


def test_a_job_that_never_failed_has_none(door: Door) -> None:
    asyncio.run(door.bring(started(1, uid=ADA)))
    assert asyncio.run(door.ask(ADA, "GET", TARGET)).json == {"resubmissions": []}


def test_it_takes_no_parameters(door: Door) -> None:
    filled(door, ADA)
    got = asyncio.run(door.ask(ADA, "GET", f"{TARGET}?restarts=1"))
    assert got.status == 400 and "no parameters" in got.why
