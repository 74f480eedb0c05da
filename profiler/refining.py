"""A curve that later runs refine: points of many runs, weighted by how sure and how old they are. Pure.

Each run of a workload leaves points: one that learnt leaves several, an ordinary one leaves the count that it had. A
run as a whole is a little faster or slower than the next (another node, other neighbours). The run that tells most is
what the others are compared with: their points have that error too, and more steps do not lessen it. What is old
counts less: its weight halves in each half-life. Where newer runs plainly disagree with an older one at the same
count, the workload or its libraries have changed, and the older is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from profiler.curves import Curve, Point, fit, pooled

__all__ = ["HALF_LIFE", "assumed_error", "refined", "standing", "weighed"]

HALF_LIFE: Final = 30 * 86400.0
"""Seconds in which a point comes to count half as much."""
_BETWEEN_RUNS: Final = 0.015  # standard deviation of a run's speed as a whole, as a share
_CHANGED: Final = 4.0  # standard errors, and
_CHANGED_BY: Final = 0.1  # the share, by which a point is of another workload
_STEP_NOISE: Final = 0.08  # of one step, where a record has no error


def assumed_error(rate: float, steps: int) -> float:
    """A standard error for a record that has none: steps that vary by 8 %.

    >>> assumed_error(10.0, 64)
    0.1
    """
    return rate * max(_STEP_NOISE / math.sqrt(max(steps, 1)), 0.005)


def weighed(runs: Iterable[Sequence[Point]], now: float, half_life: float = HALF_LIFE) -> tuple[Point, ...]:
    """All points of all runs with the errors that they have `now`, without those that were overtaken.

    A run is its points without the warm-up. Raises ValueError unless half_life > 0.
    """
    if not half_life > 0:
        raise ValueError(f"no half-life: {half_life!r}")
    kept = [run for _, run in _standing([tuple(run) for run in runs], now, half_life)]
    most = max(kept, key=_telling, default=())
    return tuple(point if run is most else _apart(point) for run in kept for point in run)


def standing(runs: Sequence[Sequence[Point]], now: float, half_life: float = HALF_LIFE) -> tuple[int, ...]:
    """Which of the runs count, those that newer ones have not overtaken: their places in `runs`, the newest first."""
    return tuple(place for place, _ in _standing([tuple(run) for run in runs], now, half_life))


def _standing(
    runs: Sequence[tuple[Point, ...]], now: float, half_life: float
) -> list[tuple[int, tuple[Point, ...]]]:
    """The places of those runs, and their points with the errors that they have `now`."""
    newest_first = sorted(
        ((place, run) for place, run in enumerate(runs) if run),
        key=lambda one: -max(point.at for point in one[1]),
    )
    kept: list[tuple[int, tuple[Point, ...]]] = []
    for place, run in newest_first:
        aged = tuple(_aged(point, now, half_life) for point in run)
        if not _overtaken(aged, [_apart(point) for _, other in kept for point in other]):
            kept.append((place, aged))
    return kept


def refined(
    runs: Iterable[Sequence[Point]], now: float, gpus: int = 1, half_life: float = HALF_LIFE
) -> Curve:
    """The curve of all runs on `gpus` GPUs of a type. Raises ValueError where they have no point at all.

    >>> def run(at, counts, error=0.2):
    ...     return [Point(cpus, min(cpus, 6.0), error, at=at) for cpus in counts]
    >>> first = [run(0, (16, 8, 4))]
    >>> refined(first, 0).spread > refined([*first, run(60, (6, 5)), run(120, (5, 7))], 200).spread
    True
    """
    return fit(weighed(runs, now, half_life), gpus)


def _aged(point: Point, now: float, half_life: float) -> Point:
    # Half the weight is 1.41 times the error.
    age = max(now - point.at, 0.0) / half_life
    return replace(point, error=max(point.error, 0.002 * point.rate) * 2 ** min(age / 2, 60))


def _apart(point: Point) -> Point:
    """With the error of its run as a whole."""
    return replace(point, error=math.hypot(point.error, _BETWEEN_RUNS * point.rate))


def _telling(run: Sequence[Point]) -> tuple[int, float]:
    """How much a run tells of a curve's shape: different counts first."""
    return len({point.cpus for point in run}), sum((point.rate / point.error) ** 2 for point in run)


def _overtaken(run: Sequence[Point], newer: Sequence[Point]) -> bool:
    """Whether newer points contradict a run at a count that both have."""
    later = {one.cpus: one for one in pooled(newer)}
    for one in pooled(run):
        other = later.get(one.cpus)
        if other is None:
            continue
        apart = abs(one.rate - other.rate)
        if apart > _CHANGED_BY * other.rate and apart > _CHANGED * math.hypot(one.error, other.error):
            return True
    return False
