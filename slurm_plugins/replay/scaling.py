"""Tiresias's queues with R1 and R2 on nodes and leaves: `las+elastic`, by `slurm_plugins.tuner.elastic`.

At rounds the counts of GPUs are handed out anew and whoever gets another count is placed anew; between rounds jobs that
wait start on what is free, with what they asked for. A trace tells within which counts a job may be scaled
(`gpus_least`, `gpus_most`); where it does not, the policy's `least` and `most` stand for it, 1 at first: not at all.
How its speed grows goes by its workload's name (`profiler.scaling`), else by the mean of those that were measured.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from functools import cache
from itertools import chain
from typing import Final, TypeAlias

from profiler.scaling import MEASURED, speeds
from slurm_plugins.replay.desk import Desk
from slurm_plugins.tuner.elastic import PROMOTE, THRESHOLD, Rules, Wish, allot

__all__ = ["Elastic"]

_Key: TypeAlias = tuple[float, float, int]
_BOTH: Final = Rules()


class Elastic:
    """Two queues: a job falls after `las_levels`' first GPU-seconds (3600 without), and rises after a wait of eight
    times what it ran.
    """

    def __init__(self, desk: Desk) -> None:
        policy = desk.policy
        self._threshold = policy.las_levels[0] if policy.las_levels else THRESHOLD
        self._grow, self._shrink = (
            policy.restart_s if math.isnan(cost) else cost for cost in (policy.grow_s, policy.shrink_s)
        )
        self._levels: tuple[list[_Key], list[_Key]] = ([], [])
        self._wishes: dict[int, Wish] = {}
        self._level: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._rose: dict[int, float] = {}
        """What it had had, GPU-seconds, when it last rose."""
        self._due: list[tuple[float, int]] = []  # when to look at a job
        self._round = -math.inf
        self._light: list[int] = []  # those without GPUs

    def queue(self, desk: Desk, job: int) -> None:
        """At the end of the upper queue, or of its own when it ran before."""
        if not desk.need[job].gpus:
            self._light.append(job)
            return
        self._wishes[job] = self._wish(desk, job)
        self._level.setdefault(job, 0)
        self._file(desk, job)

    def ended(self, desk: Desk, job: int) -> None:
        """Out of its queue."""
        if job in self._wishes:
            self._unfile(desk, job)
            del self._wishes[job]
            desk.ask(job, 0)  # another run of it asks for its own again

    def cause(self, desk: Desk, job: int) -> str:
        """By what is free."""
        return desk.cause(job)

    def plan(self, desk: Desk) -> None:
        """Start what fits; at a round hand out anew."""
        self._light = [job for job in self._light if not self._started(desk, job)]
        self._rise_and_fall(desk)
        number = math.floor(desk.now / desk.policy.round_s)
        if number > self._round and self._wishes:
            self._round = number
            self._anew(desk)
        refused: set[int] = set()
        for job in self._in_order() if desk.room.free_gpus > 0 else ():
            if job in desk.where:
                continue
            desk.ask(job, self._wishes[job].asked)
            alike = desk.need[job].number
            if alike not in refused and not self._place(desk, job, self._wishes[job].asked):
                refused.add(alike)
            if desk.room.free_gpus <= 0:
                break
        if self._wishes:
            desk.wake((number + 1) * desk.policy.round_s)

    def _in_order(self) -> list[int]:
        return [key[2] for key in chain(*self._levels)]

    def _anew(self, desk: Desk) -> None:
        upper, lower = ([key[2] for key in level] for level in self._levels)
        given = allot(upper, lower, self._wishes, desk.room.gpus, _BOTH)
        before: dict[int, int] = {}
        for job in [job for job in desk.where if job in self._wishes]:
            had, gets = desk.need[job].gpus, given.get(job, 0)
            if gets == had:
                continue
            if gets:
                before[job] = had
                desk.stop(job, self._grow if gets > had else self._shrink)
            else:
                desk.stop(job)
            self._look(desk, job)
        for job, gpus in given.items():
            if job in desk.where:
                continue
            if self._place(desk, job, gpus) or (job in before and self._place(desk, job, before[job])):
                # a job that changes its size does not start again
                desk.tries[job] -= job in before

    def _place(self, desk: Desk, job: int, gpus: int) -> bool:
        desk.ask(job, gpus)
        wish, count = self._wishes[job], desk.need[job].gpus
        parts = desk.find(job) if count <= wish.most else None
        if parts is None:
            return False
        if job not in self._first:
            self._unfile(desk, job)
            self._first[job] = desk.now
            self._file(desk, job)
        desk.start(job, parts)
        if count != wish.asked:
            desk.repace(job, desk.pace[job] * wish.speedup[count] / wish.speedup[wish.asked])
        self._look(desk, job)
        return True

    def _started(self, desk: Desk, job: int) -> bool:
        parts = desk.find(job)
        if parts is not None:
            desk.start(job, parts)
        return parts is not None

    def _look(self, desk: Desk, job: int) -> None:
        """Look at it again when it may fall or rise."""
        if job in desk.where:
            if not self._level[job]:
                left = self._threshold - desk.attained(job) + self._rose.get(job, 0.0)
                heapq.heappush(self._due, (desk.now + max(left, 0.0) / desk.need[job].gpus, job))
        elif self._level[job]:
            heapq.heappush(self._due, (desk.now + PROMOTE * desk.run_s[job], job))

    def _rise_and_fall(self, desk: Desk) -> None:
        while self._due and self._due[0][0] <= desk.now:
            _, job = heapq.heappop(self._due)
            if job not in self._wishes:
                continue
            had = desk.attained(job)
            if job in desk.where and not self._level[job]:
                # rounding: a moment too early is no reason to look again
                if had - self._rose.get(job, 0.0) >= self._threshold * (1 - 1e-9):
                    self._move(desk, job, 1)
            elif job not in desk.where and self._level[job] and self._waited(desk, job):
                self._rose[job] = had
                self._move(desk, job, 0)

    def _waited(self, desk: Desk, job: int) -> bool:
        return desk.now - desk.stopped[job] >= PROMOTE * desk.run_s[job] * (1 - 1e-9)

    def _move(self, desk: Desk, job: int, level: int) -> None:
        self._unfile(desk, job)
        self._level[job] = level
        self._file(desk, job)

    def _key(self, desk: Desk, job: int) -> _Key:
        return self._first.get(job, math.inf), desk.arrival[job], job

    def _file(self, desk: Desk, job: int) -> None:
        insort(self._levels[self._level[job]], self._key(desk, job))

    def _unfile(self, desk: Desk, job: int) -> None:
        level = self._levels[self._level[job]]
        del level[bisect_left(level, self._key(desk, job))]

    def _wish(self, desk: Desk, job: int) -> Wish:
        need, trace, policy = desk.need[job], desk.trace, desk.policy
        asked = need.gpus
        if need.fixed or need.exclusive:
            return _wish("", asked, asked, asked)
        least, most = int(trace["gpus_least"][job]), int(trace["gpus_most"][job])
        least = least or max(int(asked * policy.least), 1)
        most = most or int(asked * policy.most)
        name = trace.words["workload"][int(trace["workload"][job])]
        most = min(max(most, asked), desk.room.gpus)
        return _wish(name if name in MEASURED else "", asked, min(least, asked), max(most, asked))


@cache
def _wish(workload: str, asked: int, least: int, most: int) -> Wish:
    if most == 1:
        return Wish(1, 1, 1, (0.0, 1.0))
    found = [speeds(name, asked, most) for name in ((workload,) if workload else MEASURED)]
    return Wish(asked, least, most, tuple(sum(column) / len(found) for column in zip(*found, strict=True)))
