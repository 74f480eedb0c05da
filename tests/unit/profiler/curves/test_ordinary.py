"""Ordinary runs beside the one that was driven: they refine its curve, and never make nonsense of it."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.curves import Point
from profiler.gathered import gathered
from profiler.points import Measured
from tests.unit.profiler.curves.place import points
from tests.unit.profiler.curves.test_gathered import run


def ordinary(number: int, cpus: int, rate: float, **more: Any) -> Measured:
    point = Point(cpus, rate, 0.005 * rate, 500, 100.0, float(number))
    return run(number, "own:x", source="run", points=(point,), **more)


def test_an_ordinary_run_is_one_more_point_that_is_less_sure() -> None:
    learnt = run(1, "own:x", points=points(5.7))
    (before,) = gathered([learnt], 2.0)
    (after,) = gathered([learnt, ordinary(2, 8, 5.6)], 3.0)
    assert (after.knee, after.runs, len(after.measured)) == (before.knee, 2, len(before.measured) + 1)
    (point,) = [one for one in after.measured if one.at == 2.0]
    assert point.rate == 5.6 and point.error > 0.05 * 5.6
    assert after.error is not None and before.error is not None and after.error <= before.error


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.93, 1.07, 1.5])
@pytest.mark.parametrize("cpus", [3, 6, 9, 30])
def test_ordinary_runs_never_move_a_measured_knee(count: int, share: float, cpus: int) -> None:
    """However many there are, and however much slower all of them are than the driven one was."""
    learnt = run(1, "own:x", points=points(5.7))
    (before,) = gathered([learnt], 2.0)
    some = [ordinary(2 + number, cpus, share * min(cpus, 5.7)) for number in range(count)]
    (after,) = gathered([learnt, *some], 50.0)
    assert after.knee == before.knee
    assert after.runs == (1 if abs(share - 1) > 0.15 else 1 + count)
    assert after.error is not None and before.error is not None
    assert after.error == pytest.approx(before.error, rel=0.2)


def test_ordinary_runs_alone_are_no_curve() -> None:
    """What differs between two of them is more than their CPUs."""
    (known,) = gathered([ordinary(1, 4, 10.0), ordinary(2, 8, 10.2)], 3.0)
    assert (known.curve, known.knee, known.runs, len(known.measured)) == ((), None, 2, 2)


def test_ordinary_runs_on_many_gpus_do_not_stand_for_the_driven_one() -> None:
    learnt = run(1, "own:x", points=points(5.7)[:3])
    many = [ordinary(2 + number, 8 + number, 20.0 + number, gpus=8, cap=99) for number in range(9)]
    (known,) = gathered([learnt, *many], 20.0)
    assert (known.gpus, known.runs, len(known.measured)) == (1, 1, 3)


def test_more_cpus_than_were_tried_may_be_faster() -> None:
    rising = tuple(Point(cpus, float(cpus), 0.02, at=0.0) for cpus in (2, 4, 6))
    learnt = run(1, "own:x", points=rising)
    (known,) = gathered([learnt, ordinary(2, 9, 8.8), ordinary(3, 12, 9.0)], 4.0)
    assert known.runs == 3 and known.curve[-1][0] == 12 and known.knee is not None and known.knee > 6
