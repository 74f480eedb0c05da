"""What a job gains from CPUs and memory, and what it asks for: Synergy's demand vectors and sensitivity curves.

All figures are per GPU. Speed is relative to the GPU-proportional share, which is 1 (Synergy, OSDI'22, section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Share:
    """CPUs and memory (GB) that go with one GPU."""

    cpus: float
    memory: float

    def within(self, other: Share) -> bool:
        """Whether neither dimension is above the other's."""
        return self.cpus <= other.cpus + 1e-9 and self.memory <= other.memory + 1e-9


@dataclass(frozen=True, slots=True)
class Shape:
    """One server: its GPUs, CPUs and memory (GB); servers are alike."""

    gpus: int
    cpus: float
    memory: float

    @property
    def proportional(self) -> Share:
        """Each GPU's equal part of the server."""
        return Share(self.cpus / self.gpus, self.memory / self.gpus)


V100 = Shape(8, 24, 500.0)  # the servers of Synergy's published simulator


@dataclass(frozen=True, slots=True)
class Two:
    """The two speeds of a job that TUNE knows: at its best-case share, and at the least one that is no slower than
    the proportional."""

    best: Share
    fast: float
    floor: Share
    fair: float


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What jobs with so many GPUs and one curve could have: (share, speed), the slowest first, and that one is no more
    than the proportional share. One object for all jobs that are alike; equal only to itself."""

    gpus: int
    points: tuple[tuple[Share, float], ...]


@dataclass(frozen=True)
class Curve:
    """Speed at points of a grid: `speeds[i][k]` for `cpus[i]` CPUs and `memory[k]` GB a GPU, both ascending."""

    cpus: tuple[float, ...]
    memory: tuple[float, ...]
    speeds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not all(
            axis and list(axis) == sorted(set(axis)) and axis[0] >= 0 for axis in (self.cpus, self.memory)
        ):
            raise ValueError(f"a curve needs ascending CPUs and memory: {self.cpus} {self.memory}")
        if len(self.speeds) != len(self.cpus) or any(len(row) != len(self.memory) for row in self.speeds):
            raise ValueError(f"a curve of {len(self.cpus)} x {len(self.memory)} points has other speeds")
        if not all(0 <= speed < math.inf for row in self.speeds for speed in row):
            raise ValueError("a speed below 0 or without end")

    def speed(self, share: Share) -> float:
        """Speed with that share: the value of the nearest point that it covers, 0 when it covers none.

        >>> Curve((1, 3), (10, 20), ((0.5, 0.6), (0.8, 1.0))).speed(Share(3, 19))
        0.8
        """
        reached = [p for p in self.points if p[0].within(share)]
        return max((speed for _, speed in reached), default=0.0)

    @cached_property
    def points(self) -> tuple[tuple[Share, float], ...]:
        """Every point with its speed."""
        return tuple(
            (Share(cpus, memory), self.speeds[i][k])
            for i, cpus in enumerate(self.cpus)
            for k, memory in enumerate(self.memory)
        )

    def best(self, most: Share | None = None) -> Share:
        """The least share (CPUs first, then memory) at peak speed, of those within `most`: the best-case demand
        vector. `most` itself where it covers no point."""
        able = [(share, speed) for share, speed in self.points if most is None or share.within(most)]
        peak = max((speed for _, speed in able), default=0.0)
        top = [share for share, speed in able if speed >= peak]
        return min(top, key=lambda s: (s.cpus, s.memory), default=most or Share(0.0, 0.0))

    def floor(self, proportional: Share) -> Share:
        """The least share, no larger than the proportional one, that is as fast as that one."""
        target = self.speed(proportional)
        able = [s for s, speed in self.points if speed >= target and s.within(proportional)]
        return min(able, key=lambda s: (s.cpus, s.memory), default=proportional)

    def two(self, gpus: int, shape: Shape) -> Two:
        """The two speeds of a job with that many GPUs on such servers; its best case is what one server can give."""
        here = min(gpus, shape.gpus)
        found = self._twos.get((here, shape))
        if found is None:
            best = self.best(Share(shape.cpus / here, shape.memory / here))
            floor = self.floor(shape.proportional)
            found = self._twos[here, shape] = Two(best, self.speed(best), floor, self.speed(floor))
        return found

    def relative(self, fair: Share) -> Curve:
        """The same with speed 1 at that share.

        Raises:
            ValueError: it tells nothing of so small a share.
        """
        unit = self.speed(fair)
        if unit <= 0:
            raise ValueError(f"the curve begins above {fair.cpus:g} CPUs or {fair.memory:g} GB a GPU")
        return Curve(
            self.cpus, self.memory, tuple(tuple(speed / unit for speed in row) for row in self.speeds)
        )

    def choices(self, gpus: int, shape: Shape) -> Choices:
        """The points that a job with that many GPUs could have on such servers: no slower than the proportional share,
        what one server can give, and no other at least as fast with less."""
        found = self._choices.get((gpus, shape))
        if found is None:
            here = min(gpus, shape.gpus)
            most, fair = Share(shape.cpus / here, shape.memory / here), self.speed(shape.proportional)
            able = [p for p in self.points if p[1] >= fair and p[0].within(most)]
            floor = self.floor(shape.proportional)
            able.append((floor, fair))
            able.sort(key=lambda p: (-p[1], p[0].cpus, p[0].memory))
            kept: list[tuple[Share, float]] = []
            for share, speed in able:
                if not any(other.within(share) for other, _ in kept):
                    kept.append((share, speed))
            # first what all can fall back on: no more than the proportional share, by noise perhaps not the slowest
            kept.sort(key=lambda p: (not p[0].within(shape.proportional), p[1], p[0] != floor))
            found = self._choices[gpus, shape] = Choices(gpus, tuple(kept))
        return found

    @cached_property
    def _choices(self) -> dict[tuple[int, Shape], Choices]:
        return {}

    @cached_property
    def _twos(self) -> dict[tuple[int, Shape], Two]:
        return {}


@dataclass(frozen=True)
class Profile:
    """A model as measured once: kind of task, seconds a step at the proportional share, curve."""

    name: str
    task: str
    step_s: float
    curve: Curve


_CPUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)
_MEMORY = (500 / 24, 62.5, 125.0, 187.5, 250.0)


def _grid(by_cpu: str, more: dict[tuple[float, float], float] | None = None) -> Curve:
    """Speeds at the CPU points; a GPU that has only 20.8 GB starves; `more` are (CPUs, GB) that speed it up."""
    flat = [float(word) for word in by_cpu.split()]
    rows = []
    for cpus, base in zip(_CPUS, flat + flat[-1:] * (len(_CPUS) - len(flat)), strict=True):
        row = [0.1]
        for memory in _MEMORY[1:]:
            gains = [v for (c, m), v in (more or {}).items() if cpus >= c and memory >= m]
            row.append(max([base, *gains]))
        rows.append(tuple(row))
    return Curve(_CPUS, _MEMORY, tuple(rows))


_EASY = Curve(_CPUS, _MEMORY, ((1.0,) * len(_MEMORY),) * len(_CPUS))
_LADDER = ".3 .66 1 1.25 1.53 1.75 2 2"

# the profiles that Synergy's artifact ships for V100 servers with 3 CPUs a GPU
PROFILES = {
    p.name: p
    for p in (
        Profile("alexnet", "image", 0.60, _grid(_LADDER, {(12, 125): 2.94, (24, 62.5): 2.94})),
        Profile("shufflenet", "image", 0.615, _grid(_LADDER, {(12, 125): 2.89, (24, 62.5): 2.89})),
        Profile("res18", "image", 0.64, _grid(".37 .72 1 1.3 1.53 1.75 2.4")),
        Profile("mobilenet", "image", 0.71, _grid(".37 .72 1 1.3 1.49 1.55")),
        Profile("res50", "image", 0.78, _grid(".4 .74 1 1.15")),
        Profile("m5", "speech", 0.60, _grid(".3 .66 1 1.2 1.4 1.5", {(6, 125): 2.0, (6, 187.5): 2.5})),
        Profile("deepspeech", "speech", 0.757, _grid(".3 .66 1")),
        Profile("gnmt", "language", 0.12, _EASY),
        Profile("transformer", "language", 0.67, _EASY),
        Profile("lstm", "language", 0.011, _EASY),
        Profile("bert", "language", 0.011, _EASY),
        Profile("vae", "language", 0.011, _EASY),
    )
}
