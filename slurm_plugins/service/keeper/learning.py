"""From measured points to what decisions use: each user's runs refined to curves, and gsubd told of them.

Who sends points is done at once (`soon`); all users once a day, since points age; and every few minutes ordinary runs
that have ended are looked at for the memory that they used. Curves are fitted in a thread of their own, users taking
turns: somebody with thousands of runs holds up neither the answers nor the curves of others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec

from profiler.answers import Curves, WorkloadCurve
from profiler.curves import Curve, Point
from profiler.gathered import iterate_curves, sort_curves
from profiler.logs import Troubles, one_line
from profiler.points import Measured
from profiler.refining import refined
from profiler.store import Store
from profiler.store.errors import StoreError
from profiler.store.points import Ran
from slurm_plugins.decide.knowledge import WorkloadRecord
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.learnt import CURVES, records_of, write_curves
from slurm_plugins.service.within import is_set_within

__all__ = ["Learning", "measured_of"]

_log = logging.getLogger("gsubd.keeper")

EVERY: Final = 300.0
"""Seconds from one look at ordinary runs to the next."""
_DAY: Final = 86400.0
_AGAIN: Final = 5.0
_FIRST_BACK: Final = _DAY
_BACK: Final = 2 * 3600.0
"""How far back ended runs are looked at: at the start, and then; a node may tell of them late."""
_CALM: Final = 1.0
"""Seconds between two writes of the file; gsubd reads all of it each time."""
_CALM_PER_RECORD: Final = 0.001
_MOST: Final = 50_000
"""Records in the file; of more the users that measured last."""
_MOST_OF_USER: Final = 5000
"""Of them one user's, the last to be measured: each run may have names of its own, and one user must not push out all
others."""
_SEEN: Final = 20_000
_TURN: Final = 0.5
"""Seconds of fitting after which another user has a turn."""
_PATIENCE: Final = 5.0
"""Seconds that are waited for a user's curves."""


