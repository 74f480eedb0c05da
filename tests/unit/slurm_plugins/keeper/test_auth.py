"""Who may ask what: each way in that must not be one."""

from __future__ import annotations

import asyncio

import pytest

from profiler.answers import Jobs
from profiler.munge import Reason
from profiler.store import JobQuery
from tests.unit.profiler.store.records import ended, started, usage
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, OPERATOR, SERVICE, Door, batch

JOB = "/v1/jobs/1"
OF_A_JOB = (JOB, f"{JOB}/usage", f"{JOB}/series", f"{JOB}/verdicts", f"{JOB}/resubmissions")


@pytest.fixture
def kept(door: Door) -> Door:
    """The store has a job of ada's."""
    got = asyncio.run(door.bring(started(1, uid=ADA), usage(1), ended(1)))
    assert got.status == 200 and len(got.json["accepted"]) == 3, got.body
    return door


@pytest.mark.parametrize("target", OF_A_JOB)
@pytest.mark.parametrize(
    ("uid", "status"), [(ADA, 200), (0, 200), (SERVICE, 200), (OPERATOR, 200), (BOB, 404)]
)
def test_another_users_job_is_not_there(kept: Door, target: str, uid: int, status: int):
    assert asyncio.run(kept.ask(uid, "GET", target)).status == status


@pytest.mark.parametrize("target", OF_A_JOB)
def test_another_users_job_is_answered_as_one_that_never_was(kept: Door, target: str):
    others, nobodys = (
        asyncio.run(kept.ask(BOB, "GET", target.replace("/1", f"/{number}"))) for number in (1, 4711)
    )
    assert others.status == nobodys.status == 404
    assert others.body == nobodys.body.replace(b"4711", b"1")


@pytest.mark.parametrize(
    "query", ["", "?user=ada", f"?uid={ADA}", "?account=vision", "?ended_since=1", "?state=COMPLETED"]
)
def test_lists_hold_a_users_own_jobs_only(kept: Door, query: str):
    own = asyncio.run(kept.ask(ADA, "GET", f"/v1/jobs{query}"))
    assert own.status == 200 and len(own.json["jobs"]) == (0 if "state" in query else 1)
    assert asyncio.run(kept.ask(BOB, "GET", f"/v1/jobs{query}")).json == {"jobs": []}


def test_a_user_who_names_one_has_no_table_searched_for_it(kept: Door, monkeypatch: pytest.MonkeyPatch):
    """By uid and name at once all jobs of the asker would be read, again and again."""
    asked: list[JobQuery] = []
    jobs = kept.storing.store.jobs

    def spied(query: JobQuery) -> Jobs:
        asked.append(query)
        return jobs(query)

    monkeypatch.setattr(kept.storing.store, "jobs", spied)
    mine = asyncio.run(kept.ask(ADA, "GET", "/v1/jobs?user=ada")).json["jobs"]
    assert mine and mine == asyncio.run(kept.ask(ADA, "GET", "/v1/jobs")).json["jobs"]
    assert asyncio.run(kept.ask(ADA, "GET", "/v1/jobs?user=bob")).json["jobs"] == []
    assert all(query.uid == ADA and query.user is None for query in asked)


def test_a_job_whose_owner_is_not_known_is_for_operators_only(door: Door):
    asyncio.run(door.bring(ended(1)))
    assert asyncio.run(door.ask(ADA, "GET", JOB)).status == 404
    assert asyncio.run(door.ask(OPERATOR, "GET", JOB)).status == 200


@pytest.mark.parametrize("uid", [ADA, OPERATOR, SERVICE])
def test_nobody_but_root_writes_records(door: Door, uid: int):
    got = asyncio.run(door.bring(started(1, uid=ADA), uid=uid))
    assert got.status == 403 and "root" in got.why
    assert asyncio.run(door.ask(0, "GET", JOB)).status == 404


@pytest.mark.parametrize("target", ["/v1/nodes", "/v1/nodes/n1/events"])
def test_nodes_are_for_operators(kept: Door, target: str):
    assert asyncio.run(kept.ask(ADA, "GET", target)).status == 403
    assert asyncio.run(kept.ask(OPERATOR, "GET", target)).status == 200


