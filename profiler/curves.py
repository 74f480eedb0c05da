"""Throughput over CPUs: measured points, the curve fitted to them, and its knee. Pure; CPUs are those of one GPU.

Two models stand to choice. **Saturating**: throughput grows with CPUs until something else is the limit, then it is
flat: ``top * min(1, (cpus / knee) ** power)``; with a power of 1 each CPU prepares as much as the one before it. Its
knee lies between points, so few points find it. Which knees and powers the points allow is weighed as a whole (a
posterior over a grid, uniform in the logarithm of the knee), and the curve is the mean of what they predict.
**Monotone**: where no such shape fits, the points themselves, made to never fall (pool adjacent violators), straight
lines between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "TOLERANCE",
    "Curve",
    "Point",
    "contradicted",
    "fit",
    "knee",
    "monotone",
    "pooled",
    "relative",
    "thin_sums",
]

TOLERANCE: Final = 0.005
"""Throughput that is not missed: the knee is the least that gives the best but for this share.

A knee is found with an error, which adds to this: with 0.01 one of 4.14 was called 4, a loss of 3.4 per cent. With
less than this, noise adds CPUs and hardly anything is won."""
_SYSTEMATIC: Final = 0.004  # what a node's clock, neighbours and temperature change between two points
_SUMS: Final = 32  # counts that a curve is fitted to: a run that learns tries some ten
_RATIO: Final = 1.007  # between one knee of the grid and the next
_EACH: Final = 128  # counts that a curve has each one of; it has as many beyond, and is straight between them
_BEYOND: Final = 1.5  # knees above the most CPUs that were tried, so that "more might help" can be the answer
_POWERS: Final = ((1.0, 0.55), (0.9, 0.25), (0.8, 0.15), (0.7, 0.05))
"""Powers and how likely each is beforehand. The profiles that Synergy ships have 0.8 to 1 between 1 and 6 CPUs."""
_WORSE: Final = 0.1  # of the rate: what fewer CPUs may be faster by, by chance
_MISFIT: Final = 9.0  # chi-squared that two degrees of freedom exceed by chance once in ninety

Model = Literal["saturating", "monotone"]


@dataclass(frozen=True, slots=True)
class Point:
    """A measured throughput.

    `cpus` are the job's on its node, all GPUs together; `rate` is steps in a second and `error` its standard error;
    `steps` and `seconds` are what it rests on, `at` when it was measured (seconds since the epoch).
    """

    cpus: int
    rate: float
    error: float
    steps: int = 0
    seconds: float = 0.0
    at: float = 0.0

    def __post_init__(self) -> None:
        if not (self.cpus >= 1 and math.isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"no throughput: {self.rate!r} a second with {self.cpus!r} CPUs")
        if not (math.isfinite(self.error) and self.error >= 0):
            raise ValueError(f"no standard error: {self.error!r}")


@dataclass(frozen=True, slots=True)
class Sum:
    """All points at one count of CPUs (for each GPU) as one."""

    cpus: float
    rate: float
    error: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted curve: `rates` at `cpus` (for each GPU, ascending), steps in a second.

    `knee` is where throughput stops to grow, between two counts, and `spread` its standard deviation. `error` is the
    standard error of `top`, as a share of it. `open_end`: it may well grow beyond the most CPUs that were tried.
    """

    cpus: tuple[float, ...]
    rates: tuple[float, ...]
    top: float
    error: float
    knee: float
    spread: float
    model: Model
    open_end: bool = False

    def at(self, cpus: float) -> float:
        """The rate at a count between those that were tried; outside of them that of the nearest.

        >>> Curve((1, 2, 4), (1.0, 2.0, 2.0), 2.0, 0.0, 2.0, 0.1, "saturating").at(1.5)
        1.5
        """
        if cpus <= self.cpus[0]:
            return self.rates[0]
        for index in range(1, len(self.cpus)):
            if cpus <= self.cpus[index]:
                low, high = self.cpus[index - 1], self.cpus[index]
                share = (cpus - low) / (high - low)
                return self.rates[index - 1] * (1 - share) + self.rates[index] * share
        return self.rates[-1]


def knee(curve: Curve, tolerance: float = TOLERANCE) -> int:
    """The least whole number of CPUs for each GPU that gives the best throughput but for `tolerance`.

    >>> knee(Curve((1, 2, 3, 4), (1.0, 2.0, 2.4, 2.4), 2.4, 0.0, 2.4, 0.1, "saturating"))
    3
    """
    enough = curve.top * (1 - tolerance)
    for count in range(math.ceil(curve.cpus[0]), math.floor(curve.cpus[-1]) + 1):
        if curve.at(count) >= enough:
            return count
    return max(math.floor(curve.cpus[-1]), 1)


