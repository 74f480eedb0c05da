"""Who asks: the uid in a request's MUNGE credential, and what that uid may.

A credential is over the digest of method, target and body (`profiler.sealed`), serves once, and for minutes. It is
opened before the body is read, which is then held against it. munged is asked in threads, a few at a time: it may be
slow, and whoever sends rubbish must not fill our memory.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from profiler.munge import Credential, MungeError
from profiler.sealed import AUTHORIZATION, answer_digest, request_digest
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.within import within

__all__ = ["Gate", "Munged", "People", "Who", "check_digest", "credential_of"]

_log = logging.getLogger("gsubd.keeper")
_T = TypeVar("_T")

_THREADS: Final = 4
_WAITING: Final = 64
"""Requests that may wait for munged; more are sent away."""
_SECONDS: Final = 10.0
_NAMES_SECONDS: Final = 60.0
"""How long a login name's uid is believed: a directory service takes its time."""
_CREDENTIAL: Final = re.compile(r"MUNGE:[A-Za-z0-9+/=]{16,4096}:")

# munged's own words are for its log; a user needs what to do
_REASONS: Final[dict[str, tuple[str, str]]] = {
    "invalid": ("the credential is not one of this cluster's", "Is it made by a munged with the same key?"),
    "expired": ("the credential is too old", "Compare the clocks of both machines (timedatectl)."),
    "rewound": ("the credential comes from the future", "Compare the clocks of both machines (timedatectl)."),
    "replayed": ("the credential has been used before", "Make a new one for each request."),
}


class Munged(Protocol):
    """Makes and reads credentials: `profiler.munge.Munge`."""

    def encode(self, payload: bytes) -> str:
        """A credential of ours over `payload`. Raises MungeError."""
        ...

    def decode(self, text: str) -> Credential:
        """What a credential says. Raises MungeError."""
        ...


@dataclass(frozen=True, slots=True)
class Who:
    """A uid that proved itself. `sees_all`: not its own jobs only. `writes`: it may bring records."""

    uid: int
    sees_all: bool = False
    writes: bool = False


class People:
    """Which uids see everybody's records: root, the service's own, and the site's operators, looked up by name."""

    def __init__(
        self,
        operators: Iterable[str],
        service_user: str,
        *,
        uid_of: Callable[[str], int | None] | None = None,
    ) -> None:
        self._names = (*operators, service_user)
        self._uid_of = uid_of or _uid_of
        self._uids: frozenset[int] = frozenset()
        self._until = 0.0
        self._unknown: set[str] = set()

    def who(self, uid: int) -> Who:
        """What `uid` may. May ask a directory service: not for the event loop."""
        if time.monotonic() >= self._until:
            self._uids = self._look()
            self._until = time.monotonic() + _NAMES_SECONDS
        return Who(uid, sees_all=uid in {0, os.geteuid()} or uid in self._uids, writes=uid == 0)

    def _look(self) -> frozenset[int]:
        found = {name: self._uid_of(name) for name in self._names}
        unknown = {name for name, uid in found.items() if uid is None}
        for name in sorted(unknown - self._unknown):
            _log.warning("there is no user %s here: named as operator or service user in the site file", name)
        self._unknown = unknown
        return frozenset(uid for uid in found.values() if uid is not None)


def _uid_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def credential_of(header: str | None) -> str:
    """The credential in a request's Authorization. Raises RefusedError (401)."""
    scheme, _, credential = (header or "").strip().partition(" ")
    if scheme.upper() != AUTHORIZATION:
        raise RefusedError(
            401,
            "this wants a MUNGE credential in the header Authorization",
            "Ask with gsub, or see docs/api.md for how a credential is made.",
        )
    if not _CREDENTIAL.fullmatch(credential := credential.strip()):
        raise RefusedError(
            401, "what stands behind MUNGE is no credential", "It begins with MUNGE: and ends with :"
        )
    return credential


def check_digest(digest: bytes, method: str, target: str, body: bytes) -> None:
    """Raise RefusedError (401) unless a credential's digest is that of this request."""
    if not hmac.compare_digest(digest, request_digest(method, target, body)):
        raise RefusedError(
            401,
            "the credential is not over this request",
            "Make it over the method, target and body that are sent.",
        )


class Gate:
    """Lets requests in by their credentials, and seals answers."""

    def __init__(self, munged: Munged, people: People) -> None:
        self._munged = munged
        self._people = people
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="munge")
        self._waiting = 0

    async def let_in(self, credential: str) -> tuple[Who, bytes]:
        """Who asks, and the digest of what (see `compare`).

        Raises RefusedError: 401, or 503 where munged cannot tell.
        """
        try:
            return await self._in_thread(lambda: self._read(credential))
        except MungeError as error:
            if error.reason not in _REASONS:
                raise _silent() from None
            raise RefusedError(401, *_REASONS[error.reason]) from None

    async def seal(self, credential: str, status: int, body: bytes) -> str:
        """The proof that an answer is ours, for the header Gsub-Seal; empty where munged does not make one."""
        digest = answer_digest(credential, status, body)
        try:
            return await self._in_thread(lambda: self._munged.encode(digest))
        except (MungeError, RefusedError):
            return ""

    def _read(self, credential: str) -> tuple[Who, bytes]:
        told = self._munged.decode(credential)
        return self._people.who(told.uid), told.payload

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        if self._waiting >= _WAITING:
            raise _silent()
        self._waiting += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, call)
            # done or not: a thread that waits for munged still holds its place
            future.add_done_callback(self._left)
        except BaseException:
            self._waiting -= 1
            raise
        try:
            return await within(asyncio.shield(future), _SECONDS)
        except asyncio.TimeoutError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise _silent() from None

    def _left(self, _: object) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Take no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _silent() -> RefusedError:
    return RefusedError(
        503,
        "munged does not answer on the service's host",
        "Try again; else look there: systemctl status munge.",
    )