class Learning:
    """Keeps the curves of all users as new as their runs; `run` ends only by being cancelled."""

    def __init__(
        self,
        cluster: str,
        storing: Storing,
        counts: Counts,
        state: Path,
        *,
        every: float = EVERY,
        patience: float = _PATIENCE,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._patience = patience
        self._cluster = cluster
        self._storing = storing
        self._state = state
        self._every = every
        self._now = now
        self._known: dict[int, tuple[WorkloadCurve, ...]] = {}
        self._records: dict[int, tuple[WorkloadRecord, ...]] = {}
        self._fitted: dict[tuple[tuple[str, ...], int], tuple[float, Curve]] = {}
        self._fitting = ThreadPoolExecutor(1, thread_name_prefix="fitting")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, None] = {}
        self._news = asyncio.Event()
        self._ran: dict[tuple[int, int], None] = {}
        self._since = _FIRST_BACK
        self._troubles = Troubles(_log)
        self._fresh = False
        registry = counts.registry
        registry.gauge(
            "gsub_workloads_known",
            "Workloads that something was measured of, a type of GPU and a name each.",
            lambda: float(self._count()),
        )

    def soon(self, uid: int) -> None:
        """A run of that user was measured."""
        self._waiting[uid] = None
        self._news.set()

    async def run(self) -> None:
        """Refine, tell, wait for more."""
        self._records = await asyncio.to_thread(_written, self._state, self._cluster)
        whole = ran = float("-inf")
        while True:
            pause = self._every
            try:
                if self._now() - ran >= self._every:
                    ran = self._now()
                    await self.look()
                if self._now() - whole >= _DAY:
                    whole = self._now()
                    await self._all()
                await self.once()
                pause = _CALM + _CALM_PER_RECORD * self._count()
            except (StoreError, RefusedError):
                pause = _AGAIN  # said by `Storing`; those who wait still do
            except Exception:
                # our bug: it must not end the learning for good
                _log.exception("a fault while curves are refined")
            await asyncio.sleep(min(pause, self._every))
            await is_set_within(self._news, self._every)

    async def once(self) -> None:
        """Refine what is waiting, and tell gsubd. Raises StoreError, RefusedError.

        A user of whom there is much is not waited for: the others are told of meanwhile.
        """
        self._news.clear()
        tasks = [self._start(uid) for uid in (*self._waiting,)]
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=self._patience)
            for task in done:
                task.result()
        if not self._fresh:
            await self._tell()

    def _start(self, uid: int) -> asyncio.Task[None]:
        """The one task that refines this user's curves."""
        task = self._tasks.get(uid)
        if task is None:
            self._waiting.pop(uid, None)
            task = self._tasks[uid] = asyncio.ensure_future(self.refine(uid))
            task.add_done_callback(lambda done: self._ended(uid, done))
        return task

    def _ended(self, uid: int, done: asyncio.Task[None]) -> None:
        del self._tasks[uid]
        if not done.cancelled() and done.exception() is not None:
            self._waiting[uid] = None
        self._news.set()

    async def look(self) -> None:
        """Take what ordinary runs used. Raises StoreError, RefusedError."""
        store, since = self._storing.store, self._now() - self._since
        found = await self._storing.read(lambda: store.ran(self._cluster, since, self._ran.keys()))
        by_user: dict[int, list[Measured]] = {}
        for one in found:
            measured = measured_of(one)
            if measured is not None:
                by_user.setdefault(one.uid, []).append(measured)
        for uid, some in by_user.items():
            write = _writing(store, self._cluster, uid, some)
            if await self._storing.write("points", write):
                self.soon(uid)
        self._ran.update(dict.fromkeys((one.job_id, one.restarts) for one in found))
        while len(self._ran) > _SEEN:
            del self._ran[next(iter(self._ran))]
        self._since = _BACK

    async def _all(self) -> None:
        """Every user, one after the other, with as long a rest as each took."""
        store = self._storing.store
        users = await self._storing.read(lambda: store.measuring(self._cluster))
        for uid in sorted({*users, *self._records}):
            began = time.monotonic()
            await self._start(uid)
            await asyncio.sleep(time.monotonic() - began)
            if self._waiting:
                await self.once()

    async def refine(self, uid: int) -> None:
        """Make the curves of a user anew, in turns with other users. Raises StoreError, RefusedError."""
        store = self._storing.store
        runs = await self._storing.read(lambda: store.measured(self._cluster, uid))
        found: list[WorkloadCurve] = []
        each = iterate_curves(runs, self._now(), refine=self._refined)
        # Not where the store is read: answers would wait for it
        fit = asyncio.get_running_loop().run_in_executor
        while await fit(self._fitting, _go_on, each, found):
            pass
        self._known[uid] = known = sort_curves(found)
        all_of_them = chain.from_iterable(records_of(self._cluster, uid, one) for one in known)
        records = tuple(islice(all_of_them, _MOST_OF_USER))
        if records != self._records.pop(uid, ()):
            self._fresh = False
        if records:
            # at the end: the last to be measured are kept where there are too many
            self._records[uid] = records

    async def settle(self, uid: int) -> None:
        """Have what a user's runs measured in `curves`, if that takes no longer than who asks may wait.

        Raises StoreError, RefusedError.
        """
        if uid not in self._known:
            self._waiting[uid] = None
        until = time.monotonic() + self._patience
        while (uid in self._waiting or uid in self._tasks) and (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait({self._start(uid)}, timeout=left)
            for task in done:
                task.result()

    def curves(self, uid: int) -> Curves:
        """What is known of a user's workloads."""
        return Curves(self._known.get(uid, ()))

    def _refined(self, ids: tuple[str, ...], points: Sequence[Sequence[Point]], gpus: int) -> Curve:
        now = self._now()
        kept = self._fitted.get((ids, gpus))
        if kept is not None and now - kept[0] < _DAY:
            return kept[1]
        curve = refined(points, now, gpus)
        if len(self._fitted) >= _SEEN:
            del self._fitted[next(iter(self._fitted))]
        self._fitted[ids, gpus] = (now, curve)
        return curve

    def _count(self) -> int:
        return sum(map(len, self._records.values()))

    async def _tell(self) -> None:
        self._fresh = True
        records = list(chain.from_iterable(self._records.values()))[-_MOST:]
        try:
            await asyncio.to_thread(write_curves, self._state, records)
        except OSError as error:
            self._fresh = False
            self._troubles.say("curves cannot be written down", one_line(str(error)))
            return
        self._troubles.say("curves cannot be written down", "")


def _go_on(each: Iterator[WorkloadCurve], found: list[WorkloadCurve]) -> bool:
    """Take one turn; whether there may be more."""
    until = time.monotonic() + _TURN
    for one in each:
        found.append(one)
        if time.monotonic() >= until:
            return True
    return False


def _writing(store: Store, cluster: str, uid: int, some: Sequence[Measured]) -> Callable[[], int]:
    return lambda: store.put_points(cluster, uid, some)


def _written(state: Path, cluster: str) -> dict[int, tuple[WorkloadRecord, ...]]:
    """What was told before: until all users are refined again, theirs is in the file all the same."""
    found: dict[int, list[WorkloadRecord]] = {}
    decoder = msgspec.json.Decoder(WorkloadRecord)
    with suppress(OSError):
        for line in (state / CURVES).read_bytes().splitlines():
            with suppress(msgspec.MsgspecError):
                record = decoder.decode(line)
                if record.cluster == cluster:
                    found.setdefault(record.uid, []).append(record)
    return {uid: tuple(some) for uid, some in found.items()}


# --- pure -----------------------------------------------------------------------------------------------------------


def measured_of(one: Ran) -> Measured | None:
    """What an ordinary run says of its workload: the memory that it came to use. None where its decision names none."""
    try:
        line = _lines.decode(one.decision)
    except msgspec.MsgspecError:
        return None  # written by another release
    gpu_type = next((note.inputs.gpu_type or "" for note in line.notes if note.inputs.is_asked), None)
    if not line.workload or gpu_type is None or line.uid != one.uid:
        return None
    # The same again and again gives the same id: the store then passes over it
    key = hashlib.sha256(f"{one.job_id} {one.restarts} {one.ended}".encode()).hexdigest()[:32]
    return Measured(
        key,
        one.ended,
        "run",
        line.workload[:8],
        gpu_type=gpu_type,
        gpus=one.gpus,
        peak_memory=one.peak,
        job=one.job_id,
    )


class _Inputs(msgspec.Struct, frozen=True):
    gpu_type: str | None = None
    cpus_per_gpu: float | None = None

    @property
    def is_asked(self) -> bool:
        return self.cpus_per_gpu is not None


class _Note(msgspec.Struct, frozen=True):
    inputs: _Inputs = _Inputs()


class _Line(msgspec.Struct, frozen=True):
    """Of a line of gsubd's journal what is read here."""

    uid: int
    workload: tuple[str, ...] = ()
    notes: tuple[_Note, ...] = ()


_lines: Final = msgspec.json.Decoder(_Line)
