"""Curves over many runs, and what memory is good for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.curves import Point, knee, relative
from profiler.dataset_cache import Dataset, memory_curve, memory_knee
from profiler.refining import HALF_LIFE, refined, weighed
from slurm_plugins.decide.context import Curve as Known
from slurm_plugins.decide.stages.sensitivity import knee as knee_of_stage

DAY = 86400.0


def run(
    at: float, counts: tuple[int, ...], place: float = 6.0, top: float = 6.0, error: float = 0.05
) -> list[Point]:
    return [Point(cpus, top * min(1.0, cpus / place), error, 50, 10, at) for cpus in counts]


def test_the_newer_counts_more():
    old, new = run(0, (16, 8, 4, 6), place=6), run(60 * DAY, (16, 8, 4, 6), place=6.4)
    curve = refined([old, new], 60 * DAY)
    assert 6.2 < curve.knee < 6.4


def test_a_workload_that_changed_forgets_what_was():
    old, new = run(0, (16, 8, 4, 6)), run(DAY, (16, 12, 8), place=12, top=12)
    assert {point.at for point in weighed([old, new], 2 * DAY)} == {DAY}
    assert knee(refined([old, new], 2 * DAY)) == 12


def test_a_run_as_a_whole_has_an_error_that_many_steps_do_not_lessen():
    learnt, later = run(0, (16, 8, 4), error=0.0), run(0, (8,), error=0.0)
    assert [point.error > 0.01 * point.rate for point in weighed([learnt, later], 0)] == [False] * 3 + [True]
    (new,), (old,) = weighed([later], 0), weighed([later], HALF_LIFE)
    assert old.error == pytest.approx(new.error * 2**0.5)


def test_ordinary_runs_refine_the_curve():
    learnt = run(0, (32, 16, 8, 4), place=6, error=0.3)
    later = [run(DAY * day, (6,), error=0.1) for day in range(1, 8)]
    assert refined([learnt, *later], 8 * DAY).spread < refined([learnt], 8 * DAY).spread


def test_nothing_is_no_curve():
    with pytest.raises(ValueError, match="no points"):
        refined([[]], 0)
    with pytest.raises(ValueError, match="half-life"):
        weighed([], 0, 0)


@pytest.mark.parametrize("place", [3, 6, 11, 17, 24])
@pytest.mark.parametrize("share", [1, 3, 8, 16])
def test_the_stage_finds_the_same_knee(place, share):
    """Decisions read the curve relative to the proportional share, and must come to the same CPUs."""
    curve = refined([run(0, (32, 16, 8, 4, place, place - 1), place=place)], 0)
    points, uncertainty = relative(curve, share)
    known = Known(points, uncertainty=uncertainty)
    found = knee_of_stage(known.points, known.uncertainty)
    assert found is not None and abs(found - place) <= 1


@settings(deadline=None)
@given(
    size=st.integers(1, 10**13),
    epoch=st.floats(1, 1e5),
    disk=st.floats(1e6, 1e10),
    working=st.integers(0, 10**12),
    gpus=st.integers(1, 16),
)
def test_more_memory_is_never_slower_and_the_knee_is_enough(size, epoch, disk, working, gpus):
    data = Dataset(size, epoch, disk, memory=2e10)
    curve = memory_curve(data, working, gpus)
    assert all(a[0] < b[0] and a[1] <= b[1] * (1 + 1e-9) for a, b in pairwise(curve))
    least = memory_knee(data, working, gpus)
    assert least * gpus >= working
    assert data.seconds(least * gpus - working) <= max(data.epoch, data.seconds(size)) / 0.99 * (1 + 1e-6)


def test_a_data_set_on_a_fast_disk_needs_no_cache():
    data = Dataset(size=100 * 2**30, epoch=600, disk=2e9)
    assert memory_knee(data, 8 * 2**30) == 8 * 2**30
    slow = Dataset(size=100 * 2**30, epoch=600, disk=1e8)
    assert memory_knee(slow, 8 * 2**30) > 40 * 2**30


@pytest.mark.parametrize("bad", [{"size": 0}, {"disk": 0.0}, {"epoch": float("nan")}])
def test_what_is_no_data_set(bad):
    with pytest.raises(ValueError, match="no data set"):
        Dataset(**{"size": 1, "epoch": 1.0, "disk": 1.0, **bad})
