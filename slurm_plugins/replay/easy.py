"""EASY backfill: whoever does not put off the first of the line may start before it.

Source: Mu'alem and Feitelson, TPDS 2001. The first that does not fit gets a reservation, at the moment when enough
running jobs will have ended by their limits; one behind it starts when it ends before that moment by its own limit, or
leaves room for the first beside it. Slurm's own, with its intervals and depths, is `slurm_plugins.replay.backfill`.
"""

from __future__ import annotations

import math
from collections import deque

from slurm_plugins.replay.desk import Desk
from slurm_plugins.replay.needs import Need, Rooms

__all__ = ["Easy"]


class Easy:
    """In order of arrival; jobs that ask alike stand in one line each."""

    def __init__(self, desk: Desk) -> None:
        self._line: deque[int] = deque()
        self._turn: dict[int, int] = {}
        self._next = 0
        self._lines: dict[int, dict[int, None]] = {}  # need -> jobs, in order of arrival

    def queue(self, desk: Desk, job: int) -> None:
        """At the end of the line."""
        self._next += 1
        self._turn[job] = self._next
        self._line.append(job)
        self._lines.setdefault(desk.need[job].number, {})[job] = None

    def ended(self, desk: Desk, job: int) -> None:
        """Nothing to note."""

    def cause(self, desk: Desk, job: int) -> str:
        """By what is free."""
        return desk.cause(job)

    def plan(self, desk: Desk) -> None:
        """From the front as long as it fits; then around the first that does not."""
        while True:
            while self._line and self._line[0] not in self._turn:
                self._line.popleft()  # it started out of turn
            if not self._line:
                return
            head = self._line[0]
            parts = desk.find(head)
            if parts is None:
                break
            self._start(desk, head, parts, behind=False)
        if len(self._turn) > 1 and desk.room.free_gpus > 0:
            self._around(desk, head)

    def _start(self, desk: Desk, job: int, parts: tuple[tuple[int, int], ...], *, behind: bool) -> None:
        number = desk.need[job].number
        del self._turn[job]
        del self._lines[number][job]
        if not self._lines[number]:
            del self._lines[number]
        desk.out_of_order += behind
        desk.start(job, parts)

    def _around(self, desk: Desk, head: int) -> None:
        need, now, limit = desk.need[head], desk.now, desk.limit
        planned: tuple[float, Rooms] | None = None  # worked out only when somebody fits: mostly nobody does
        for number in sorted(self._lines, key=lambda number: self._turn[next(iter(self._lines[number]))]):
            crowded = False  # another that asks for this, and runs on, would put off the first
            for job in list(self._lines[number]):
                if job == head or (crowded and planned is not None and now + limit[job] > planned[0]):
                    continue
                parts = desk.find(job)
                if parts is None:
                    break  # nor does any that asks alike
                planned = planned or self._reservation(desk, head)
                when, beside = planned
                if now + limit[job] <= when:
                    self._start(desk, job, parts, behind=True)
                elif self._leaves_room(beside, parts, desk.need[job], need, desk):
                    beside.take(parts, desk.need[job])
                    self._start(desk, job, parts, behind=True)
                else:
                    crowded = True

    def _leaves_room(
        self, beside: Rooms, parts: tuple[tuple[int, int], ...], asked: Need, need: Need, desk: Desk
    ) -> bool:
        if not beside.holds(parts, asked):
            return False
        beside.take(parts, asked)
        left = beside.find(need, desk.level) is not None
        beside.give(parts, asked)
        return left

    def _reservation(self, desk: Desk, head: int) -> tuple[float, Rooms]:
        """When the first will start by the limits of those that run, and the room as it will be then."""
        room, need = desk.room.copy(), desk.need[head]
        free = room.free_for(need)
        ends = sorted((max(desk.began[job] + desk.limit[job], desk.now), job) for job in desk.where)
        for at, (end, job) in enumerate(ends):
            if end == math.inf:
                break
            room.give(desk.where[job], desk.need[job])
            free += desk.need[job].gpus
            last = at + 1 == len(ends) or ends[at + 1][0] > end
            if last and free >= need.gpus and room.find(need, desk.level) is not None:
                return end, room
        return math.inf, room
