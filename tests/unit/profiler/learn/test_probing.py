"""One point: what a sequence of step times tells of."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.probing import LEAST_STEPS, measure
from tests.properties import examples


def steps(draw: random.Random, mean: float, count: int, noise: float = 0.05) -> list[float]:
    return [mean * draw.lognormvariate(0, noise) for _ in range(count)]


@pytest.mark.parametrize("slow", [0.2, 2.0, 6.0])
@pytest.mark.parametrize("count", [0, 4, 16, 30])
def test_what_was_before_is_cut_off(slow, count):
    for seed in range(20):
        draw = random.Random(seed)
        speed = measure(steps(draw, slow, count) + steps(draw, 1.0, 80))
        assert speed is not None
        assert speed.rate == pytest.approx(1.0, abs=0.03)
        assert abs(speed.cut - count) <= 8


def test_a_rate_is_off_by_its_error():
    """The errors are neither far too small, which would end the search at a wrong knee, nor far too large."""
    z = []
    for seed in range(300):
        draw = random.Random(seed)
        speed = measure(steps(draw, 0.2, draw.choice([20, 50, 200]), draw.uniform(0.02, 0.08)))
        assert speed is not None
        z.append((speed.rate - 5.0) / speed.error)
    assert 0.5 < math.sqrt(sum(value * value for value in z) / len(z)) < 1.5


def test_noise_that_lasts_is_seen():
    draw = random.Random(1)
    blocks = [step for level in (1.0, 1.15, 0.9, 1.1, 0.95, 1.12) for step in steps(draw, level, 30, 0.01)]
    still = measure(steps(draw, 1.0, 180, 0.01))
    rough = measure(blocks)
    assert still is not None and rough is not None
    assert rough.error > 5 * still.error


def test_a_few_long_steps_do_not_count():
    draw = random.Random(2)
    times = steps(draw, 0.1, 90)
    times[40] = times[70] = 10.0
    speed = measure(times)
    assert speed is not None and speed.rate == pytest.approx(10.0, rel=0.05)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.001, 10), max_size=200))
@settings(max_examples=examples(200), deadline=None)
def test_any_sequence_gives_a_rate_or_nothing(times):
    speed = measure(times)
    good = [time for time in times if 0 < time < math.inf]
    assert (speed is None) == (len(good) < LEAST_STEPS)
    if speed is not None:
        assert speed.steps + speed.cut == len(good)
        assert 0 <= speed.cut <= len(good) // 2


def test_a_change_in_the_middle_leaves_what_came_after():
    speed = measure([1.0] * 30 + [0.5] * 25)
    assert speed is not None and speed.rate == pytest.approx(2.0)
