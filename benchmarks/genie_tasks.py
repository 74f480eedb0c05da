"""The paper's setting with numbers of ours: six models, tasks as they arrive, what they really take, what is foretold.

GENIE prints no k, gamma, lambda and no task's size. Here they are made up, once, and told in docs/algorithms.md; one
number, how large tasks are, is set so that FIFO's makespan is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Final

from profiler.speed import Point, SpeedModel, fit, light_profile
from slurm_plugins.tuner.swaf import Option, Placement, Task, Urgency, expected, options, placements

NODES: Final = 4
GPUS: Final = 4
DAY: Final = 86_400.0
STARTUP: Final = 10.0
NOISE: Final = 0.02

URGENCIES: Final[tuple[tuple[Urgency, float], ...]] = (("urgent", 0.05), ("prior", 0.35), ("normal", 0.60))
ASKED: Final[tuple[Placement, ...]] = ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4))
"""What users ask for, each as often: 1, 2, 4, 8 or 16 GPUs on the fewest nodes."""


@dataclass(frozen=True, slots=True)
class Net:
    """A model as it really is: samples a second of one GPU at the batch from which on it is no faster (`full`), the
    share of that with next to no batch, gamma and lambda of its communication.
    """

    name: str
    peak: float
    full: float
    bottom: float
    gamma: float
    lam: float

    def rate(self, batch: float, placement: Placement, training: bool) -> float:
        """Equations 5 to 8, samples a second; inference is three times as fast, and does not communicate."""
        nodes, gpus = placement
        count = nodes * gpus
        u = min(batch / count / self.full, 1.0)
        single = self.peak * (self.bottom + (1 - self.bottom) * (2 * u - u * u)) * (1 if training else 3)
        comm = 0.0
        if training and count > 1:
            comm = self.gamma * ((nodes - 1) * gpus + self.lam * (gpus - 1)) / (count - 1)
        return (count - comm) * single


NETS: Final = (
    Net("AlexNet", 600.0, 256.0, 0.04, 1.2, 0.5),
    Net("GoogleNet", 130.0, 96.0, 0.05, 0.5, 0.5),
    Net("ResNet50", 50.0, 64.0, 0.06, 0.6, 0.5),
    Net("Inception-v3", 30.0, 64.0, 0.06, 0.5, 0.5),
    Net("Regularized LSTM", 90.0, 80.0, 0.04, 1.4, 0.6),
    Net("Seq2seq", 70.0, 128.0, 0.04, 1.3, 0.6),
)


@dataclass(frozen=True, slots=True)
class Supposed:
    """What the paper does not tell: how large tasks are, how well they scale, what they were asked for with.

    A task takes `size` x 10^U(1, 2.5) minutes on one GPU. Its batch is one of `batches` x what fills a GPU. `bottom`
    times each net's own is the share of its peak that a GPU has with next to no batch: more of it scales better.
    """

    size: float = 0.52
    batches: tuple[float, ...] = (0.5, 1, 2)
    bottom: float = 1.0
    asked: tuple[Placement, ...] = ASKED

    def net(self, number: int) -> Net:
        """One of the six."""
        return replace(NETS[number], bottom=NETS[number].bottom * self.bottom)


SUPPOSED: Final = Supposed()


@dataclass(frozen=True, slots=True)
class Work:
    """What a task is: its model, training or inference, batch, iterations."""

    net: Net
    training: bool
    batch: float
    iterations: float

    def takes(self, placement: Placement) -> float:
        """Seconds, really."""
        return self.batch * self.iterations / self.net.rate(self.batch, placement, self.training) + STARTUP


@cache
def learnt(net: Net, training: bool, batches: tuple[float, ...]) -> SpeedModel:
    """What a light profile with noise teaches of a model: the scheduler knows no more."""
    rng = Random(f"{net.name} {training}")
    runs = light_profile(
        [net.full * part for part in sorted({*batches, 0.125, 0.25, 0.5, 0.75, 1})], NODES, GPUS
    )
    return fit(
        [
            Point(b, n, g, net.rate(b, (n, g), training) * math.exp(rng.gauss(0, NOISE)), STARTUP)
            for b, n, g in runs
        ],
        training=training,
    )


@cache
def _foretold(net: Net, training: bool, batch: float, batches: tuple[float, ...]) -> dict[Placement, float]:
    model = learnt(net, training, batches)
    return {at: model.rate(batch, *at).value for at in placements(NODES, GPUS)}


def drawn(
    seed: int, per_hour: float, supposed: Supposed = SUPPOSED
) -> tuple[list[Task], Callable[[Task, Placement], float]]:
    """A day's tasks, and what each really takes on a placement."""
    rng = Random(f"{seed} {per_hour}")
    tasks: list[Task] = []
    works: dict[int, Work] = {}
    now = 0.0
    while (now := now + rng.expovariate(per_hour / 3600)) < DAY:
        number, training = rng.randrange(len(NETS)), rng.random() < 0.5
        net = supposed.net(number)
        batch = net.full * rng.choice(supposed.batches)
        alone = supposed.size * 60 * 10 ** rng.uniform(1, 2.5)
        urgency = rng.choices([u for u, _ in URGENCIES], [w for _, w in URGENCIES])[0]
        asked = rng.choice(supposed.asked)
        work = Work(net, training, batch, max(round(alone * net.rate(batch, (1, 1), training) / batch), 1))
        works[len(tasks)] = work
        tasks.append(
            Task(
                len(tasks),
                now,
                # what its user expects goes by its real speed on one GPU
                expected(now, work.takes((1, 1)), urgency),
                _options(work, supposed.batches),
                urgency,
                asked,
            )
        )
    return tasks, lambda task, placement: works[task.task].takes(placement)


def _options(work: Work, batches: tuple[float, ...]) -> tuple[Option, ...]:
    rates = _foretold(work.net, work.training, work.batch, batches)
    samples = work.batch * work.iterations
    return options(lambda at: samples / rates[at] + STARTUP, rates.__getitem__, NODES, GPUS)
