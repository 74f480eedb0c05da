"""What a job does to the CPUs and the memory of a node: readings, and their sum over time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from profiler.records import HostUse


@dataclass(frozen=True, slots=True)
class HostReading:
    """A job on this node at one moment. None is "not known", never 0.

    `cpu_seconds` is what the job has used so far: a counter, that may begin anew with its reader. `memory_bytes` is
    held now, `memory_working_bytes` without what the kernel could take back, `memory_peak_bytes` the most so far where
    the kernel keeps it. `oom_kills` counts from the job's start.
    """

    source: Literal["cgroup2", "cgroup1", "proc"]
    cpu_seconds: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    memory_working_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None


class HostTally(msgspec.Struct, omit_defaults=True):
    """The sum of a job's readings; its own state, to be kept over a restart."""

    source: Literal["cgroup2", "cgroup1", "proc"] | None = None
    cpu_seconds: float | None = None
    cpu_counter: float | None = None
    cpus: float | None = None
    memory_peak: int | None = None
    working_peak: int | None = None
    memory_limit: int | None = None
    oom_kills: int | None = None

    def add(self, reading: HostReading) -> float | None:
        """Count a reading. Returns the CPU seconds used since the last one, where both told it."""
        used = self._cpu(reading.cpu_seconds)
        self.source = reading.source
        self.cpus = most(self.cpus, reading.cpus)
        self.memory_peak = most(self.memory_peak, most(reading.memory_peak_bytes, reading.memory_bytes))
        self.working_peak = most(self.working_peak, reading.memory_working_bytes)
        self.memory_limit = (
            self.memory_limit if reading.memory_limit_bytes is None else reading.memory_limit_bytes
        )
        self.oom_kills = most(self.oom_kills, reading.oom_kills)
        return used

    def use(self) -> HostUse | None:
        """The sum so far; None if nothing was ever read."""
        if self.source is None:
            return None
        return HostUse(
            source=self.source,
            cpu_seconds=self.cpu_seconds,
            cpus=self.cpus,
            memory_peak_bytes=self.memory_peak,
            memory_working_bytes=self.working_peak,
            memory_limit_bytes=self.memory_limit,
            oom_kills=self.oom_kills,
        )

    def _cpu(self, counter: float | None) -> float | None:
        if counter is None:
            return None
        last, self.cpu_counter = self.cpu_counter, counter
        if last is None:  # the counter began with the job, so all of it is the job's
            self.cpu_seconds = counter
            return None
        # A counter that fell has forgotten processes that ended: what it still shows was counted before.
        used = max(counter - last, 0.0)
        self.cpu_seconds = (self.cpu_seconds or 0.0) + used
        return used


_N = TypeVar("_N", int, float)


def most(a: _N | None, b: _N | None) -> _N | None:
    """The greater of two values, either of which may be unknown."""
    return b if a is None else a if b is None else max(a, b)
