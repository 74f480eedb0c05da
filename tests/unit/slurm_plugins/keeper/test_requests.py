"""Requests that are none: each gets a reason, and costs little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from slurm_plugins.service.keeper import app
from tests.unit.profiler.store.records import started
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, OPERATOR, PATIENCE, Door, batch, new_store

JOB = "/v1/jobs/1"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One for all: nothing here leaves anything behind."""
    store = new_store(tmp_path_factory.mktemp("store"))
    door = Door(store)
    yield door
    door.close()
    store.close()


PATHS = (
    "../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%2f..%2fetc%2fpasswd",
    "%00",
    "a%00b",
    "file:%2f%2f%2fetc",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "place", ["/v1/jobs/{}", "/v1/jobs/{}/usage", "/v1/nodes/{}/events", "/{}", "/v1/{}"]
)
def test_no_path_leads_to_a_file(door: Door, place: str, path: str):
    got = asyncio.run(door.ask(OPERATOR, "GET", place.format(path)))
    assert got.status in {400, 404} and b"root:" not in got.body


PARAMETERS = {
    "/v1/jobs": ("user", "uid", "account", "state", "since", "until", "ended_since", "limit", "cursor"),
    "/v1/jobs/1/usage": ("restarts", "node"),
    "/v1/jobs/1/series": ("restarts", "node"),
    "/v1/jobs/1/verdicts": ("restarts",),
    "/v1/verdicts": ("since", "until", "limit", "cursor"),
    "/v1/nodes/n1/events": ("since", "until", "limit", "cursor"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("target", "name"), [(one, name) for one, names in PARAMETERS.items() for name in names]
)
def test_no_parameter_leads_to_a_file(door: Door, target: str, name: str, path: str):
    got = asyncio.run(door.ask(OPERATOR, "GET", f"{target}?{name}={path}"))
    assert got.status == 400 and name in got.why


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/v1/jobs?usr=ada", "'usr' here it takes user, uid"),
        ("/v1/jobs?limit=0", "from 1 to 1000"),
        ("/v1/jobs?limit=1001", "from 1 to 1000"),
        ("/v1/jobs?limit=1&limit=2", "twice"),
        ("/v1/jobs?limit=%EF%BC%91", "from 1 to 1000"),
        ("/v1/jobs?limit", "cannot be read"),
        ("/v1/jobs?user=%ff", "cannot be read"),
        ("/v1/jobs?" + "&".join(["a=1"] * 99), "cannot be read"),
        ("/v1/jobs?user=" + "a" * 5000, "cannot be read"),
        ("/v1/jobs?since=yesterday", "date +%s"),
        ("/v1/jobs?since=99999999999", "date +%s"),
        ("/v1/jobs?since=nan", "date +%s"),
        ("/v1/jobs?cursor=AAAA", "`next`"),
        ("/v1/jobs?state=failed", "FAILED"),
        ("/v1/jobs/0", "job id"),
        ("/v1/jobs/-1", "job id"),
        ("/v1/jobs/1e3", "job id"),
        ("/v1/jobs/12_", "job id"),
        ("/v1/jobs/1?restarts=-1", "from 0"),
        ("/v1/jobs/1?restarts=99999999999999999999", "from 0"),
        ("/v1/nodes?limit=1", "takes no parameters"),
    ],
)
def test_a_wrong_question_gets_the_sentence_that_helps(door: Door, target: str, says: str):
    got = asyncio.run(door.ask(OPERATOR, "GET", target))
    assert got.status == 400 and says in got.why, got.why


@pytest.mark.parametrize("job", ["4294967296", "9999999999", "12_4294967296", "9999999999_1", "12+1", "12_3"])
def test_ids_that_no_job_has_are_not_there(door: Door, job: str):
    assert asyncio.run(door.ask(OPERATOR, "GET", f"/v1/jobs/{job}")).status == 404


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/jobs", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", "//v1/jobs", 404),
        ("DELETE", "/v1/jobs", 405),
        ("GET", "/v1/records", 405),
        ("HEAD", "/v1/jobs", 405),
        ("BREW", "/healthz", 405),
    ],
)
def test_what_there_is_not(door: Door, method: str, target: str, status: int):
    got = asyncio.run(door.ask(ADA, method, target))
    assert got.status == status and got.why


def test_an_oversized_body_is_refused_under_seal_and_not_kept(door: Door):
    body = b" " * (app.MAX_BODY + 1)
    got = asyncio.run(door.ask(0, "POST", "/v1/records", body))
    assert got.status == 413 and "4 MiB" in got.why and "gsub-seal" in got.headers


def test_a_body_without_bound_is_not_heard_out(door: Door):
    got = asyncio.run(door.ask(0, "POST", "/v1/records", length=str(1 << 40), hangs=True))
    assert got.status == 413 and "gsub-seal" not in got.headers
    got = asyncio.run(door.ask(0, "POST", "/v1/records", b"{}", headers=[("transfer-encoding", "chunked")]))
    assert got.status == 411


@pytest.mark.parametrize("length", ["-1", "0x10", "1e3", "", "\xb2", "1, 1"])
def test_a_length_that_is_none(door: Door, length: str):
    assert asyncio.run(door.ask(0, "POST", "/v1/records", b"{}", length=length)).status == 400


