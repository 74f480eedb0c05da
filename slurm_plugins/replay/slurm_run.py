"""A replay under Slurm's own rules: priority/multifactor, the main scheduler and sched/backfill, in their own rhythm.

    main loop       at the next full tick of slurmctld after a submission or an end, batch_sched_delay apart; over the
                    whole queue every sched_interval
    backfill        bf_interval after its last cycle, where something has happened since
    priorities      at submission, and every PriorityCalcPeriod

Where in its rhythm slurmctld was when the trace began is nowhere recorded: it is drawn from the seed. So is what the
books cut off: a trace of accounting has whole seconds, and who came first within one decides who gets the last GPU.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay import backfill
from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.backfill import Asking, Held, Now
from slurm_plugins.replay.slurm_books import Books
from slurm_plugins.replay.slurm_nodes import Places
from slurm_plugins.replay.slurm_order import Priorities
from slurm_plugins.replay.slurm_rules import SlurmRules
from slurm_plugins.replay.values import Cluster, Replayed, Trace

__all__ = ["Rhythm", "run"]

LATEST: Final = 60.0
"""How much later than at its limit the books may have a job end: Slurm looks every 30 s, and kills by and by."""
ONE_NODE: Final = (26, 5)
"""From this release on a job of one node takes the first that holds it."""
SOON: Final = 1e-3
IDLE: Final = 10_000
"""Events on a cluster where nobody runs, and to which nobody comes any more, before it is given up."""
YEAR: Final = 365 * 86_400.0
_Key: TypeAlias = tuple[int, float, float, int]


class _Event(IntEnum):
    """What happens, in the order in which it does so at the same moment."""

    END = 0
    CLEAN = 1
    SUBMIT = 2
    CALC = 3
    MAIN = 4
    BACKFILL = 5


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The moments at which the schedulers looked, from the trace's zero: from a log that tells them."""

    main: tuple[float, ...]
    backfill: tuple[float, ...]


def run(
    trace: Trace,
    cluster: Cluster,
    rules: SlurmRules,
    *,
    seed: int = 0,
    attempts: Attempts | None = None,
    progress: Callable[[float], None] | None = None,
    name: str = "slurm",
    rhythm: Rhythm | None = None,
) -> Replayed:
    """What Slurm with these rules makes of the trace on the cluster; a function of all arguments but `progress`.

    `rhythm`: the moments of its looks, instead of those that follow from the rules.

    Raises ValueError where `attempts` are not those of this trace.
    """
    began = time.perf_counter()
    attempts = Attempts.once(trace) if attempts is None else attempts
    if len(attempts) != len(trace):
        raise ValueError(f"attempts of {len(attempts)} jobs for a trace of {len(trace)}")
    places = Places(
        cluster, rules.topology, least_loaded=rules.least_loaded, first_of_all=rules.release >= ONE_NODE
    )
    books = Books(trace, places)
    slurm = _Slurm(books, rules, seed, attempts)
    if rhythm is not None:
        slurm.keep(rhythm)
    slurm.live(progress)
    waiting = [asking.row for _, asking in slurm.queue]
    return books.told(name, seed, slurm.tried, waiting, time.perf_counter() - began)


