"""What pending jobs were seen to wait for: from looks at Slurm into the store, over a keeper's restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from profiler.report.frames import jobs
from profiler.store import Store
from profiler.store.facts import JobFacts
from profiler.waits import CAUSES, Wait
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.parse import tres
from slurm_plugins.client.states import JobState, NodeState
from slurm_plugins.client.values import Job, Node
from slurm_plugins.service.keeper.ask import Pending, Question, Seen, ask
from slurm_plugins.service.keeper.waits import Waits
from tests.unit.profiler.store.records import CLUSTER, T0, started
from tests.unit.slurm_plugins.keeper.door import ADA, Door
from tests.unit.slurm_plugins.keeper.fakes import FakeSlurm
from tests.unit.slurm_plugins.keeper.test_enrich import Both, a_job, enrichment

LOOKS = 30.0


def facts(number: int = 1, **more: Any) -> JobFacts:
    """A job that could start 100 s before it did."""
    known: dict[str, Any] = {"submitted": T0 - 160, "eligible": T0 - 100, "started": T0}
    known |= {"restarts": 0, "state": "RUNNING"}
    known |= more
    return JobFacts(cluster=CLUSTER, job_id=number, **known)


def waited(store: Store, number: int = 1) -> dict[str, float]:
    """What the frame tells of it, without what is 0; nothing of a wait that nobody saw."""
    frame = jobs(store, cluster=CLUSTER, since=T0 - 1e6, until=T0 + 1e6).set_index("job")
    row = frame.loc[number]
    found = {cause: row[f"wait_{cause}_s"] for cause in CAUSES}
    return {cause: seconds for cause, seconds in found.items() if seconds > 0}


def seen(waits: Waits, *looks: tuple[float, Sequence[Pending]]) -> Waits:
    for at, pending in looks:
        waits.seen(pending, at)
    return waits


def told(answer: Seen, question: Question) -> Seen:
    return answer


def test_it_is_written_with_the_start_and_stays(door: Door) -> None:
    """Looks 70, 40 and 10 s before a start: 60 s are known, and the rest of the 100 is nobody's."""
    asyncio.run(door.bring(started(1, uid=ADA)))
    slurm = FakeSlurm()
    asking = enrichment(door, slurm)
    look = [
        *(Seen(at=T0 - before, pending=(Pending(1, 0, "priority"),)) for before in (70, 40, 10)),
        Seen(at=T0 + 20, pending=(), facts=(facts(),)),
        # Slurm's last word, an hour later: nothing is known any more of how it waited
        Seen(at=T0 + 4000, pending=(), facts=(facts(state="COMPLETED", ended=T0 + 3900, final=True),)),
    ]
    for one in look:
        slurm.answer = partial(told, one)
        asyncio.run(asking.once())
    assert waited(door.storing.store) == {"priority": 60.0}
    row = jobs(door.storing.store, cluster=CLUSTER, since=T0 - 1e6, until=T0 + 1e6).iloc[0]
    assert (row.wait_s, row.held_s) == (100, 60)


def test_a_wait_that_no_two_looks_saw_is_known_to_be_unknown(door: Door) -> None:
    """Tasks of an array that start between two looks: by design nothing is concluded, however short the wait."""
    store = door.storing.store
    asyncio.run(door.bring(started(1, uid=ADA), started(2, uid=ADA), started(3, uid=ADA)))
    waits = seen(Waits(gap=LOOKS), (T0 - 2, [Pending(2, 0, "resources", 2)]))
    store.enrich([facts(number, eligible=T0 - 4) for number in (1, 2)], T0, waits.known)
    # The third task of the array that job 2 leads: as part of it until one look before its start
    later = seen(waits, (T0 + 28, [Pending(2, 0, "resources", 2)]))
    store.enrich(
        [facts(3, eligible=T0 - 4, started=T0 + 40, array_job_id=2, array_task_id=7)], T0, later.known
    )
    frame = jobs(store, cluster=CLUSTER, since=T0 - 1e6, until=T0 + 1e6).set_index("job")
    assert frame.wait_priority_s.isna().to_dict() == {1: True, 2: False, 3: False}, (
        "nobody ever saw job 1 wait"
    )
    assert waited(store, 2) == {} and waited(store, 3) == {"resources": 30.0}