def relative(curve: Curve, share: float) -> tuple[tuple[tuple[float, float], ...], float]:
    """The curve as decisions take it: (CPUs for each GPU, throughput over that at the GPU-proportional `share`), and
    the standard error of the best of these, as a share of it.

    >>> relative(Curve((1, 2, 4), (1.0, 2.0, 2.0), 2.0, 0.01, 2.0, 0.1, "saturating"), 1)
    (((1, 1.0), (2, 2.0), (4, 2.0)), 0.01)
    """
    one = curve.at(share)
    points = tuple((count, rate / one) for count, rate in zip(curve.cpus, curve.rates, strict=True))
    return points, curve.error


def pooled(points: Iterable[Point], gpus: int = 1) -> tuple[Sum, ...]:
    """Points at the same count as one, weighted by what is known of them; by CPUs, ascending."""
    at: dict[int, list[Point]] = {}
    for point in points:
        at.setdefault(point.cpus, []).append(point)
    sums = []
    for cpus in sorted(at):
        weights = [1 / (max(point.error, point.rate * 1e-4) ** 2) for point in at[cpus]]
        total = sum(weights)
        rate = sum(weight * point.rate for weight, point in zip(weights, at[cpus], strict=True)) / total
        sums.append(Sum(cpus / gpus, rate, math.hypot(total**-0.5, _SYSTEMATIC * rate)))
    return tuple(sums)


def thin_sums(sums: Sequence[Sum]) -> Sequence[Sum]:
    """At most `_SUMS` of them, the first and the last among them: a fit takes as long as it has counts.

    >>> [one.cpus for one in thin_sums([Sum(cpus, 1.0, 0.1) for cpus in range(1, 3000)])][::8]
    [1, 775, 1548, 2322]
    """
    last = len(sums) - 1
    if last < _SUMS:
        return sums
    return tuple(sums[round(place * last / (_SUMS - 1))] for place in range(_SUMS))


def contradicted(points: Sequence[Point]) -> Point | None:
    """The slowest point that is surely slower than one with fewer CPUs, which no curve can be; None: there is none.

    >>> contradicted([Point(2, 8.7, 0.5), Point(1, 17.7, 0.5)]).cpus
    2
    >>> contradicted([Point(2, 9.9, 0.1), Point(1, 10.0, 0.1)]) is None
    True
    """
    found = [
        one
        for one in points
        for other in points
        if one.cpus > other.cpus
        and other.rate - one.rate > max(_WORSE * other.rate, 4 * math.hypot(one.error, other.error))
    ]
    return min(found, key=lambda one: one.rate, default=None)


def fit(points: Sequence[Point], gpus: int = 1) -> Curve:
    """The curve through points, one at least. Raises ValueError for none.

    >>> curve = fit([Point(c, min(c, 5.7), 0.05) for c in (16, 8, 4, 5, 7)])
    >>> curve.model, knee(curve), round(curve.knee)
    ('saturating', 6, 6)
    """
    sums = thin_sums(pooled(points, gpus))
    if not sums:
        raise ValueError("no points to fit a curve to")
    found = _saturating(sums)
    return found if found is not None and not _bends(found, sums) else _stepwise(sums)


def _bends(curve: Curve, sums: Iterable[Sum]) -> bool:
    """Whether a point on the curve's plateau is surely below it: the knee is no corner there, but a bend."""
    plateau, enough = knee(curve), curve.top * (1 - TOLERANCE)
    return any(one.cpus >= plateau and one.rate < enough - 2.5 * one.error for one in sums)


# --- saturating -----------------------------------------------------------------------------------------------------


