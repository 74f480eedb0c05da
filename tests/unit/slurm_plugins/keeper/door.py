"""Requests put to the keeper's application without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from profiler.sealed import answer_digest, request_digest
from profiler.store import Store
from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.auth import Gate, People
from slurm_plugins.service.keeper.collect import Collector, Running
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.openapi import text
from slurm_plugins.service.keeper.pending_queue import PendingQueue
from slurm_plugins.service.keeper.routes import endpoints
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.keeper.whence import Whence
from tests.unit.profiler.store.empty import empty_store
from tests.unit.slurm_plugins.keeper.fakes import FakeKey

SERVICE, OPERATOR, ADA, BOB = 990, 500, 1000, 1001
NAMES = {"gsub": SERVICE, "olga": OPERATOR}
CLUSTER = "lab"
PATIENCE = 60.0


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def why(self) -> str:
        """The sentence of a refusal, with its remedy."""
        problem = self.json
        return f"{problem['error']} {problem.get('remedy', '')}"


class Door:
    """The application over a store, with a munged in memory."""

    def __init__(self, store: Store) -> None:
        self.key = FakeKey()
        self.counts = Counts()
        self.storing = Storing(self.counts)
        self.storing._store = store
        self.running: Running | None = None
        self.pending: PendingQueue | None = None
        self.gate = Gate(self.key.munge(SERVICE), People(["olga"], "gsub", uid_of=NAMES.get))
        self.whence = Whence("known")
        collector = Collector(
            CLUSTER,
            lambda records, at: self.storing.store.take(records, at),
            lambda: self.running,
            self.whence,
        )
        self.app = App(
            endpoints(
                CLUSTER,
                self.storing,
                collector,
                self.counts,
                document=text,
                pending=lambda: self.pending,
            ),
            self.gate,
            self.counts,
        )

    def credential(self, uid: int, method: str, target: str, body: bytes = b"") -> str:
        return self.key.munge(uid).encode(request_digest(method, target, body))

    async def ask(
        self,
        uid: int | None,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        credential: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        kind: str | None = "application/json",
        length: str | None = None,
        parts: Sequence[bytes] | None = None,
        hangs: bool = False,
        peer: str = "127.0.0.1",
    ) -> Got:
        """One request; None for nobody. The seal of the answer is checked.

        `credential` in the place of a good one, `length` in that of the body's own, `parts` as the body arrives, and
        `hangs` when its end never does.
        """
        shown = dict(headers).get("authorization", "").removeprefix("MUNGE ")
        if credential is None and uid is not None:
            credential = self.credential(uid, method, target, body)
        given = [("content-length", length if length is not None else str(len(body)))]
        given += [("content-type", kind)] if kind is not None else []
        given += [("authorization", f"MUNGE {credential}")] if credential else []
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "client": (peer, 40000),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in (*given, *headers)],
        }
        coming = list(parts if parts is not None else (body,))

        async def receive() -> dict[str, Any]:
            if not coming and hangs:
                await asyncio.Event().wait()
            if not coming:
                return {"type": "http.disconnect"}
            part = coming.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(coming) or hangs}

        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self.app(scope, receive, send), PATIENCE)
        start, end = sent
        got = Got(
            start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, end["body"]
        )
        if "gsub-seal" in got.headers:
            seal = self.key.munge(0).decode(got.headers["gsub-seal"])
            assert seal.uid == SERVICE and seal.payload == answer_digest(
                credential or shown, got.status, got.body
            )
        return got

    async def bring(self, *records: Any, node: str = "n1", uid: int = 0) -> Got:
        """A batch of records, given as JSON or as records."""
        return await self.ask(uid, "POST", "/v1/records", batch(*records, node=node))

    def close(self) -> None:
        self.gate.close()
        self.storing.close()


def batch(*records: Any, node: str = "n1", cluster: str = CLUSTER, **more: Any) -> bytes:
    return msgspec.json.encode({"v": 1, "node": node, "cluster": cluster, "records": list(records)} | more)


def new_store(folder: Path) -> Store:
    store = empty_store(f"sqlite:///{folder / 'store.db'}")
    return store


__all__ = ["ADA", "BOB", "CLUSTER", "OPERATOR", "SERVICE", "Door", "Got", "batch", "new_store"]
