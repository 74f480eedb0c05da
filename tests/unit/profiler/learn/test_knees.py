"""What the next submission is given, by knees that the profiler does not know; emulated pipelines in their own time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.emulated_pipeline import Shape, drawn
from profiler.curves import Point
from profiler.gathered import gathered
from profiler.points import Measured
from slurm_plugins.decide.stages import sensitivity
from slurm_plugins.service.learnt import records_of
from tests.unit.profiler.learn.virtual import learnt

pytestmark = pytest.mark.slow

CAP = 32
QUEUES = (4, 8, 16, 32)


def given_next(points: tuple[Point, ...]) -> int:
    """CPUs for each GPU that a decision reads out of what a learning run has measured."""
    one = Measured("0" * 32, 0.0, "learn", ("own:x",), cap=CAP, points=points)
    (record,) = records_of("lab", 1, gathered([one], 0.0)[0])
    assert record.curve is not None
    knee = sensitivity.knee(record.curve.points, record.curve.uncertainty)
    assert knee is not None
    return round(knee)


def outcome(shape: Shape, seed: int) -> tuple[int, float]:
    """CPUs given more than are of use, and the throughput with these as a share of the best."""
    done, points, _ = learnt(shape, seed, CAP)
    given = given_next(points)
    assert given == done.knee  # what `gsub learn` tells
    return given - shape.enough, shape.rate(given) * shape.step


def test_any_knee_is_given_within_one_cpu_and_loses_at_most_three_per_cent():
    off: Counter[int] = Counter()
    least = 1.0
    for seed in range(48):
        more, share = outcome(replace(drawn(900 + seed), queue=QUEUES[seed % 4]), seed)
        off[more] += 1
        least = min(least, share)
    print(f"\noff by {sorted(off.items())}; at least {least:.3f} of the best")
    assert set(off) <= {-1, 0, 1}
    assert least >= 0.97
    # Noise is no reason to give each job a CPU more
    assert off[1] < sum(off.values()) / 2


@pytest.mark.parametrize("whole", [3, 4, 5, 6])
def test_a_knee_a_little_above_a_whole_number_is_rounded_up(whole: int):
    """There one CPU too few costs most: 4 for 4.1 are 0.976 of the best, 4 for 4.15 are 0.964."""
    for seed in range(8):
        shape = replace(drawn(seed), knee=whole * 1.035, queue=QUEUES[seed % 4])
        more, share = outcome(shape, seed)
        assert share >= 0.97 and 0 <= more <= 1, (shape, more, share)
