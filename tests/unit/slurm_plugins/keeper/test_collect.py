"""Records in: what is good is kept, what is not is refused with a reason, and nothing is acknowledged too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from profiler.records import JobRef, JobStarted, Record
from profiler.store.errors import StoreError
from slurm_plugins.service.keeper import routes
from slurm_plugins.service.keeper.collect import Running
from tests.unit.profiler.store.records import ended, series, started, usage
from tests.unit.slurm_plugins.keeper.door import ADA, CLUSTER, OPERATOR, PATIENCE, Door, batch
from tests.waiting import wait_until


def raw(record: Record, **more: Any) -> dict[str, Any]:
    value = msgspec.json.decode(msgspec.json.encode(record))
    assert isinstance(value, dict)
    return value | more


def test_a_batch_is_in_the_store_when_it_is_acknowledged(both: Door):
    records = (started(1, uid=ADA), usage(1, serial=2, final=True), series(1), ended(1, exit_code=3))
    got = asyncio.run(both.bring(*records))
    assert got.status == 200
    assert got.json == {"accepted": [one.id for one in records]}
    found = asyncio.run(both.ask(ADA, "GET", "/v1/jobs/1/usage")).json
    assert found["job"]["exit_code"] == 3 and found["nodes"][0]["final"] is True


def test_what_is_delivered_twice_is_there_once(both: Door):
    records = (started(1, uid=ADA), usage(1), ended(1))
    first, again = (asyncio.run(both.bring(*records, *records)) for _ in range(2))
    assert first.json == again.json and len(first.json["accepted"]) == 6
    assert len(asyncio.run(both.ask(OPERATOR, "GET", "/v1/jobs")).json["jobs"]) == 1


BAD: dict[str, Any] = {
    "no_object": 7,
    "no_kind": {"id": "0" * 32},
    "unknown_kind": raw(started(1), kind="job_paused"),
    "no_id": raw(started(1), id="../../etc"),
    "newer": raw(started(1), v=2),
    "wrong_type": raw(usage(1), serial="7"),
    "negative": raw(usage(1), since=-1),
    "too_much": raw(usage(1), gpus=[{"gpu": {}, "utilisation_mean": 101}]),
    "too_long": raw(started(1), work_dir="/" * 5000),
    "huge_number": raw(usage(1), serial=1 << 70),
    "nul": raw(started(1), work_dir="/home/\0/x"),
    "other_node": raw(started(1, node="n2")),
    "other_cluster": raw(started(1), cluster="elsewhere"),
    "no_job": raw(started(1), job={"job_id": 0}),
    "deep": {"kind": "job_started", "id": []},
}


@pytest.mark.parametrize("what", BAD)
def test_one_bad_record_is_refused_and_the_others_are_taken(door: Door, what: str):
    good = (started(1, uid=ADA), ended(1))
    got = asyncio.run(door.bring(good[0], BAD[what], good[1]))
    assert got.status == 200
    assert got.json["accepted"] == [one.id for one in good]
    (refused,) = got.json["refused"]
    assert refused["index"] == 1 and refused["why"]
    assert asyncio.run(door.ask(ADA, "GET", "/v1/jobs/1")).status == 200


def test_a_refusal_names_the_record_where_its_id_can_be_read(door: Door):
    bad = raw(usage(1), serial="7")
    (refused,) = asyncio.run(door.bring(bad)).json["refused"]
    assert refused["id"] == bad["id"] and "serial" in refused["why"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"v":1}',
        batch(v=2),
        batch(node="../n1"),
        batch(node=""),
        batch(cluster=""),
        batch(records={}),
        batch(records=[0] * 5001),
        b'{"v":1,"node":"n1","cluster":"lab","records":' + b"[" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused_as_a_whole(door: Door, body: bytes):
    got = asyncio.run(door.ask(0, "POST", "/v1/records", body))
    assert got.status == 400 and "no batch" in got.why


def test_a_node_of_another_cluster_keeps_its_records(door: Door):
    """They are good, and its site file is wrong: none may be refused one by one, to be set aside."""
    got = asyncio.run(door.ask(0, "POST", "/v1/records", batch(started(1), cluster="other")))
    assert got.status == 400 and "service.url" in got.why


class Failing:
    """A store's `take` that fails as it is told to, for batches that hold one of `jobs`."""

    def __init__(self, door: Door, kind: Any, jobs: set[int]) -> None:
        self.take = door.storing.store.take
        self.kind = kind
        self.jobs = jobs

    def __call__(self, records: Sequence[Record], at: float) -> None:
        if any(isinstance(one, JobStarted) and one.job.job_id in self.jobs for one in records):
            raise StoreError(self.kind, "Records cannot be written.", "as the test wants", "")
        self.take(records, at)


