"""Batches that lie ready do not hide the knee. The pipelines are emulated, in a time of their own."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.emulated_pipeline import Pipeline, bar, drawn
from profiler.curves import Point
from profiler.draining import Drain, needed
from profiler.driver import Driver
from tests.unit.profiler.learn.running import Clock, Pulled, clock, counter
from tests.unit.profiler.learn.virtual import learnt

__all__ = ["clock"]


@pytest.mark.parametrize("queue", [2, 16, 64])
def test_the_knee_is_found_behind_any_queue(queue):
    off: Counter[int] = Counter()
    for seed in range(12):
        shape = replace(drawn(seed), queue=queue)
        done, _, now = learnt(shape, seed)
        off[done.knee - shape.enough] += 1
        assert now < 180
        assert shape.rate(done.knee) * shape.step >= 0.97
    assert all(abs(by) <= 1 for by in off), off


def test_without_draining_it_is_missed():
    """The emulation is no kinder than a real loader: it is the draining that finds the knee."""
    missed = 0
    for seed in range(16):
        shape = replace(drawn(seed), queue=16)
        missed += learnt(shape, seed, drains=False)[0].knee < shape.enough - 1
    assert missed >= 4


def test_a_job_that_one_cpu_feeds_is_drained_once():
    shape = replace(drawn(3), knee=0.8, step=0.1, queue=8)
    done, _, now = learnt(shape, 1)
    assert done.knee == 1 and done.why == "floor"
    assert now < 120


@pytest.mark.parametrize(
    ("done", "cpus", "want"),
    [
        ([], 32, False),
        ([(32, 9)], 32, False),
        ([(32, 9), (32, 10)], 16, True),
        ([(32, 9), (32, 10), (16, 10)], 20, False),
        ([(32, 9), (32, 10), (16, 9.8)], 8, True),
        ([(32, 9), (32, 10), (16, 10), (8, 6)], 12, False),
        ([(32, 9), (32, 10), (16, 10), (8, 6)], 4, False),
    ],
)
def test_only_a_cut_from_the_plateau_needs_it(done, cpus, want):
    assert needed([Point(count, rate, 0.1) for count, rate in done], cpus) is want


@given(
    best=st.floats(1e-3, 1e6),
    counts=st.lists(st.integers(0, 10**6), max_size=40),
    ticks=st.lists(st.floats(0, 5), min_size=40, max_size=40),
)
def test_it_always_ends(best, counts, ticks):
    drain, now, steps = Drain(best, 0.0, 0), 0.0, 0
    for count, tick in zip(counts, ticks, strict=False):
        now, steps = now + tick, steps + count
        over = drain.over(now, steps)
        assert over or now < 45
    assert drain.over(46.0, steps)


@pytest.mark.parametrize("told", ["counter"])
def test_the_driver_finds_the_knee_behind_a_queue(told: str, tmp_path: Path, clock: Clock):
    off = []
    for seed in range(4):
        folder, log = tmp_path / f"{seed}", tmp_path / f"{seed}.log"
        folder.mkdir()
        log.touch()
        shape = replace(drawn(seed), queue=16)
        pipeline, lever, counts = Pipeline(shape, random.Random(seed)), Pulled(32), counter(folder)
        driver = Driver(lever, folder, log, cap=32)
        begun, steps, written = clock.now, 0, 0.0
        while not driver.done and clock.now < begun + 180:
            turn = clock.now + 0.2
            lines = ""
            for end in pipeline.advance(turn - begun, lever.cpus or 32):
                clock.now, steps = begun + end, steps + 1
                if told == "counter":
                    counts.steps = steps
                    if clock.now >= counts.due:
                        counts.write()
                elif end >= written + 0.1:
                    written = end
                    lines += "\r" + bar(steps, 10**6, end)
            with log.open("a") as file:
                file.write(lines)
            clock.now = turn
            driver.turn(turn)
        assert driver.source == told
        assert driver.result is not None and driver.done
        assert lever.cpus == 32
        off.append(driver.result.knee - shape.enough)
    assert all(abs(by) <= 1 for by in off), off