class _Slurm:
    """slurmctld and its nodes."""

    def __init__(self, books: Books, rules: SlurmRules, seed: int, attempts: Attempts) -> None:
        trace, places = books.trace, books.places
        self.trace, self.rules, self.attempts, self.books, self.places = trace, rules, attempts, books, places
        self.now = Now(places, books.state, np.zeros(places.count, np.bool_), [])
        self.users = trace.text("user").tolist()
        self.of = [rules.of(queue) for queue in trace.words["queue"] or ("",)]
        self.queues: list[int] = trace["queue"].tolist()
        self.jobs: list[int] = trace["job"].tolist()
        # jobs
        self.queue: list[tuple[_Key, Asking]] = []
        self.running: dict[int, tuple[float, Held]] = {}
        self.tried = [0] * len(trace)
        self.closings: Counter[int] = Counter()
        self.cleaning: list[NDArray[np.int64]] = []
        self.left = self.coming = 0
        # rhythm
        self.zero = 0 if math.isnan(trace.zero) else int(trace.zero)
        self.chance = random.Random(seed)  # noqa: S311 - a replay, not a secret
        first = float(trace["arrival"][0]) if len(trace) else 0.0
        self.tick_at = self.chance.random() * rules.tick_s
        self.bf_last = first - self.chance.random() * rules.bf_interval_s
        self.calc_at = self.chance.random() * rules.calc_s
        if not math.isnan(rules.calc_at):
            self.calc_at = rules.calc_at - self.zero
        self.main_last = self.whole_last = -math.inf
        self.main_due = self.bf_due = math.inf
        self.bf_busy = False
        self.free_running = True
        self.priorities = Priorities(trace, rules, places.there, self.calc_at)
        if rules.multifactor and rules.as_recorded:
            self.priorities.learn(trace, books.bill)
        self.heap: list[tuple[float, int, int]] = []
        self._fill()

    def _fill(self) -> None:
        """All arrivals, and the first recalculation."""
        comes = self._restored()
        self.late = [self.chance.random() if self.books.cut else 0.0 for _ in comes]
        for row, arrival in enumerate(comes):
            if self.books.needs[row] and self.attempts.offsets[row] < self.attempts.offsets[row + 1]:
                self.left += 1
                self._come(row, arrival)
        if comes and self.rules.multifactor:
            for tick in self.priorities.ticks(comes[0], comes[0])[1:2]:
                self._at(tick + self.calc_at % 1, _Event.CALC)

    def _restored(self) -> list[float]:
        """Arrivals with what the books cut off: by chance, in the order of job numbers."""
        arrivals: list[float] = self.trace["arrival"].tolist()
        if not self.books.cut:
            return arrivals
        rows = sorted(range(len(arrivals)), key=lambda row: (arrivals[row], self.jobs[row]))
        for second, same in groupby(rows, key=arrivals.copy().__getitem__):
            members = list(same)
            for part, row in zip(sorted(self.chance.random() for _ in members), members, strict=True):
                arrivals[row] = second + part
        return arrivals

    def keep(self, rhythm: Rhythm) -> None:
        """Look at these moments and no others."""
        self.free_running = False
        for event, moments in ((_Event.MAIN, rhythm.main), (_Event.BACKFILL, rhythm.backfill)):
            for moment in moments:
                self._at(moment, event)

    def _at(self, when: float, event: _Event, row: int = -1) -> None:
        heapq.heappush(self.heap, (when, int(event), row))

    def _come(self, row: int, when: float) -> None:
        """The job's next run is submitted, after its delay."""
        delay = float(self.attempts.delay[int(self.attempts.offsets[row]) + self.tried[row]])
        self.coming += 1
        self._at(when + delay, _Event.SUBMIT, row)

    def live(self, progress: Callable[[float], None] | None) -> None:
        """Until nobody waits and nobody runs."""
        handle = (self._end, self._clean, self._submit, self._calc, self._main, self._backfill)
        whole, told, idle = self.left, 0.0, 0
        # Where nobody comes, runs or starts any more, looks go on in vain: whoever waits then, waits for ever
        while self.left and self.heap and idle < IDLE:
            when, event, row = heapq.heappop(self.heap)
            handle[event](when, row)
            self.coming -= event == _Event.SUBMIT
            idle = 0 if self.coming or self.running else idle + 1
            if progress and (done := 1 - self.left / whole) >= told + 0.01:
                progress(done)
                told = done
        if progress:
            progress(1.0)

    # --- what happens -------------------------------------------------------------------------------------------------

    def _submit(self, when: float, row: int) -> None:
        need = self.books.needs[row]
        if need is None:
            return
        self.books.count(when)
        partition = self.of[self.queues[row]]
        limit = float(self.trace["limit"][row])
        if limit == math.inf:
            limit = min(partition.default_s, partition.most_s)
        limit = min(limit, partition.most_s, YEAR)
        self.priorities.submit(row, math.floor(when))
        asking = Asking(row, need, max(1, int(limit)), self.users[row])
        insort(self.queue, (self._key(row), asking), key=_first)
        self.books.queued(row, again=self.tried[row] > 0)
        self._wake(when)

    def _key(self, row: int) -> _Key:
        tier = self.of[self.queues[row]].tier
        return -tier, -float(self.priorities.value[row]), float(self.trace["arrival"][row]), self.jobs[row]

    def _end(self, when: float, row: int) -> None:
        began, held = self.running.pop(row)
        self.books.count(when)
        self.now.held.pop(bisect_left(self.now.held, (held.until, held.job), key=_until))
        self.now.state.take(held.nodes, held.need, -1)
        self.priorities.ended(row, math.floor(began), math.floor(when), self.books.bill[row])
        number = int(self.attempts.offsets[row]) + self.tried[row]
        self.books.ended(row, began, when, held, kept=bool(self.attempts.kept[number]))
        self.tried[row] += 1
        if number + 1 < int(self.attempts.offsets[row + 1]):
            self._come(row, when)
        else:
            self.left -= 1
        if self.rules.completing_s > 0:
            self.now.closed[held.nodes] = True
            self.closings.update(held.nodes.tolist())
            self.cleaning.append(held.nodes)
            self._at(when + self.rules.completing_s, _Event.CLEAN, len(self.cleaning) - 1)
        self._wake(when)

    def _clean(self, when: float, number: int) -> None:
        nodes = self.cleaning[number].tolist()
        self.closings.subtract(nodes)
        self.now.closed[[node for node in nodes if not self.closings[node]]] = False
        self._wake(when)

    def _calc(self, when: float, _: int) -> None:
        running = ((row, math.floor(began), self.books.bill[row]) for row, (began, _) in self.running.items())
        self.priorities.recalculate(math.floor(when), [asking.row for _, asking in self.queue], running)
        self.queue = sorted(((self._key(asking.row), asking) for _, asking in self.queue), key=_first)
        self._at(when + self.rules.calc_s, _Event.CALC)
        if self.queue:
            self._wake_backfill(when)

    def _main(self, when: float, _: int) -> None:
        if self.free_running and when != self.main_due:
            return  # a nearer moment was found since
        self.main_due, self.main_last = math.inf, when
        self.books.count(when)
        whole = when - self.whole_last >= self.rules.sched_s - SOON
        depth = 0 if whole else self.rules.depth
        if whole:
            self.whole_last = when
        among = [asking for _, asking in (self.queue[: depth + 1] if depth else self.queue)]
        if backfill.look(self.now, among, self._starter(when), depth):
            self._wake_backfill(when)
        if self.queue and self.main_due == math.inf:
            self._main_at(max(self.whole_last + self.rules.sched_s, when + SOON))

    def _backfill(self, when: float, _: int) -> None:
        self.bf_due, self.bf_last = math.inf, when
        self.books.count(when)
        among = [asking for _, asking in self.queue[: self.rules.bf_max_job_test or None]]
        at = math.floor(when) + self.zero
        planned = self.priorities.tested
        if among and backfill.cycle(self.now, among, self._starter(when), at, self.rules, planned=planned):
            self._wake_backfill(when)
        self.bf_busy = bool(self.queue)

    def _starter(self, when: float) -> Callable[[int, NDArray[np.int64]], None]:
        def start(row: int, nodes: NDArray[np.int64]) -> None:
            self._start(when, row, nodes)

        return start

    def _start(self, when: float, row: int, nodes: NDArray[np.int64]) -> None:
        place = bisect_left(self.queue, self._key(row), key=_first)
        _, asking = self.queue.pop(place)
        began = self.books.moment(when)
        held = Held(math.floor(began) + self.zero + asking.limit, nodes, asking.need, self.jobs[row])
        self.now.state.take(nodes, asking.need)
        insort(self.now.held, held, key=_until)
        self.running[row] = began, held
        work = float(self.attempts.work[int(self.attempts.offsets[row]) + self.tried[row]])
        most = asking.limit + self.rules.over_limit_s
        if work > most + self.rules.kill_wait_s + LATEST:
            work = most
        self._at(began + self.rules.launch_s + work + self.late[row], _Event.END, row)
        self.books.began(row, began, nodes, overtook=place > 0, again=self.tried[row] > 0)

    # --- rhythm -------------------------------------------------------------------------------------------------------

    def _wake(self, when: float) -> None:
        """Something happened: both schedulers look when their turn comes."""
        self._main_at(max(when, self.main_last + self.rules.batch_delay_s - self.rules.tick_s / 2))
        self._wake_backfill(when)

    def _main_at(self, when: float) -> None:
        if not self.free_running:
            return
        tick = self.rules.tick_s
        due = self.tick_at + (math.floor((when - self.tick_at) / tick) + 1) * tick if tick > 0 else when
        if due < self.main_due:
            self.main_due = due
            self._at(due, _Event.MAIN)

    def _wake_backfill(self, when: float) -> None:
        if not self.rules.backfill or self.bf_due < math.inf or not self.free_running:
            return
        interval = self.rules.bf_interval_s
        due = self.bf_last + interval
        if due < when:
            # While somebody waits it wakes at every interval, else it looks every second whether there is work
            step = interval if self.bf_busy else 1.0
            due += math.ceil((when - due) / step) * step
        self.bf_due = due
        self._at(due, _Event.BACKFILL)


def _first(entry: tuple[_Key, Asking]) -> _Key:
    return entry[0]


def _until(held: Held) -> tuple[int, int]:
    return held.until, held.job