def test_a_store_that_is_down_acknowledges_nothing(door: Door, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(door.storing.store, "take", Failing(door, "unreachable", {2}), raising=False)
        got = asyncio.run(door.bring(started(1, uid=ADA), started(2, uid=ADA), 7))
        assert got.status == 503 and int(got.headers["retry-after"]) > 0
        assert "accepted" not in got.json and "refused" not in got.json
        assert asyncio.run(door.ask(None, "GET", "/healthz")).status == 503
    assert asyncio.run(door.bring(started(1, uid=ADA), started(2, uid=ADA))).status == 200
    assert asyncio.run(door.ask(None, "GET", "/healthz")).status == 200


def test_what_the_store_cannot_hold_is_found_and_refused(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door.storing.store, "take", Failing(door, "refused", {2}), raising=False)
    records = [started(number, uid=ADA) for number in (1, 2, 3)]
    got = asyncio.run(door.bring(*records)).json
    assert got["accepted"] == [records[0].id, records[2].id]
    assert [(one["index"], one["id"]) for one in got["refused"]] == [(1, records[1].id)]
    assert asyncio.run(door.ask(None, "GET", "/healthz")).status == 200


def test_the_answer_tells_what_slurm_runs_on_the_node(door: Door):
    assert "running" not in asyncio.run(door.bring(started(1))).json, "nobody has looked"
    door.running = Running(100.0, {"n1": (JobRef(1), JobRef(2, 3)), "n2": (JobRef(9),)})
    got = asyncio.run(door.bring(ended(1))).json
    assert got["running"] == [{"job_id": 1}, {"job_id": 2, "restarts": 3}] and got["seen_at"] == 100.0
    door.running = Running(100.0, {"n2": (JobRef(9),)})
    assert asyncio.run(door.bring(ended(1))).json["running"] == [], "nothing runs there, as Slurm says"


def test_what_came_is_counted(door: Door):
    asyncio.run(door.bring(started(1, uid=ADA), ended(1), 7))
    text = door.counts.registry.text()
    for line in (
        'gsub_collected_total{kind="job_started"} 1',
        'gsub_collected_total{kind="job_ended"} 1',
        'gsub_records_refused_total{why="malformed"} 1',
        "gsub_batch_seconds_count 1",
        "gsub_record_lag_seconds_count 2",
        'gsub_api_requests_total{route="/v1/records",status="200"} 1',
    ):
        assert f"{line}\n" in text


def test_what_a_user_wrote_is_in_no_metric(door: Door):
    asyncio.run(door.ask(ADA, "GET", "/v1/jobs?user=<script>"))
    asyncio.run(door.ask(ADA, "GET", "/<script>"))
    asyncio.run(door.ask(ADA, "<SCRIPT>", "/v1/jobs"))
    assert "script" not in door.counts.registry.text().lower()


assert started(1).cluster == CLUSTER


def test_a_batch_whose_node_has_stopped_waiting_is_left_to_its_next_try(
    door: Door, monkeypatch: pytest.MonkeyPatch
):
    """Else a store that is slow for a while works for nobody for ever."""
    monkeypatch.setattr(routes, "_PATIENCE", 0.0)
    free = threading.Event()

    async def crowd() -> None:
        busy = asyncio.ensure_future(door.storing.write("test", lambda: free.wait(PATIENCE)))
        late = asyncio.ensure_future(door.bring(started(1, uid=ADA)))
        await asyncio.to_thread(wait_until, lambda: door.storing._writes >= 2, PATIENCE, "both", 0.01)
        free.set()
        await busy
        assert (await late).status == 503
        monkeypatch.setattr(routes, "_PATIENCE", PATIENCE)
        assert (await door.ask(0, "GET", "/v1/jobs/1")).status == 404
        assert (await door.bring(started(1, uid=ADA))).status == 200

    asyncio.run(crowd())


def test_who_asks_too_much_at_once_is_sent_away(door: Door):
    free = threading.Event()

    async def crowd() -> None:
        full = [
            asyncio.ensure_future(door.storing.write("test", lambda: free.wait(PATIENCE))) for _ in range(64)
        ]
        await asyncio.sleep(0)
        got = await door.bring(started(1, uid=ADA))
        assert got.status == 503 and got.headers["retry-after"]
        free.set()
        await asyncio.gather(*full)
        assert (await door.bring(started(1, uid=ADA))).status == 200

    asyncio.run(crowd())


def test_a_node_without_news_is_heard_of_all_the_same(door: Door):
    def heard() -> float:
        (node,) = asyncio.run(door.ask(OPERATOR, "GET", "/v1/nodes")).json["nodes"]
        return float(node["heard"])

    asyncio.run(door.bring(started(1)))
    before = heard()
    asyncio.run(door.bring())
    assert heard() > before


def test_a_node_that_has_nothing_to_tell_yet_is_known(door: Door):
    asyncio.run(door.bring())
    (node,) = asyncio.run(door.ask(OPERATOR, "GET", "/v1/nodes")).json["nodes"]
    assert node["name"] == "n1" and node["heard"] > 0


def test_a_node_tells_its_release(door: Door):
    told = batch(release="1.2.3")
    assert asyncio.run(door.ask(0, "POST", "/v1/records", told)).status == 200
    (node,) = asyncio.run(door.ask(OPERATOR, "GET", "/v1/nodes")).json["nodes"]
    assert node["version"] == "1.2.3"
    for bad in ("1.2\n3", "x" * 33, 7):
        assert asyncio.run(door.ask(0, "POST", "/v1/records", batch(release=bad))).status == 400
