"""One point of a curve: the throughput that a noisy sequence of step times tells of, and how sure that is. Pure.

After each change of the CPUs the first steps tell of what was before: a loader that was started anew is slow, a queue
of batches that were ready is fast. They are cut off where the sequence changes (`settled`). What is left is cut into
windows; the throughput is that of the median window, so that a checkpoint or a neighbour's burst in one of them does
not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

__all__ = ["LEAST_STEPS", "MOST_STEPS", "Speed", "measure", "settled"]

LEAST_STEPS: Final = 6
"""Fewer steps tell nothing."""
MOST_STEPS: Final = 20_000
"""Of more only the last count."""
_WINDOWS: Final = 9
_GRIDS: Final = 200  # places where a change is looked for
_GAIN: Final = (
    12.0  # by how much a change must better the fit: twice the logarithm of a likelihood ratio of 400
)
_MEDIAN: Final = 1.2533  # standard error of a median over that of a mean, for a normal distribution
_MAD: Final = 1.4826  # standard deviation over median deviation, likewise


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps in a second, its standard error, the steps that it rests on, and how many before them were cut off."""

    rate: float
    error: float
    steps: int
    cut: int


def measure(times: Sequence[float]) -> Speed | None:
    """The throughput of a run of steps, from the seconds that each took; None where they are too few.

    Times that are none (negative, zero, not finite) are left out.

    >>> measure([2.0] * 5 + [0.5] * 40)
    Speed(rate=2.0, error=0.004, steps=40, cut=5)
    >>> measure([1.0, 1.0]) is None
    True
    """
    good = [time for time in times[-MOST_STEPS:] if 0 < time < math.inf]
    if len(good) < LEAST_STEPS:
        return None
    cut = settled(good)
    rest = good[cut:]
    count = min(_WINDOWS, len(rest) // 3) or 1
    edges = [round(index * len(rest) / count) for index in range(count + 1)]
    means = [fmean(rest[low:high]) for low, high in pairwise(edges)]
    middle = median(means)
    logs = [math.log(time) for time in rest]
    centre = median(logs)
    scatter = _MAD * median([abs(value - centre) for value in logs])
    among = _deviation(means) / middle
    # The windows tell of noise that lasts for many steps, the steps of noise where the windows are few.
    error = max(_MEDIAN * among / math.sqrt(count), _MEDIAN * scatter / math.sqrt(len(rest)), 0.002)
    return Speed(1 / middle, error / middle, len(rest), cut)


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation, blind to a quarter of the values."""
    if len(values) < 4:
        return max(values) - min(values)
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return (high - low) / 1.2  # the interquartile range of nine values; 1.35 for many


def settled(times: Sequence[float]) -> int:
    """How many of the first steps are another regime than the rest; at most half of them.

    Least squares of two levels against one, in the logarithm of the times, with outliers drawn in.

    >>> settled([0.1] * 30), settled([3.0, 0.4, 0.2] + [0.1] * 30)
    (0, 3)
    """
    logs = [math.log(time) for time in times]
    half = len(logs) // 2
    late = logs[half:]
    centre = median(late)
    scatter = max(_MAD * median([abs(value - centre) for value in late]), 0.005)
    reach = 4 * scatter
    drawn = [min(max(value - centre, -reach), reach) for value in logs]
    total, best, place = sum(drawn), _GAIN * scatter * scatter, 0
    before = 0.0
    stride = max(half // _GRIDS, 1)
    size = len(drawn)
    base = total * total / size
    for index, value in enumerate(drawn[:half], start=1):
        before += value
        if index % stride == 0 or index < _GRIDS:
            gain = before * before / index + (total - before) ** 2 / (size - index) - base
            if gain > best:
                best, place = gain, index
    return place
