"""Planners that stop jobs for others: shortest remaining time, least attained service, finish-time fairness.

At events whoever comes first by its key starts as long as it fits; at rounds, while anybody waits, the jobs that ought
to run by their keys are worked out anew, and those that ought not make room. A job is stopped only when another gets
a place by it, and pays `Policy.restart_s` when it goes on.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from heapq import merge
from typing import Final, TypeAlias

from slurm_plugins.replay.desk import Desk
from slurm_plugins.replay.making_room import victims

__all__ = ["KEYS", "Preempting"]

_Entry: TypeAlias = tuple[float, float, int]


def _remaining(desk: Desk, job: int) -> float:
    return desk.remaining(job)


def _attained(desk: Desk, job: int) -> float:
    had, levels = desk.attained(job), desk.policy.las_levels
    return float(bisect_right(levels, had)) if levels else had


def _unfairness(desk: Desk, job: int) -> float:
    """Minus what its time from arrival to end, were it to run from now on, is of its time alone (Themis' rho)."""
    left = desk.remaining(job)
    alone = desk.run_s[job] + (desk.now - desk.began[job] if job in desk.where else 0.0) + left
    return -(desk.now - desk.arrival[job] + left) / max(alone, 1.0)


KEYS: Final[Mapping[str, Callable[[Desk, int], float]]] = {
    "srtf": _remaining,
    "las": _attained,
    "ftf": _unfairness,
}
"""Order -> key of a job, least first; ties go by arrival."""


class Preempting:
    """By a key of `KEYS`; without `Policy.preempt` jobs that run are left alone."""

    def __init__(self, desk: Desk) -> None:
        self._key = KEYS[desk.policy.order]
        self._moves = desk.policy.order == "ftf"  # keys of jobs that wait change with time
        self._line: list[_Entry] = []  # those that wait, sorted
        self._round = math.inf  # when jobs are stopped next

    def queue(self, desk: Desk, job: int) -> None:
        """Into the line, by its key."""
        insort(self._line, self._entry(desk, job))

    def ended(self, desk: Desk, job: int) -> None:
        """Nothing to note."""

    def plan(self, desk: Desk) -> None:
        """Start what fits; at a round, stop who must make room."""
        policy = desk.policy
        if self._moves and self._line:
            self._line = sorted(self._entry(desk, job) for _, _, job in self._line)
        self._fill(desk)
        if self._line and desk.now >= self._round:
            self._make_room(desk)
            self._round = math.inf
        if not self._line or not policy.preempt:
            self._round = math.inf
        elif self._round == math.inf:
            self._round = (math.floor(desk.now / policy.round_s) + 1) * policy.round_s
            if self._round <= desk.now:  # rounding
                self._round += policy.round_s
            desk.wake(self._round)

    def cause(self, desk: Desk, job: int) -> str:
        """By what is free."""
        return desk.cause(job)

    def _entry(self, desk: Desk, job: int) -> _Entry:
        return self._key(desk, job), desk.arrival[job], job

    def _fill(self, desk: Desk) -> None:
        """Start those that wait, in order; without skipping the first that does not fit ends it."""
        line, skip, at = self._line, desk.policy.backfill == "skip", 0
        refused: set[int] = set()
        while at < len(line):
            job = line[at][2]
            number = desk.need[job].number
            parts = None if number in refused else desk.find(job)
            if parts is None:
                if not skip or len(refused) == len(desk.needs.listed):
                    return
                refused.add(number)
                at += 1
                continue
            del line[at]
            if refused:
                desk.out_of_order += 1
            desk.start(job, parts)

    def _make_room(self, desk: Desk) -> None:
        running = sorted(self._entry(desk, job) for job in desk.where)
        chosen, worst = self._choose(desk, running)
        if not chosen or not worst:
            return
        refused: set[int] = set()
        for entry in chosen:
            job = entry[2]
            number = desk.need[job].number
            if number in refused:
                continue
            parts = desk.find(job)
            if parts is None:
                stopped = victims(desk, desk.need[job], desk.level, worst)
                if not stopped:
                    refused.add(number)
                    continue
                for other in stopped:
                    worst.remove(other)
                    desk.stop(other)
                parts = desk.find(job)
            if parts is not None:
                del self._line[bisect_left(self._line, entry)]
                desk.start(job, parts)
        # Stopped ones join the line only now: none of them was to run in this round anyway.
        for entry in running:
            if entry[2] not in desk.where:
                self.queue(desk, entry[2])
        self._fill(desk)

    def _choose(self, desk: Desk, running: list[_Entry]) -> tuple[list[_Entry], list[int]]:
        """Who waits and ought to run, and who runs and ought not, worst first."""
        left, skip = desk.room.gpus, desk.policy.backfill == "skip"
        chosen: list[_Entry] = []
        stay: set[int] = set()
        for entry in merge(self._line, running):
            job = entry[2]
            gpus = desk.need[job].gpus
            if gpus > left:
                if skip:
                    continue
                break
            left -= gpus
            if job in desk.where:
                stay.add(job)
            else:
                chosen.append(entry)
            if left <= 0:
                break
        return chosen, [entry[2] for entry in reversed(running) if entry[2] not in stay]
