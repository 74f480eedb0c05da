"""Slurm's word on the jobs in the store, and what runs where: asked every so often, by a child with a deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

import msgspec

from profiler.logs import Troubles, one_line
from profiler.store.errors import StoreError
from profiler.store.facts import JobFacts, Wanted
from prolog_epilog.failures.mask import mask
from slurm_plugins.service.child import Child, ChildError, ChildLateError
from slurm_plugins.service.keeper.ask import Question, Seen
from slurm_plugins.service.keeper.collect import Running
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.pending_queue import PendingQueue
from slurm_plugins.service.keeper.queue import Queue
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.keeper.waits import Waits
from slurm_plugins.service.patience import COMMAND_SECONDS, QueuePatience
from slurm_plugins.service.site_watch import Taken
from slurm_plugins.service.unread import note_unread
from slurm_plugins.service.within import is_set_within

__all__ = ["ChildSlurm", "Enrichment", "Slurm"]

_log = logging.getLogger("gsubd.keeper")

_SECONDS: Final = 120.0
_READINGS: Final = 4
"""Times that the queue is read: for its lists, twice on 22.05, and for the attempts that are asked about."""
_MAX_ANSWER: Final = 256 << 20
_NICER: Final = 5
_AT_ONCE: Final = 4000
"""Attempts of one look."""
_OLD: Final = 4
"""Times the interval between looks after which nothing is concluded from the last one."""
_SOON: Final = 3.0
"""Seconds after which the next look may follow already, when there are news: what failed is to run again soon."""
_YOUNG: Final = 60.0
"""Seconds after its end for which Slurm's last word on a job is waited for with looks in close order."""
_REST: Final = 5.0
"""Times that a look took until the next one, at least: slurmctld has other work."""
_LONGEST_REST: Final = 10.0
"""Seconds between two looks, when there are news, however long they take."""
_PART: Final = 500
"""Facts of one transaction: batches of records get their turn in between."""


class Slurm(Protocol):
    """Where Slurm's word comes from."""

    async def ask(self, question: Question) -> Seen:
        """Look once. What went wrong is in the answer."""
        ...

    async def close(self) -> None:
        """End what the looks left running."""
        ...


class ChildSlurm:
    """`Slurm` over ``python -m slurm_plugins.service.keeper.ask``; `env` is what Slurm's commands run in."""

    def __init__(self, env: Mapping[str, str], *, seconds: float = _SECONDS) -> None:
        self._child = Child(
            "slurm_plugins.service.keeper.ask", what="asking Slurm about jobs", env=env, nicer=_NICER
        )
        self._seconds = seconds

    async def ask(self, question: Question) -> Seen:
        """See `Slurm.ask`."""
        try:
            output = await self._child.ask(
                msgspec.json.encode(question),
                seconds=self._seconds + _READINGS * (question.queue_seconds - COMMAND_SECONDS),
                most=_MAX_ANSWER,
            )
            return await asyncio.to_thread(msgspec.json.decode, output, type=Seen)
        except (ChildError, msgspec.MsgspecError) as error:
            late = isinstance(error, ChildLateError)
            return Seen(at=time.time(), error=one_line(str(error)), queue_late=late)

    async def close(self) -> None:
        """See `Slurm.close`."""
        await self._child.close()


