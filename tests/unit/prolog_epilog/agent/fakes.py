"""What the agent is put together from, without a driver, a service or Slurm: each says what a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from profiler.gpu import GpuIdentity, GpuReading, GpuSample
from profiler.host import HostReading
from profiler.records import GpuRef, JobRef, Record, decode, encode, identity
from prolog_epilog.agent.settings import Settings
from site_configs.site_model import Agent, Site

BOOT = "b0000000-0000-0000-0000-000000000001"


def settings(folder: Path, *, boot: str = BOOT, report: int = 60, interval: float = 10.0) -> Settings:
    return Settings(
        site=Site(cluster="lab", agent=Agent(report=report, deadline=1)),
        node="n1",
        run=folder / "run",
        spool=folder / "spool",
        slurmd_spool=folder / "slurmd",
        interval=interval,
        boot=boot,
        off_file=folder / "health.off",
    )


@dataclass
class FakeClock:
    """A node's two clocks, moved by hand."""

    at: float = 1_700_000_000.0
    uptime: float = 5000.0

    def wall(self) -> float:
        return self.at

    def mono(self) -> float:
        return self.uptime

    def pass_(self, seconds: float) -> None:
        self.at += seconds
        self.uptime += seconds


class FakeSpool:
    """Records in memory, through their JSON: what cannot be encoded and decoded fails here as there."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.durable = True
        self.came = threading.Condition()

    def put(self, record: Record) -> bool:
        with self.came:
            self.records.append(decode(encode(record)))
            self.came.notify_all()
        return self.durable

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [record for record in list(self.records) if isinstance(record, kind)]

    def facts(self) -> set[tuple[object, ...]]:
        return {identity(record) for record in list(self.records)}

    def await_(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        with self.came:
            assert self.came.wait_for(condition, seconds), [type(r).__name__ for r in self.records]


class FakeGpus:
    """SLURM_JOB_GPUS are minor numbers; `blind` as long as that is not known."""

    shared = False
    several_types = False
    blind = False

    def of(self, env: Mapping[str, str], sample: GpuSample | None) -> tuple[GpuRef, ...] | None:
        if self.blind:
            return None
        numbers = env.get("SLURM_JOB_GPUS", "")
        return tuple(
            GpuRef(minor=int(number), uuid=f"GPU-{number}") for number in numbers.split(",") if number
        )


@dataclass
class FakeHost:
    readings: dict[int, HostReading] = field(default_factory=dict)
    hang: threading.Event | None = None
    reads: int = 0

    def read(self, jobs: Collection[int]) -> Mapping[int, HostReading]:
        self.reads += 1
        if self.hang is not None:
            self.hang.wait(60)
        return {job: self.readings[job] for job in jobs if job in self.readings}


class FakeSampler:
    """Samples when a test says so; `asked` counts how often a look was asked for."""

    def __init__(self, on_sample: Callable[[GpuSample, float], None]) -> None:
        self.on_sample = on_sample
        self.asked = threading.Semaphore(0)
        self.started = False
        self.died = False
        self._last: GpuSample | None = None

    def start(self) -> None:
        self.started = True

    def sample_soon(self, dense: float = 0.0) -> None:
        self.asked.release()

    def last(self) -> GpuSample | None:
        return self._last

    def has_died(self) -> bool:
        return self.died

    def stop(self, timeout: float = 0.0) -> bool:
        return True

    def say(self, sample: GpuSample, at: float) -> None:
        self._last = sample
        self.on_sample(sample, at)


@dataclass
class FakeHealth:
    fed: list[GpuSample] = field(default_factory=list)
    soon: int = 0
    stopped: bool = False

    def start(self) -> None:
        pass

    def feed(self, sample: GpuSample) -> None:
        self.fed.append(sample)

    def look_soon(self) -> None:
        self.soon += 1

    def stop(self, seconds: float) -> None:
        self.stopped = True

    def state(self) -> msgspec.Struct:
        return JobRef(1)


def sample(at: float, use: Mapping[int, float], *, state: str = "ok") -> GpuSample:
    """GPUs by minor number, with their utilisation in per cent."""
    readings: Iterable[GpuReading] = (
        GpuReading(
            GpuIdentity(f"GPU-{minor}", minor, "Fake"),
            utilisation=percent,
            memory_used_bytes=1 << 30,
            memory_total_bytes=80 << 30,
            power_w=100.0,
            power_limit_w=400.0,
            processes=(),
        )
        for minor, percent in use.items()
    )
    return GpuSample(at, tuple(readings), state)  # type: ignore[arg-type]


def hook_bytes(event: str, **env: str | bytes) -> bytes:
    """A hook's file as the hooks write it."""
    pairs = {"GSUB_HOOK": "1", "EVENT": event, "BOOT": BOOT, **env, "END": "1"}
    return b"".join(
        key.encode() + b"=" + (value if isinstance(value, bytes) else value.encode()) + b"\0"
        for key, value in pairs.items()
    )
