"""The keeper's door: an ASGI application that bounds each request, asks who it is, and seals each answer.

Whatever comes in, an answer goes out: JSON, or a `Problem` that says why not. Only /healthz, /metrics and the OpenAPI
document need no credential, and tell nothing of users or jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from starlette.routing import Match, Route

from profiler.answers import Problem
from profiler.logs import one_line
from profiler.sealed import SEAL
from profiler.store.errors import StoreError
from slurm_plugins.service.keeper.auth import Gate, Who, check_digest, credential_of
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.within import within

__all__ = ["MAX_BODY", "Answer", "App", "Endpoint", "Request", "problem"]

_log = logging.getLogger("gsubd.keeper")
_JSON: Final = "application/json"

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY: Final = 4 << 20
_HEARD_OUT: Final = 2 * MAX_BODY
"""A body up to this is read before it is refused, so that the refusal can be sealed: it must not be forged."""
_IN_FLIGHT: Final = 64 << 20
"""Bytes of bodies held at once, counted as they come."""
_OF_USERS: Final = _IN_FLIGHT // 2
"""Of them those of all users but root: the other half waits for the nodes' records."""
_OF_ONE: Final = 64
"""Requests of one user at once, whatever the hosts that they come from."""
_BODY_SECONDS: Final = 15.0
_SECONDS: Final = 40.0
"""A request has so long in all; a batch may wait for the one before it."""
_RETRY: Final = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = _JSON


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was let in; `values` are what its path holds. `who` is None where no credential was needed.

    `peer` is the address of the connection's other end; "" where it has none.
    """

    query: bytes
    body: bytes
    content_type: str
    who: Who | None
    values: Mapping[str, str]
    peer: str = ""

    def proven(self) -> Who:
        """Who asks. Raises RefusedError where nobody said so."""
        if self.who is None:
            raise RefusedError(401, "this wants a credential")
        return self.who

    def want_json(self, what: str, them: str) -> None:
        """Raise RefusedError where the body is of another type: "points come" as JSON, send "them" so."""
        if self.content_type.partition(";")[0].strip().lower() != _JSON:
            raise RefusedError(415, f"{what} as JSON", f"Send {them} with Content-Type: {_JSON}.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path; `open`: no credential is needed. `answer` may raise RefusedError and StoreError."""

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Answer]]
    open: bool = False


class App:
    """The ASGI application over `endpoints`."""

    def __init__(self, endpoints: Sequence[Endpoint], gate: Gate, counts: Counts) -> None:
        self._routes = [(Route(one.path, _unused, methods=[one.method]), one) for one in endpoints]
        self._gate = gate
        self._counts = counts
        self._held: Tally[int] = Tally()
        self._asking: Tally[int] = Tally()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        asked = _Asked(scope["method"], scope["path"], _headers(scope))
        try:
            answer = await within(self._answer(asked, scope, receive), _SECONDS)
        except _GoneError:
            return
        except Exception as error:
            answer = _told(error, asked.path)
        self._counts.requests.add(asked.route, str(answer.status))
        seal = await self._gate.seal(asked.proven, answer.status, answer.body) if asked.proven else ""
        await _send(send, answer, seal)

    async def _answer(self, asked: _Asked, scope: Scope, receive: Receive) -> Answer:
        size = _length(asked.headers)
        endpoint, values = self._find(asked, scope)
        if endpoint is not None and endpoint.open and "authorization" not in asked.headers:
            return await endpoint.answer(_request(asked, scope, values))
        credential = credential_of(asked.headers.get("authorization"))
        # Before the body: nobody's bytes are held for somebody who is not known
        try:
            who, digest = await self._gate.let_in(credential)
        except RefusedError as error:
            # Sealed all the same, so that a node believes that its clock is wrong. Nobody wins by provoking that.
            if error.status == 401:
                asked.proven = credential
            # Heard out, and none of it kept: a sender that is cut off does not read why
            await _body(receive, size, lambda part: b"")
            raise
        scope.get("state", {}).get("prove", _unproven)()
        with _Held(self._held, self._asking, who.uid) as held:
            body = await _body(receive, size, held.add)
            asked.proven = credential
            check_digest(digest, asked.method, _target(scope), body)
            if endpoint is None:
                raise _no_such(asked.method, values)
            if size > MAX_BODY:
                raise RefusedError(
                    413, f"the body is over {MAX_BODY >> 20} MiB", "Send fewer records at once."
                )
            return await endpoint.answer(_request(asked, scope, values, who, body))

    def _find(self, asked: _Asked, scope: Scope) -> tuple[Endpoint | None, dict[str, str]]:
        """The endpoint and what its path holds; without one, the methods that the path has."""
        methods = {}
        for route, endpoint in self._routes:
            match, found = route.matches({**scope, "method": endpoint.method})
            if match is Match.FULL:
                if endpoint.method == asked.method:
                    asked.route = endpoint.path
                    return endpoint, found["path_params"]
                methods[endpoint.method] = endpoint.path
        return None, methods