class Enrichment:
    """Looks again and again; `run` ends only by being cancelled.

    `told` hears the facts that are in the store, `waiting` who waits for whom (`Seen.waiting`). What waits for what
    is kept in `waits`, where there is such a file.
    """

    def __init__(
        self,
        slurm: Slurm,
        storing: Storing,
        counts: Counts,
        *,
        site: Taken,
        site_path: str,
        every: float,
        told: Callable[[Sequence[JobFacts]], object] = lambda facts: None,
        waiting: Callable[[Mapping[str, tuple[int, ...]], float], object] = lambda jobs, now: None,
        waits: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._slurm = slurm
        self._storing = storing
        self._counts = counts
        self._site = site
        self._site_path = site_path
        self._every = every
        self._told = told
        self._waiting = waiting
        self._waits = Waits(waits, gap=_OLD * every)
        self._now = now
        self._running: Running | None = None
        self._queue: Queue | None = None
        self._pending: PendingQueue | None = None
        self._seen = self._queue_seen = self._pending_seen = 0.0
        self._silent = False
        self.patience = QueuePatience()
        self._news = asyncio.Event()
        self.waiting: int | None = None
        """Attempts that were asked about at the last look."""
        self._troubles = Troubles(_log)

    def running(self) -> Running | None:
        """The last look's, while it is young."""
        young = time.monotonic() - self._seen <= _OLD * self._every
        return self._running if young else None

    def queue(self) -> Queue | None:
        """What ran and waited in sum at the last look, while it is young."""
        return self._queue if time.monotonic() - self._queue_seen <= _OLD * self._every else None

    def pending(self) -> PendingQueue | None:
        """The pending jobs of the last look, while it is young."""
        return self._pending if time.monotonic() - self._pending_seen <= _OLD * self._every else None

    async def run(self) -> None:
        """Look, tell the store, wait, again."""
        try:
            await self._look_again_and_again()
        finally:
            await self._slurm.close()

    async def _look_again_and_again(self) -> None:
        while True:
            began = time.monotonic()
            self._news.clear()
            try:
                await self.once()
            except (StoreError, RefusedError):
                pass  # said by `Storing`; the next look asks again
            except Exception:
                # our bug: it must not end the looking for good
                _log.exception("a fault while taking Slurm's word on jobs")
            took = time.monotonic() - began
            soonest = max(min(self._every, _SOON), min(took * _REST, took + _LONGEST_REST))
            await asyncio.sleep(soonest - took)
            await is_set_within(self._news, max(0.0, self._every - soonest))

    def soon(self) -> None:
        """A job has started or ended: do not wait the whole time for the next look."""
        self._news.set()

    async def once(self) -> None:
        """One look. Raises StoreError, RefusedError."""
        cluster, store = self._site.site.cluster, self._storing.store
        now = self._now()
        # Of a silent Slurm only a sign of life is wanted: what is asked in vain comes again ever later
        wanted: Sequence[Wanted] = ()
        if not self._silent:
            wanted = await self._storing.write("wanting", lambda: store.wanting(cluster, _AT_ONCE, now))
        self.waiting = len(wanted)
        refs = tuple(one.job for one in wanted)
        began = time.monotonic()
        seen = await self._slurm.ask(
            Question(
                site=self._site.text,
                site_path=self._site_path,
                wanted=refs,
                queue_seconds=self.patience.limit,
            )
        )
        if seen.queue_took is not None:
            self.patience.note_answer(seen.queue_took)
        if seen.queue_late:
            self.patience.note_late()
        self._troubles.say("Slurm does not tell what runs", seen.error)
        self._troubles.say(
            "Slurm's accounting does not answer, jobs are known by scontrol alone", seen.accounting_error
        )
        note_unread(self._troubles, self._counts.unread, seen.unread, seen.unread_example)
        self._counts.looks.add("failed" if seen.error else "ok")
        if self._silent and not seen.error:
            self.soon()
        self._silent = bool(seen.error)
        if seen.running is not None:
            self._running, self._seen = Running(seen.at, dict(seen.running)), began
        if seen.queue is not None:
            self._queue, self._queue_seen = seen.queue, began
        if seen.entries is not None:
            self._pending, self._pending_seen = PendingQueue(seen.entries, seen.rooms, seen.at), began
        if not seen.error:
            # Kept before anybody hears that a job has ended: Slurm shows no dependency that is fulfilled
            await asyncio.to_thread(self._waiting, seen.waiting, now)
        if seen.pending is not None:
            await asyncio.to_thread(self._waits.seen, seen.pending, seen.at)
        for part in _parts(seen.facts):
            await self._tell(part, seen.at)
        ending = {one.job.job_id for one in wanted if one.ended is not None and now - one.ended < _YOUNG}
        if any(not one.final and one.job_id in ending for one in seen.facts):
            self.soon()  # it is completing: in a moment Slurm knows how it ended

    async def _tell(self, facts: Sequence[JobFacts], at: float) -> None:
        store, waits = self._storing.store, self._waits.known
        try:
            told = await self._storing.write("enrich", lambda: store.enrich(facts, at, waits))
        except StoreError as error:
            if error.kind != "refused":
                raise
            jobs = _by_job(facts)
            if len(jobs) == 1:
                why = f"job {facts[0].job_id}: {error.why or error.what}"
                self._troubles.say("what Slurm says of a job cannot be kept", mask(one_line(why)))
                return
            # One of them is what the store cannot hold: each job for itself
            for several in jobs:
                await self._tell(several, at)
            return
        self._counts.enriched.add(by=told)
        self._told(facts)


def _parts(facts: Sequence[JobFacts]) -> Iterator[list[JobFacts]]:
    """Facts a transaction at a time, those of one job together: which attempt each is of shows between them."""
    part: list[JobFacts] = []
    for several in _by_job(facts):
        part += several
        if len(part) >= _PART:
            yield part
            part = []
    if part:
        yield part


def _by_job(facts: Sequence[JobFacts]) -> list[list[JobFacts]]:
    ordered = sorted(facts, key=lambda one: one.job_id)
    return [list(several) for _, several in groupby(ordered, key=lambda one: one.job_id)]
