"""Slurm's two schedulers: one look of the main loop, one cycle of sched/backfill.

The main loop takes jobs in order and starts whom it can; the first of a partition that cannot start shuts the partition
and its nodes for the rest of the look. Backfill takes all in order and gives each that cannot start a place in a plan:
running jobs count until their limits, not until they will really end, and a job that waits until its own limit. A place
is whole nodes, from and to whole `bf_resolution`s of the clock. Whoever fits around all places planned so far starts.

Sources: `_schedule` of slurmctld/job_scheduler.c, `_attempt_backfill` of sched/backfill, `_will_run_test` of
select/cons_tres (22.05); sched_config.html. Times here are whole seconds since 1970, as Slurm's are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.slurm_nodes import Mask, Need, Places, State
from slurm_plugins.replay.slurm_rules import SlurmRules

__all__ = ["Held", "Plan", "Start", "cycle", "look", "soonest"]

Start: TypeAlias = Callable[[int, NDArray[np.int64]], None]
"""A job starts on these nodes now: takes them from the state."""
_FIRST_WINDOW: Final = 30
NEWEST: Final = (26, 5)
"""The first release that plans as 26.05 does."""
NEWER: Final = (23, 2)
"""Releases from here on are taken to plan as 24.11 does."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a running job holds, and when its limit is over."""

    until: int
    nodes: NDArray[np.int64]
    need: Need
    job: int = 0


@dataclass(frozen=True, slots=True)
class Asking:
    """A job that waits: its row, what it takes on a node, its limit in seconds, whose it is."""

    row: int
    need: Need
    limit: int
    user: str = ""


@dataclass(slots=True)
class Now:
    """The cluster at a moment."""

    places: Places
    state: State
    closed: Mask
    """Nodes that start nothing, as a job that has ended there is not cleaned up yet."""
    held: list[Held]
    """By the end of their limits."""


def look(now: Now, waiting: Iterable[Asking], start: Start, depth: int) -> int:
    """One look of the main loop over the queue, in its order; how many it started. `depth` 0: over all."""
    shut: set[str] = set()
    open_ = ~now.closed
    left = np.ones(now.places.count, np.bool_)
    started = 0
    for number, job in enumerate(waiting):
        if depth and number > depth:
            break
        need = job.need
        if need.queue in shut:
            continue
        may = now.places.may(need) & left
        if np.count_nonzero(may) < need.nodes:
            continue
        nodes = now.places.choose(may & open_ & now.state.fits(need), need, now.state)
        if nodes is not None:
            start(job.row, nodes)
            started += 1
            continue
        shut.add(need.queue)
        left &= ~now.places.of_queue(need.queue)
        if not left.any():
            break
    return started


def soonest(
    now: Now, need: Need, among: Mask, at: int, *, begin: int = 0, until: int = 0, there: bool = False
) -> tuple[int, NDArray[np.int64]] | None:
    """When and where a job could start on these nodes if every running one ran until its limit; None: never.

    Running jobs are taken away in the order of their limits, those close to each other at once: the further ahead,
    the coarser (windows of 30, 60, 120 s...), as Slurm does it. `begin`: those whose limits are over before that are
    gone from the outset. `until`: look no further; 0: as far as need be. `there`: of those that are gone, only who
    holds the nodes that were found counts for when, as in 26.05; else the last of all.
    """
    if begin <= at:
        nodes = now.places.choose(among & now.state.fits(need), need, now.state)
        if nodes is not None:
            return at, nodes
    if np.count_nonzero(among & now.places.empty.fits(need)) < need.nodes:
        return None
    future, held, place = now.state.copy(), now.held, 0
    if begin:
        while place < len(held) and held[place].until < begin:
            future.take(held[place].nodes, held[place].need, -1)
            place += 1
        nodes = now.places.choose(among & future.fits(need), need, future)
        if nodes is not None:
            return max(at, begin), nodes
    window, edge = _FIRST_WINDOW, 0
    while place < len(held):
        last: Held | None = None
        while place < len(held):
            one = held[place]
            if until and one.until > until:
                held = held[:place]
                break
            place += 1
            if among[one.nodes].any():
                if not edge:
                    edge = one.until + window - one.until % window
                last = one
                future.take(one.nodes, one.need, -1)
                if place < len(held) and held[place].until > edge + window:
                    break
        if last is None:
            return None
        nodes = now.places.choose(among & future.fits(need), need, future)
        if nodes is not None:
            ends = [one.until for one in held[:place] if not there or np.isin(one.nodes, nodes).any()]
            return max(ends[-1] if ends and there else last.until, at + 1), nodes
        window *= 2
        while place < len(held) and held[place].until > edge + window:
            window *= 2
    return None


