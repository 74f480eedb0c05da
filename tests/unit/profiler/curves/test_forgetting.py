"""What was measured of a workload is forgotten: by its user, or for that user by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.workload import identify
from slurm_plugins.service.keeper.forgetting import FORGET
from slurm_plugins.service.learnt import CURVES
from tests.unit.profiler.curves.place import SCRIPT, Place, measured, place
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, CLUSTER, OPERATOR, Got

CPUS = "cpus_per_tres"
NAMES = identify(SCRIPT, name="train-1").fingerprints


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def forget(here: Place, workload: str, uid: int = ADA, **more: Any) -> Got:
    body = msgspec.json.encode({"workload": workload, **more})

    async def sent() -> Got:
        got = await here.door.ask(uid, "POST", FORGET, body)
        await here.learning.once()
        return got

    return asyncio.run(sent())


def test_the_next_submission_gets_what_it_got_before(here: Place) -> None:
    here.post(measured(2.6))
    here.post(measured(2.6, points=(), peak_memory=80 << 30, source="run"))
    here.post(measured(11.4, workload=("own:other",)))
    assert here.decided().edits[CPUS] == "gres:gpu:3"
    assert forget(here, NAMES[0]).json == {"workload": NAMES[0], "runs": 2}
    decision = here.decided()
    assert decision.edits[CPUS] == "gres:gpu:8" and decision.edits["min_mem_per_node"] == 64_000
    assert "measured" not in " ".join(change.reason for change in decision.changes)
    # Another workload of the same user is left alone, and this one may be measured again
    assert here.decided(env={"GSUB_WORKLOAD": "other"}).edits[CPUS] == "gres:gpu:12"
    here.post(measured(5.7))
    assert here.decided().edits[CPUS] == "gres:gpu:6"


@pytest.mark.case("A10")
@pytest.mark.parametrize(
    "body", [b"\xff", b'{"workload": "\xff"}', b"[" * 100_000, b"", b"null", b'"\xed\xa0\x80"']
)
@pytest.mark.parametrize("target", [FORGET, "/v1/points", "/v1/records", "/v1/nodes/n1/clear"])
def test_bytes_that_are_no_json_are_told_so(here: Place, target: str, body: bytes) -> None:
    got = asyncio.run(here.door.ask(0, "POST", target, body))
    assert got.status == 400 and got.why


def test_runs_that_others_share_a_name_with_stay_under_it(here: Place) -> None:
    here.post(measured(2.6, workload=("run:" + "a" * 32, "like:" + "c" * 32)))
    here.post(measured(13.5, workload=("run:" + "b" * 32, "like:" + "c" * 32)))
    assert forget(here, "run:a").json == {"workload": "run:" + "a" * 32, "runs": 1}
    (left,) = here.store.measured(CLUSTER, ADA)
    assert left.workload[0] == "run:" + "b" * 32
    assert forget(here, "like:" + "c" * 32).json["runs"] == 1
    assert here.store.measured(CLUSTER, ADA) == () and (here.state / CURVES).read_text() == ""


def test_another_users_are_for_operators(here: Place) -> None:
    here.post(measured(2.6), uid=BOB)
    assert forget(here, NAMES[0]).status == 404
    got = forget(here, NAMES[0], user=str(BOB))
    assert got.status == 403 and "operators" in got.why
    assert here.decided(uid=BOB).edits[CPUS] == "gres:gpu:3"
    assert forget(here, NAMES[0], OPERATOR).status == 404  # the operator's own
    assert forget(here, NAMES[0], OPERATOR, user="nobody-of-this-name").status == 404
    assert forget(here, NAMES[0], OPERATOR, user=str(BOB)).json["runs"] == 1
    assert here.decided(uid=BOB).edits[CPUS] == "gres:gpu:8"


def test_what_is_not_there_or_not_clear_is_said(here: Place) -> None:
    here.post(measured(2.6))
    here.post(measured(3.6, workload=("own:resnet-50",)))
    here.post(measured(3.6, workload=("own:resnet-101",)))
    got = forget(here, "own:bert")
    assert got.status == 404 and "nothing was measured of a workload own:bert" in got.why
    got = forget(here, "own:resnet")
    assert got.status == 400 and "2 names" in got.why and "own:resnet-101" in got.why
    assert len(here.store.measured(CLUSTER, ADA)) == 3


LIES: dict[str, bytes] = {
    "no JSON": b"{",
    "no name": b"{}",
    "an empty name": b'{"workload": ""}',
    "a list": b'{"workload": ["own:x"]}',
    "a user that is a number": b'{"workload": "own:x", "user": 1000}',
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_no_request(here: Place, name: str) -> None:
    assert asyncio.run(here.door.ask(ADA, "POST", FORGET, LIES[name])).status == 400


@pytest.mark.parametrize("user", ["9" * 60, "4294967295", "a\0b", "²"])
def test_users_that_are_none(here: Place, user: str) -> None:
    assert forget(here, "own:x", OPERATOR, user=user).status == 404


def test_ways_in_that_are_closed(here: Place) -> None:
    here.post(measured(2.6))
    body = msgspec.json.encode({"workload": NAMES[0]})
    door = here.door
    assert asyncio.run(door.ask(None, "POST", FORGET, body)).status == 401
    assert asyncio.run(door.ask(ADA, "POST", FORGET, body, kind="text/plain")).status == 415
    forged = door.credential(ADA, "POST", FORGET, b'{"workload": "own:x"}')
    assert asyncio.run(door.ask(ADA, "POST", FORGET, body, credential=forged)).status == 401
    assert len(here.store.measured(CLUSTER, ADA)) == 1
