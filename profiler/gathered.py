"""What all runs of a user say of each workload: points by name, refined to a curve, and the peak of memory. Pure.

A run has several names (`profiler.workload`), and counts under each. Most names of a workload have the same runs with
points, and the same peak; they are one `WorkloadCurve`, under the most telling of them, the others in `also`.

Runs that were driven (`gsub learn`, a smoke run) make a curve. An ordinary run was alone with its count of CPUs, had
neighbours, and was as a whole faster or slower than a driven one: its point is less sure by `ORDINARY`, and so are all
of them at a count together, as what makes them differ may be the same each time. They refine a curve that they agree
with, and are left out where they do not; alone they make none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from profiler.answers import WorkloadCurve
from profiler.curves import Curve, Point, knee
from profiler.points import Measured
from profiler.refining import refined, standing

__all__ = ["ORDINARY", "RUNS", "Refine", "agreeing", "gathered", "iterate_curves", "points_of", "sort_curves"]

Refine: TypeAlias = Callable[[tuple[str, ...], Sequence[Sequence[Point]], int], Curve]
"""Ids of runs, their points and their number of GPUs -> the curve; raises ValueError for none."""

ORDINARY: Final = 0.05
"""Standard deviation of an ordinary run's speed from that of a driven one with as many CPUs, as a share."""
RUNS: Final = 40
"""Runs of a workload that count, of each kind the last ones: one name may be given to all of a user's."""
_AGREES: Final = 2.0  # standard errors
_PLATEAU: Final = 0.98  # of the best: where a curve begins below that, fewer CPUs are slower
_POWER: Final = 0.7  # by how much at least: the flattest slope that `profiler.curves` fits
_PEAKS: Final = 10
"""Runs whose peak of memory counts, the last ones: a workload that became smaller is to be believed in the end."""


def gathered(
    runs: Iterable[Measured], now: float, *, refine: Refine | None = None
) -> tuple[WorkloadCurve, ...]:
    """What is known of each workload, the one that was measured last first.

    `refine` may remember what it made before of the same runs.

    >>> points = tuple(Point(cpus, min(cpus, 5.7), 0.05) for cpus in (16, 8, 4, 5, 7))
    >>> one = Measured("0" * 32, 0.0, "learn", ("run:a", "like:b"), points=points, peak_memory=3 << 30)
    >>> [(known.workload, known.also, known.knee, known.memory_peak) for known in gathered([one], 0.0)]
    [('run:a', ('like:b',), 6, 3221225472)]
    """
    return sort_curves(iterate_curves(runs, now, refine=refine))


def sort_curves(curves: Iterable[WorkloadCurve]) -> tuple[WorkloadCurve, ...]:
    """The workload that was measured last first."""
    return tuple(sorted(curves, key=lambda one: (-one.at, one.workload)))


def iterate_curves(
    runs: Iterable[Measured], now: float, *, refine: Refine | None = None
) -> Iterator[WorkloadCurve]:
    """The same, each as it is made, in no order: it takes long where there are many."""
    by_name: dict[tuple[str, str], dict[str, Measured]] = {}
    for run in runs:
        for name in run.workload:
            by_name.setdefault((name, run.gpu_type), {})[run.id] = run
    alike: dict[tuple[str, frozenset[str], int | None], list[str]] = {}
    for (name, gpu_type), some in by_name.items():
        telling = frozenset(run.id for run in some.values() if run.points)
        alike.setdefault((gpu_type, telling, _peak(_newest(some.values()))), []).append(name)
    for (gpu_type, _, peak), names in alike.items():
        some = {run.id: run for name in names for run in by_name[name, gpu_type].values()}
        yield _one(
            names,
            gpu_type,
            _newest(some.values()),
            now,
            peak=peak,
            refine=refine or (lambda _, points, gpus: refined(points, now, gpus)),
        )


def _newest(runs: Iterable[Measured]) -> list[Measured]:
    return sorted(runs, key=lambda run: (run.at, run.id), reverse=True)


