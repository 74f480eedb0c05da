"""What counts can prove: shares and differences with 95 % intervals, or nothing where there are too few. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import exp, sqrt
from typing import Final

__all__ = ["LEAST", "Compared", "Difference", "Figure", "counted", "interval"]

LEAST: Final = 20
"""Attempts below which no share and no difference is told."""
_Z: Final = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""


def interval(count: int, of: int) -> tuple[float, float]:
    """Between which shares (0 to 1) the true one lies in 95 of 100 cases: Wilson's score interval (1927).

    >>> [round(end, 4) for end in interval(0, 73)], [round(end, 4) for end in interval(10, 20)]
    ([0.0, 0.05], [0.2993, 0.7007])
    """
    if not of:
        return 0.0, 1.0
    share, spread = count / of, _Z * _Z / of
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: `value` in `unit`, resting on `of` attempts (or runs).

    A count ("" as unit) is of those, and `low` and `high` hold the share of it in per cent; an estimate has them in its
    own unit. `value` None: nothing is known, or there are too few.
    """

    label: str
    value: float | None
    unit: str = ""
    of: int | None = None
    low: float | None = None
    high: float | None = None


def counted(label: str, count: int, of: int) -> Figure:
    """So many of so many; with the interval of the share where there are enough."""
    if of < LEAST:
        return Figure(label, count, "", of)
    low, high = interval(count, of)
    return Figure(label, count, "", of, 100 * low, 100 * high)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the mean of the first of two kinds is than the second's, resting on so many of each."""

    value: float
    low: float
    high: float
    first: int
    second: int

    def ratio(self) -> Difference:
        """The same of values whose logarithms were compared: how many times as high the first's geometric mean is."""
        return Difference(exp(self.value), exp(self.low), exp(self.high), self.first, self.second)


class Compared:
    """Two kinds of attempts, compared only among their like (partition, GPUs): weighted by how often the first occurs.

    >>> both = Compared()
    >>> for value in (1.0, 3.0) * 10:
    ...     both.add("a", True, value)
    ...     both.add("a", False, value - 1)
    >>> found = both.difference()
    >>> found is not None and (found.value, found.first, found.second)
    (1.0, 20, 20)
    """

    def __init__(self) -> None:
        self._likes: dict[Hashable, tuple[list[float], list[float]]] = {}

    def add(self, like: Hashable, first: bool, value: float) -> None:
        """One value of the first kind, or of the second."""
        sums = self._likes.setdefault(like, ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]))[0 if first else 1]
        sums[0] += 1
        sums[1] += value
        sums[2] += value * value

    def sizes(self) -> tuple[int, int]:
        """How many of each kind can be compared: those that have likes of the other kind, two of each at least."""
        usable = self._usable()
        return sum(int(one[0]) for one, _ in usable), sum(int(two[0]) for _, two in usable)

    def difference(self) -> Difference | None:
        """The difference of the means, its interval by the normal distribution; None: too few of either kind."""
        first, second = self.sizes()
        if min(first, second) < LEAST:
            return None
        value = variance = 0.0
        for one, two in self._usable():
            weight = one[0] / first
            value += weight * (one[1] / one[0] - two[1] / two[0])
            variance += weight * weight * (_variance(one) / one[0] + _variance(two) / two[0])
        half = _Z * sqrt(variance)
        return Difference(value, value - half, value + half, first, second)

    def _usable(self) -> list[tuple[list[float], list[float]]]:
        return [both for both in self._likes.values() if both[0][0] >= 2 and both[1][0] >= 2]


def _variance(sums: list[float]) -> float:
    count, total, squares = sums
    return max(0.0, (squares - total * total / count) / (count - 1))
