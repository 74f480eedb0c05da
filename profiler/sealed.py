"""Requests and answers over HTTP that neither side can forge: each is sealed by MUNGE over its digest.

A request carries ``Authorization: MUNGE <credential>``, a credential over `request_digest`: the service reads the uid
from it. The answer carries ``Gsub-Seal: <credential>`` over `answer_digest`, made by root or the service's user: what
listens on the service's port without being the service cannot take a record off a node, nor tell a user a lie. An
answer names the request's credential, which is made once: it cannot be played again.

What travels can be read on the way, and is not secret from who can listen there, unless the address says https.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import pwd
import random
import re
import socket
import ssl
import time
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from profiler.munge import Credential, MungeError

__all__ = [
    "AUTHORIZATION",
    "SEAL",
    "Answer",
    "Seal",
    "Service",
    "ServiceError",
    "answer_digest",
    "believed",
    "request_digest",
]

AUTHORIZATION = "MUNGE"
"""The scheme of the Authorization header."""
SEAL = "Gsub-Seal"
"""The header with an answer's credential."""
MAX_ANSWER = 32 << 20
"""Bytes of an answer that are read, unless a caller says otherwise."""

_CHUNK = 1 << 16
_TARGET = re.compile(r"/[!-~]*")
_CONNECT = 5.0  # seconds at most for one address of the service's host
_ROOTS_PORTS = range(600, 1024)  # those of bindresvport(3)
_TRIES = 8


def request_digest(method: str, target: str, body: bytes) -> bytes:
    """What the credential of a request is over: 32 bytes.

    `target` is the path and the query as they stand in the request, without a base path of the service's address:
    a proxy that serves gsub under one takes it off.
    """
    return _digest(b"gsub request 1", method.upper().encode(), target.encode(), body)


def answer_digest(credential: str, status: int, body: bytes) -> bytes:
    """What the credential of an answer is over: 32 bytes. `credential` is the request's, as it came; "" for none."""
    return _digest(b"gsub answer 1", credential.encode(), str(status).encode(), body)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:  # each behind its length: no two lists of parts are the same bytes
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def believed(user: str) -> frozenset[int]:
    """The uids whose seal is believed: root's, and that of the service's user where this host knows them."""
    with suppress(KeyError):
        return frozenset({0, pwd.getpwnam(user).pw_uid})
    return frozenset({0})


class Seal(Protocol):
    """What makes and opens credentials: `profiler.munge.Munge`. Raises MungeError."""

    def encode(self, payload: bytes) -> str:
        """Seal these bytes in this process's name."""
        ...

    def decode(self, text: str) -> Credential:
        """Open a credential that came from anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said; its seal was found good."""

    status: int
    body: bytes


Reason: TypeAlias = Literal["unreachable", "timeout", "unsealed", "too_long", "munge"]


