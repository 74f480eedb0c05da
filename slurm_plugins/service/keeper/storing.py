"""The store, off the event loop: one thread writes, a few read, and what waits for them is bounded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from profiler.logs import one_line
from profiler.store import Store, open_store
from profiler.store.errors import StoreError
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.within import within

__all__ = ["Storing"]

_log = logging.getLogger("gsubd.keeper")
_T = TypeVar("_T")

_READERS: Final = 4
_READS_WAITING: Final = 64
_READS_OF_ONE: Final = 8
"""Of one uid, waiting or being answered: a user's loop must not keep the others out."""
_AT_ONCE: Final = 2
"""Of one uid, being answered: its questions that take long must not have all readers."""
_WRITES_WAITING: Final = 64
_READ_SECONDS: Final = 20.0
_STUCK: Final = 300.0
"""A write that takes longer hangs: the process is ended by its parent, and started anew."""

_MENDED: Final = frozenset({"older", "unreachable"})
"""Kinds of trouble that a store has whose tables, or whose file, are gone."""


class Storing:
    """`write` and `read` run a call in a thread. Raises RefusedError (503) where there is no room, or no store."""

    def __init__(self, counts: Counts) -> None:
        self._store: Store | None = None
        self._counts = counts
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="slow")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        self._writes = 0
        self._reads: Tally[int | None] = Tally()
        self._turns: dict[int | None, asyncio.Semaphore] = {}
        self._began: float | None = None
        self._failing = False
        self._kind = ""

    @property
    def ready(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    @property
    def failing(self) -> bool:
        """Whether its last call failed."""
        return self._failing

    @property
    def store(self) -> Store:
        """The store. Raises RefusedError (503) while it is not open."""
        if self._store is None:
            raise RefusedError(
                503, "the store is not open yet", "Try again in a moment; else see gsubd's log."
            )
        return self._store

    async def open(self, url: str) -> None:
        """Open the store, with its schema brought up to date, which may take its time. Raises StoreError."""

        def opened() -> Store:
            store = open_store(url)
            try:
                store.migrate()
            except BaseException:
                store.close()
                raise
            return store

        self._store = await self.aside("open", opened)

    async def mend(self) -> None:
        """Make the tables again where they have vanished: a database, or SQLite's file, that was made anew.

        Raises StoreError.
        """
        if self._kind in _MENDED:
            before, after = await self.aside("open", self.store.migrate)
            if before != after:
                _log.warning(
                    "the store had %s: it is taken up as it is", f"schema {before}" if before else "no tables"
                )

    @property
    def well(self) -> bool:
        """Whether the writing thread moves."""
        began = self._began
        return began is None or time.monotonic() - began < _STUCK

    async def aside(self, what: str, call: Callable[[], _T]) -> _T:
        """Run a call that may take its time (purging) beside all others. Raises StoreError."""
        return await self._told(what, asyncio.get_running_loop().run_in_executor(self._slow, call))

    async def write(self, what: str, call: Callable[[], _T], *, patience: float | None = None) -> _T:
        """Run `call` where records are written, one after the other; not at all if its turn comes after `patience`.

        Who has stopped waiting will ask again: to work for it now would only let the next ones wait too long.
        """
        if self._writes >= _WRITES_WAITING:
            raise _busy()
        asked = time.monotonic()

        def timed() -> _T:
            self._began = time.monotonic()
            if patience is not None and self._began - asked > patience:
                self._began = None
                raise _busy()
            try:
                return call()
            finally:
                self._began = None

        self._writes += 1
        future = asyncio.get_running_loop().run_in_executor(self._writer, timed)
        future.add_done_callback(self._wrote)
        # shielded: a client that hangs up must not hide how it ended
        return await self._told(what, asyncio.shield(future))

    async def read(self, call: Callable[[], _T], uid: int | None = None) -> _T:
        """Run `call` beside the writing, for `uid` (None: for nobody in particular)."""
        if self._reads.total() >= _READS_WAITING or (uid is not None and self._reads[uid] >= _READS_OF_ONE):
            raise _busy()
        self._reads[uid] += 1
        # done or not: a thread that nobody waits for any more still holds its place
        future = asyncio.ensure_future(self._in_turn(call, uid))
        future.add_done_callback(lambda done: self._was_read(done, uid))
        try:
            return await self._told("read", within(asyncio.shield(future), _READ_SECONDS))
        except asyncio.TimeoutError:
            self._counts.store_errors.add("slow")
            raise RefusedError(503, "the store is too slow", "Ask for less, or try again later.") from None

    async def _in_turn(self, call: Callable[[], _T], uid: int | None) -> _T:
        loop = asyncio.get_running_loop()
        if uid is None:
            return await loop.run_in_executor(self._readers, call)
        async with self._turns.setdefault(uid, asyncio.Semaphore(_AT_ONCE)):
            return await loop.run_in_executor(self._readers, call)

    async def _told(self, what: str, call: Awaitable[_T]) -> _T:
        try:
            answer = await call
        except StoreError as error:
            if error.kind == "refused":
                raise  # of one value, while the store is well
            self._counts.store_errors.add(what)
            self._kind = error.kind
            if not self._failing:
                self._failing = True
                _log.error("the store fails, nodes keep their records meanwhile: %s", one_line(str(error)))
            raise
        self._kind = ""
        if self._failing:
            self._failing = False
            _log.warning("the store answers again")
        return answer

    def _wrote(self, done: asyncio.Future[_T]) -> None:
        self._writes -= 1
        _seen(done)

    def _was_read(self, done: asyncio.Future[_T], uid: int | None) -> None:
        self._reads[uid] -= 1
        if not self._reads[uid]:
            del self._reads[uid]
            self._turns.pop(uid, None)
        _seen(done)

    def close(self) -> None:
        """Take no more; what is being written is finished."""
        for threads in (self._readers, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=True, cancel_futures=True)


def _seen(done: asyncio.Future[_T]) -> None:
    """Whoever waited may have gone: an error that nobody reads is no fault of the loop's."""
    if not done.cancelled():
        done.exception()


def _busy() -> RefusedError:
    return RefusedError(503, "too much is being asked at once", "Try again in a moment.")
