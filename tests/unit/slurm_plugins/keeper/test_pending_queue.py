"""What comes before a pending job: from a look at Slurm to the answer, and to whom."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from profiler.answers import FreeGpus, QueuePosition
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.ask import ask
from slurm_plugins.service.keeper.pending_queue import PendingQueue, QueueEntry
from tests.unit.profiler.store.records import T0
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, CLUSTER, OPERATOR, Door
from tests.unit.slurm_plugins.keeper.test_waits import Nodes, pending

pytestmark = pytest.mark.case("S5")


def entry(job_id: int, priority: int = 100, partition: str = "gpu", submitted: float = 0.0) -> QueueEntry:
    return QueueEntry(job_id, partition, priority, submitted, ADA)


@pytest.mark.parametrize(
    ("other", "ahead"),
    [
        (entry(8, 200), (1, 0)),
        (entry(8, 99), (0, 0)),
        (entry(8), (0, 0)),
        (entry(6), (0, 1)),
        (entry(8, submitted=-5.0), (0, 1)),
        (entry(6, submitted=5.0), (0, 0)),
        (entry(6, 200, "cpu"), (0, 0)),
        (entry(6, 200, "cpu,gpu"), (1, 0)),
        (entry(6, 0), (0, 0)),
    ],
)
def test_who_comes_before_it(other: QueueEntry, ahead: tuple[int, int]) -> None:
    """Of the same partition, by priority, then by submission, then by id; what is held does not count."""
    found = PendingQueue([entry(7), other], (), T0).position(7, ADA)
    assert found == QueuePosition(*ahead, T0)


def test_a_look_tells_the_queue() -> None:
    jobs: list[Job] = [
        pending(3, "Resources", priority=50, uid=ADA),
        pending(4, "Priority", priority=90, uid=BOB),
        replace(pending(5, "Priority", priority=40), gpus=None),
        pending(6, "JobHeldUser", priority=0),
        replace(pending(7, "None"), state=JobState.RUNNING),
    ]
    seen = ask(Nodes(jobs), CLUSTER, (), T0)
    assert seen.entries is not None and [one.job_id for one in seen.entries] == [3, 4, 5, 6]
    queue = PendingQueue(seen.entries, seen.rooms, T0)
    free = FreeGpus(5, 16, 3)
    assert queue.position(3, ADA) == QueuePosition(1, 0, T0, free)
    assert queue.position(4, BOB) == QueuePosition(0, 0, T0, free), "as the other one that asks for the same"
    assert queue.position(5, None) == QueuePosition(2, 0, T0), "it asks for none"
    assert msgspec.json.decode(msgspec.json.encode(seen), type=type(seen)) == seen


def test_without_the_nodes_the_queue_is_known_all_the_same() -> None:
    client = Nodes([pending(3, "Resources", priority=50, uid=ADA)])
    client.down = {"nodes"}
    seen = ask(client, CLUSTER, (), T0)
    assert seen.entries is not None and seen.rooms == ()
    assert ask(Nodes(), CLUSTER, (), T0).entries is None, "an empty answer is not a fact"


def position(door: Door, uid: int, job: int = 7) -> Any:
    return asyncio.run(door.ask(uid, "GET", f"/v1/jobs/{job}/position"))


def test_it_is_told_to_its_user_and_to_operators(door: Door) -> None:
    assert position(door, ADA).status == 404, "before the first look"
    door.pending = PendingQueue([entry(7), entry(6)], (), T0)
    assert position(door, ADA).json == {"earlier": 1, "at": T0} == position(door, OPERATOR).json
    assert position(door, BOB).status == 404 == position(door, ADA, 9).status


def test_seventy_thousand_take_no_time() -> None:
    queue = PendingQueue([entry(number) for number in range(70_000)], (), T0)
    began = time.process_time()
    assert queue.position(69_999, ADA) == QueuePosition(0, 69_999, T0)
    assert time.process_time() - began < 0.5
