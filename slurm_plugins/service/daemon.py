"""gsubd put together: what runs in its event loop, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from site_configs.site_model import Site
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.request import Request
from slurm_plugins.service.asking import Connections
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from slurm_plugins.service.notify import Notifier
from slurm_plugins.service.peers import Peers
from slurm_plugins.service.records import Journal
from slurm_plugins.service.socket_file import SocketFile
from slurm_plugins.service.written import decision_line

__all__ = ["Daemon", "Options"]

_log = logging.getLogger("gsubd")
_FINISH = 1.5
"""Seconds that ending may take; the shim's deadline is far below."""


@dataclass(frozen=True, slots=True)
class Options:
    """How gsubd was started."""

    socket: Path
    state: Path
    site: Path | None = None
    group: str | None = None
    listen: tuple[str, int] | None = ("127.0.0.1", 6830)
    allowed: frozenset[int] = frozenset()


class Daemon:
    """One gsubd. `run` returns when it was told to end."""

    def __init__(self, options: Options, site: Site, env: Mapping[str, str] | None = None) -> None:
        self.options = options
        self.counts = Counts()
        self.peers = Peers(options.allowed)
        self.desk = Desk(Context(site), self.counts, done=self._decided)
        self._env = os.environ if env is None else env
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises StartError."""
        loop = asyncio.get_running_loop()
        notifier = Notifier(self._env)
        self._journal = Journal(self.options.state)
        file = SocketFile(self.options.socket, self.options.group)
        connections = Connections(self.desk.answer, self.peers, self.counts)
        try:
            server = await loop.create_unix_server(connections, sock=file.listening, start_serving=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            await server.start_serving()
            _log.info("answering on %s (group %s)", self.options.socket, file.group)
            notifier.send("READY=1")
            beat = _Heartbeat(loop, notifier)
            await self._stop.wait()
            notifier.send("STOPPING=1")
            beat.stop()
            await _hang_up(file, server, connections)
        finally:
            file.close()
            self._journal.close()
        _log.info("ended")

    def _decided(self, request: Request, decision: Decision, at: float) -> None:
        self._journal.put(lambda: decision_line(request, decision, at))


class _Heartbeat:
    """The watchdog's ping, from the loop: when the loop hangs, systemd hears nothing and starts us anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, notifier: Notifier) -> None:
        self._loop = loop
        self._notifier = notifier
        self._handle: asyncio.TimerHandle | None = None
        if notifier.watchdog is not None:
            self._every = notifier.watchdog / 3
            self._beat()

    def _beat(self) -> None:
        self._notifier.send("WATCHDOG=1")
        self._handle = self._loop.call_later(self._every, self._beat)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


async def _hang_up(file: SocketFile, server: asyncio.AbstractServer, connections: Connections) -> None:
    """End without losing a question: nobody new, then those in the queue, then what each has already sent."""
    file.remove()
    waiting = select.poll()
    waiting.register(file.listening, select.POLLIN)
    while waiting.poll(0):
        await asyncio.sleep(0)
    # connection_made of the last ones is still to come
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.close()
    await connections.finish(_FINISH)