class ServiceError(Exception):
    """No answer that can be believed.

    `reason`: "unreachable" (nothing there, or it hung up), "timeout", "unsealed" (an answer without a good seal of a
    uid that is trusted), "too_long", "munge" (no credential could be made or opened here). `status` is the HTTP status
    of an answer that was not believed: good for a message, for nothing else.
    """

    def __init__(self, reason: Reason, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.status = status


class Service:
    """Asks the service at `url`. A connection a question, without proxies or redirects; for any number of threads.

    Parameters
    ----------
    url: "http://host:6831", "http://[fe80::1]:6831/base", or https (by the system's certificates).
    trusted: uids whose seal is believed: `believed(site.service.user)`.
    timeout: seconds for a whole question and answer. Looking up a name
        is not in it: the C library has limits of its own.
    """

    def __init__(
        self,
        url: str,
        munge: Seal,
        trusted: Collection[int],
        timeout: float = 10.0,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not the address of a service: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(
                f'{url!r} is not the address of a service; write it like "http://controller:6831"'
            )
        self.url = url
        self._tls = _tls() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        self._munge, self._trusted = munge, frozenset(trusted)
        self._timeout, self._max_answer = timeout, max_answer

    def ask(self, method: str, target: str, body: bytes = b"", *, timeout: float | None = None) -> Answer:
        """Ask, and return the answer if it is the service's own, whatever its status.

        Parameters
        ----------
        target: path and query, percent-encoded: "/v1/jobs?user=ada".

        Raises
        ------
        ServiceError; ValueError for a target that is not percent-encoded.
        """
        if not _TARGET.fullmatch(target):
            raise ValueError(f"{target!r} is not the target of a request; percent-encode it")
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            credential = self._munge.encode(request_digest(method, target, body))
        except MungeError as error:
            raise ServiceError("munge", str(error)) from error
        status, seal, content = self._exchange(method, target, body, credential, until)
        self._check(seal, answer_digest(credential, status, content), status)
        return Answer(status, content)

    def _exchange(
        self, method: str, target: str, body: bytes, credential: str, until: float
    ) -> tuple[int, str, bytes]:
        headers = {
            "Authorization": f"{AUTHORIZATION} {credential}",
            "Accept-Encoding": "identity",  # the seal is over the bytes as they are
            "Connection": "close",
        }
        if body:
            headers["Content-Type"] = "application/json"
        connection = _Connection(self._host, self._port, until, self._tls)
        try:
            with closing(connection):
                connection.request(method, self._base + target, body or None, headers)
                with connection.getresponse() as response:  # it holds the socket, not the connection
                    return response.status, response.getheader(SEAL, ""), self._read(response)
        except TimeoutError as error:
            raise ServiceError("timeout", f"{self.url} did not answer in time.") from error
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise ServiceError("unreachable", f"{self.url} cannot be asked: {why}.") from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        chunks, size = [], 0
        while chunk := response.read(min(_CHUNK, self._max_answer - size + 1)):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_answer:
                raise ServiceError(
                    "too_long", f"{self.url} answered more than {self._max_answer} bytes.", response.status
                )
        if response.length:  # http.client says nothing of a body that ends early when it is read in pieces
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(chunks)

    def _check(self, seal: str, digest: bytes, status: int) -> None:
        if not seal:
            why = f"its answer (status {status}) has no seal"
            if status == 401:  # it cannot tell whom it would seal for
                why += "; the MUNGE keys or the clocks of both hosts may differ"
        else:
            try:
                credential = self._munge.decode(seal)
            except MungeError as error:
                if error.reason == "unavailable":
                    raise ServiceError("munge", str(error), status) from error
                why = f"its seal is not good: {error}"
            else:
                if credential.payload == digest and credential.uid in self._trusted:
                    return
                why = (
                    f"its seal is uid {credential.uid}'s"
                    if credential.uid not in self._trusted
                    else "its seal is not of this answer"
                )
        raise ServiceError("unsealed", f"{self.url} is not believed: {why}.", status)


class _Deadline:
    """Of a socket: its waits all end at `until`, a moment of the monotonic clock."""

    until = 0.0

    def recv_into(self, *args: object, **kwargs: object) -> int:
        self.settimeout(_left(self.until))  # type: ignore[attr-defined]
        received: int = super().recv_into(*args, **kwargs)  # type: ignore[misc]
        return received

    def sendall(self, *args: object, **kwargs: object) -> None:
        self.settimeout(_left(self.until))  # type: ignore[attr-defined]
        super().sendall(*args, **kwargs)  # type: ignore[misc]


class _Socket(_Deadline, socket.socket):
    pass


class _TlsSocket(_Deadline, ssl.SSLSocket):
    pass


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsSocket
    return context


class _Connection(http.client.HTTPConnection):
    """A connection that is over at `until`, however slowly the other side drips."""

    def __init__(self, host: str, port: int, until: float, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._until, self._tls = until, tls

    def connect(self) -> None:
        """Connect to the first of the host's addresses that answers."""
        failure = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            sock: _Socket | ssl.SSLSocket = _Socket(family, kind, protocol)
            try:
                sock.settimeout(min(_CONNECT, _left(self._until)))
                _come_as_root(sock)
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls:
                    sock = self._tls.wrap_socket(sock, server_hostname=self.host)
            except OSError as error:
                sock.close()
                failure = error
            else:
                sock.until = self._until  # type: ignore[union-attr]
                self.sock = sock
                return
        raise failure


def _come_as_root(sock: socket.socket) -> None:
    """Bind to one of root's ports where we may: the service keeps connections for these, whatever users hold open."""
    if os.geteuid() != 0:
        return
    for port in random.sample(_ROOTS_PORTS, _TRIES):
        try:
            sock.bind(("", port))
        except PermissionError:  # root, but without the capability
            return
        except OSError:
            continue
        return


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
