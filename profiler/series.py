"""Columns of values over the time of a job, of bounded size however long it runs. Pure.

A column has at most `LIMIT` steps. When a value comes for a time beyond the last, steps are merged in pairs, and last
twice as long from then on.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable

import msgspec

LIMIT = 240
_FIRST_STEP = 1.0  # seconds
_SLIVER = 1e-6  # seconds: what rounding leaves over a step's end makes no step of its own


class SeriesState(msgspec.Struct):
    """A `Series` as it is kept: for each column, its totals and weights, as compressed 4 byte floats."""

    step: float
    columns: dict[str, bytes]


class _Column:
    """Sums of value x seconds, and of seconds, a step. Floats of 4 bytes, so that what is kept is what was there."""

    __slots__ = ("totals", "weights")

    def __init__(self, totals: Iterable[float] = (), weights: Iterable[float] = ()) -> None:
        self.totals = array("f", totals)
        self.weights = array("f", weights)

    def add(self, place: int, value: float, seconds: float) -> None:
        missing = place + 1 - len(self.totals)
        if missing > 0:
            self.totals.extend([0.0] * missing)
            self.weights.extend([0.0] * missing)
        self.totals[place] += value * seconds
        self.weights[place] += seconds

    def halved(self) -> _Column:
        return _Column(_pairs(self.totals), _pairs(self.weights))


class Series:
    """Named columns with common steps.

    >>> series = Series()
    >>> series.add("utilisation", 0.0, 2.0, 50.0)
    >>> series.add("utilisation", 3.0, 3.5, 80.0)
    >>> series.step, series.column("utilisation")
    (1.0, (50.0, 50.0, None, 80.0))
    """

    def __init__(self, state: SeriesState | None = None) -> None:
        self.step = state.step if state else _FIRST_STEP
        self._columns: dict[str, _Column] = {}
        for name, data in state.columns.items() if state else ():
            numbers = array("f", zlib.decompress(data))
            half = len(numbers) // 2
            self._columns[name] = _Column(numbers[:half], numbers[half:])

    def add(self, name: str, start: float, end: float, value: float | None) -> None:
        """A value that held from `start` to `end`, in seconds from the beginning."""
        start = max(start, 0.0)
        if value is None or end - start < _SLIVER:
            return
        while end - _SLIVER > LIMIT * self.step:
            self._halve()
        column = self._columns.setdefault(name, _Column())
        place = int(start / self.step)
        while end - start > _SLIVER and place < LIMIT:
            until = min(end, (place + 1) * self.step)
            if until > start:
                column.add(place, value, until - start)
                start = until
            place += 1

    def column(self, name: str, digits: int = 1) -> tuple[float | None, ...]:
        """The means of a column, a step each; None where nothing was added. All columns are equally long."""
        column = self._columns.get(name, _Column())
        means = [
            round(total / weight, digits) if weight > 0 else None
            for total, weight in zip(column.totals, column.weights, strict=True)
        ]
        length = max((len(column.totals) for column in self._columns.values()), default=0)
        return (*means, *[None] * (length - len(means)))

    def state(self) -> SeriesState:
        """All of it, to go on with."""
        return SeriesState(
            self.step,
            {
                name: zlib.compress((column.totals + column.weights).tobytes(), 1)
                for name, column in self._columns.items()
            },
        )

    def _halve(self) -> None:
        self.step *= 2
        self._columns = {name: column.halved() for name, column in self._columns.items()}


def _pairs(numbers: array[float]) -> Iterable[float]:
    return (sum(numbers[place : place + 2]) for place in range(0, len(numbers), 2))
