"""The keeper put together: what runs in its event loop, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from profiler.logs import one_line
from profiler.records import Record
from profiler.store.errors import StoreError
from profiler.store.facts import JobFacts
from slurm_plugins.act.ask import SOCKET, Hand
from slurm_plugins.act.desk import OFF
from slurm_plugins.client import client
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.runner import Runner
from slurm_plugins.service.keeper.addresses import keep_learning
from slurm_plugins.service.keeper.again_look import Looking
from slurm_plugins.service.keeper.alert_mail import AlertMail
from slurm_plugins.service.keeper.alerting import EVERY as ALERTS_EVERY
from slurm_plugins.service.keeper.alerting import Alerting
from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.auth import Gate, Munged, People
from slurm_plugins.service.keeper.bad_nodes import EVERY, Assessing
from slurm_plugins.service.keeper.collect import Collector
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.enrich import ChildSlurm, Enrichment, Slurm
from slurm_plugins.service.keeper.journal import JournalReader
from slurm_plugins.service.keeper.judging import Judging
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.lifeline import Heart, watch_parent
from slurm_plugins.service.keeper.mail import Mailer
from slurm_plugins.service.keeper.notices import Notices
from slurm_plugins.service.keeper.openapi import text as document
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.resubmitting import Resubmitting
from slurm_plugins.service.keeper.routes import endpoints
from slurm_plugins.service.keeper.server import listening, serve
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.keeper.tallying import Tallying
from slurm_plugins.service.keeper.whence import Whence
from slurm_plugins.service.look import slurm_environment
from slurm_plugins.service.patience import COMMAND_SECONDS
from slurm_plugins.service.site_watch import Taken

__all__ = ["Keeper", "Options"]

_log = logging.getLogger("gsubd.keeper")

_AGAIN: Final = 5.0
"""Seconds to the next try, where something is in the way."""
_JOURNAL_SECONDS: Final = 5.0
_LOOKS: Final = 10
"""Looks at Slurm from one weighing of the evidence against nodes to the next, where those follow fast."""
_MAIL_SECONDS: Final = 30.0
_PURGE_FIRST: Final = 600.0
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Options:
    """How the keeper was started. `pipes`: standard input and output lead to gsubd; `act`: where gsub-act is asked."""

    listen: tuple[str, int]
    state: Path
    store: str
    every: float = 30.0
    pipes: bool = True
    act: Path = SOCKET


class Keeper:
    """One keeper. `run` returns when gsubd has gone, or it was told to end."""

    def __init__(
        self,
        options: Options,
        site: Taken,
        site_path: str,
        *,
        munged: Munged,
        slurm: Slurm | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options
        self.site = site.site
        self.counts = Counts()
        self.storing = Storing(self.counts)
        self.mailer = Mailer(self.site, options.state / "mail.json", count=self._mailed)
        self.notices = Notices(self.site, options.state / "notices.json", count=self._noticed)
        self._env = os.environ if env is None else env
        self._taken, self._site_path = site, site_path
        self.whence = Whence(self.site.service.node_addresses)
        self.resubmitting = self._resubmitting()
        self.enrichment = Enrichment(
            slurm or ChildSlurm(self._env),
            self.storing,
            self.counts,
            site=site,
            site_path=site_path,
            every=options.every,
            told=self._told,
            waiting=self.resubmitting.dependants.seen,
            waits=options.state / "waits.json",
        )
        self.alerting = self._alerting()
        self.judging = Judging(self.site.cluster, self.storing, self.counts, told=self.resubmitting.soon)
        self.assessing = Assessing(
            self.site.cluster,
            self.storing,
            self.counts,
            options.state,
            every=min(EVERY, _LOOKS * options.every),
        )
        self.learning = Learning(self.site.cluster, self.storing, self.counts, options.state)
        gate = Gate(munged, People(self.site.operators, self.site.service.user))
        collector = Collector(
            self.site.cluster,
            self._take,
            self.enrichment.running,
            self.whence,
        )
        answered = endpoints(
            self.site.cluster,
            self.storing,
            collector,
            self.counts,
            document=document,
            news=self._heard,
            assessing=self.assessing,
            learning=self.learning,
            pending=self.enrichment.pending,
        )
        self.tallying = Tallying(
            self.site.cluster,
            self.storing,
            self.counts,
            queue=self.enrichment.queue,
            heard=collector.heard,
        )
        self.app = App(answered, gate, self.counts)
        self.address: tuple[str, int] | None = None
        """Where the API answers, once it does."""
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        registry = self.counts.registry
        registry.gauge("gsub_store_ready", "1 while the store is open.", lambda: float(self.storing.ready))
        registry.gauge(
            "gsub_jobs_to_ask_about",
            "Attempts at jobs that Slurm's word is wanted on, at the last look.",
            lambda: self.enrichment.waiting,
        )
        registry.gauge(
            "gsub_keeper_queue_seconds",
            "Seconds that reading the whole queue took at the last look.",
            lambda: self.enrichment.patience.took,
        )
        registry.gauge(
            "gsub_keeper_queue_limit_seconds",
            "Seconds that reading the whole queue may take.",
            lambda: self.enrichment.patience.limit,
        )

    def _resubmitting(self) -> Resubmitting:
        env = slurm_environment(self._env, self.site)
        slurm = self._looking(env)
        off = Path(self._site_path).parent / OFF.name if self._site_path else None
        return Resubmitting(
            self.site,
            self.storing,
            self.counts,
            slurm,
            Hand(self.options.act),
            off=off,
            waits=self.options.state / "dependants.json",
            told=self.notices.decided,
        )

    def _looking(self, env: Mapping[str, str]) -> Looking:
        @lru_cache(1)
        def reader(seconds: float) -> SlurmClient:
            return client(env, self.site.slurm.backend, timeout=seconds)

        return Looking(reader(COMMAND_SECONDS), Runner(env, timeout=COMMAND_SECONDS), reader)

    def _alerting(self) -> Alerting:
        env = slurm_environment(self._env, self.site)
        state = self.options.state
        return Alerting(
            self.site,
            self.storing,
            self.counts,
            self._looking(env),
            Hand(self.options.act),
            mail=AlertMail(self.site, state / "alert-mail.json"),
            file=state / "alerts.json",
            every=min(ALERTS_EVERY, max(2.0, float(self.site.agent.report))),
        )

    def _heard(self) -> None:
        """A node has told of a job's start, end or failure."""
        self.enrichment.soon()
        self.judging.soon()

    def _told(self, facts: Sequence[JobFacts]) -> None:
        """Slurm's word on jobs is in the store."""
        self.mailer.ended(facts)
        self.judging.soon()

    def _take(self, records: Sequence[Record], at: float) -> None:
        self.storing.store.take(records, at)
        self.tallying.took(records)

    def stop(self) -> None:
        """Have `run` finish what is being written, and return."""
        self._stop.set()

    async def run(self) -> None:
        """Collect and answer until told to end."""
        self._loop = loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        heart = None
        if self.options.pipes:
            watch_parent(0, lambda: loop.call_soon_threadsafe(self.stop))
            heart = Heart(1, lambda: self.storing.well)
        tasks = [loop.create_task(one) for one in self._parts(heart)]
        stopped = loop.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            for task in (stopped, *tasks):
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)
            self.storing.close()

    def _parts(self, heart: Heart | None) -> list[Coroutine[object, object, None]]:
        parts = [self._answer(heart), self._keep()]
        if self.whence.wants_addresses:
            parts.append(keep_learning(self.whence, self._taken, self._site_path, self._env))
        return parts if heart is None else [*parts, heart.run()]

    async def _answer(self, heart: Heart | None) -> None:
        """The API, from the first moment on: without a store it says so."""
        sock = await self._listening()
        host, port = sock.getsockname()[:2]
        _log.info("API on %s port %d", host, port)
        if heart is not None:
            heart.say(f"ready {host} {port}")
        self.address = (host, port)
        await serve(self.app, sock, self.counts)

    async def _listening(self) -> socket.socket:
        told = False
        while True:
            try:
                return listening(*self.options.listen)
            except OSError as error:
                if not told:
                    _log.error(
                        "cannot listen on %s port %d: %s; it is tried again, decisions and Slurm's word are kept",
                        *self.options.listen,
                        error.strerror or error,
                    )
                told = True
            await asyncio.sleep(_AGAIN)

    async def _keep(self) -> None:
        """The store opened, then all that is written to it without being asked."""
        async with self._alone():
            await self._open()
            await asyncio.gather(
                self.enrichment.run(),
                self.judging.run(),
                self.assessing.run(),
                self.learning.run(),
                self.tallying.run(),
                self.resubmitting.run(),
                self.alerting.run(),
                self._decisions(),
                self._mail(),
                self._purge(),
                self._mend(),
            )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Hold the lock of the one writer: the keeper of a gsubd that was killed may still be ending."""
        path = self.options.state / "keeper.lock"
        told = False
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        _log.warning("another keeper holds %s: nothing is written until it ends", path)
                    told = True
                await asyncio.sleep(0.5)
            yield
        finally:
            os.close(handle)

    async def _open(self) -> None:
        said = ""
        while True:
            try:
                await self.storing.open(self.options.store)
                return
            except StoreError as error:
                if error.kind != said:
                    _log.error("the store cannot be used, nodes keep their records: %s", one_line(str(error)))
                said = error.kind
            await asyncio.sleep(_AGAIN)

    async def _mend(self) -> None:
        """Take up a store that was made anew under us."""
        while True:
            await asyncio.sleep(_AGAIN)
            try:
                await self.storing.mend()
            except (StoreError, RefusedError):
                pass  # said by `Storing`
            except Exception:
                _log.exception("a fault while taking the store up again")

    async def _decisions(self) -> None:
        """Carry gsubd's decisions over."""
        path = self.options.state / "decisions.jsonl"
        reader = JournalReader(path, self.options.state / "decisions.place")
        while True:
            more = False
            try:
                read = await asyncio.to_thread(reader.read)
                if read.records:
                    await self._put(read.records)
                    self.counts.decisions.add(by=len(read.records))
                    more = True
                await asyncio.to_thread(reader.done, read)
            except (StoreError, RefusedError, OSError):
                pass  # the store's trouble is said by `Storing`; the place stays
            except Exception:
                _log.exception("a fault while carrying decisions over")
            await asyncio.sleep(0.1 if more else _JOURNAL_SECONDS)

    async def _put(self, records: Sequence[dict[str, Any]]) -> None:
        store, cluster = self.storing.store, self.site.cluster
        try:
            await self.storing.write("decisions", lambda: store.put_decisions(cluster, records))
        except StoreError as error:
            if error.kind != "refused":
                raise
            if len(records) == 1:
                _log.error("a decision that the store cannot hold is left out: %s", one_line(error.why))
                return
            for record in records:
                await self._put([record])

    async def _mail(self) -> None:
        """Receipts and notices by mail, where the site wants them."""
        mailers = [one for one in (self.mailer, self.notices) if one.on]
        while mailers:
            await asyncio.sleep(_MAIL_SECONDS)
            for one in mailers:
                try:
                    await self.storing.aside("mail", partial(self._mail_once, one))
                except (StoreError, OSError):
                    pass  # what waits is tried again
                except Exception:
                    _log.exception("a fault while mailing receipts and notices")

    def _mail_once(self, mailer: Mailer) -> None:
        mailer.run_once(self.storing.store, time.time())

    def _mailed(self, how: str) -> None:
        """Count a mail; called from the thread that sends it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.counts.mails.add, how)

    def _noticed(self, how: str) -> None:
        """Count a mail about what followed a failure; called from the thread that sends it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.counts.notices.add, how)

    async def _purge(self) -> None:
        """Remove what is older than the site keeps, once a day."""
        await asyncio.sleep(_PURGE_FIRST)
        store = self.site.store
        while True:
            try:
                await self.storing.aside(
                    "purge",
                    lambda: self.storing.store.purge(time.time(), store.retention, store.series_retention),
                )
            except StoreError:
                pass  # said by `Storing`; tomorrow is another day
            except Exception:
                _log.exception("a fault while removing old records")
            await asyncio.sleep(_DAY)
