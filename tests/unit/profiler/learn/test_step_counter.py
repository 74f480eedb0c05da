"""Counters as they are read: rates, many ranks, rings that came round, and files that are not what they seem."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.step_counter import Entry, StepCounters, evenly
from tests.unit.profiler.learn.running import Clock, clock, counter

__all__ = ["clock"]

HEAD, ENTRY = struct.Struct("=8sIIQQ"), struct.Struct("=QdQ")


def counted(folder: Path, clock: Clock, times: list[float]) -> None:
    """A process that takes these times for its steps."""
    made, begun = counter(folder), clock.now
    for each in times:
        clock.now += each
        made.steps += 1
        made.samples += 8
        if clock.now >= made.due:
            made.write()
    clock.now = begun


@pytest.mark.parametrize("each", [0.0005, 0.02, 0.3, 2.0])
def test_the_rate_of_steps_of_any_length(each: float, tmp_path: Path, clock: Clock):
    draw = random.Random(1)
    times = [each * draw.lognormvariate(0, 0.05) for _ in range(min(int(30 / each), 40_000) + 10)]
    counted(tmp_path, clock, times)
    counters = StepCounters(tmp_path)
    counters.look()
    speed = counters.speed(clock.now + 2, clock.now + 28)
    assert speed is not None
    assert speed.rate == pytest.approx(1 / each, rel=0.03)
    assert speed.error < 0.05 * speed.rate


def test_many_quick_steps_and_one_slow_one_count_by_the_step(tmp_path: Path, clock: Clock):
    # Batches that lie ready go at once, then one is waited for: the mean of the entries would be far off
    counted(tmp_path, clock, ([0.002] * 9 + [0.182]) * 200)
    counters = StepCounters(tmp_path)
    counters.look()
    speed = counters.speed(clock.now, clock.now + 40)
    assert speed is not None
    assert speed.rate == pytest.approx(50, rel=0.02)


def test_ranks_are_added_and_one_that_does_something_else_is_not_waited_for(tmp_path: Path, clock: Clock):
    for _ in range(4):
        counted(tmp_path, clock, [0.1] * 200)
    counted(tmp_path, clock, [9.0] * 2)
    counters = StepCounters(tmp_path)
    counters.look()
    assert len(counters.processes) == 1  # all in this process
    speed = counters.speed(clock.now, clock.now + 20)
    assert speed is not None
    assert speed.rate == pytest.approx(40, rel=0.01)
    assert counters.counted(clock.now, clock.now + 20) > 150
    assert counters.speed(clock.now + 500) is None


def test_a_ring_that_came_round_while_nobody_looked_loses_only_what_is_old(tmp_path: Path, clock: Clock):
    made = counter(tmp_path)
    counters = StepCounters(tmp_path)
    for number in range(3000):
        clock.now += 0.1
        made.steps += 1
        made.write()
        if number in (10, 500, 501):
            counters.look()
    counters.look()
    (ring,) = counters._rings.values()
    entries = list(ring.entries)
    assert entries[-1].steps == counters.steps == 3000
    assert entries[-1000].steps == 2001
    assert all(after.steps > before.steps for before, after in pairwise(entries))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 10,
        b"\xff" * 40_000,
        HEAD.pack(b"GSUBSTEP", 2, 1024, 1, 5) + bytes(24576),
        HEAD.pack(b"GSUBSTEP", 1, 0, 1, 5) + bytes(24576),
        HEAD.pack(b"GSUBSTEP", 1, 1 << 31, 1, 5) + bytes(24576),
        HEAD.pack(b"GSUBSTEP", 1, 1024, 1, 2**64 - 1) + bytes(24576),
        HEAD.pack(b"GSUBSTEP", 1, 1024, 1, 1000) + bytes(100),
        HEAD.pack(b"GSUBSTEP", 1, 4, 1, 2) + ENTRY.pack(5, 1, 9) + ENTRY.pack(4, 1, 10) + bytes(48),
        HEAD.pack(b"GSUBSTEP", 1, 4, 1, 2) + ENTRY.pack(5, float("nan"), 9) + bytes(72),
        HEAD.pack(b"GSUBSTEP", 1, 4, 1, 2) + ENTRY.pack(1, 1, 9) + ENTRY.pack(2**64 - 1, 1, 9) + bytes(48),
    ],
)
def test_what_is_no_counter_gives_no_rate_and_no_trouble(content: bytes, tmp_path: Path):
    (tmp_path / "1-aa.steps").write_bytes(content)
    counters = StepCounters(tmp_path)
    for _ in range(3):
        counters.look()
        assert counters.speed(0) is None


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_no_content_ends_the_reader(tmp_path_factory, tail: bytes, made: int, slots: int):
    folder = tmp_path_factory.mktemp("counters")
    (folder / "1-aa.steps").write_bytes(HEAD.pack(b"GSUBSTEP", 1, slots, 1, made) + tail)
    counters = StepCounters(folder)
    counters.look()
    counters.look()
    counters.speed(0)
    assert counters.counted(0) >= 0


def test_of_a_crowd_of_files_only_some_are_read(tmp_path: Path):
    for number in range(400):
        (tmp_path / f"{number:03}.steps").write_bytes(b"")
    counters = StepCounters(tmp_path)
    counters.look()
    assert len(counters._rings) == 256


@given(st.lists(st.tuples(st.floats(0.001, 5, allow_nan=False), st.integers(1, 50)), min_size=2, max_size=60))
def test_stretches_of_equal_length_keep_the_sum(pairs: list[tuple[float, int]]):
    at, steps, entries = 0.0, 0, [Entry(0.0, 0, 0.0)]
    for seconds, count in pairs:
        at, steps = at + seconds, steps + count
        entries.append(Entry(at, steps, 0.0))
    times, width = evenly(entries)
    assert len(times) == steps // width
    assert all(each >= 0 for each in times)
    assert sum(times) * width <= at * (1 + 1e-9)
    if steps % width == 0:
        assert sum(times) * width == pytest.approx(at)
