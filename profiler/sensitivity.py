"""How throughput depends on CPUs: which count to try next, when to stop, and what is the limit. Pure.

Synergy's optimistic profiling (section 3.1 and its offline profiler): from the most CPUs down, halving while
throughput stays within a tenth, at full memory; the first point is measured twice, since the first time warms caches.
Then, instead of one CPU less at a time, the knee is closed in on: each further point is where it tells most, on the
plateau or on the slope just below the knee, until the knee is known within a CPU, and a point stands on it, or the
time is used up.

    done = ()
    while isinstance(step := plan(done, cap=32), Probe):
        done += (measured(step.cpus, step.seconds),)
    step.curve, step.knee
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from profiler.counting import count
from profiler.curves import Curve, Point, fit, knee, pooled

__all__ = ["Budget", "Done", "Limit", "Probe", "limit", "plan"]

_NEAR: Final = 0.9  # "within a tenth": the artifact's rule for halving on
_SURE: Final = 0.3  # standard deviation of a knee that is known within a CPU
_SLOPE: Final = 0.88  # of the knee: where the slope is steepest in CPUs and yet surely below the knee


@dataclass(frozen=True, slots=True)
class Budget:
    """What measuring may cost: points (the warm-up is one), seconds in all, seconds and steps for a point."""

    points: int = 14
    seconds: float = 170.0
    each: float = 10.0
    longest: float = 40.0
    steps: int = 40
    settling: float = 1.0
    """What passes between two points."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure this next: the job's CPUs, for how long (and at least `probing.LEAST_STEPS` steps), and why."""

    cpus: int
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to measure. `knee` is CPUs for each GPU; `sure` whether it is known within one.

    `why`: "known", "floor" (the fewest CPUs are enough), "points" or "time" (used up).
    """

    curve: Curve
    knee: int
    sure: bool
    why: Literal["known", "floor", "points", "time"]


_DEFAULT: Final = Budget()


def plan(
    done: Sequence[Point], cap: int, gpus: int = 1, floor: int = 1, *, budget: Budget = _DEFAULT
) -> Probe | Done:
    """The next point, or what is known now.

    Parameters
    ----------
    done: the points so far, in order; the first one is the warm-up and counts for time alone.
    cap, floor: the most and the fewest CPUs of the job on its node; the job runs on `gpus` GPUs there.
    Counts are multiples of `gpus`, so that each GPU has the same.

    Raises ValueError unless 1 <= gpus, floor <= cap, gpus <= cap.

    >>> plan((), cap=32)
    Probe(cpus=32, seconds=10.0, why='warm-up')
    >>> warm = Point(32, 9.0, 0.1, 90, 10)
    >>> plan((warm,), cap=32).why, plan((warm, Point(32, 10.0, 0.1, 100, 10)), cap=32).cpus
    ('the most CPUs', 16)
    """
    if not (1 <= gpus <= cap and 1 <= floor <= cap):
        raise ValueError(f"cannot try {floor} to {cap} CPUs on {gpus} GPUs")
    most, least = cap // gpus, min(max(-(-floor // gpus), 1), cap // gpus)
    if not done:
        return Probe(most * gpus, budget.each, "warm-up")
    if len(done) == 1:
        return Probe(most * gpus, _slice(done, budget, done[0].rate), "the most CPUs")
    points = done[1:]
    used = sum(point.seconds + budget.settling for point in done)
    halved = _halve(points, most, least, gpus)
    if isinstance(halved, int) and len(done) < budget.points:
        # It may be half as fast as the last: a point of as many steps then takes twice as long.
        seconds = _slice(done, budget, min(point.rate for point in points))
        if used + seconds + budget.settling <= budget.seconds:
            return Probe(halved * gpus, seconds, "half as many")
    curve = fit(points, gpus)
    found = knee(curve)
    if halved == "flat" and (curve.model == "monotone" or found <= least):
        return Done(curve, found, True, "floor")
    sure = _sure(curve, points, gpus)
    checked = any(point.cpus == found * gpus for point in points)
    if sure and checked:
        return Done(curve, found, True, "known")
    if len(done) >= budget.points:
        return Done(curve, found, sure, "points")
    # A knee that no point stands on rests on the shape alone; where the slope bends early, it is too low.
    count, why = (found, "at the knee") if sure else _closer(curve, points, most, least, gpus)
    seconds = _slice(done, budget, curve.at(count))
    if used + seconds + budget.settling > budget.seconds:
        return Done(curve, found, sure, "time")
    return Probe(count * gpus, seconds, why)


def _slice(done: Sequence[Point], budget: Budget, rate: float) -> float:
    """Seconds for a point where steps come at `rate`."""
    return round(min(max(budget.each, budget.steps / rate), budget.longest), 1)


def _halve(points: Sequence[Point], most: int, least: int, gpus: int) -> int | Literal["fell", "flat"]:
    """The next count of the ladder of halves; or whether throughput fell, or is flat down to the fewest."""
    rates = {round(one.cpus): one.rate for one in pooled(points, gpus)}
    count = most
    while True:
        if count not in rates:
            return count
        if count < most and rates[count] < _NEAR * max(rates.values()):
            return "fell"
        if count <= least:
            return "flat"
        count = max(count // 2, least)


def _sure(curve: Curve, points: Sequence[Point], gpus: int) -> bool:
    if curve.open_end:
        # More CPUs than there are cannot be tried: what is known is that all of them are used.
        return curve.knee - curve.spread > curve.cpus[-1] - 1 or len(points) >= 5
    if curve.model == "monotone":
        below = [one.cpus for one in pooled(points, gpus) if one.cpus < curve.knee]
        return not below or curve.knee - below[-1] <= 1
    return curve.spread <= _SURE


def _closer(curve: Curve, points: Sequence[Point], most: int, least: int, gpus: int) -> tuple[int, str]:
    """Where the next point tells most of the knee, in CPUs for each GPU."""
    sums = pooled(points, gpus)
    if curve.model == "monotone":
        below = max((one.cpus for one in sums if one.cpus < curve.knee), default=float(least))
        return round(min(max((below + curve.knee) / 2, least), most)), "between two points"
    # The knee is top over slope: the less certain of the two is measured again.
    plateau = [one for one in sums if one.cpus >= curve.knee]
    slope = [one for one in sums if one.cpus < curve.knee]
    near = max((one.cpus for one in slope), default=0.0)
    flat = sum((one.rate / one.error) ** 2 for one in plateau) ** -0.5 if plateau else math.inf
    # Far below the knee, a point tells less: it rests on the slope being straight.
    weights = [(one.rate / one.error * (one.cpus / curve.knee) ** 2) ** 2 for one in slope]
    steep = sum(weights) ** -0.5 if weights else math.inf
    if steep >= flat or near < 0.75 * curve.knee:
        return min(max(math.floor(curve.knee * _SLOPE), least), most), "on the slope"
    return min(max(math.ceil(curve.knee + 2 * curve.spread), least), most), "on the plateau"


# --- what is the limit ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """What keeps throughput from growing with more CPUs, and one sentence about it."""

    kind: Literal["workers", "gpu", "cap", "unknown"]
    text: str


_BUSY: Final = 90.0  # per cent of time in which a GPU that is the limit works


def limit(curve: Curve, *, workers: int | None = None, gpu_busy: float | None = None) -> Limit:
    """What the limit is, from the curve, the loader's worker processes for each GPU, and how busy the GPU was with the
    most CPUs (per cent; None: not known).

    Workers are processes: as many CPUs as there are of them, and one for the training loop, is all that they can use. A
    plateau that begins there, before a GPU that has time to spare, is theirs.

    >>> flat = Curve((4, 8, 16), (5.0, 10.0, 10.0), 10.0, 0.01, 8.2, 0.2, "saturating")
    >>> limit(flat, workers=8, gpu_busy=55).text
    'limit: num_workers=8: more than 8 CPUs for each GPU are not used, and the GPU is busy only 55 % of the time'
    >>> limit(flat, workers=32, gpu_busy=97).kind
    'gpu'
    """
    place = knee(curve)
    busy = gpu_busy is not None and gpu_busy >= _BUSY
    if curve.open_end and not busy:
        return Limit(
            "cap", f"limit: CPUs: throughput still grows at {count(curve.cpus[-1], 'CPU')} for each GPU"
        )
    slack = 0.5 + 2 * curve.spread
    if workers and not busy and workers - slack <= curve.knee <= workers + 1 + slack:
        text = (
            f"limit: num_workers={workers}: more than {count(place, 'CPU')} for each GPU "
            f"{'is' if place == 1 else 'are'} not used"
        )
        if gpu_busy is not None:
            text += f", and the GPU is busy only {gpu_busy:.0f} % of the time"
        return Limit("workers", text)
    if busy:
        return Limit(
            "gpu", f"limit: the GPU: it is busy {gpu_busy:.0f} % of the time from {count(place, 'CPU')} on"
        )
    if len(curve.cpus) < 2:
        return Limit("unknown", f"limit: not known: nothing but {count(place, 'CPU')} for each GPU was tried")
    return Limit(
        "unknown", f"limit: not the CPUs: throughput is flat from {count(place, 'CPU')} for each GPU on"
    )
