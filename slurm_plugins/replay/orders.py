"""Planners that never stop a job: in order of arrival, strictly or around whoever does not fit."""

from __future__ import annotations

from collections import deque

from slurm_plugins.replay.desk import Desk

__all__ = ["InOrder", "Skipping"]


class InOrder:
    """First come, first served: the first that does not fit holds up all behind it."""

    def __init__(self, desk: Desk) -> None:
        self._line: deque[int] = deque()

    def queue(self, desk: Desk, job: int) -> None:
        """At the end of the line."""
        self._line.append(job)

    def ended(self, desk: Desk, job: int) -> None:
        """Nothing to note."""

    def plan(self, desk: Desk) -> None:
        """Start from the front as long as it fits."""
        line = self._line
        while line:
            parts = desk.find(line[0])
            if parts is None:
                return
            desk.start(line.popleft(), parts)

    def cause(self, desk: Desk, job: int) -> str:
        """By what is free."""
        return desk.cause(job)


class Skipping:
    """In order of arrival, and whoever does not fit is passed over.

    Jobs that ask alike stand in one line each: when its first does not fit, none of it does.
    """

    def __init__(self, desk: Desk) -> None:
        self._lines: dict[int, deque[tuple[int, int]]] = {}
        self._next = 0

    def queue(self, desk: Desk, job: int) -> None:
        """At the end of its line."""
        self._next += 1
        self._lines.setdefault(desk.need[job].number, deque()).append((self._next, job))

    def ended(self, desk: Desk, job: int) -> None:
        """Nothing to note."""

    def plan(self, desk: Desk) -> None:
        """Each line in the order of its first."""
        lines = self._lines
        held: int | None = None
        passed: set[int] = set()
        while True:
            front = min(
                (line[0] for number, line in lines.items() if number not in passed),
                default=None,
            )
            if front is None:
                return
            turn, job = front
            number = desk.need[job].number
            parts = desk.find(job)
            if parts is None:
                passed.add(number)
                held = turn if held is None else min(held, turn)
                continue
            lines[number].popleft()
            if not lines[number]:
                del lines[number]
            if held is not None and turn > held:
                desk.out_of_order += 1
            desk.start(job, parts)

    def cause(self, desk: Desk, job: int) -> str:
        """By what is free."""
        return desk.cause(job)
