"""The sum of one GPU's readings over a job: means, percentiles, idle and stuck stretches, energy, errors. Pure.

A `GpuTally` is its own state: it is kept as it is over a restart, and bounded however long the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from profiler.gpu import GpuReading
from profiler.host import most
from profiler.records import GpuRef, GpuUse

IDLE_BELOW = 1.0
"""Per cent of utilisation: NVML tells whole numbers, so this is 0."""

_LATE = 1.0
"""Seconds after a job's end for which a reading without a memory still tells of it: so long NVML looks back."""

_MAX_XIDS = 256
_MAX_FAULTS = 32
_MAX_CAUSES = 32


@dataclass(frozen=True, slots=True)
class StuckRule:
    """What a GPU does that waits in a collective for ever: it spins at full utilisation, with hardly any power.

    NCCL's waiting kernel keeps utilisation at 100 % and draws 20 to 30 % of an A100's or H100's limit, while any
    training draws more than 40 % of it. Where the limit is not known, `over_idle` times the lowest power of
    the idle GPU takes its place. A pause of a few minutes is a checkpoint or a slow reader: it does not count.
    """

    utilisation: float = 95.0
    power_share: float = 0.35
    over_idle: float = 1.5
    seconds: float = 300.0


STUCK = StuckRule()


class GpuTally(msgspec.Struct, omit_defaults=True):
    """One GPU during a job. Times are seconds from the job's start."""

    at: float = 0.0
    seen: bool = False
    samples: int = 0
    seconds: float = 0.0
    histogram: dict[int, float] = {}
    utilisation: float = 0.0
    utilisation_seconds: float = 0.0
    busy_utilisation: float = 0.0
    busy_known_seconds: float = 0.0
    busy_seconds: float | None = None
    memory: float = 0.0
    memory_seconds: float = 0.0
    memory_peak: int | None = None
    memory_total: int | None = None
    energy: float = 0.0
    energy_seconds: float = 0.0
    energy_counter: float | None = None
    energy_at: float = 0.0
    power_peak: float | None = None
    power_limit: float | None = None
    power_idle: float | None = None
    temperature_peak: int | None = None
    clock: float = 0.0
    clock_seconds: float = 0.0
    active: bool = False
    idle_at_start: float = 0.0
    idle_run: float = 0.0
    idle_after: float = 0.0
    stuck: float | None = None
    stuck_run: float = 0.0
    throttled: dict[str, float] | None = None
    ecc_corrected: int | None = None
    ecc_corrected_counter: int | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_counter: int | None = None
    xids: list[int] = []
    faults: list[str] = []

    def begin(self, reading: GpuReading, at: float) -> None:
        """Begin with the counters of a reading from before the job (`at` is negative): their growth is the job's."""
        self._energy_since(reading, at)
        self._count_ecc(reading)

    def add(
        self, reading: GpuReading, at: float, until: float, max_gap: float, rule: StuckRule
    ) -> Iterator[tuple[float, float, float | None, float | None]]:
        """Count a reading made at `at`, which stands for the time since the last one up to `until`.

        It stands for `max_gap` seconds at most, and the rest was not seen. Of one that was made after `until` only what
        looks back counts: memory and processes are the next job's by then, and soon all is.

        Yields what to draw: (start, end, utilisation, power), in the order of time.
        """
        until = min(at, until)
        gap = max(until - self.at, 0.0)
        span = min(gap, max_gap)
        late = at - until  # what a reading tells of the time after `until` is somebody else's
        self.samples += 1
        self.seconds += span
        if gap > span:
            self._unseen()
        if late > 0:
            reading = _looking_back(reading, late)
        power = self._power(reading, at, until, span)
        self._count_ecc(reading)
        self._keep(reading, span)
        begin = until - span
        self.at, self.seen = max(self.at, until), True
        pieces = _pieces(reading, span, late)
        for seconds, utilisation in pieces:
            self._use(reading, utilisation, seconds, power, rule)
            yield begin, begin + seconds, utilisation, power
            begin += seconds

    def fault(self, name: str) -> None:
        """Write down why it did not answer."""
        if name not in self.faults and len(self.faults) < _MAX_FAULTS:
            self.faults.append(name)

    def use(self, gpu: GpuRef) -> GpuUse:
        """The sum so far."""
        known = self.utilisation_seconds > 0
        return GpuUse(
            gpu=gpu,
            samples=self.samples,
            seconds=self.seconds,
            utilisation_mean=_mean(self.utilisation, self.utilisation_seconds),
            utilisation_p5=self._percentile(0.05),
            utilisation_p50=self._percentile(0.50),
            utilisation_p95=self._percentile(0.95),
            utilisation_busy_mean=_mean(self.busy_utilisation, self.busy_known_seconds),
            memory_peak_bytes=self.memory_peak,
            memory_mean_bytes=_mean(self.memory, self.memory_seconds),
            memory_total_bytes=self.memory_total,
            power_mean_w=_mean(self.energy, self.energy_seconds),
            power_peak_w=self.power_peak,
            power_limit_w=self.power_limit,
            energy_j=self.energy if self.energy_seconds > 0 else None,
            temperature_peak_c=self.temperature_peak,
            clock_sm_mean_mhz=_mean(self.clock, self.clock_seconds),
            busy_seconds=self.busy_seconds,
            idle_at_start_seconds=self.idle_at_start if known else None,
            idle_after_seconds=max(self.idle_after, self.idle_run) if known else None,
            idle_at_end_seconds=self.idle_run if known else None,
            stuck_seconds=self.stuck,
            stuck_at_end_seconds=None if self.stuck is None else self.stuck_run,
            throttled=None if self.throttled is None else dict(self.throttled),
            ecc_corrected=self.ecc_corrected,
            ecc_uncorrected=self.ecc_uncorrected,
            xids=tuple(self.xids),
            faults=tuple(self.faults),
        )

    def _keep(self, reading: GpuReading, span: float) -> None:
        """What a reading tells once for all of its time."""
        self.memory_peak = most(self.memory_peak, reading.memory_used_bytes)
        self.memory_total = most(self.memory_total, reading.memory_total_bytes)
        self.temperature_peak = most(self.temperature_peak, reading.temperature_c)
        if reading.memory_used_bytes is not None:
            self.memory += reading.memory_used_bytes * span
            self.memory_seconds += span
        if reading.clock_sm_mhz is not None:
            self.clock += reading.clock_sm_mhz * span
            self.clock_seconds += span
        if reading.throttle is not None:
            causes = self.throttled = {} if self.throttled is None else self.throttled
            for cause in reading.throttle:
                if cause != "gpu_idle" and (cause in causes or len(causes) < _MAX_CAUSES):
                    causes[cause] = causes.get(cause, 0.0) + span
        for xid in reading.xids or ():
            if xid not in self.xids and len(self.xids) < _MAX_XIDS:
                self.xids.append(xid)
        if reading.fault:
            self.fault(reading.fault)

    def _use(
        self,
        reading: GpuReading,
        utilisation: float | None,
        seconds: float,
        power: float | None,
        rule: StuckRule,
    ) -> None:
        """A stretch of one utilisation."""
        active = utilisation is not None and utilisation >= IDLE_BELOW
        # A process that has ended by the time of the reading was on the GPU as long as that did something.
        if utilisation is not None or reading.processes is not None:
            busy = active or bool(reading.processes)
            self.busy_seconds = (self.busy_seconds or 0.0) + (seconds if busy else 0.0)
            if busy and utilisation is not None:
                self.busy_utilisation += utilisation * seconds
                self.busy_known_seconds += seconds
        if utilisation is None:
            self._unseen()
            return
        bin_ = round(utilisation)
        self.histogram[bin_] = self.histogram.get(bin_, 0.0) + seconds
        self.utilisation += utilisation * seconds
        self.utilisation_seconds += seconds
        if active:
            self.active = True
            self.idle_after, self.idle_run = max(self.idle_after, self.idle_run), 0.0
        elif self.active:
            self.idle_run += seconds
        else:
            self.idle_at_start += seconds
        self._stuck(utilisation, seconds, power, rule)

    def _stuck(self, utilisation: float, seconds: float, power: float | None, rule: StuckRule) -> None:
        if power is None:
            self.stuck_run = 0.0
            return
        if utilisation < IDLE_BELOW and seconds > 0:
            self.power_idle = power if self.power_idle is None else min(self.power_idle, power)
        if self.power_limit is not None:
            hardly_any = power < rule.power_share * self.power_limit
        elif self.power_idle is not None:
            hardly_any = power < rule.over_idle * self.power_idle
        else:
            return
        self.stuck = self.stuck or 0.0
        if utilisation < rule.utilisation or not hardly_any:
            self.stuck_run = 0.0
            return
        before, self.stuck_run = self.stuck_run, self.stuck_run + seconds
        if self.stuck_run >= rule.seconds:
            self.stuck += seconds if before >= rule.seconds else self.stuck_run

    def _power(self, reading: GpuReading, at: float, until: float, span: float) -> float | None:
        """Add the energy of the time up to `until`; the mean power of it, by the driver's counter where it has one."""
        self.power_peak = most(self.power_peak, reading.power_w)
        self.power_limit = self.power_limit if reading.power_limit_w is None else reading.power_limit_w
        start, counted = max(self.energy_at, 0.0), self._energy_since(reading, at)
        if counted is None:
            if reading.power_w is not None:
                self.energy += reading.power_w * span
                self.energy_seconds += span
            return reading.power_w
        joules, seconds = counted
        inside = max(until - start, 0.0)
        # The counter knows of the time that nobody looked at, too.
        self.energy += joules / seconds * inside
        self.energy_seconds += inside
        return joules / seconds

    def _energy_since(self, reading: GpuReading, at: float) -> tuple[float, float] | None:
        """Joules, and the seconds in which they were used; None where the counter does not say, or began anew."""
        last, last_at = self.energy_counter, self.energy_at
        self.energy_counter, self.energy_at = reading.energy_j, at
        if last is None or reading.energy_j is None or reading.energy_j < last or at <= last_at:
            return None
        return reading.energy_j - last, at - last_at

    def _count_ecc(self, reading: GpuReading) -> None:
        self.ecc_corrected, self.ecc_corrected_counter = _counted(
            self.ecc_corrected, self.ecc_corrected_counter, reading.ecc_corrected
        )
        self.ecc_uncorrected, self.ecc_uncorrected_counter = _counted(
            self.ecc_uncorrected, self.ecc_uncorrected_counter, reading.ecc_uncorrected
        )

    def _unseen(self) -> None:
        """Stretches end where nobody looked: what lasted is what was seen to last."""
        self.idle_after, self.idle_run = max(self.idle_after, self.idle_run), 0.0
        self.stuck_run = 0.0

    def _percentile(self, share: float) -> float | None:
        """The utilisation below which the GPU was for this share of the time, to 1 per cent."""
        wanted, passed = share * sum(self.histogram.values()), 0.0
        if wanted <= 0:
            return None
        for value in sorted(self.histogram):
            passed += self.histogram[value]
            if passed >= wanted:
                return float(value)
        return float(max(self.histogram))


