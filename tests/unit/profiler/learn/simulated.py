"""Workloads that prepare batches with CPUs and train on a GPU, with what makes their steps hard to read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from profiler.curves import Point
from profiler.probing import LEAST_STEPS, measure
from profiler.sensitivity import Budget, Done, Probe, plan

DEFAULT = Budget()


@dataclass
class Job:
    """`rate(cpus)` steps a second at its best; each step's time is off by `noise`; one in `hiccup` takes three times.

    After each change of the CPUs up to `queue` batches are ready and go at the best rate; the first point begins with
    `slow` steps of up to five times.
    """

    rate: Callable[[float], float]
    random: random.Random
    noise: float = 0.05
    hiccup: float = 100
    queue: int = 16
    slow: int = 15
    drift: float = 0.002
    clock: float = 0.0
    points: list[Point] = field(default_factory=list)

    def run(self, cpus: int, seconds: float) -> Point:
        draw, mean = self.random, 1 / self.rate(cpus)
        times: list[float] = []
        first = not self.points
        queued = 0 if first else draw.randint(0, self.queue)
        best = 1 / self.rate(10_000)
        pace = mean * draw.lognormvariate(0, self.drift)
        while sum(times) < seconds or len(times) < 2 * LEAST_STEPS:
            each = pace * draw.lognormvariate(0, self.noise)
            if len(times) < queued:
                each *= best / mean
            elif first and len(times) < self.slow:
                each *= draw.uniform(1.5, 5)
            elif draw.random() < 1 / self.hiccup:
                each *= 3
            times.append(each)
        speed = measure(times)
        assert speed is not None, (cpus, seconds, len(times))
        self.clock += sum(times)
        point = Point(cpus, speed.rate, speed.error, speed.steps, sum(times), self.clock)
        self.points.append(point)
        return point


def saturating(knee: float, top: float) -> Callable[[float], float]:
    return lambda cpus: top * min(1.0, cpus / knee)


def learn(job: Job, cap: int = 32, gpus: int = 1, budget: Budget = DEFAULT) -> tuple[Done, list[Probe]]:
    done: tuple[Point, ...] = ()
    asked: list[Probe] = []
    while isinstance(step := plan(done, cap, gpus, budget=budget), Probe):
        asked.append(step)
        assert len(asked) <= budget.points
        done += (job.run(step.cpus, step.seconds),)
    return step, asked
