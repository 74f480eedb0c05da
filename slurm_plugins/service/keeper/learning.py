"""From measured points to what decisions use: each user's runs refined to curves, and gsubd told of them.

Who sends points is done at once (`soon`); all users once a day, since points age; and every few minutes ordinary runs
that have ended are looked at for the memory that they used. Curves are fitted in a thread beside the answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec

from profiler.answers import Curves, WorkloadCurve
from profiler.curves import Curve, Point
from profiler.gathered import gathered
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
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._storing = storing
        self._state = state
        self._every = every
        self._now = now
        self._known: dict[int, tuple[WorkloadCurve, ...]] = {}
        self._records: dict[int, tuple[WorkloadRecord, ...]] = {}
        self._fitted: dict[tuple[tuple[str, ...], int], tuple[float, Curve]] = {}
        self._fitting = threading.Lock()
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
        """Refine what is waiting, and tell gsubd. Raises StoreError, RefusedError."""
        self._news.clear()
        while self._waiting:
            uid = next(iter(self._waiting))
            await self._storing.read(lambda uid=uid: self.refine(self._storing.store, uid))  # type: ignore[misc]
            self._waiting.pop(uid, None)
        if not self._fresh:
            await self._tell()

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
            await self._storing.read(lambda uid=uid: self.refine(store, uid))  # type: ignore[misc]
            await asyncio.sleep(time.monotonic() - began)
            if self._waiting:
                await self.once()

    def refine(self, store: Store, uid: int) -> tuple[WorkloadCurve, ...]:
        """Make the curves of a user anew. Blocks."""
        runs = store.measured(self._cluster, uid)
        with self._fitting:
            found = gathered(runs, self._now(), refine=self._refined)
            self._known[uid] = found
            all_of_them = chain.from_iterable(records_of(self._cluster, uid, one) for one in found)
            records = tuple(islice(all_of_them, _MOST_OF_USER))
            if records != self._records.pop(uid, ()):
                self._fresh = False
            if records:
                self._records[uid] = (
                    records  # at the end: the last to be measured are kept where there are too many
                )
        return found

    def curves(self, store: Store, uid: int) -> Curves:
        """What is known of a user's workloads. Blocks where it was not asked for before."""
        known = self._known.get(uid)
        if known is None or uid in self._waiting:
            known = self.refine(store, uid)
        return Curves(known)

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
        return sum(map(len, list(self._records.values())))  # threads change it

    async def _tell(self) -> None:
        self._fresh = True
        records = list(chain.from_iterable(list(self._records.values())))[-_MOST:]
        try:
            await asyncio.to_thread(write_curves, self._state, records)
        except OSError as error:
            self._fresh = False
            self._troubles.say("curves cannot be written down", one_line(str(error)))
            return
        self._troubles.say("curves cannot be written down", "")


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
