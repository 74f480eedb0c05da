"""Tiresias's two queues through time: who rises, who falls, who is stopped, and what each change of size costs.

A run over jobs that knows counts of GPUs and no nodes: a job is on as few nodes as hold it, which is what Tiresias's
own simulator supposes. `slurm_plugins.tuner.elastic` decides at each arrival, end, fall and rise. Pure.

Source: Tiresias (Gu et al., NSDI'19): two queues, the lower one for jobs that have had 3600 GPU-seconds, in each the
first to have started first; who waited eight times as long as it ran rises, and its count starts anew.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from slurm_plugins.tuner.elastic import ELASTIC, PROMOTE, THRESHOLD, Rules, Wish, allot

__all__ = ["STOP_FREE", "STOP_RESUME", "TWO_QUEUES", "Costs", "Job", "Lived", "Queues", "live"]

_NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds without work: after a start from a checkpoint, after growing, after shrinking."""

    resume: float = 30.0
    grow: float = 30.0
    shrink: float = 30.0


STOP_RESUME: Final = Costs()
"""Each change of size is a checkpoint, an end and a start: 30 s and more (EDL; 15 to 120 s in Pollux)."""
STOP_FREE: Final = Costs(grow=1.0, shrink=0.0)
"""EDL's: about a second to take others in, none to let them go. A job that was stopped whole still costs a start."""


@dataclass(frozen=True, slots=True)
class Queues:
    """When a job falls (GPU-seconds since it last rose), and when one that waits rises: after so many times what it ran
    in all, or, without `executed`, what it last ran; and the least time between two plans (s).
    """

    threshold: float = THRESHOLD
    promote: float = PROMOTE
    executed: bool = True
    every: float = 30.0


TWO_QUEUES: Final = Queues()


@dataclass(frozen=True, slots=True)
class Job:
    """A job: when it came (s), its work in seconds on the GPUs that it asked for, and what it wishes."""

    job: int
    arrival: float
    work: float
    wish: Wish


@dataclass(frozen=True, slots=True)
class Lived:
    """When each job ended; how often jobs were stopped and changed in size; GPU-seconds held, and lost in changes."""

    ended: dict[int, float]
    stops: int
    changes: int
    gpu_seconds: float
    lost: float

    def completion(self, jobs: Iterable[Job]) -> list[float]:
        """Job completion times, in the order given: from arrival to end, s."""
        return [self.ended[one.job] - one.arrival for one in jobs]


@dataclass(slots=True)
class _State:
    """A job on its way. `left` is as of `since`; work goes on from `ready` on."""

    job: Job
    left: float
    level: int = 0
    first: float = _NEVER
    gpus: int = 0
    since: float = 0.0
    ready: float = 0.0
    had: float = 0.0
    """GPU-seconds since it last rose."""
    began: float = 0.0
    ran: float = 0.0
    """How long its last run was, of one that waits."""
    turn: int = 0
    """Counts changes: events of before are void."""
    pace: float = 0.0

    @property
    def key(self) -> tuple[float, float, int]:
        return self.first, self.job.arrival, self.job.job