def _saturating(sums: Sequence[Sum]) -> Curve | None:
    """The mean of all saturating shapes, weighted by how well they fit; None where even the best does not."""
    least, most = sums[0].cpus, sums[-1].cpus
    steps = math.ceil(math.log(most * _BEYOND / (least / 2)) / math.log(_RATIO))
    knees = [least / 2 * _RATIO**step for step in range(steps + 1)]
    weights = [1 / one.error**2 for one in sums]
    fits: list[tuple[float, float, float, float]] = []  # chi-squared, knee, power, top
    for power, prior in _POWERS:
        penalty = -2 * math.log(prior)
        powers = [one.cpus**power for one in sums]
        for place in knees:
            scale = place**-power
            shape = [
                1.0 if one.cpus >= place else raised * scale for one, raised in zip(sums, powers, strict=True)
            ]
            squares = sum(weight * part * part for weight, part in zip(weights, shape, strict=True))
            top = (
                sum(weight * part * one.rate for weight, part, one in zip(weights, shape, sums, strict=True))
                / squares
            )
            chi = sum(
                weight * (one.rate - top * part) ** 2
                for weight, part, one in zip(weights, shape, sums, strict=True)
            )
            fits.append((chi + penalty, place, power, top))
    best = min(chi for chi, _, _, _ in fits)
    if best + 2 * math.log(_POWERS[0][1]) > _MISFIT + max(len(sums) - 3, 0):
        return None
    likely = [
        (math.exp((best - chi) / 2), place, power, top) for chi, place, power, top in fits if chi < best + 18
    ]
    total = sum(weight for weight, _, _, _ in likely)

    def mean(values: Iterable[float]) -> float:
        return sum(one[0] * value for one, value in zip(likely, values, strict=True)) / total

    place = mean(one[1] for one in likely)
    spread = math.sqrt(mean((one[1] - place) ** 2 for one in likely))
    counts = _counts(least, most)
    rates = tuple(
        mean(top if count >= at else top * (count / at) ** power for _, at, power, top in likely)
        for count in counts
    )
    open_end = sum(weight for weight, at, _, _ in likely if at > most) > 0.5 * total
    # What more CPUs than any that were tried would give is not known: the best is the best of these.
    top = mean(top * min(1.0, (most / at) ** power) for _, at, power, top in likely)
    noise = math.sqrt(mean((top - one[3] * min(1.0, (most / one[1]) ** one[2])) ** 2 for one in likely))
    plateau = sum(weight for weight, one in zip(weights, sums, strict=True) if one.cpus >= min(place, most))
    error = math.hypot(noise, plateau**-0.5) / top
    return Curve(counts, rates, top, error, min(place, most), spread, "saturating", open_end)


def _counts(least: float, most: float) -> tuple[float, ...]:
    """Whole counts from the fewest CPUs that were tried to the most, and these two themselves; not each of many."""
    low, high = math.ceil(least), math.floor(most) + 1
    near = min(high, low + _EACH)
    whole = (*range(low, near), *range(near, high, max(-(-(high - near) // _EACH), 1)))
    return tuple(sorted({least, most, *map(float, whole)}))


# --- monotone -------------------------------------------------------------------------------------------------------


def monotone(sums: Sequence[Sum]) -> tuple[Sum, ...]:
    """Rates that never fall, as near to the measured as can be (weighted least squares; pool adjacent violators).

    >>> [one.rate for one in monotone([Sum(1, 1.0, 0.1), Sum(2, 3.0, 0.1), Sum(3, 2.0, 0.1)])]
    [1.0, 2.5, 2.5]
    """
    blocks: list[tuple[float, float, int]] = []  # rate, weight, how many points
    for one in sums:
        rate, weight, count = one.rate, one.error**-2, 1
        while blocks and blocks[-1][0] > rate:
            rate, weight, count = _merged(blocks.pop(), (rate, weight, count))
        blocks.append((rate, weight, count))
    levels = [(rate, weight**-0.5) for rate, weight, count in blocks for _ in range(count)]
    return tuple(Sum(one.cpus, *level) for one, level in zip(sums, levels, strict=True))


def _merged(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    weight = one[1] + other[1]
    return (one[0] * one[1] + other[0] * other[1]) / weight, weight, one[2] + other[2]


def _stepwise(sums: Sequence[Sum]) -> Curve:
    rising = monotone(sums)
    # A last point that is high by chance must not be the best alone: what is within two errors of it is one plateau.
    top, error, start = rising[-1].rate, rising[-1].error, len(rising) - 1
    while start and rising[start - 1].rate >= top - 2 * math.hypot(rising[start - 1].error, error):
        start -= 1
        weights = [one.error**-2 for one in sums[start:]]
        top = sum(weight * one.rate for weight, one in zip(weights, sums[start:], strict=True)) / sum(weights)
        error = sum(weights) ** -0.5
    top = max(top, rising[start - 1].rate) if start else top
    rates = (*(one.rate for one in rising[:start]), *(top for _ in sums[start:]))
    counts = tuple(one.cpus for one in sums)
    below = counts[start - 1] if start else counts[0]
    spread = max((counts[start] - below) / math.sqrt(12), 0.29)
    return Curve(
        counts, rates, top, error / top, counts[start], spread, "monotone", 0 < start == len(sums) - 1
    )
