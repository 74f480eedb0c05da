"""Seconds of waiting by cause, for all jobs that ask alike at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from slurm_plugins.replay.values import CAUSES

if TYPE_CHECKING:
    from slurm_plugins.replay.desk import Desk, Planner

__all__ = ["Waits"]

_CODE: Final = {cause: code for code, cause in enumerate(CAUSES)}


class Waits:
    """Seconds of waiting by cause: jobs that ask alike in one queue wait for one cause, so each kind keeps a clock."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        queues = max(desk.queue_of, default=0) + 1
        self.kind: list[int] = (desk.needs.of * queues + np.array(desk.queue_of, np.int64)).tolist()
        self.fresh: list[int] = []
        self.delayed: dict[int, float] = {}
        self._kinds: dict[int, _Kind] = {}
        self._now: dict[int, _Kind] = {}  # kinds that wait
        self._from: dict[int, tuple[float, ...]] = {}
        self.seconds: dict[int, list[float]] = {}
        """Jobs that waited -> seconds by cause."""

    def look(self, planner: Planner) -> None:
        """After each plan: who waits from now on, and for what."""
        desk, now = self.desk, self.desk.now
        if self.fresh:
            for job in self.fresh:
                if not desk.tries[job]:
                    number = self.kind[job]
                    kind = self._now.get(number)
                    if kind is None:
                        kind = self._kinds.get(number)
                        if kind is None:
                            kind = self._kinds[number] = _Kind(job)
                        kind.since, kind.cause = now, -1
                        self._now[number] = kind
                    kind.waiting += 1
                    kind.settle(now)
                    self._from[job] = tuple(kind.clock)
            self.fresh.clear()
        for kind in self._now.values():
            cause = _CODE[planner.cause(desk, kind.example)]
            if cause != kind.cause:
                kind.settle(now)
                kind.cause = cause

    def over(self, job: int) -> None:
        """It starts for the first time."""
        waited = [0.0] * len(CAUSES)
        since = self._from.pop(job, None)
        if since is not None:
            number = self.kind[job]
            kind = self._now[number]
            kind.settle(self.desk.now)
            waited = [end - begin for begin, end in zip(since, kind.clock, strict=True)]
            kind.waiting -= 1
            if not kind.waiting:
                del self._now[number]
        elif job not in self.delayed:
            return
        if self.delayed:
            waited[_CODE["other"]] += self.delayed.pop(job, 0.0)
        self.seconds[job] = waited

    @property
    def waiting(self) -> int:
        """Jobs that wait for their first start."""
        return len(self._from)


class _Kind:
    """Jobs that ask alike: seconds so far in which such a job waited, by cause."""

    __slots__ = ("cause", "clock", "example", "since", "waiting")

    def __init__(self, example: int) -> None:
        self.example = example
        self.clock = [0.0] * len(CAUSES)
        self.since = 0.0
        self.cause = -1
        self.waiting = 0

    def settle(self, now: float) -> None:
        """Count the time since the last look."""
        if self.cause >= 0:
            self.clock[self.cause] += now - self.since
        self.since = now