def _peak(newest: Iterable[Measured]) -> int | None:
    """Bytes for each GPU."""
    peaks = [-(-run.peak_memory // run.gpus) for run in newest if run.peak_memory is not None]
    return max(peaks[:_PEAKS], default=None)


def _one(
    names: Sequence[str],
    gpu_type: str,
    newest: Sequence[Measured],
    now: float,
    *,
    peak: int | None,
    refine: Refine,
) -> WorkloadCurve:
    comparable = _comparable(newest)
    driven = [run for run in comparable if run.source != "run"][:RUNS]
    driven = [driven[place] for place in standing([points_of(run) for run in driven], now)]
    ordinary = [run for run in comparable if run.source == "run"][:RUNS]
    curve: Curve | None = None
    if _counts(driven) > 1:  # one count says nothing of another
        gpus, points = driven[0].gpus, [points_of(run) for run in driven]
        curve = refine(_ids(driven), points, gpus)
        ordinary = [run for run in ordinary if all(agreeing(point, curve, gpus) for point in points_of(run))]
        if ordinary:
            more = [(point,) for point in _together(ordinary)]
            curve = refine(_ids([*driven, *ordinary]), [*points, *more], gpus)
    chosen = (*driven, *ordinary)
    known = WorkloadCurve(
        names[0],
        gpu_type,
        also=tuple(names[1:]),
        runs=len(chosen),
        at=newest[0].at,
        gpus=chosen[0].gpus if chosen else newest[0].gpus,
        measured=tuple(point for run in chosen for point in points_of(run)),
        memory_peak=peak,
    )
    if curve is None:
        return known
    return WorkloadCurve(
        known.workload,
        gpu_type,
        known.also,
        known.runs,
        known.at,
        known.gpus,
        known.measured,
        tuple(zip(curve.cpus, curve.rates, strict=True)),
        knee(curve),
        curve.spread,
        curve.error,
        curve.open_end,
        known.memory_peak,
    )


def _ids(runs: Iterable[Measured]) -> tuple[str, ...]:
    return tuple(sorted(run.id for run in runs))


def _counts(runs: Iterable[Measured]) -> int:
    return len({point.cpus for run in runs for point in run.points})


def agreeing(point: Point, curve: Curve, gpus: int = 1) -> bool:
    """Whether an ordinary run's point may be one of this curve. More CPUs than were tried may be in proportion faster,
    fewer slower.

    >>> curve = Curve((2, 4, 8), (5.0, 10.0, 10.0), 10.0, 0.01, 4.0, 0.1, "saturating")
    >>> [agreeing(Point(cpus, rate, 0.5), curve) for cpus, rate in ((4, 9.5), (4, 7.0), (1, 2.5), (16, 12.0))]
    [True, False, True, False]
    """
    cpus = point.cpus / gpus
    low = high = curve.at(cpus)
    if cpus < curve.cpus[0]:
        low *= cpus / curve.cpus[0]
        if high < _PLATEAU * curve.top:
            high *= (cpus / curve.cpus[0]) ** _POWER
    elif cpus > curve.cpus[-1] and curve.open_end:
        high *= cpus / curve.cpus[-1]
    slack = _AGREES * math.hypot(point.error / point.rate, curve.error)
    return low * (1 - slack) <= point.rate <= high * (1 + slack)


def _together(ordinary: Iterable[Measured]) -> Iterator[Point]:
    """A point for each count that ordinary runs had; of many it is no surer than `ORDINARY`."""
    at: dict[int, list[Point]] = {}
    for run in ordinary:
        for point in points_of(run):
            at.setdefault(point.cpus, []).append(point)
    for cpus, some in sorted(at.items()):
        weights = [(point.rate / point.error) ** 2 for point in some]
        rate = sum(weight * point.rate for weight, point in zip(weights, some, strict=True)) / sum(weights)
        yield Point(cpus, rate, ORDINARY * rate, at=max(point.at for point in some))


def _comparable(newest: Sequence[Measured]) -> tuple[Measured, ...]:
    """The runs on so many GPUs as most is known of: a step on eight GPUs is not one on a single GPU."""
    by_gpus: dict[int, list[Measured]] = {}
    for run in newest:
        if run.points:
            by_gpus.setdefault(run.gpus, []).append(run)
    most = max(
        by_gpus.values(),
        key=lambda runs: (_counts(run for run in runs if run.source != "run"), _counts(runs)),
        default=[],
    )
    return tuple(most)


def points_of(run: Measured) -> tuple[Point, ...]:
    """A run's points, those of an ordinary one less sure; one that does not say when it was measured was when its run
    was."""
    return tuple(_dated(run))


def _dated(run: Measured) -> Iterator[Point]:
    for point in run.points:
        less = ORDINARY * point.rate if run.source == "run" else 0.0
        yield replace(point, at=point.at or run.at, error=math.hypot(point.error, less))
