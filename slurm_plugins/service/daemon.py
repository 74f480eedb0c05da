"""gsubd put together: what runs in its event loop, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_plugins.act.ask import SOCKET
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.knowledge import Profiles
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import Stage
from slurm_plugins.service.asking import Connections
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from slurm_plugins.service.errors import StartError
from slurm_plugins.service.http import Page, serve_http
from slurm_plugins.service.keeping import Keep, Keeping
from slurm_plugins.service.learnt import Learnt, Partitions
from slurm_plugins.service.lookout import ChildLookout, Lookout
from slurm_plugins.service.metrics import CONTENT_TYPE
from slurm_plugins.service.notify import Notifier
from slurm_plugins.service.partners import Partners
from slurm_plugins.service.peers import Peers, uid_of
from slurm_plugins.service.pending import PendingJoins
from slurm_plugins.service.polling import EVERY, Polling
from slurm_plugins.service.records import Journal, tail
from slurm_plugins.service.site_watch import SiteFile
from slurm_plugins.service.slurm_config import slurm_user_of_file
from slurm_plugins.service.socket_file import BACKLOG, SocketFile
from slurm_plugins.service.submitted import Pending
from slurm_plugins.service.within import is_set_within
from slurm_plugins.service.written import decision_line

__all__ = ["Daemon", "Options"]

_log = logging.getLogger("gsubd")
_FINISH = 1.5
"""Seconds that ending may take; the shim's deadline is far below."""
_SITE_SECONDS = 1.0
"""How often the site file is looked at; a change is taken when it has stood for so long."""
_PORT_SECONDS = 10.0
"""From one try to the next to get a port that another program has."""


@dataclass(frozen=True, slots=True)
class Options:
    """How gsubd was started."""

    socket: Path
    state: Path
    group: str | None = None
    listen: tuple[str, int] | None = ("127.0.0.1", 6830)
    allowed: frozenset[int] = frozenset()
    poll: float = EVERY
    keep: Keep | None = None
    """How the keeper is started; None: nothing is collected."""


