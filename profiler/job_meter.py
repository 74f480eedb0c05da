"""Measures one job on one node, its GPUs, CPUs and memory, from samples as they come. Pure: no clock, no driver.

    meter = JobMeter(gpus, since=started)
    meter.add(sample, at=time.time(), host=reading)
    meter.gpu_uses(), meter.host_use(), meter.unseen_seconds()

What it holds is bounded, whatever the length of the job, and `state()` is all of it: a meter that is made from it goes
on as if nothing had been.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from profiler.gpu import GpuIdentity, GpuReading, GpuSample
from profiler.host import HostReading, HostTally
from profiler.records import GpuRef, GpuSeries, GpuUse, HostUse
from profiler.series import Series, SeriesState
from profiler.tally import STUCK, GpuTally, StuckRule

MAX_GAP = 35.0
"""For how many seconds a reading stands at most: three looks at the site's default interval, and a deadline."""

_UNKNOWN_GPUS = "Slurm did not tell which GPUs of this node are the job's, so none is counted."
_SHARED = "Jobs can share GPUs on this node: what is told of a GPU is what all jobs on it did."
_TYPES = (
    "This node has GPUs of several types, and Slurm told of those of one type alone: "
    "if the job asked for more than one type, its other GPUs are missing here."
)
_MIG = "NVML tells memory and processes of a MIG instance, but no utilisation and no power."


class MeteredGpu(msgspec.Struct):
    """A GPU of the job as it was asked for and found, and its sum."""

    gpu: GpuRef
    tally: GpuTally


@dataclass(frozen=True, slots=True)
class JobColumns:
    """A job over time: columns as in `JobSeries`, all equally long; a value stands for `step` seconds."""

    step: float
    gpus: tuple[GpuSeries, ...]
    cpus: tuple[float | None, ...]
    memory_bytes: tuple[float | None, ...]


class MeterState(msgspec.Struct):
    """A `JobMeter` as it is kept over a restart of the agent."""

    since: float
    origin: float | None
    last: float
    unseen: float
    asked: tuple[GpuRef, ...] | None
    shared: bool
    gpus: list[MeteredGpu]
    host: HostTally
    series: SeriesState
    trouble: str = ""
    host_at: float | None = None
    several_types: bool = False
    v: int = 1