def test_a_body_longer_than_it_said(door: Door):
    assert asyncio.run(door.ask(0, "POST", "/v1/records", batch(), length="2")).status == 400


def test_a_slow_body_is_given_up(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "_BODY_SECONDS", 0.05)
    body = batch(started(1))
    got = asyncio.run(door.ask(0, "POST", "/v1/records", body, parts=[body[:10]], hangs=True))
    assert got.status == 408


def test_bodies_have_room_in_all(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "_IN_FLIGHT", 100)
    monkeypatch.setattr(app, "_BODY_SECONDS", 30.0)

    async def crowd() -> None:
        waits = asyncio.ensure_future(
            door.ask(0, "POST", "/v1/records", b" " * 80, parts=[b" " * 79], hangs=True)
        )
        await _until(lambda: door.app._held.total() == 79)
        got = await door.ask(0, "POST", "/v1/records", batch())
        assert got.status == 503 and got.headers["retry-after"]
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert (await door.ask(0, "POST", "/v1/records", batch())).status == 200

    asyncio.run(crowd())


async def _until(true: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE)


@pytest.mark.case("A3")
@pytest.mark.parametrize("uid", [None, ADA, 0])
def test_what_is_announced_and_not_sent_takes_no_room(door: Door, uid: int | None):
    """Twice as many as would fill it, were the announcement believed."""
    announced = str(app._HEARD_OUT)

    async def crowd() -> None:
        waits = [
            asyncio.ensure_future(
                door.ask(uid, "POST", "/v1/records", length=announced, parts=[b""], hangs=True)
            )
            for _ in range(2 * app._IN_FLIGHT // app._HEARD_OUT)
        ]
        await asyncio.sleep(0.1)
        assert (await door.ask(0, "POST", "/v1/records", batch())).status == 200
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    asyncio.run(crowd())


@pytest.mark.case("A3")
def test_without_a_credential_no_body_is_waited_for(door: Door):
    got = asyncio.run(door.ask(None, "POST", "/v1/records", length=str(app.MAX_BODY), hangs=True))
    assert got.status == 401
    assert asyncio.run(door.ask(None, "GET", "/healthz", length=str(app.MAX_BODY), hangs=True)).status == 200


@pytest.mark.case("A3")
def test_a_bad_credential_is_told_after_the_body_and_nothing_is_held(door: Door):
    """A node whose clock is wrong sends all before it reads why."""
    credential = door.credential(0, "POST", "/v1/records", batch())
    door.key.fails[credential] = "expired"
    coming = [b" " * 1000] * 3

    async def late() -> None:
        asked = asyncio.ensure_future(
            door.ask(0, "POST", "/v1/records", credential=credential, length="3000", parts=coming)
        )
        got = await asked
        assert got.status == 401 and "gsub-seal" in got.headers and not door.app._held

    asyncio.run(late())


@pytest.mark.case("A3")
@pytest.mark.parametrize("users", [[ADA], [ADA, OPERATOR, BOB]], ids=["one", "many"])
def test_users_bodies_leave_room_for_roots(door: Door, monkeypatch: pytest.MonkeyPatch, users: list[int]):
    monkeypatch.setattr(app, "_IN_FLIGHT", 1000)
    monkeypatch.setattr(app, "_OF_USERS", 500)
    monkeypatch.setattr(app, "_HEARD_OUT", 300)

    async def crowd() -> None:
        waits = [
            asyncio.ensure_future(
                door.ask(uid, "POST", "/v1/points", b" " * 100, parts=[b" " * 90], hangs=True)
            )
            for uid in users
            for _ in range(10)
        ]
        done, _ = await asyncio.wait(waits, timeout=0.5)
        refused = [one.result().status for one in done]
        assert refused and set(refused) == {503}
        assert 0 < door.app._held.total() <= 500 and all(size <= 300 for size in door.app._held.values())
        assert (await door.ask(0, "POST", "/v1/records", batch())).status == 200
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert not door.app._held and not door.app._asking

    asyncio.run(crowd())


@pytest.mark.case("A3")
def test_one_user_has_so_many_requests_at_once(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "_OF_ONE", 3)

    async def crowd() -> None:
        waits = [
            asyncio.ensure_future(door.ask(ADA, "POST", "/v1/points", b"{}", parts=[b""], hangs=True))
            for _ in range(3)
        ]
        await _until(lambda: door.app._asking[ADA] == 3)
        assert (await door.ask(ADA, "GET", "/v1/jobs")).status == 503
        for uid in (BOB, 0):
            assert (await door.ask(uid, "GET", "/v1/jobs")).status == 200
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert (await door.ask(ADA, "GET", "/v1/jobs")).status == 200

    asyncio.run(crowd())


@pytest.mark.parametrize("kind", [None, "text/plain", "multipart/form-data; boundary=x", "application/jsonp"])
def test_records_of_a_wrong_content_type(door: Door, kind: str | None):
    got = asyncio.run(door.ask(0, "POST", "/v1/records", batch(started(1)), kind=kind))
    assert got.status == 415 and "application/json" in got.why


def test_a_fault_of_ours_is_told_as_one_and_ends_nothing(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(door.storing.store), "nodes", lambda *_: 1 / 0)
    assert asyncio.run(door.ask(0, "GET", "/v1/nodes")).status == 500
    assert asyncio.run(door.ask(0, "GET", "/v1/jobs")).status == 200
