"""From samples to the GPU usage of a job (or of any span of time). Pure: no clock, no driver.

A `UsageSum` is a sum of readings of one GPU, and two sums add to the sum of both, so usage can be kept while a job
runs, in bounded memory, and put together from pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from profiler.gpu import GpuIdentity, GpuReading, GpuSample


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """How one GPU was used. None is "not known", never 0.

    `samples` readings stand for `seconds`. `utilisation_mean` is over all of them, `utilisation_busy_mean` over those
    with a process on the GPU; both per cent. `busy_seconds` is the time with a process on the GPU (where NVML does not
    tell processes, with any utilisation). `idle_at_start_seconds` is the time before the first utilisation.
    `faults` are NVML's errors of a GPU that stopped answering.
    """

    gpu: GpuIdentity
    samples: int
    seconds: float
    utilisation_mean: float | None
    utilisation_busy_mean: float | None
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    power_mean_w: float | None
    busy_seconds: float | None
    idle_at_start_seconds: float | None
    xids: tuple[int, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """A running mean: what was added, and how many of it."""

    total: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, value: float | None) -> Mean:
        """The mean of one value; of None, of nothing."""
        return cls() if value is None else cls(value, 1)

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """A sum of readings of one GPU in the order of time.

    >>> first = UsageSum.of(GpuReading(gpu, utilisation=0.0), seconds=0.0)        # doctest: +SKIP
    >>> (first + UsageSum.of(GpuReading(gpu, utilisation=90.0), 10.0)).usage(gpu)  # doctest: +SKIP
    """

    samples: int = 0
    seconds: float = 0.0
    utilisation: Mean = Mean()
    utilisation_busy: Mean = Mean()
    power: Mean = Mean()
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    busy_seconds: float | None = None
    idle_at_start_seconds: float = 0.0
    was_active: bool = False
    xids: frozenset[int] = frozenset()
    faults: frozenset[str] = frozenset()

    @classmethod
    def of(cls, reading: GpuReading, seconds: float) -> UsageSum:
        """One reading, standing for the `seconds` before it."""
        busy = _busy(reading)
        active = bool(reading.utilisation)
        return cls(
            samples=1,
            seconds=seconds,
            utilisation=Mean.of(reading.utilisation),
            utilisation_busy=Mean.of(reading.utilisation if busy else None),
            power=Mean.of(reading.power_w),
            memory_peak_bytes=reading.memory_used_bytes,
            memory_total_bytes=reading.memory_total_bytes,
            busy_seconds=None if busy is None else seconds * busy,
            idle_at_start_seconds=0.0 if active or reading.utilisation is None else seconds,
            was_active=active,
            xids=frozenset(reading.xids or ()),
            faults=frozenset([reading.fault] if reading.fault else []),
        )

    def __add__(self, later: UsageSum) -> UsageSum:
        """This sum, then `later`: associative, with ``UsageSum()`` as zero."""
        return UsageSum(
            samples=self.samples + later.samples,
            seconds=self.seconds + later.seconds,
            utilisation=self.utilisation + later.utilisation,
            utilisation_busy=self.utilisation_busy + later.utilisation_busy,
            power=self.power + later.power,
            memory_peak_bytes=_most(self.memory_peak_bytes, later.memory_peak_bytes),
            memory_total_bytes=_most(self.memory_total_bytes, later.memory_total_bytes),
            busy_seconds=_plus(self.busy_seconds, later.busy_seconds),
            idle_at_start_seconds=self.idle_at_start_seconds
            + (0.0 if self.was_active else later.idle_at_start_seconds),
            was_active=self.was_active or later.was_active,
            xids=self.xids | later.xids,
            faults=self.faults | later.faults,
        )

    def usage(self, gpu: GpuIdentity) -> GpuUsage:
        """What the sum says of the GPU that it was made from."""
        return GpuUsage(
            gpu=gpu,
            samples=self.samples,
            seconds=self.seconds,
            utilisation_mean=self.utilisation.value,
            utilisation_busy_mean=self.utilisation_busy.value,
            memory_peak_bytes=self.memory_peak_bytes,
            memory_total_bytes=self.memory_total_bytes,
            power_mean_w=self.power.value,
            busy_seconds=self.busy_seconds,
            idle_at_start_seconds=self.idle_at_start_seconds if self.utilisation.count else None,
            xids=tuple(sorted(self.xids)),
            faults=tuple(sorted(self.faults)),
        )


@dataclass(slots=True)
class UsageMeter:
    """Adds up samples as they come, for all GPUs or for those with the given UUIDs.

    A reading stands for the time since the GPU's last one, but for `max_gap` seconds at most: what was not looked at
    (a driver that hung, a machine that slept) is not counted.
    """

    max_gap: float
    only: frozenset[str] | None = None
    _sums: dict[str, UsageSum] = field(default_factory=dict)
    _gpus: dict[str, GpuIdentity] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)

    def add(self, sample: GpuSample) -> None:
        """Count a sample; samples come in the order of time."""
        for reading in sample.readings:
            uuid = reading.gpu.uuid
            if self.only is not None and uuid not in self.only:
                continue
            gap = min(sample.at - self._last.get(uuid, sample.at), self.max_gap)
            self._sums[uuid] = self._sums.get(uuid, UsageSum()) + UsageSum.of(reading, max(gap, 0.0))
            self._gpus[uuid] = reading.gpu
            self._last[uuid] = sample.at

    def usages(self) -> tuple[GpuUsage, ...]:
        """The usage so far, by device file and MIG instance."""
        usages = (self._sums[uuid].usage(gpu) for uuid, gpu in self._gpus.items())
        return tuple(sorted(usages, key=lambda usage: _place(usage.gpu)))


def total(readings: Iterable[tuple[GpuReading, float]]) -> UsageSum:
    """The sum of (reading, the seconds that it stands for)."""
    result = UsageSum()
    for reading, seconds in readings:
        result += UsageSum.of(reading, seconds)
    return result


def _busy(reading: GpuReading) -> bool | None:
    if reading.processes is not None:
        return bool(reading.processes)
    return None if reading.utilisation is None else reading.utilisation > 0


def _place(gpu: GpuIdentity) -> tuple[int, bool, int, str]:
    minor = 1 << 30 if gpu.minor is None else gpu.minor
    return minor, gpu.mig is not None, (gpu.mig.gpu_instance or 0) if gpu.mig else 0, gpu.uuid


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _plus(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b