def test_a_credential_serves_once(kept: Door):
    credential = kept.credential(ADA, "GET", JOB)
    first, again = (asyncio.run(kept.ask(ADA, "GET", JOB, credential=credential)) for _ in range(2))
    assert (first.status, again.status) == (200, 401)
    assert "used before" in again.why and "gsub-seal" in again.headers


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/jobs/2", b""),
        ("GET", f"{JOB}?restarts=0", b""),
        ("GET", JOB, b"x"),
        ("POST", "/v1/records", batch()),
    ],
)
def test_a_credential_over_another_request_opens_nothing(kept: Door, method: str, target: str, body: bytes):
    credential = kept.credential(0, "GET", JOB)
    got = asyncio.run(kept.ask(None, method, target, body, credential=credential))
    assert got.status == 401 and "not over this request" in got.why


def test_a_batch_that_was_changed_on_the_way_is_not_taken(door: Door):
    credential = door.credential(0, "POST", "/v1/records", batch(started(1, uid=ADA)))
    got = asyncio.run(door.ask(0, "POST", "/v1/records", batch(started(1, uid=BOB)), credential=credential))
    assert got.status == 401
    assert asyncio.run(door.ask(0, "GET", JOB)).status == 404


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "wants a MUNGE credential"),
        ("Basic cm9vdDo=", "wants a MUNGE credential"),
        ("MUNGE", "no credential"),
        ("MUNGE MUNGE:AAAA\x00AAAAAAAAAAAAAAAA:", "no credential"),
        ("MUNGE MUNGE:" + "A" * 20000 + ":", "no credential"),
        ("MUNGE MUNGE:AAAAAAAAAAAAAAAAAAAAAAAA:", "not one of this cluster"),
    ],
)
def test_without_a_credential_nothing_is_told(kept: Door, header: str | None, says: str):
    headers = [] if header is None else [("authorization", header)]
    for method, target in (("GET", JOB), ("POST", "/v1/records"), ("GET", "/v1/nodes"), ("GET", "/nowhere")):
        got = asyncio.run(kept.ask(None, method, target, headers=headers))
        assert got.status == 401 and says in got.why and got.headers["www-authenticate"] == "MUNGE"


def test_two_credentials_are_none(kept: Door):
    headers = [("authorization", f"MUNGE {kept.credential(ADA, 'GET', JOB)}")]
    assert asyncio.run(kept.ask(ADA, "GET", JOB, headers=headers)).status == 401


@pytest.mark.parametrize(
    ("reason", "status", "says"),
    [
        ("expired", 401, "timedatectl"),
        ("rewound", 401, "timedatectl"),
        ("invalid", 401, "same key"),
        ("replayed", 401, "new one"),
        ("unavailable", 503, "munge"),
    ],
)
def test_what_munge_says_is_told_with_what_to_do(kept: Door, reason: Reason, status: int, says: str):
    credential = kept.credential(ADA, "GET", JOB)
    kept.key.fails[credential] = reason
    got = asyncio.run(kept.ask(ADA, "GET", JOB, credential=credential))
    assert got.status == status and says in got.why
    assert ("retry-after" in got.headers) == (status == 503)


def test_every_answer_to_a_good_credential_is_sealed(kept: Door):
    for uid, method, target in (
        (ADA, "GET", JOB),
        (BOB, "GET", JOB),
        (ADA, "GET", "/nowhere"),
        (ADA, "PUT", JOB),
        (ADA, "GET", "/v1/jobs?nonsense=1"),
        (ADA, "POST", "/v1/records"),
        (0, "POST", "/v1/records"),
        (ADA, "GET", "/healthz"),
    ):
        assert "gsub-seal" in asyncio.run(kept.ask(uid, method, target)).headers, target


@pytest.mark.parametrize("target", ["/healthz", "/metrics", "/v1/openapi.json"])
def test_what_is_open_to_all_tells_of_nobody(kept: Door, target: str):
    got = asyncio.run(kept.ask(None, "GET", target))
    assert got.status == 200
    for secret in (b"ada", b"vision", b'"train"', b"n1"):
        assert secret not in got.body


def test_a_stolen_credential_of_an_open_page_seals_nothing_else(kept: Door):
    """An open page must not be a way to have an answer sealed for somebody's delivery."""
    credential = kept.credential(0, "POST", "/v1/records", batch(started(2)))
    got = asyncio.run(kept.ask(None, "GET", "/healthz", credential=credential))
    assert got.status == 401
