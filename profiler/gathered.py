"""What all runs of a user say of each workload: points by name, refined to a curve, and the peak of memory. Pure.

A run has several names (`profiler.workload`), and counts under each. Most names of a workload have the same runs with
points, and the same peak; they are one `WorkloadCurve`, under the most telling of them, the others in `also`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from profiler.answers import WorkloadCurve
from profiler.curves import Curve, Point, knee, pooled
from profiler.points import Measured
from profiler.refining import refined, standing

__all__ = ["Refine", "gathered", "points_of"]

Refine: TypeAlias = Callable[[tuple[str, ...], Sequence[Sequence[Point]], int], Curve]
"""Ids of runs, their points and their number of GPUs -> the curve; raises ValueError for none."""

_PEAKS: Final = 10
"""Runs whose peak of memory counts, the last ones: a workload that became smaller is to be believed in the end."""


def gathered(
    runs: Iterable[Measured], now: float, *, refine: Refine | None = None
) -> tuple[WorkloadCurve, ...]:
    """What is known of each workload, the one that was measured last first.

    `refine` may remember what it made before of the same runs.

    >>> points = tuple(Point(cpus, min(cpus, 6.0), 0.05) for cpus in (16, 8, 4, 5, 7))
    >>> one = Measured("0" * 32, 0.0, "learn", ("run:a", "like:b"), points=points, peak_memory=3 << 30)
    >>> [(known.workload, known.also, known.knee, known.memory_peak) for known in gathered([one], 0.0)]
    [('run:a', ('like:b',), 6, 3221225472)]
    """
    by_name: dict[tuple[str, str], dict[str, Measured]] = {}
    for run in runs:
        for name in run.workload:
            by_name.setdefault((name, run.gpu_type), {})[run.id] = run
    alike: dict[tuple[str, frozenset[str], int | None], list[str]] = {}
    for (name, gpu_type), some in by_name.items():
        telling = frozenset(run.id for run in some.values() if run.points)
        alike.setdefault((gpu_type, telling, _peak(_newest(some.values()))), []).append(name)
    found = []
    for (gpu_type, _, peak), names in alike.items():
        some = {run.id: run for name in names for run in by_name[name, gpu_type].values()}
        found.append(
            _one(
                names,
                gpu_type,
                _newest(some.values()),
                now,
                peak=peak,
                refine=refine or (lambda _, points, gpus: refined(points, now, gpus)),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.at, one.workload)))


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
    chosen = tuple(comparable[place] for place in standing([points_of(run) for run in comparable], now))
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
    if len({point.cpus for point in known.measured}) < 2:
        return known  # one count says nothing of another
    curve = refine(tuple(sorted(run.id for run in chosen)), [points_of(run) for run in chosen], known.gpus)
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


def _comparable(newest: Sequence[Measured]) -> tuple[Measured, ...]:
    """The runs on so many GPUs as most is known of: a step on eight GPUs is not one on a single GPU."""
    by_gpus: dict[int, list[Measured]] = {}
    for run in newest:
        if run.points:
            by_gpus.setdefault(run.gpus, []).append(run)
    most = max(
        by_gpus.values(), key=lambda runs: len(pooled(p for run in runs for p in points_of(run))), default=[]
    )
    return tuple(most)


def points_of(run: Measured) -> tuple[Point, ...]:
    """A run's points; one that does not say when it was measured was when its run was."""
    return tuple(_dated(run))


def _dated(run: Measured) -> Iterator[Point]:
    for point in run.points:
        yield point if point.at else replace(point, at=run.at)
