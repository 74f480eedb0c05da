"""All runs of a user as curves: which names go together, which runs compare, and whose memory counts."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.curves import Curve, Point, fit, pooled, thin_sums
from profiler.gathered import gathered
from profiler.points import MAX_CPUS, Measured, MeasuredError, checked
from slurm_plugins.service.learnt import records_of
from tests.unit.profiler.curves.place import points
from tests.unit.profiler.store.records import record_id

GIB = 1 << 30


def run(number: int, *names: str, **more: Any) -> Measured:
    return Measured(record_id(number), float(number), more.pop("source", "learn"), names, **more)


def test_names_with_the_same_runs_are_one() -> None:
    one = run(1, "run:a", "args:a", "like:x", points=points(6.0), peak_memory=GIB)
    other = run(2, "run:b", "args:b", "like:x", points=points(6.0, seed=2), peak_memory=GIB)
    found = {known.workload: known for known in gathered([one, other], 2.0)}
    assert {name: known.also for name, known in found.items()} == {
        "run:a": ("args:a",),
        "run:b": ("args:b",),
        "like:x": (),
    }
    assert found["like:x"].runs == 2 and found["run:a"].runs == 1


def test_memory_alone_does_not_take_names_apart_unless_it_is_more() -> None:
    learnt = run(1, "run:a", "like:x", points=points(5.7), peak_memory=8 * GIB)
    less = run(2, "run:b", "like:x", source="run", peak_memory=2 * GIB)
    found = {known.workload: known for known in gathered([learnt, less], 2.0)}
    assert set(found) == {"run:a", "run:b"} and found["run:a"].also == ("like:x",)
    more = run(3, "run:c", "like:x", source="run", peak_memory=9 * GIB)
    found = {known.workload: known for known in gathered([learnt, less, more], 3.0)}
    assert found["like:x"].memory_peak == 9 * GIB and found["like:x"].knee == 6
    assert found["run:a"].memory_peak == 8 * GIB


def test_a_workload_that_became_smaller_is_believed_in_the_end() -> None:
    large = [run(1, "own:x", peak_memory=90 * GIB, gpus=2)]
    small = [run(number, "own:x", source="run", peak_memory=10 * GIB) for number in range(2, 13)]
    assert gathered(large + small[:5], 9.0)[0].memory_peak == 45 * GIB
    assert gathered(large + small, 20.0)[0].memory_peak == 10 * GIB


def test_types_of_gpus_and_numbers_of_gpus_are_not_mixed() -> None:
    many = tuple(Point(one.cpus * 8, one.rate / 3, one.error / 3) for one in points(12.0)[:2])
    runs = [
        run(1, "own:x", gpu_type="a100", points=points(5.7)),
        run(2, "own:x", gpu_type="h200", points=points(11.6)),
        run(3, "own:x", gpu_type="a100", gpus=8, cap=200, points=many),
    ]
    found = {known.gpu_type: known for known in gathered(runs, 3.0)}
    assert (found["a100"].knee, found["a100"].gpus, found["a100"].runs) == (6, 1, 1)
    assert found["h200"].knee == 12


def test_one_count_is_no_curve() -> None:
    single = run(1, "own:x", points=(Point(8, 10.0, 0.1), Point(8, 10.1, 0.1)))
    (known,) = gathered([single], 1.0)
    assert (known.curve, known.knee, known.runs, len(known.measured)) == ((), None, 1, 2)
    assert list(records_of("lab", 1, known)) == []


def test_what_is_told_of_a_curve_is_its_bend_and_its_end() -> None:
    (known,) = gathered([run(1, "run:a", "like:x", points=points(6.0), peak_memory=3 * GIB)], 1.0)
    first, second = records_of("lab", 1, known)
    assert (first.workload, second.workload) == ("run:a", "like:x") and first.memory_peak == 3 * 1024
    assert first.curve is not None and first.curve == second.curve
    counts = [cpus for cpus, _ in first.curve.points]
    assert (
        counts[-1] == 24 and len(counts) < len(known.curve) and max(s for _, s in first.curve.points) == 1.0
    )


def test_the_same_runs_are_fitted_once() -> None:
    asked: list[tuple[str, ...]] = []

    def refine(ids: tuple[str, ...], runs: Any, gpus: int) -> Curve:
        asked.append(ids)
        return Curve((1, 2), (1.0, 2.0), 2.0, 0.01, 2.0, 0.1, "monotone")

    gathered(
        [run(1, "run:a", "args:a", "script:a", "text:a", "like:a", points=points(6.0))], 1.0, refine=refine
    )
    assert asked == [(record_id(1),)]


def test_what_is_made_of_a_run_is_bounded() -> None:
    """A curve has a value for each count, and is written down under each of eight names."""
    few, many = Point(1, 1.0, 0.01), Point(MAX_CPUS, 5.0, 0.05)
    (known,) = gathered([checked(Measured("0" * 32, 0.0, "learn", ("own:a",), points=(few, many)), 0.0)], 0.0)
    assert 100 < len(known.curve) < 300
    with pytest.raises(MeasuredError, match="more CPUs"):
        points = (few, Point(MAX_CPUS + 1, 5.0, 0.05))
        checked(Measured("0" * 32, 0.0, "learn", ("own:a",), points=points, cap=65536), 0.0)


@pytest.mark.case("A6")
def test_a_fit_takes_as_many_counts_as_it_may_and_is_as_good() -> None:
    points = [Point(cpus, min(cpus, 600.0), 3.0) for cpus in range(1, 2400)]
    assert len(thin_sums(pooled(points))) == 32
    assert abs(fit(points).knee - 600) < 20
    few = pooled(points[:32])
    assert thin_sums(few) == few
