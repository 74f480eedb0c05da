"""Jobs made of what each of their GPUs does over time, metered as a node's agent does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiler.answers import JobSummary, NodeUse, Usage
from profiler.gpu import GpuIdentity, GpuReading, GpuSample
from profiler.host import HostReading
from profiler.job_meter import JobMeter
from profiler.records import GpuRef

T0 = 1_800_000_000.0
LOOK = 30.0
"""Seconds from one look at the GPUs to the next."""
REPORT = 60.0
LIMIT = 400.0
"""Watts."""
GIB = 1 << 30

Stretch = tuple[float, float | None, float | None]
"""So many minutes at this utilisation (None: the driver tells none), with this share of the power limit."""

IDLE, BUSY, SPIN = (0.0, 0.15), (95.0, 0.8), (100.0, 0.25)


def at(minutes: float, what: tuple[float | None, float | None]) -> Stretch:
    return minutes, *what


@dataclass
class Job:
    """A job: its GPUs, one list of stretches each, `per_node` on a node. The last stretch goes on."""

    gpus: Sequence[Sequence[Stretch]]
    per_node: int = 8
    cpus: float = 16.0
    cpus_busy: float = 8.0
    memory_gib: float = 100.0
    memory_used_gib: float = 60.0
    blind: Sequence[tuple[float, float]] = ()
    """Minutes from and to which nobody looks (the agent is away)."""
    summary: dict[str, Any] = field(default_factory=dict)

    def reports(self, minutes: float) -> Iterator[tuple[float, Usage]]:
        """What is in the store each minute: when (seconds since the epoch), usage."""
        count = -(-len(self.gpus) // self.per_node) or 1
        names = [f"n{number + 1}" for number in range(count)]
        meters = [JobMeter([GpuRef(minor) for minor, _ in self._on(number)], T0) for number in range(count)]
        nodes: list[NodeUse] = [NodeUse(name, since=T0) for name in names]
        passed = 0.0
        while passed <= minutes * 60:
            if not any(begin * 60 <= passed < end * 60 for begin, end in self.blind):
                for number, meter in enumerate(meters):
                    meter.add(self._sample(number, passed), T0 + passed, self._host(passed, count))
                if passed % REPORT == 0 and passed:
                    nodes = [self._use(name, meter) for name, meter in zip(names, meters, strict=True)]
            if passed % REPORT == 0:
                yield T0 + passed, Usage(self.job(names), tuple(nodes))
            passed += LOOK

    def job(self, names: Sequence[str]) -> JobSummary:
        values: dict[str, Any] = {
            "cluster": "lab", "job_id": 7, "name": "train", "user": "ada", "uid": 1000, "account": "vision",
            "partition": "gpu", "qos": "normal", "state": "RUNNING", "started": T0, "time_limit": 86400.0,
            "nodes": ",".join(names), "cpus": int(self.cpus), "gpus": len(self.gpus),
            "memory_asked_bytes": int(self.memory_gib * GIB),
        }  # fmt: skip
        return JobSummary(**(values | self.summary))

    def _on(self, number: int) -> list[tuple[int, Sequence[Stretch]]]:
        here = self.gpus[number * self.per_node : (number + 1) * self.per_node]
        return list(enumerate(here))

    def _sample(self, number: int, passed: float) -> GpuSample:
        readings = []
        for minor, stretches in self._on(number):
            utilisation, power = _then(stretches, passed / 60)
            watts = None if power is None else power * LIMIT
            gpu = GpuIdentity(f"GPU-{number}-{minor}", minor, "A100")
            readings.append(GpuReading(gpu, utilisation, power_w=watts, power_limit_w=LIMIT))
        return GpuSample(T0 - 1e6 + passed, tuple(readings))

    def _host(self, passed: float, nodes: int) -> HostReading:
        return HostReading(
            "cgroup2",
            cpu_seconds=self.cpus_busy * passed / nodes,
            cpus=self.cpus / nodes,
            memory_bytes=int(self.memory_used_gib * GIB / nodes),
            memory_peak_bytes=int(self.memory_used_gib * GIB / nodes),
        )

    @staticmethod
    def _use(name: str, meter: JobMeter) -> NodeUse:
        return NodeUse(
            name, since=T0, until=T0 + meter.seconds(), gpus=meter.gpu_uses(), host=meter.host_use(),
            unseen_seconds=meter.unseen_seconds(),
        )  # fmt: skip


def _then(stretches: Sequence[Stretch], minute: float) -> tuple[float | None, float | None]:
    begin = 0.0
    for length, utilisation, power in stretches:
        # as a reading tells of the time before it
        if minute <= begin + length:
            return utilisation, power
        begin += length
    return stretches[-1][1:]


def cycle(minutes: float, *parts: Stretch) -> list[Stretch]:
    """The parts again and again, for so long."""
    found: list[Stretch] = []
    while sum(part[0] for part in found) < minutes:
        found += parts
    return found
