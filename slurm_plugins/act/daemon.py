"""gsub-act put together: its socket, the one thread in which everything is done, how it starts and ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiler.notify import Notifier
from site_configs.site import Site
from slurm_plugins.act.desk import Desk
from slurm_plugins.act.journal import Journal
from slurm_plugins.act.slurm import Slurm
from slurm_plugins.act.wire import MAX_LINE
from slurm_plugins.service.peers import peer_of, uid_of
from slurm_plugins.service.site_watch import SiteFile
from slurm_plugins.service.socket_file import BACKLOG, SocketFile
from slurm_plugins.service.within import is_set_within, within

__all__ = ["Daemon", "Options"]

_CONNECTIONS: Final = 16
"""gsubd needs one; each has one request at a time in hand."""
_IDLE: Final = 3600.0
_HALF: Final = 10.0
"""Seconds that who is turned away has to read the answer."""
_TEND: Final = 1.0
"""Seconds from one look at the site file, at what is open and at what is held, to the next."""
_END: Final = 20.0
"""Seconds that releasing what is held may take at the end."""

_log = logging.getLogger("gsub-act")


@dataclass(frozen=True, slots=True)
class Options:
    """How gsub-act was started."""

    socket: Path
    state: Path
    off: Path
    group: str | None = "gsub"
    callers: frozenset[int] = frozenset()
    """Uids that may ask beside root and the user of `service.user`."""


class Daemon:
    """One gsub-act. `run` returns when it was told to end."""

    def __init__(
        self,
        options: Options,
        site: SiteFile,
        slurm: Callable[[Callable[[], Site]], Slurm],
        *,
        env: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        self.options = options
        self.site = site
        self._env = env
        self._callers = self._who_may_ask()
        self.journal = Journal(options.state, now=clock())
        self.desk = Desk(
            slurm(lambda: self.site.taken.site),
            self.journal,
            lambda: self.site.taken.site,
            callers=lambda: self._callers,
            off=options.off,
            clock=clock,
        )
        # One thread, one thing at a time: what was checked still holds when it is done
        self._hand = ThreadPoolExecutor(1, "act")
        self._stop = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._in_hand: set[asyncio.Task[None]] = set()

    def _who_may_ask(self) -> frozenset[int]:
        service = uid_of(self.site.taken.site.service.user)
        if service is None:
            _log.warning("there is no user %s here: only root may ask", self.site.taken.site.service.user)
        return frozenset({0, *self.options.callers, *(() if service is None else (service,))})

    def stop(self) -> None:
        """Have `run` finish what is in hand, release what is held, and return."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises StartError."""
        try:
            await self._serve()
        finally:
            self._hand.shutdown()
            self.journal.close()
        _log.info("ended")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        # Before anything is there that would outlive us: the socket's file, what Slurm is being asked
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
        notifier = Notifier(self._env)
        file = SocketFile(self.options.socket, self.options.group, owner="gsub-act", what="gsub-act's socket")
        tending = loop.create_task(self._tend())
        try:
            server = await asyncio.start_unix_server(
                self._connected, sock=file.listening, limit=MAX_LINE, backlog=BACKLOG
            )
            _log.info("answering on %s (group %s)", self.options.socket, file.group)
            notifier.send("READY=1")
            beat = loop.create_task(_beat(notifier))
            await self._stop.wait()
            notifier.send("STOPPING=1")
            beat.cancel()
            file.remove()
            server.close()
            tending.cancel()
            for task in self._open - self._in_hand:
                task.cancel()
            await loop.run_in_executor(self._hand, self.desk.end, _END)
            if self._open:
                await asyncio.wait(self._open, timeout=1)  # their answers were there before the end began
        finally:
            tending.cancel()
            file.close()

    async def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._hand, self.desk.tend)
                if self._hung_up.is_set() or await asyncio.to_thread(self.site.changed):
                    self._hung_up.clear()
                    if await asyncio.to_thread(self.site.read):
                        self._callers = self._who_may_ask()
                        _log.info("site file taken: %s", self.site.path or "there is none")
            except Exception:
                # our bug: it must not end the looking after for good
                _log.exception("a fault while looking after what is held")
            await is_set_within(self._hung_up, _TEND)

    # --- connections --------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we run in one
        self._open.add(task)
        try:
            connection: socket.socket = writer.get_extra_info("socket")
            uid = peer_of(connection).uid
            if uid not in self._callers:
                await self._turn_away(reader, writer, uid, "only gsubd's user and root may ask")
            elif len(self._open) > _CONNECTIONS:
                await self._turn_away(reader, writer, uid, "there are too many connections")
            else:
                await self._converse(task, reader, writer, uid)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # gone, or we are: what was begun is done, and the asker asks again by its id
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int
    ) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            try:
                line = await within(reader.readuntil(b"\n"), _IDLE)
            except asyncio.LimitOverrunError:
                await self._turn_away(reader, writer, uid, f"a request has at most {MAX_LINE} bytes")
                return
            self._in_hand.add(task)
            try:
                writer.write(await loop.run_in_executor(self._hand, self.desk.answer, line, uid))
                await within(writer.drain(), _HALF)
            finally:
                self._in_hand.discard(task)

    async def _turn_away(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int, why: str
    ) -> None:
        loop = asyncio.get_running_loop()
        writer.write(await loop.run_in_executor(self._hand, self.desk.turn_away, uid, why))
        await within(writer.drain(), _HALF)
        # Closing with a request half read would reset the connection, and the answer with it
        writer.write_eof()
        with suppress(asyncio.TimeoutError):
            await within(_drink(reader), _HALF)


async def _drink(reader: asyncio.StreamReader) -> None:
    left = 1 << 20
    while left > 0 and (data := await reader.read(1 << 14)):
        left -= len(data)


async def _beat(notifier: Notifier) -> None:
    """The watchdog's ping, from the loop."""
    while notifier.watchdog is not None:
        notifier.send("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog / 3)