class JobMeter:
    """The meter of one job on this node.

    `gpus` are those that Slurm gave to the job (None: not known; empty: none), matched by UUID, else by the number of
    the device file. `since` is the job's start here, in seconds since the epoch. `shared` tells that other jobs may use
    the same GPUs (shards, MPS): NVML does not tell them apart, so the note says so. `several_types` tells that the node
    has GPUs of several types, so that `gpus` may be a part of the job's.

    A GPU with MIG switched on is measured by its instances, each apart. Spans are taken from the samples' monotonic
    clock, so a step of the node's clock changes nothing. Samples come in the order of time.
    """

    def __init__(
        self,
        gpus: Sequence[GpuRef] | None,
        since: float,
        *,
        shared: bool = False,
        several_types: bool = False,
        max_gap: float = MAX_GAP,
        stuck: StuckRule = STUCK,
    ) -> None:
        self._asked = None if gpus is None else tuple(gpus)
        self._since = since
        self._shared = shared
        self._several_types = several_types
        self._max_gap = max_gap
        self._rule = stuck
        self._origin: float | None = None  # the monotonic time of `since`
        self._last = 0.0  # of the last look, in seconds from `since`
        self._unseen = 0.0
        self._metered: list[MeteredGpu] = []
        self._host = HostTally()
        self._host_at: float | None = None  # of the last reading of it
        self._series = Series()
        self._trouble = ""

    @classmethod
    def restored(cls, state: MeterState, *, max_gap: float = MAX_GAP, stuck: StuckRule = STUCK) -> JobMeter:
        """A meter that goes on from `state()`."""
        state = copy.deepcopy(state)
        meter = cls(
            state.asked,
            state.since,
            shared=state.shared,
            several_types=state.several_types,
            max_gap=max_gap,
            stuck=stuck,
        )
        meter._origin, meter._last, meter._unseen = state.origin, state.last, state.unseen
        meter._metered, meter._host, meter._trouble = state.gpus, state.host, state.trouble
        meter._host_at = state.host_at
        meter._series = Series(state.series)
        return meter

    def state(self) -> MeterState:
        """All of it, to be written down; later samples don't change it."""
        return MeterState(
            since=self._since,
            origin=self._origin,
            last=self._last,
            unseen=self._unseen,
            asked=self._asked,
            shared=self._shared,
            gpus=copy.deepcopy(self._metered),
            host=copy.deepcopy(self._host),
            series=self._series.state(),
            trouble=self._trouble,
            host_at=self._host_at,
            several_types=self._several_types,
        )

    def add(
        self, sample: GpuSample, at: float, host: HostReading | None = None, *, until: float | None = None
    ) -> None:
        """Count a look at the node: `at` is its time, in seconds since the epoch.

        A sample from before the job's start gives only the counters to begin with. `until` is the end of the job, where
        that was before `at`: what came after it is not the job's.
        """
        if self._origin is None:
            if at <= self._since:
                self._begin(sample, at - self._since)
                return
            self._origin = sample.at - (at - self._since)
        now = sample.at - self._origin
        end = now if until is None else min(now, max(until - at + now, 0.0))
        gap = max(end - self._last, 0.0)
        self._last = max(self._last, end)
        self._add_host(host, end, gap)
        self._add_gpus(sample, now, end)
        if self._asked:
            seen = min((metered.tally.seconds for metered in self._metered), default=0.0)
            self._unseen = max(self._last - seen, 0.0)
        else:
            self._unseen += max(gap - self._max_gap, 0.0)

    def gpu_uses(self) -> tuple[GpuUse, ...]:
        """How each GPU was used; by device file, and MIG instances after each other."""
        return tuple(metered.tally.use(metered.gpu) for metered in self._sorted())

    def host_use(self) -> HostUse | None:
        """What the job did to CPUs and memory; None if that was never read."""
        return self._host.use()

    def unseen_seconds(self) -> float:
        """For how much of the time up to the last sample one of its GPUs (without any: the node) was not looked at."""
        return self._unseen

    def seconds(self) -> float:
        """The time from the job's start to the last sample."""
        return self._last

    def note(self) -> str:
        """Why something is missing, in a sentence or two; "" if nothing is."""
        reasons = [_UNKNOWN_GPUS] if self._asked is None else [_SHARED] if self._shared else []
        if self._several_types and self._asked:
            reasons.append(_TYPES)
        if any(metered.gpu.parent_uuid for metered in self._metered):
            reasons.append(_MIG)
        if self._trouble and self._asked:
            reasons.append(self._trouble)
        return " ".join(reasons)

    def series(self) -> JobColumns:
        """The job over time."""
        columns = self._series
        return JobColumns(
            step=columns.step,
            gpus=tuple(
                GpuSeries(
                    gpu=metered.gpu,
                    utilisation=columns.column(f"u{number}"),
                    memory_bytes=columns.column(f"m{number}", 0),
                    power_w=columns.column(f"p{number}"),
                )
                for number, metered in sorted(enumerate(self._metered), key=lambda item: _place(item[1].gpu))
            ),
            cpus=columns.column("cpus", 2),
            memory_bytes=columns.column("memory", 0),
        )

    # --- the node ---

    def _add_host(self, host: HostReading | None, end: float, gap: float) -> None:
        if host is None:
            return
        used = self._host.add(host)
        last, self._host_at = self._host_at, end
        # CPU time is that of all looks since the last one at which it could be read
        span = gap if last is None else max(end - last, 0.0)
        if used is not None and span > 0:
            self._series.add("cpus", end - min(span, self._max_gap), end, used / span)
        self._series.add("memory", end - min(gap, self._max_gap), end, host.memory_bytes)

    # --- the GPUs ---

    def _begin(self, sample: GpuSample, at: float) -> None:
        for metered, reading in self._find(sample):
            metered.tally.begin(reading, at)

    def _add_gpus(self, sample: GpuSample, now: float, end: float) -> None:
        found = list(self._find(sample))
        for metered, reading in found:
            self._draw(metered, reading, now, end)
        self._name_the_missing(sample, {id(metered) for metered, _ in found})
        if sample.state != "ok" and sample.detail:
            self._trouble = sample.detail

    def _draw(self, metered: MeteredGpu, reading: GpuReading, now: float, end: float) -> None:
        number = self._metered.index(metered)
        begin = now
        for start, stop, utilisation, power in metered.tally.add(
            reading, now, end, self._max_gap, self._rule
        ):
            self._series.add(f"u{number}", start, stop, utilisation)
            self._series.add(f"p{number}", start, stop, power)
            begin = min(begin, start)
        if now <= end:  # else its memory is somebody else's by now
            self._series.add(f"m{number}", begin, end, reading.memory_used_bytes)

    def _name_the_missing(self, sample: GpuSample, found: set[int]) -> None:
        for metered in self._metered:
            if id(metered) in found:
                continue
            if metered.gpu.uuid in sample.hung or metered.gpu.parent_uuid in sample.hung:
                metered.tally.fault("HUNG")
            elif sample.state == "ok":
                metered.tally.fault("MISSING")

    def _find(self, sample: GpuSample) -> Iterable[tuple[MeteredGpu, GpuReading]]:
        """The readings of the job's GPUs. What is asked for and not there yet is kept as it was asked for."""
        partitioned = {reading.gpu.uuid for reading in sample.readings if reading.gpu.partitioned}
        given: set[str] = set()
        for ref in self._asked or ():
            wanted = [reading for reading in sample.readings if _is(reading.gpu, ref)]
            if any(reading.gpu.uuid in partitioned for reading in wanted):
                parents = {reading.gpu.uuid for reading in wanted}
                wanted = [
                    reading
                    for reading in sample.readings
                    if reading.gpu.mig and reading.gpu.physical_uuid in parents
                ]
            for reading in wanted:
                if reading.gpu.uuid not in given:
                    given.add(reading.gpu.uuid)
                    yield self._slot(reading.gpu, ref), reading
            if not wanted:
                self._waiting(ref)

    def _slot(self, gpu: GpuIdentity, asked: GpuRef) -> MeteredGpu:
        ref = GpuRef(gpu.minor, gpu.uuid, gpu.name[:256], gpu.mig.parent_uuid if gpu.mig else None)
        for metered in self._metered:
            if metered.gpu.uuid == gpu.uuid or (metered.gpu == asked and not metered.tally.samples):
                metered.gpu = ref  # now that all of it is known
                return metered
        made = MeteredGpu(ref, GpuTally())
        self._metered.append(made)
        return made

    def _waiting(self, ref: GpuRef) -> None:
        known = (metered.gpu for metered in self._metered)
        if not any(gpu == ref or _same(gpu, ref) for gpu in known):
            self._metered.append(MeteredGpu(ref, GpuTally()))

    def _sorted(self) -> list[MeteredGpu]:
        return sorted(self._metered, key=lambda metered: _place(metered.gpu))


def _is(gpu: GpuIdentity, ref: GpuRef) -> bool:
    if ref.uuid is not None:
        return gpu.uuid == ref.uuid
    return ref.minor is not None and gpu.minor == ref.minor and gpu.mig is None


def _same(gpu: GpuRef, ref: GpuRef) -> bool:
    """Whether a GPU that was found is the one that was asked for."""
    if ref.uuid is not None:
        return ref.uuid in (gpu.uuid, gpu.parent_uuid)
    return ref.minor is not None and gpu.minor == ref.minor


def _place(gpu: GpuRef) -> tuple[int, bool, str]:
    return 1 << 30 if gpu.minor is None else gpu.minor, gpu.parent_uuid is not None, gpu.uuid or ""
