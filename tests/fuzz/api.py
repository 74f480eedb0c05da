"""Wicked requests for the API, in process and over a socket, and what must hold of every answer."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec

from profiler.answers import Problem
from profiler.findings import Evidence
from profiler.store import JobFacts, Store
from slurm_plugins.service.keeper.server import listening, serve
from tests.fuzz import words
from tests.unit.profiler.curves.place import measured
from tests.unit.profiler.store.records import CLUSTER, T0, ended, event, judge_by_logs, series, started, usage
from tests.unit.profiler.store.records import found as finding
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, OPERATOR, Door, Got, batch, new_store

SECRET = "wonderland"
"""Stands in every record of ada's, and in none of another's."""
_OVER_A_SOCKET = 20
"""One request of so many goes over a socket."""
_STATUS = frozenset({200, 400, 401, 403, 404, 405, 411, 413, 415, 429})
_METHODS = (*["GET"] * 24, *["POST"] * 4, "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "X" * 300)
_PATHS = (
    *(
        "/v1/jobs",
        "/v1/jobs/1",
        "/v1/jobs/1/usage",
        "/v1/jobs/1/series",
        "/v1/jobs/1/verdict",
        "/v1/jobs/1/verdicts",
        "/v1/jobs/1/resubmissions",
        "/v1/jobs/1/decision",
        "/v1/verdicts",
        "/v1/reasons",
        "/v1/curves",
        "/v1/curves/forget",
        "/v1/points",
        "/v1/points",
    ),
    *("/v1/nodes", "/v1/nodes/n1/events", "/v1/records", "/healthz", "/metrics", "/v1/openapi.json", "/"),
)
_NAMES = (
    "user",
    "uid",
    "account",
    "state",
    "since",
    "until",
    "ended_since",
    "limit",
    "cursor",
    "restarts",
    "node",
    "reason",
    "fingerprint",
    "workload",
)
_VALUES = (
    "1",
    "0",
    "100",
    "ada",
    "gpu_oom",
    "f-gpu_oom",
    "RUNNING",
    "1700000000",
    "../../etc/passwd",
    "' OR 1=1 --",
    "%",
    "1_3",
    "1+1",
)
_UIDS = (0, ADA, BOB, BOB, BOB, OPERATOR, 65534, None)


class WrongError(AssertionError):
    """The API did what it must never do."""


@dataclass
class Found:
    """What came of all requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    over_socket: int = 0


@dataclass(frozen=True)
class Asked:
    """A request; `uid` None: without a credential."""

    uid: int | None
    method: str
    target: str
    body: bytes
    kind: str | None
    credential: str | None
    headers: tuple[tuple[str, str], ...]
    length: str | None


def request(random: Random, door: Door) -> Asked:
    """A request: nearly right in one thing or several."""
    path = random.choice(_PATHS)
    if random.random() < 0.4:
        parts = path.split("/")
        parts[random.randrange(1, len(parts))] = _piece(random)
        path = "/".join(parts)
    if random.random() < 0.5:
        pairs = (f"{_name(random)}={_piece(random)}" for _ in range(random.randrange(1, 4)))
        path += "?" + "&".join(pairs)
    method = random.choice(_METHODS)
    body = b""
    if method in ("POST", "PUT") or random.random() < 0.05:
        good = batch(started(2, uid=BOB)) if "points" not in path else msgspec.json.encode(measured())
        body = random.choice((good, words.mangle(random, good), words.noise(random), b""))
    credential = None
    if random.random() < 0.15:
        other = random.choice(
            (door.credential(0, "GET", "/v1/jobs?of=others"), words.text(random), "MUNGE:AAAA:", "A" * 9999)
        )
        credential = "".join(char for char in other if 32 < ord(char) < 256)
    headers: list[tuple[str, str]] = []
    if random.random() < 0.1:
        value = "".join(char for char in words.text(random) if 32 <= ord(char) < 256)
        headers.append(
            (random.choice(("x-forwarded-for", "host", "accept", "expect", "authorization")), value)
        )
    length = random.choice(("-1", "1e9", str(1 << 62), "x", "0")) if random.random() < 0.03 else None
    kind = random.choice(("application/json",) * 5 + (None, "text/plain", words.text(random)))
    kind = None if kind is None else "".join(char for char in kind if 32 <= ord(char) < 256)
    return Asked(random.choice(_UIDS), method, path, body, kind, credential, tuple(headers), length)


def _name(random: Random) -> str:
    return random.choice(_NAMES) if random.random() < 0.8 else quote(words.text(random)[:200], safe="")