class Plan:
    """Nodes that nobody has been promised, by stretches of time.

    Stretches are cut and joined as Slurm does it, one join a promise at most: where a stretch ends decides when Slurm
    thinks of trying again.
    """

    def __init__(
        self, nodes: int, begin: int, end: int, resolution: int, *, release: tuple[int, int] = NEWER
    ) -> None:
        """`release`: 24.11 rounds ends up to the resolution; 22.05 rounds them down."""
        self.resolution, self.newer, self.newest = resolution, release >= NEWER, release >= NEWEST
        self._more = resolution - 1 if self.newer else 0
        self.begin, self.end = self._rounded(begin), self._rounded(end)
        self._begins, self._ends = [self.begin], [self.end]
        self._free = np.ones((1, nodes), np.bool_)  # a row a stretch

    def free(self, may: Mask, begin: int, end: int) -> tuple[Mask, int]:
        """Nodes of `may` that are free all the time; and when to try again: the first moment after that at which others
        become free, 0: never."""
        first = bisect_right(self._ends, begin)
        after = bisect_right(self._begins, end, first)  # the first that begins too late
        found = may & self._free[first:after].all(axis=0)
        # up to each stretch: whether others than those free until its end are free in the next
        last = min(after + 1, len(self._ends) - 1)
        if first >= last:
            return found, 0
        until = np.logical_and.accumulate(self._free[first:last], axis=0)
        others = np.flatnonzero((may & self._free[first + 1 : last + 1] & ~until).any(axis=1))
        return found, self._ends[first + int(others[0])] if len(others) else 0

    def clash(self, nodes: NDArray[np.int64], begin: int, end: int) -> bool:
        """Whether one of the nodes is promised to somebody in this time, which is rounded to the resolution."""
        first = bisect_right(self._ends, self._rounded(begin))
        after = bisect_left(self._begins, self._rounded(end + self._more), first)
        return not self._free[first:after][:, nodes].all()

    def promise(self, nodes: NDArray[np.int64], begin: int, end: int) -> None:
        """The nodes are somebody's in this time, rounded to the resolution, at least one of that."""
        begin = max(self._rounded(begin), self.begin)
        end = max(self._rounded(end + self._more), begin + self.resolution)
        first = bisect_left(self._ends, begin)
        if first == len(self._ends):
            return
        if self._ends[first] > begin:
            self._cut(first, begin)
        number = bisect_left(self._ends, end, first + 1)
        if number < len(self._ends) and self._ends[number] > end:
            self._cut(number, end)
        after = min(number + 1, len(self._ends))
        self._free[first + 1 : after, nodes] = False
        self._join(max(first - 1, 0), after)

    def _cut(self, number: int, at: int) -> None:
        self._begins.insert(number + 1, at)
        self._ends.insert(number, at)
        self._free = np.insert(self._free, number, self._free[number], axis=0)

    def _join(self, first: int, after: int) -> None:
        rows = self._free[first : after + 1]
        same = np.flatnonzero((rows[1:] == rows[:-1]).all(axis=1))
        if len(same):
            number = first + int(same[0])
            del self._ends[number], self._begins[number + 1]
            self._free = np.delete(self._free, number, axis=0)

    def _rounded(self, at: int) -> int:
        return at // self.resolution * self.resolution


def cycle(
    now: Now,
    waiting: Sequence[Asking],
    start: Start,
    at: int,
    rules: SlurmRules,
    *,
    planned: set[int] | None = None,
) -> int:
    """One cycle of backfill at a moment; how many it started. `planned` gets the rows for which it found a place."""
    plan = Plan(
        now.places.count, at, at + int(rules.bf_window_s), rules.bf_resolution_s, release=rules.release
    )
    started = promised = 0
    tried: Counter[str] = Counter()
    for number, job in enumerate(waiting):
        if rules.bf_max_job_test and number >= rules.bf_max_job_test:
            break
        tried[job.user] += 1
        if rules.bf_max_job_user and tried[job.user] > rules.bf_max_job_user:
            continue
        only_now = bool(rules.bf_reserve) and promised >= rules.bf_reserve
        found = _place(now, job, plan, at, only_now)
        if found is None:
            continue
        when, nodes = found
        if planned is not None:
            planned.add(job.row)
        if when <= at:
            start(job.row, nodes)
            started += 1
        else:
            plan.promise(nodes, when, when + job.limit)
            promised += 1
    return started


def _place(
    now: Now, job: Asking, plan: Plan, at: int, only_now: bool
) -> tuple[int, NDArray[np.int64]] | None:
    """When and where a job starts in the plan; a start at `at` is to be made at once. None: not within the plan."""
    need = job.need
    may = now.places.may(need)
    window_end = plan.end
    later = at
    while True:
        begin = later
        if begin > window_end:
            return None
        among, later = plan.free(may, begin, begin + job.limit)
        found = None
        if np.count_nonzero(among) >= need.nodes:
            if only_now:
                found = _now(now, need, among, at)
            elif plan.newer:
                found = soonest(now, need, among, at, begin=begin, until=later, there=plan.newest)
            else:
                found = soonest(now, need, among, at)
        if found is None:
            if not later or only_now:
                return None
            continue
        when, nodes = max(found[0], begin), found[1]
        if when <= at:
            if not now.closed[nodes].any():
                fits = among & ~now.closed & now.state.fits(need)
                return at, found[1] if (again := now.places.choose(fits, need, now.state)) is None else again
            # cleaning up after an end is a matter of seconds: wait for it there
            when, later = at + 1, 0
        if only_now:
            return None
        clash = plan.clash(nodes, when, when + job.limit)
        if later and when > later and not (plan.newer and clash):
            continue
        if when > at + (plan.end - plan.begin):
            return None
        if not clash:
            return when, nodes
        later = when if when > begin else when + plan.resolution


def _now(now: Now, need: Need, among: Mask, at: int) -> tuple[int, NDArray[np.int64]] | None:
    nodes = now.places.choose(among & now.state.fits(need), need, now.state)
    return None if nodes is None else (at, nodes)
