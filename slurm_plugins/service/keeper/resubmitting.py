"""What follows failed attempts: decided once their verdicts are there, and carried out by gsub-act, step by step.

Two loops beside each other. One takes verdicts that nothing was decided about, looks at Slurm, plans, and writes the
row: from then on nothing can forget it. The other takes rows that are due and asks gsub-act, whose answer is written
before the next step. Neither the event loop nor the thread that writes records ever waits for Slurm or gsub-act.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from profiler.logs import Troubles, one_line
from profiler.resubmissions import ENDED, SILENT, Resubmission
from profiler.store import Due, Undecided
from profiler.store.errors import StoreError
from site_configs.site_model import Site
from slurm_plugins.act.ask import HandError
from slurm_plugins.act.wire import Answer, Request
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.resubmit.actions import asked
from slurm_plugins.resubmit.values import Failure
from slurm_plugins.service.keeper.again_facts import names_of
from slurm_plugins.service.keeper.again_look import MIN_JOB_AGE, Look, Slurm
from slurm_plugins.service.keeper.carrying_out import (
    PATIENCE,
    answered,
    refused,
    request_of,
    resume,
    stopped,
    unanswered,
    withhold,
)
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.deciding import decided, faulty
from slurm_plugins.service.keeper.dependants import Dependants
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.steady import Clock
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.within import is_set_within

__all__ = ["Asker", "Resubmitting"]

_log = logging.getLogger("gsubd.keeper")
_T = TypeVar("_T")
_Key: TypeAlias = tuple[int, int]

_AT_ONCE: Final = 200
"""Failures of one look at Slurm."""
_DEPENDANTS: Final = 5
_ROWS: Final = 500
_IN_A_ROW: Final = 20
"""Rows worked on until it is looked again who else waits."""
_EVER: Final = 4e9
"""When all is due: what waits is put off by us, and a clock that was set back must not put it off for longer."""
_SWEEP: Final = 60.0
"""Seconds between two looks at all that is undecided, due or not."""
_READING: Final = 120.0
"""Seconds after its end for which it is waited for what a job's logs say: a node reads those of many one by one."""
_PART: Final = 0.4
"""Part of the time for which Slurm keeps the record of a job, that is waited at most."""
_AWHILE: Final = 10.0
_NODE_LOST: Final = ("NODE_FAIL", "BOOT_FAIL")
"""States in which nobody is left to read them."""
_SECONDS: Final = 3.0
_REST: Final = 3.0
"""Times that a look took until the next one: slurmctld has other work."""
_APART: Final = 1.0
_LONGEST_REST: Final = 20.0
"""Seconds between two looks at least, however short they are, and at most."""
_SILENT: Final = (2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds to the next try where Slurm, or gsub-act, does not answer."""
_SOON: Final = 120.0
"""Seconds that a row is put off for at most: one that is due later was written by another clock."""


class Asker(Protocol):
    """gsub-act, as `slurm_plugins.act.ask.Hand` asks it."""

    def ask(self, request: Request) -> Answer:
        """What became of it. Raises HandError."""
        ...


class Resubmitting:
    """Decides and carries out, again and again; `run` ends only by being cancelled."""

    def __init__(
        self,
        site: Site,
        storing: Storing,
        counts: Counts,
        slurm: Slurm,
        hand: Asker,
        *,
        off: Path | None = None,
        waits: Path | None = None,
        told: Callable[[Sequence[Resubmission]], object] = lambda rows: None,
        now: Callable[[], float] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`off` is the file that switches gsub-act off while it exists, `waits` keeps who waits for whom.

        `told` hears of rows that are in the store.
        """
        self._site = site
        self._cluster = site.cluster
        self._storing = storing
        self._counts = counts
        self._slurm = slurm
        self._hand = hand
        self._off = off
        self._told = told
        self._now = now or Clock().now
        self._chance = chance
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="again")
        self.dependants = Dependants(waits)
        """Who waits for whom: to be told by each look at Slurm."""
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="hand")
        self._verdicts = asyncio.Event()
        self._planned = asyncio.Event()
        self._in_hand: set[_Key] = set()
        """Rows that gsub-act is being asked about: nothing else is decided about them meanwhile."""
        self._anew: set[_Key] = set()
        """Rows that are decided anew, since the rows that are being worked on were read."""
        self._troubles = Troubles(_log)
        self._slurm_silent = 0
        self._hand_silent = 0
        self._record_s = MIN_JOB_AGE
        self._swept = -_SWEEP
        self._rest_until = 0.0

    def soon(self) -> None:
        """There are new verdicts: do not wait the whole time."""
        self._verdicts.set()

    async def run(self) -> None:
        """Decide what is undecided and carry out what is due, wait, again."""
        try:
            await asyncio.gather(
                self._again(self.decide, self._verdicts, "deciding what follows failed jobs"),
                self._again(self.carry_out, self._planned, "trying failed jobs again"),
            )
        finally:
            for threads in (self._looking, self._asking):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _again(self, part: Callable[[], Awaitable[float]], news: asyncio.Event, what: str) -> None:
        while True:
            news.clear()
            wait = _SECONDS
            try:
                wait = await part()
            except (StoreError, RefusedError):
                pass  # said by `Storing`; what is due stays due
            except Exception:
                # our bug: it must not end the work for good
                _log.exception("a fault while %s", what)
            await is_set_within(news, wait)

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def decide(self) -> float:
        """One go; seconds to the next. Raises StoreError, RefusedError."""
        store, cluster = self._storing.store, self._cluster
        resting = self._rest_until - time.monotonic()
        if resting > 0:
            return resting
        now = self._now()
        until = now if now < self._swept + _SWEEP else _EVER
        found = await self._storing.read(lambda: store.undecided(cluster, _AT_ONCE, until))
        if until == _EVER:
            self._swept = now
        unread = [one for one in found if self._unread(one, now)]
        if unread:
            await self._storing.write("waiting", lambda: store.put_off(unread, now + _AWHILE))
        cases = [one for one in found if one not in unread and _key(one) not in self._in_hand]
        if not cases:
            return _APART if found else _SECONDS
        self._anew.update(_key(one) for one in cases if one.resubmission is not None)
        began = time.monotonic()
        look = await self._looked(cases)
        rest = min(max((time.monotonic() - began) * _REST, _APART), _LONGEST_REST)
        self._rest_until = time.monotonic() + rest
        if look is None:
            return _SILENT[min(self._slurm_silent, len(_SILENT)) - 1]
        off = self._off is not None and os.path.lexists(self._off)
        rows = await self._storing.read(lambda: [self._row(case, look, off, now) for case in cases])
        if self._hand_silent:
            rows = [row if row.state in ENDED else withhold(row) for row in rows]
        await self._put(rows, of=cases)
        self._planned.set()
        return rest

    def _unread(self, case: Undecided, now: float) -> bool:
        """Whether to wait for its logs: a new attempt may overwrite them, and they may say that none would help."""
        of = case.job
        if not case.unread or not self._site.agent.findings or of.state in _NODE_LOST or of.ended is None:
            return False
        return -_READING < now - of.ended < min(_READING, _PART * self._record_s)

    async def _looked(self, cases: Sequence[Undecided]) -> Look | None:
        policy = self._site.resubmit
        ids = [case.job.job_id for case in cases]
        ids += [number for case in cases for number in self._before(case)]
        more = [
            case.job.job_id
            for case in cases
            if asked(Failure.of(case.finding, case.source), policy).action == "more_memory"
        ]
        try:
            look = await self._thread(self._looking, lambda: self._slurm.look(ids, more))
        except SlurmError as error:
            self._slurm_silent += 1
            self._troubles.say("Slurm does not tell of jobs that failed, they wait", one_line(str(error)))
            return None
        self._slurm_silent = 0
        self._record_s = look.record_s
        self._troubles.say("Slurm does not tell of jobs that failed, they wait", "")
        return look

    def _before(self, case: Undecided) -> tuple[int, ...]:
        """Some of the jobs that waited for it: one is enough to leave it alone."""
        return self.dependants.of(names_of(case.job))[:_DEPENDANTS]

    def _row(self, case: Undecided, look: Look, off: bool, now: float) -> Resubmission:
        """What follows a case; in a thread that reads the store."""
        before = case.resubmission
        if before is not None and before.state == "requeued":
            return before  # what was begun is ended as it was meant
        of, store = case.job, self._storing.store
        try:
            past = store.past_of(of.cluster, of.job_id, of.restarts)
            answer = store.decision(of.cluster, of.job_id, of.restarts)
            said = answer.decision if answer is not None else None
            row = decided(
                case,
                look,
                past,
                site=self._site,
                opted_out=said is not None and said.get("opted_out") is True,
                client=_client(said),
                dependants=self._before(case),
                off=off,
                now=now,
                chance=self._chance,
            )
            # As it is read again: one that could not be would be forgotten
            return msgspec.convert(msgspec.to_builtins(row), Resubmission)
        except StoreError:
            raise
        except Exception:
            # our bug: one attempt must not keep the others from it, now and for ever
            _log.exception("a fault while deciding what follows job %d", of.job_id)
            return faulty(of.cluster, of.job_id, of.restarts, case.finding.reason, now)

    # --- carrying out -------------------------------------------------------------------------------------------------

    async def carry_out(self) -> float:
        """One go; seconds to the next. Raises StoreError, RefusedError."""
        store, cluster = self._storing.store, self._cluster
        self._anew.clear()
        rows = await self._storing.read(lambda: store.due_resubmissions(cluster, _ROWS, _EVER))
        now = self._now()
        due = in_order(rows, now)
        for place, row in enumerate(due[:_IN_A_ROW], 1):
            if _key(row) in self._anew:
                continue
            self._in_hand.add(_key(row))
            try:
                if not await self._carried(row):
                    await self._withhold(due[place:])
                    return _SILENT[min(self._hand_silent, len(_SILENT)) - 1]
            finally:
                self._in_hand.discard(_key(row))
        if len(due) > _IN_A_ROW:
            return 0.0
        return min((max(0.05, (one.due or 0.0) - now) for one in rows_of(rows)), default=_SECONDS)

    async def _carried(self, row: Resubmission) -> bool:
        """Do its steps until it has to wait; whether gsub-act answers."""
        while row.state not in ENDED and is_due(row, self._now()):
            if row.state == "planned" and self._now() - row.at > PATIENCE:
                await self._put([stopped(row, "slurm", "it could not be done in time")])
                break
            if row.state == "planned" and not self._site.resubmit.enabled:
                # It was planned before the switch; what has begun is ended as it was meant
                await self._put([stopped(row, "off", "this site has switched resubmission off")])
                break
            request = request_of(resume(row))
            try:
                answer = await self._thread(self._asking, partial(self._hand.ask, request))
            except HandError as error:
                self._hand_silent += 1
                self._troubles.say("gsub-act does not answer, jobs wait for it", one_line(str(error)))
                if (after := self._unserved(row)) is not row:
                    await self._put([after])
                return False
            self._hand_silent = 0
            self._troubles.say("gsub-act does not answer, jobs wait for it", "")
            row = await self._after(resume(row), answer)
            await self._put([row])
        return True

    async def _after(self, row: Resubmission, answer: Answer) -> Resubmission:
        after = answered(row, answer, self._now())
        if after is not None:
            return after
        try:
            job = await self._thread(self._looking, lambda: self._slurm.job(row.shown or str(row.job_id)))
        except SlurmError as error:
            return unanswered(row, f"Slurm was not reached: {one_line(str(error))}", _SILENT[1], self._now())
        return refused(row, answer, job, self._now())

    def _unserved(self, row: Resubmission) -> Resubmission:
        """The row while gsub-act does not answer; one that has waited for too long is given up."""
        return stopped(row, "slurm", SILENT) if self._now() - row.at > PATIENCE else withhold(row)

    async def _withhold(self, rest: Sequence[Resubmission]) -> None:
        """Promise nothing to those either who come after one that gsub-act did not answer about."""
        rows = [row for row in rest if _key(row) not in self._anew | self._in_hand]
        keys = {_key(row) for row in rows}
        self._in_hand |= keys
        try:
            changed = [after for row in rows if (after := self._unserved(row)) is not row]
            if changed:
                await self._put(changed)
        finally:
            self._in_hand -= keys

    # --- both ---------------------------------------------------------------------------------------------------------

    async def _put(self, rows: Sequence[Resubmission], *, of: Sequence[Undecided] = ()) -> None:
        store, now = self._storing.store, self._now()
        try:
            written = await self._storing.write(
                "resubmissions", lambda: store.put_resubmissions(rows, now, of=of)
            )
        except StoreError as error:
            if error.kind != "refused" or not rows or rows[0].stop == "unknown":
                raise
            if len(rows) > 1:
                for row in rows:
                    await self._put([row], of=[one for one in of if _key(one) == _key(row)])
                return
            _log.error("what follows job %d cannot be kept: %s", rows[0].job_id, one_line(error.why))
            row = rows[0]
            await self._put([faulty(row.cluster, row.job_id, row.restarts, "unknown", now)], of=of)
            return
        for row in written:
            if of or row.state in ENDED:
                self._counts.resubmissions.add(row.action, row.stop or row.state)
        self._told(written)

    async def _thread(self, threads: ThreadPoolExecutor, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(threads, call)


def _key(one: Undecided | Resubmission) -> _Key:
    of = one if isinstance(one, Resubmission) else one.job
    return of.job_id, of.restarts


def rows_of(dues: Iterable[Due]) -> list[Resubmission]:
    """The rows alone."""
    return [one.resubmission for one in dues]


def is_due(row: Resubmission, now: float) -> bool:
    """Whether it is time to work on a row."""
    return row.due is None or not now < row.due <= now + _SOON


def in_order(dues: Iterable[Due], now: float) -> list[Resubmission]:
    """Those that are due, users in turn as they come: first what Slurm has queued and will start as it was."""
    rows = [row for row in rows_of(dues) if is_due(row, now)]
    return sorted(rows, key=lambda row: row.state != "requeued")


def _client(said: Mapping[str, object] | None) -> object:
    """The program that manages a job, as its decision has it."""
    facts = (said or {}).get("facts")
    return facts.get("client") if isinstance(facts, dict) else None
