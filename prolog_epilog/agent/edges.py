"""What the agent's own code has around it, as it sees it: clocks, spool, driver, service, checks, /proc.

The real ones are put together in `parts`, tests have their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from profiler.findings import Finding
from profiler.gpu import GpuSample
from profiler.host import HostReading
from profiler.records import GpuRef, JobEnded, JobStarted, Record

__all__ = ["Attempt", "Clock", "Gpus", "Health", "Host", "ReadLogs", "Sampler", "Sender", "Sink"]


class Sink(Protocol):
    """Where records go: the spool."""

    def put(self, record: Record) -> bool:
        """Keep a record until it is delivered; False while that is in memory only."""


class Gpus(Protocol):
    """Which GPUs a job got."""

    def of(self, env: Mapping[str, str], sample: GpuSample | None) -> tuple[GpuRef, ...] | None:
        """By the variables of its prolog; None if that cannot be told (yet)."""

    @property
    def shared(self) -> bool:
        """Whether jobs may have parts of a GPU here."""

    @property
    def several_types(self) -> bool:
        """Whether Slurm has GPUs of several types here: a prolog is told of one type's alone."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The node's time since the epoch, which may step; and a monotonic one, which goes on over our restarts."""

    wall: Callable[[], float] = time.time
    mono: Callable[[], float] = time.monotonic


class Sampler(Protocol):
    """Looks at the GPUs in a thread of its own."""

    def start(self) -> None: ...  # noqa: D102

    def sample_soon(self, dense: float = 0.0) -> None:
        """Look now, and not when it is due; then densely for so many seconds."""

    def last(self) -> GpuSample | None:
        """The last look."""

    def has_died(self) -> bool:
        """Whether it ended without being asked to."""

    def stop(self, timeout: float = 0.0) -> bool:
        """End, without waiting longer for a driver that hangs; whether it has ended."""


class Sender(Protocol):
    """Delivers records in a thread of its own."""

    def start(self) -> None: ...  # noqa: D102

    def stop(self, seconds: float) -> object:
        """Deliver what can be delivered in that time, and end."""


class Health(Protocol):
    """Runs health checks in threads of its own."""

    def start(self) -> None: ...  # noqa: D102

    def feed(self, sample: GpuSample) -> None:
        """Judge a sample."""

    def look_soon(self) -> None:
        """Run the checks now."""

    def stop(self, seconds: float) -> None:
        """End within that time."""

    def state(self) -> msgspec.Struct:
        """What a restart must not forget."""


class Host(Protocol):
    """Reads what jobs hold of this node's CPUs and memory."""

    def read(self, jobs: Collection[int]) -> Mapping[int, HostReading]:
        """By job id. May hang."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended here, and whose logs are to be read."""

    started: JobStarted
    ended: JobEnded


ReadLogs: TypeAlias = Callable[[Attempt], Finding | None]
"""Reads an attempt's logs; None: it has none. Takes its time, and raises where there is no finding."""
