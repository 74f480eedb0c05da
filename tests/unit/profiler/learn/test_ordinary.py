"""The steady rate of a run that nobody drives: without its start, checkpoints, validation; over bursts of a loader."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from profiler.ordinary import LEAST_STEPS, steady
from profiler.step_counter import Entry

STEP = 0.1


def told(times: Iterable[float], begun: float = 0.0, pace: float = 1.0) -> list[Entry]:
    """What `gsub.train` keeps of steps that took these seconds: an entry a second, the last 1,024 of them."""
    entries, at, due = [], begun, begun
    for steps, seconds in enumerate(times, 1):
        at += seconds
        if at >= due:
            entries.append(Entry(at, steps, float(steps)))
            due = at + pace
    return entries[-1024:]


def noisy(count: int, seed: int = 1, step: float = STEP) -> list[float]:
    chance = random.Random(seed)
    return [step * max(chance.gauss(1, 0.08), 0.2) for _ in range(count)]


def saving(times: list[float], every: int, seconds: float) -> list[float]:
    return [time + (seconds if number % every == every - 1 else 0.0) for number, time in enumerate(times)]


def bursts(count: int, workers: int) -> list[float]:
    """All batches of a round are ready at once; then the loader is waited for."""
    return [0.02 if number % workers else STEP * workers - 0.02 * (workers - 1) for number in range(count)]


@pytest.mark.parametrize(
    "times",
    [
        noisy(6000),
        noisy(300),
        [12.0, 3.0, 1.0, 0.5] + [0.2] * 60 + noisy(3000),  # a cold start
        saving(noisy(6000), 400, 15.0),  # a checkpoint of 15 s each 40 s
        saving(noisy(6000), 250, 20.0),  # validation, a third of all time
        bursts(6000, 16),
        bursts(3000, 32),
    ],
    ids=["long", "short", "start", "checkpoints", "validation", "bursts of 16", "bursts of 32"],
)
def test_its_rate_is_that_of_its_steps(times: list[float]) -> None:
    found = steady([told(times)])
    assert found is not None
    assert found.rate == pytest.approx(1 / STEP, rel=0.04)
    assert 0 < found.error < 0.05 * found.rate


def test_slow_steps_count_too() -> None:
    found = steady([told(saving(noisy(400, step=12.0), 50, 600.0))])
    assert found is not None and found.rate == pytest.approx(1 / 12, rel=0.04)


def test_ranks_together_and_trainings_one_after_another() -> None:
    ranks = [told(noisy(3000, seed)) for seed in range(4)]
    found = steady(ranks)
    assert found is not None and found.rate == pytest.approx(4 / STEP, rel=0.04)
    later = told(noisy(1000, 9), begun=1000.0)
    found = steady([told(noisy(3000)), later])
    assert found is not None and found.rate == pytest.approx(1 / STEP, rel=0.04)


def test_too_little_tells_nothing() -> None:
    assert steady([]) is None and steady([[Entry(0.0, 1, 1.0)]]) is None
    assert steady([told(noisy(100))]) is None  # ten seconds
    few = [Entry(10.0 * number, number, 1.0) for number in range(LEAST_STEPS // 2)]
    assert steady([few]) is None