class _Run:
    def __init__(self, jobs: Iterable[Job], gpus: int, rules: Rules, costs: Costs, queues: Queues) -> None:
        self.gpus, self.rules, self.costs, self.queues = gpus, rules, costs, queues
        self.states = {one.job: _State(one, one.work) for one in jobs}
        self.wishes = {number: state.job.wish for number, state in self.states.items()}
        self.levels: tuple[list[tuple[float, float, int]], ...] = ([], [])
        self.running: dict[int, int] = {}
        self.events: list[tuple[float, int, int]] = []
        self.ended: dict[int, float] = {}
        self.stops = self.changes = 0
        self.held = self.lost = 0.0
        self.now = 0.0

    def _file(self, state: _State) -> None:
        insort(self.levels[state.level], state.key)

    def _unfile(self, state: _State) -> None:
        level = self.levels[state.level]
        del level[bisect_left(level, state.key)]

    def _worked(self, state: _State) -> None:
        """Write down what it did until now."""
        state.left = max(state.left - max(self.now - max(state.since, state.ready), 0.0) * state.pace, 0.0)
        state.had += (self.now - state.since) * state.gpus
        self.held += (self.now - state.since) * state.gpus
        state.since = self.now

    def _sized(self, state: _State, gpus: int) -> None:
        """It has so many GPUs from now on; 0: it is stopped."""
        before = state.gpus
        self._worked(state)
        state.turn += 1
        wish = state.job.wish
        if gpus == 0:
            self.stops += 1
            state.ran = (state.ran if self.queues.executed else 0.0) + self.now - state.began
            del self.running[state.job.job]
            state.gpus, state.pace = 0, 0.0
            if state.level:
                self._event(self.now + self.queues.promote * state.ran, state)
            return
        cost = self.costs.grow if gpus > before else self.costs.shrink
        if before == 0:
            cost = self.costs.resume if state.first < _NEVER else 0.0
            state.began = self.now
            if state.first == _NEVER:
                self._unfile(state)
                state.first = self.now
                self._file(state)
        else:
            self.changes += 1
        # a cost that is still being paid is not forgiven
        state.ready = max(self.now + cost, state.ready)
        self.lost += cost * gpus
        state.gpus, state.pace = gpus, wish.speedup[gpus] / wish.speedup[wish.asked]
        self.running[state.job.job] = gpus
        self._plan_events(state)

    def _plan_events(self, state: _State) -> None:
        end = max(self.now, state.ready) + state.left / state.pace
        falls = (
            self.now + max(self.queues.threshold - state.had, 0.0) / state.gpus if not state.level else _NEVER
        )
        self._event(min(end, falls), state)

    def _event(self, when: float, state: _State) -> None:
        heapq.heappush(self.events, (when, state.job.job, state.turn))

    def happens(self, number: int, turn: int) -> bool:
        """An event of a job; False: it is void."""
        state = self.states.get(number)
        if state is None or state.turn != turn:
            return False
        if not state.gpus:  # it waited long enough
            self._unfile(state)
            state.level, state.had = 0, 0.0
            self._file(state)
            return True
        self._worked(state)
        state.turn += 1
        if state.left <= 1e-6 * state.job.work + 1e-9:
            self._unfile(state)
            self.ended[number] = self.now
            del self.states[number], self.running[number]
            return True
        fell = not state.level and state.had >= self.queues.threshold * (1 - 1e-9)
        if fell:
            self._unfile(state)
            state.level = 1
            self._file(state)
        self._plan_events(state)
        return fell

    def arrives(self, job: Job) -> None:
        """A job queues."""
        self.states[job.job].since = self.now
        self._file(self.states[job.job])

    def plan(self) -> None:
        """Hand out the GPUs anew."""
        upper, lower = ([key[2] for key in level] for level in self.levels)
        given = allot(upper, lower, self.wishes, self.gpus, self.rules)
        for number in [n for n in self.running if n not in given]:
            self._sized(self.states[number], 0)
        for number, gpus in given.items():
            if self.running.get(number, 0) != gpus:
                self._sized(self.states[number], gpus)


def live(
    jobs: Iterable[Job],
    gpus: int,
    rules: Rules = ELASTIC,
    costs: Costs = STOP_RESUME,
    *,
    queues: Queues = TWO_QUEUES,
    progress: Callable[[int], None] | None = None,
) -> Lived:
    """All jobs on `gpus` GPUs, until the last has ended. `progress` is told how many have arrived.

    Raises ValueError for a job that asks for more than there are.
    """
    coming = sorted(jobs, key=lambda one: (one.arrival, one.job))
    large = next((one for one in coming if one.wish.asked > gpus), None)
    if large is not None:
        raise ValueError(f"job {large.job} asks for {large.wish.asked} of {gpus} GPUs")
    run, at = _Run(coming, gpus, rules, costs, queues), 0
    changed, planned = False, -_NEVER
    while at < len(coming) or run.events or changed:
        first = run.events[0][0] if run.events else _NEVER
        run.now = min(first, coming[at].arrival if at < len(coming) else _NEVER)
        if changed:
            run.now = min(run.now, planned + queues.every)
        while run.events and run.events[0][0] <= run.now:
            _, number, turn = heapq.heappop(run.events)
            changed |= run.happens(number, turn)
        while at < len(coming) and coming[at].arrival <= run.now:
            run.arrives(coming[at])
            at += 1
            changed = True
        if changed and run.now >= planned + queues.every:
            run.plan()
            changed, planned = False, run.now
            if progress is not None:
                progress(at)
    return Lived(run.ended, run.stops, run.changes, run.held, run.lost)