def _piece(random: Random) -> str:
    """A piece of a path or query, as it may stand in a request's first line."""
    kind = random.randrange(4)
    if kind == 0:
        return quote(random.choice(_VALUES), safe="'")
    if kind == 1:
        return str(words.number(random))
    if kind == 2:
        return quote(words.text(random)[:300], safe="%+_=&")
    return "".join(chr(random.randrange(33, 127)) for _ in range(random.randrange(20))).replace("#", "")


def check(asked: Asked, got: Got) -> None:
    """Raises WrongError."""
    said = f"{asked!r:.2000}\n  got: {got.status} {got.body[:500]!r}"
    if got.status not in _STATUS:
        raise WrongError(f"status {got.status}: {said}")
    if got.status != 200:
        problem = msgspec.json.decode(got.body, type=Problem)
        if not problem.error or not problem.error.isprintable() or not problem.remedy.isprintable():
            raise WrongError(f"refused without a reason: {said}")
    if SECRET.encode() in got.body and asked.uid not in (0, ADA, OPERATOR):
        raise WrongError(f"another user's job: {said}")
    if (
        asked.uid is None
        and got.status == 200
        and asked.target.partition("?")[0] not in (*("/healthz", "/metrics", "/v1/openapi.json"),)
    ):
        raise WrongError(f"answered to nobody: {said}")
    if b"root:x:" in got.body:
        raise WrongError(f"a file: {said}")


async def _over_socket(asked: Asked, door: Door, port: int, random: Random) -> None:
    """The same as bytes, now and then mangled; the answer is HTTP, or the connection ends."""
    lines = [f"{asked.method} {asked.target} HTTP/1.1", "host: x", f"content-length: {len(asked.body)}"]
    if asked.uid is not None:
        credential = door.credential(asked.uid, asked.method, asked.target, asked.body)
        lines.append(f"authorization: MUNGE {credential}")
    if asked.kind is not None:
        lines.append(f"content-type: {asked.kind}")
    data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + asked.body
    if random.random() < 0.4:
        data = words.mangle(random, data)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    with suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    status = got[9:12]
    if got and (not got.startswith(b"HTTP/1.1 ") or not status.isdigit() or status[:1] == b"5"):
        raise WrongError(f"over a socket: {data[:2000]!r}\n  got: {got[:500]!r}")
    if SECRET.encode() in got and asked.uid not in (0, ADA, OPERATOR):
        raise WrongError(f"another user's job over a socket: {data[:2000]!r}")


def _judge(store: Store) -> None:
    """Have ada's job end badly, with a verdict and a decision."""
    store.enrich(
        [
            JobFacts(
                cluster=CLUSTER, job_id=1, restarts=0, state="FAILED", uid=ADA, user=SECRET, name=SECRET,
                started=T0, ended=T0 + 3600, submitted=T0, gpus=2, final=True,
            )
        ]
    )  # fmt: skip
    assert len(judge_by_logs(store, time.time() + 60)) == 1
    lines: list[dict[str, Any]] = [
        {"kind": "decision", "decision": "d-1", "at": T0, "uid": ADA, "mode": SECRET},
        {"kind": "job", "decision": "d-1", "at": T0 + 5, "job": 1},
    ]
    store.put_decisions(CLUSTER, lines)
    for told in (store.verdict(CLUSTER, 1), store.decision(CLUSTER, 1)):
        assert SECRET in repr(told), "there is something to be kept from others"


async def _run(count: int, seed: int, folder: Path) -> Found:
    store = new_store(folder)
    door = Door(store)
    found = Found()
    sock = listening("127.0.0.1", 0)
    server = asyncio.ensure_future(serve(door.app, sock, door.counts))
    try:
        told: dict[str, Any] = {"uid": ADA, "user": SECRET, "work_dir": f"/home/{SECRET}"}
        got = await door.bring(
            started(1, **told),
            usage(1, note=SECRET),
            series(1),
            ended(1),
            finding(1, evidence=(Evidence(SECRET, f"/home/{SECRET}/slurm-1.out", 3),), advice=SECRET),
            event(detail=SECRET),
            started(3, **told),
        )
        assert got.status == 200
        _judge(store)
        for number in range(count):
            random = Random(f"{seed}:{number}")
            asked = request(random, door)
            try:
                if number % _OVER_A_SOCKET == 0:
                    await _over_socket(asked, door, sock.getsockname()[1], random)
                    found.over_socket += 1
                    continue
                got = await door.ask(
                    asked.uid,
                    asked.method,
                    asked.target,
                    asked.body,
                    credential=asked.credential,
                    headers=asked.headers,
                    kind=asked.kind,
                    length=asked.length,
                )
                check(asked, got)
                found.statuses[got.status] += 1
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"request {number} of seed {seed}: {error}") from error
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        door.close()
        store.close()
    return found


def run(count: int, seed: int) -> Found:
    """So many requests. Raises AssertionError, naming the number of the one at fault."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(count, seed, Path(folder)))
