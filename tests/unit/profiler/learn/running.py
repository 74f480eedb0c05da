"""A run in virtual time: it counts steps as a training script does, with `gsub.train.step`'s own counter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from gsub import train


@dataclass
class Clock:
    """Seconds on a clock that only moves when it is told to."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)


@dataclass
class Pulled:
    """A lever that notes what was asked of it."""

    cap: int = 32
    cpus: int = 0
    asked: list[int] = field(default_factory=list)
    restored: int = 0

    def set(self, cpus: int) -> None:
        assert 1 <= cpus <= self.cap
        self.cpus = cpus
        self.asked.append(cpus)

    def again(self) -> None:
        pass

    def restore(self) -> None:
        self.cpus = self.cap
        self.restored += 1


class Rank:
    """A training process that steps at `rate(CPUs)` in virtual time, with noise."""

    def __init__(self, clock: Clock, folder: Path, rate: Callable[[int], float], seed: int = 1) -> None:
        self.counter = counter(folder)
        self.clock, self.rate, self.random = clock, rate, random.Random(seed)
        self.next = clock.now + 3.0  # a slow start
        self.pace = 0.0

    def until(self, now: float, cpus: int) -> None:
        """Do all steps that end until then; what is left of one under way takes longer with fewer CPUs."""
        pace = self.rate(cpus)
        if self.pace:
            self.next = self.clock.now + (self.next - self.clock.now) * self.pace / pace
        self.pace = pace
        while self.next <= now:
            self.clock.now = self.next
            self.counter.steps += 1
            self.counter.samples += 32
            if self.clock.now >= self.counter.due:
                self.counter.write()
            self.next += self.random.lognormvariate(0, 0.05) / self.rate(cpus)
        self.clock.now = now


def counter(folder: Path) -> train._Counter:
    """A counter as a process has it that is measured."""
    made = train._Counter()
    made.folder, made.off = str(folder), False
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which steps are counted."""
    made = Clock()
    monkeypatch.setattr(
        train, "time", SimpleNamespace(monotonic=made.monotonic, monotonic_ns=made.monotonic_ns)
    )
    return made