@dataclass(slots=True)
class _Held:
    """One request, and what is held of its body; `all_` is what is held of each uid, `asking` how many requests each
    has: bounded for all, for users apart from root, and for each user."""

    all_: Tally[int]
    asking: Tally[int]
    uid: int
    size: int = 0

    def add(self, part: bytes) -> bytes:
        """Hold these bytes, too. Raises RefusedError (503) where there is no room for them."""
        total = self.all_.total() + len(part)
        full = total > _IN_FLIGHT
        if self.uid:
            full |= total - self.all_[0] > _OF_USERS or self.all_[self.uid] + len(part) > _HEARD_OUT
        if full:
            raise _too_much()
        self.all_[self.uid] += len(part)
        self.size += len(part)
        return part

    def __enter__(self) -> _Held:
        if self.uid and self.asking[self.uid] >= _OF_ONE:
            raise _too_much()
        self.asking[self.uid] += 1
        return self

    def __exit__(self, *_: object) -> None:
        for tally, count in ((self.all_, self.size), (self.asking, 1)):
            tally[self.uid] -= count
            if not tally[self.uid]:
                del tally[self.uid]


def _too_much() -> RefusedError:
    return RefusedError(503, "too much is being sent at once", "Try again in a moment.")


def _unproven() -> None:
    """Without a server there is no connection to count as proven."""


def _request(
    asked: _Asked, scope: Scope, values: Mapping[str, str], who: Who | None = None, body: bytes = b""
) -> Request:
    kind = asked.headers.get("content-type", "")
    peer = (scope.get("client") or ("",))[0]
    return Request(scope["query_string"], body, kind, who, values, peer)


@dataclass(slots=True)
class _Asked:
    """A request as it goes through the door. `proven` is the credential that the answer is sealed for.

    Before a credential has been held against the request, an answer has no seal: it could be played to somebody whose
    request it does not answer ("413": throw that record away).
    """

    method: str
    path: str
    headers: Mapping[str, str]
    proven: str = ""
    route: str = "none"


class _GoneError(Exception):
    """The client hung up."""


async def _unused(_: object) -> None:
    """starlette wants an endpoint; only its reading of paths is used."""


def _no_such(method: str, methods: Mapping[str, str]) -> RefusedError:
    if not methods:
        return RefusedError(404, "there is nothing here", "GET /v1/openapi.json tells what there is.")
    return RefusedError(405, f"{method[:16]} is not done here", f"It takes {' and '.join(sorted(methods))}.")


def _told(error: Exception, path: str) -> Answer:
    """The answer that an error means."""
    if isinstance(error, RefusedError):
        return problem(error.status, error.problem)
    if isinstance(error, StoreError):
        return problem(
            503, Problem(one_line(str(error)), "Nothing of this request was taken. Try again later.")
        )
    if isinstance(error, asyncio.TimeoutError):
        return problem(503, Problem("the answer took too long", "Try again later."))
    # our bug; the next request is answered as ever
    _log.error("a fault while answering %s", one_line(path, 100), exc_info=error)
    return problem(500, Problem("a fault of the service", "Its log tells more."))


def problem(status: int, what: Problem) -> Answer:
    """An answer that is a `Problem`."""
    return Answer(status, msgspec.json.encode(what))


def _headers(scope: Scope) -> dict[str, str]:
    """The headers that count. One that is given twice is nobody's: the last would win here, the first elsewhere."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        found[key] = found[key] + ", " + value.decode("latin-1") if key in found else value.decode("latin-1")
    return found


def _length(headers: Mapping[str, str]) -> int:
    """How long the body is. Raises RefusedError: it must be said, so that no more is held than there is room for."""
    if "transfer-encoding" in headers:
        raise RefusedError(411, "a body must come with its length", "Send Content-Length, and no chunks.")
    said = headers.get("content-length", "0")
    if not (said.isascii() and said.isdecimal() and len(said) < 20):
        raise RefusedError(400, "Content-Length is no number")
    if int(said) > _HEARD_OUT:
        raise RefusedError(413, f"the body is over {MAX_BODY >> 20} MiB", "Send fewer records at once.")
    return int(said)


async def _body(receive: Receive, size: int, hold: Callable[[bytes], bytes]) -> bytes:
    """The body, whole, as `hold` gives its parts. Raises RefusedError, and _GoneError when the client hangs up before
    it is."""
    try:
        return await within(_parts(receive, size, hold), _BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RefusedError(408, "the body took too long", "Send it at once.") from None


async def _parts(receive: Receive, size: int, hold: Callable[[bytes], bytes]) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _GoneError
        part = message.get("body", b"")
        size -= len(part)
        if size < 0:
            raise RefusedError(400, "the body is longer than Content-Length says")
        parts.append(hold(part))
        if not message.get("more_body", False):
            return b"".join(parts)


def _target(scope: Scope) -> str:
    """Path and query as they stood in the request."""
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _send(send: Send, answer: Answer, seal: str) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        # one request a connection: its whole time is bounded by one timer
        (b"connection", b"close"),
    ]
    if seal:
        headers.append((SEAL.lower().encode(), seal.encode()))
    if answer.status == 503:
        headers.append((b"retry-after", str(_RETRY).encode()))
    if answer.status == 401:
        headers.append((b"www-authenticate", b"MUNGE"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