def test_what_was_seen_survives_a_restart_but_for_the_time_between(tmp_path: Path) -> None:
    file = tmp_path / "waits.json"
    jobs_ = [Pending(1, 0, "priority"), Pending(2, 1, "limits")]
    seen(Waits(file, gap=LOOKS), (1000, jobs_), (1030, jobs_), (1061, jobs_))
    again = seen(Waits(file, gap=LOOKS), (1300, jobs_), (1330, [jobs_[0]]))
    assert again.known[1, 0].spans == (("priority", 1000, 1030), ("priority", 1300, 1330))
    assert again.known[2, 1] == Wait(1300, "limits", (("limits", 1000, 1030),)), (
        "it has left, and is remembered"
    )
    seen(again, (1360, []), (1330 + 3601, []))
    assert again.known == {}


@pytest.mark.parametrize("spoilt", [b"", b"{", b'{"waiting": 7}', b'{"v": 2, "waiting": []}', b"\xff\x00"])
def test_a_spoilt_file_is_begun_anew(tmp_path: Path, spoilt: bytes) -> None:
    file = tmp_path / "waits.json"
    file.write_bytes(spoilt)
    waits = seen(Waits(file, gap=LOOKS), (1000, [Pending(1, 0, "priority")]))
    assert waits.known == {(1, 0): Wait(1000, "priority")}
    assert Waits(file, gap=LOOKS).known == waits.known


def test_a_disk_that_is_full_stops_nothing(tmp_path: Path) -> None:
    waits = seen(Waits(tmp_path / "no/such/folder/waits.json", gap=LOOKS), (1000, [Pending(1, 0, "user")]))
    assert waits.known == {(1, 0): Wait(1000, "user")}


def node(free: int) -> Node:
    return Node(
        name=f"n{free}", state=NodeState.MIXED, gres=tres("gres/gpu=8"), tres=tres("cpu=64,gres/gpu=8"),
        tres_allocated=tres(f"gres/gpu={8 - free}"), partitions=("gpu",),
    )  # fmt: skip


def pending(number: int, reason: str, **more: Any) -> Job:
    return a_job(number, JobState.PENDING, reason=reason, partition="gpu", gpus=4, **more)


class Nodes(Both):
    """With nodes, and a count of how often they were asked for."""

    count = 0

    def nodes(self, *_: Any, **__: Any) -> tuple[Node, ...]:
        self.count += 1
        if "nodes" in self.down:
            raise SlurmUnreachable("nodes", "it is down")
        return (node(2), node(3))


def test_a_look_tells_what_jobs_wait_for() -> None:
    array = {"array_job_id": 4, "array_tasks": "1-9"}
    client = Nodes(
        [
            pending(3, "Resources"),
            pending(4, "Priority", **array),
            pending(5, "Resources", restarts=2, num_nodes=1),
        ]
    )
    told = ask(client, CLUSTER, (), T0).pending
    assert told == (Pending(3, 0, "locality"), Pending(4, 0, "priority", 4), Pending(5, 2, "locality"))
    assert client.count == 1, "once for all of them"
    client = Nodes([pending(4, "Priority"), a_job(6)])
    assert ask(client, CLUSTER, (), T0).pending == (Pending(4, 0, "priority"),) and client.count == 0


def test_a_look_that_saw_half_concludes_nothing() -> None:
    client = Nodes([pending(3, "Resources")])
    client.down = {"nodes"}
    assert ask(client, CLUSTER, (), T0).pending is None
    assert ask(Nodes(), CLUSTER, (), T0).pending is None, "an empty answer is not a fact"
    client = Nodes([pending(3, "Resources")])
    client.down = {"slurmctld"}
    assert ask(client, CLUSTER, (), T0).pending is None


def test_the_report_tells_it(door: Door) -> None:
    store = door.storing.store
    asyncio.run(door.bring(started(1, uid=ADA)))
    waits = seen(Waits(gap=60.0), *((T0 - before, [Pending(1, 0, "locality")]) for before in (90, 50, 10)))
    store.enrich([facts(uid=ADA)], T0, waits.known)
    asked = asyncio.run(door.ask(ADA, "GET", f"/v1/report?since={T0 - 60}&until={T0 + 60}"))
    assert b'"cause":"locality","attempts":1,"waited":1,"wait_seconds":80.0' in asked.body, asked.body