def _looking_back(reading: GpuReading, late: float) -> GpuReading:
    """What a reading that came so many seconds after the end tells of the time before it."""
    reading = replace(reading, memory_used_bytes=None, processes=None if reading.processes is None else ())
    if late <= _LATE:
        return reading
    return replace(
        reading,
        utilisation=None if reading.recent is None else reading.utilisation,
        processes=None if reading.recent is None else reading.processes,
        power_w=None,
        temperature_c=None,
        clock_sm_mhz=None,
        throttle=None,
    )


def _pieces(reading: GpuReading, span: float, late: float) -> list[tuple[float, float | None]]:
    """(seconds, utilisation) over the last `span` seconds before `late` ago, oldest first.

    By the driver's own buffer of samples; what is older than it knows is as what it knows, in the mean.
    """
    if not reading.recent:
        return [(span, reading.utilisation)]
    pieces: list[tuple[float, float | None]] = []
    wanted, skip, total, known = span, late, 0.0, 0.0
    for seconds, value in reversed(reading.recent):
        passed = min(seconds, skip)
        skip -= passed
        part = min(seconds - passed, wanted)
        if part > 0:
            pieces.append((part, value))
            wanted -= part
            known += part
            total += part * value
    if wanted > 0:
        pieces.append((wanted, total / known if known else reading.utilisation))
    return pieces[::-1]


def _counted(count: int | None, last: int | None, now: int | None) -> tuple[int | None, int | None]:
    """A sum of what a counter grew by, and the counter. One that fell began anew: all that it shows is new."""
    if now is None:
        return count, last
    if last is None:
        return count or 0, now
    return (count or 0) + (now - last if now >= last else now), now


def _mean(total: float, seconds: float) -> float | None:
    return total / seconds if seconds > 0 else None