class Daemon:
    """One gsubd. `run` returns when it was told to end.

    `lookout` says where reports about Slurm come from: a child process, unless a test has its own.
    """

    def __init__(
        self,
        options: Options,
        site: SiteFile,
        *,
        stages: Sequence[Stage] | None = None,
        lookout: Lookout | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options
        self.counts = Counts()
        self.site = site
        self._env = os.environ if env is None else env
        self.peers = Peers(options.allowed)
        user = slurm_user_of_file(self._env, site.taken.site.slurm.conf)
        self.peers.learn_slurm_user(uid_of(user or "slurm"))
        self.learnt = Learnt(options.state)
        self.partitions = Partitions(options.state)
        self.desk = Desk(
            Context(site.taken.site, knowledge=self._known()),
            self.counts,
            stages=stages,
            done=self._decided,
            fresh=lambda: self.polling.fresh,
        )
        self.journal = Journal(options.state)
        self.joins = PendingJoins(self.journal.put, self.counts)
        self.joins.restore(tail(self.journal.path), time.time())
        self.polling = Polling(
            lookout or ChildLookout(self._env),
            self.desk,
            self.joins,
            self.counts,
            site=lambda: self.site.taken,
            site_path=str(site.path or ""),
            slurm_uid=self.peers.learn_slurm_user,
            every=options.poll,
        )
        self.keeping = Keeping(
            options.keep,
            site=lambda: self.site.taken,
            site_path=site.path,
            state=options.state,
            every=options.poll,
            env=self._env,
        )
        keep = options.keep
        self.partners = Partners(
            lambda: self.site.taken.site, None if keep is None else keep.act or SOCKET, self._env
        )
        self._connections = Connections(self.desk.answer, self.peers, self.counts)
        self._stop = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._http: asyncio.Server | None = None
        self.address: tuple[str, int] = ("", 0)
        """Where HTTP is answered."""
        self._gauges()

    def stop(self) -> None:
        """Have `run` answer what was asked, and return."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises StartError."""
        try:
            await self._serve()
        finally:
            self.journal.close()
        _log.info("ended")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        # Before anything is there that would outlive us: the socket's file, processes that look at Slurm
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
        notifier = Notifier(self._env)
        has_port = await self._listen()
        file = SocketFile(self.options.socket, self.options.group)
        background = [
            loop.create_task(self.polling.run()),
            loop.create_task(self._watch_site()),
            loop.create_task(self.keeping.run()),
            loop.create_task(self.partners.run()),
        ]
        if not has_port:
            background.append(loop.create_task(self._listen_later()))
        try:
            server = await loop.create_unix_server(
                self._connections.new, sock=file.listening, backlog=BACKLOG, start_serving=False
            )
            await server.start_serving()
            _log.info("answering on %s (group %s)", self.options.socket, file.group)
            notifier.send("READY=1")
            beat = _Heartbeat(loop, notifier)
            await self._stop.wait()
            notifier.send("STOPPING=1")
            beat.stop()
            await _hang_up(file, server, self._connections)
        finally:
            file.close()
            if self._http is not None:
                self._http.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    # What happens beside the answers

    def _decided(self, request: Request, decision: Decision, at: float) -> None:
        # The answer goes out first. Nothing is lost when gsubd ends: what closes its connections comes after this.
        asyncio.get_running_loop().call_soon(self._enter, request, decision, at)

    def _enter(self, request: Request, decision: Decision, at: float) -> None:
        self.journal.put(lambda: decision_line(request, decision, at))
        if decision.reject is None or decision.mode != "enforce":
            self.joins.add(Pending.of(request, decision, at))

    async def _watch_site(self) -> None:
        while True:
            await is_set_within(self._hung_up, _SITE_SECONDS)
            told = self._hung_up.is_set()
            self._hung_up.clear()
            try:
                if told or await asyncio.to_thread(self.site.changed):
                    await self.reload()
                await self._exchange()
            except Exception:
                # our bug: it must not end the watching for good
                _log.exception("a fault while taking the site file")

    async def reload(self) -> None:
        """Take the site file anew: a change was seen, or SIGHUP came."""
        # In a thread: a slow disk, or thousands of profiles, must not hold up submissions
        learnt = await asyncio.to_thread(lambda: self._known() if self.site.read() else None)
        self.counts.reloads.add("failed" if learnt is None else "ok")
        if learnt is not None:
            self.desk.context = replace(self.desk.context, site=self.site.taken.site, knowledge=learnt)
            _log.info("site file taken: %s", self.site.path or "there is none")
            self.keeping.begin_anew()
        self.polling.look_now()

    def _known(self) -> Profiles:
        return self.learnt.read(self.site.taken.site.cluster)

    async def _exchange(self) -> None:
        """Take what the keeper has learnt of nodes, and tell it what partitions hold."""
        if await asyncio.to_thread(self.learnt.changed):
            learnt = await asyncio.to_thread(self._known)
            self.desk.context = replace(self.desk.context, knowledge=learnt)
        inventory = self.desk.context.inventory
        if self.options.keep is not None and inventory and self.partitions.is_new(inventory):
            await asyncio.to_thread(self.partitions.tell, inventory)

    # What can be seen from outside

    async def _listen(self) -> bool:
        """Answer HTTP; False when another program has the port: whoever may take a port must not end decisions."""
        if self.options.listen is None:
            return True
        host, port = self.options.listen
        try:
            self._http = await serve_http(host, port, {"/metrics": self._metrics, "/healthz": self._health})
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise StartError(
                f"cannot listen on {host}:{port}",
                error.strerror or str(error),
                'name another address with --listen, or "--listen none"',
            ) from None
        self.address = self._http.sockets[0].getsockname()[:2]
        _log.info("metrics on http://%s:%d/metrics", *self.address)
        return True

    async def _listen_later(self) -> None:
        _log.error("the port of --listen is taken by another program: no metrics until it is free")
        with suppress(StartError):
            while self._http is None:
                await asyncio.sleep(_PORT_SECONDS)
                await self._listen()

    def _metrics(self) -> Page:
        return Page(self.counts.registry.text(), CONTENT_TYPE)

    def _health(self) -> Page:
        """200 while decisions can be made at all; 503 with the same text before the first look at Slurm."""
        known = self.polling.answered is not None
        state = {
            "ready": known,
            "inventory_age": self.polling.age,
            "site_file_ok": self.site.ok,
            "site_file_changed": self.site.taken.changed,
        }
        return Page(json.dumps(state) + "\n", "application/json", 200 if known else 503)

    def _topology(self) -> float | None:
        """None where the site names none, or Slurm was not seen yet."""
        source = self.site.taken.site.topology
        if self.polling.answered is None or not (source.file or source.feature_prefix):
            return None
        return float(not self.polling.trouble)

    def _gauges(self) -> None:
        gauge = self.counts.gauge
        gauge("gsub_inventory_age_seconds", "Age of what is known of the cluster.", lambda: self.polling.age)
        self.counts.registry.gauges(
            "gsub_gpus", "GPUs of the cluster by state, at the last look.", "state", lambda: self.polling.gpus
        )
        gauge("gsub_site_file_ok", "1 when the site file on disk is in force.", lambda: float(self.site.ok))
        gauge(
            "gsub_site_file_changed_seconds",
            "When the site file that is in force was changed, in seconds since the epoch.",
            lambda: self.site.taken.changed,
        )
        gauge("gsub_topology_ok", "1 when the topology that the site names is used.", self._topology)
        gauge("gsub_act_up", "1 while gsub-act answers, 0 while it should.", lambda: self.partners.act_up)
        gauge(
            "gsub_shim_ok",
            "1 while the shim that job_submit.lua names is whole.",
            lambda: self.partners.shim_ok,
        )
        gauge(
            "gsub_queue_seconds",
            "Seconds that reading the jobs of decisions took at the last look that did.",
            lambda: self.polling.patience.took,
        )
        gauge(
            "gsub_queue_limit_seconds",
            "Seconds that reading the jobs of decisions may take.",
            lambda: self.polling.patience.limit,
        )
        gauge("gsub_connections", "Connections to the decision socket.", lambda: len(self._connections.open))
        gauge("gsub_waiting_for_job", "Decisions whose job is not known yet.", lambda: len(self.joins))
        gauge("gsub_keeper_up", "1 while the keeper collects and answers.", lambda: self.keeping.up)
        total = self.counts.registry.total
        total("gsub_keeper_starts_total", "Times the keeper was started.", lambda: self.keeping.starts)
        total("gsub_records_written_total", "Records written.", lambda: self.journal.written)
        total("gsub_records_dropped_total", "Records lost: disk or queue full.", lambda: self.journal.dropped)


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
    until = time.monotonic() + 0.3  # no longer: without free descriptors nothing can be accepted
    while waiting.poll(0) and time.monotonic() < until:
        await asyncio.sleep(0)
    # connection_made of the last ones is still to come
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.close()
    await connections.finish(_FINISH)
