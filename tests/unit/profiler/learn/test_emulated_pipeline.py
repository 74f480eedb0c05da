"""The workload of the benches behaves as it says: its knee is where it is drawn, and it follows the lever."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import emulated_pipeline
from benchmarks.emulated_pipeline import LEVER, Pipeline, Shape, cpus_given, drawn
from profiler.step_rate import step_rate

SHAPE = Shape(knee=6, step=0.1, noise=0.05, queue=8, startup=1.0)


def settled(shape: Shape, cpus: float, seconds: float = 300.0) -> float:
    """Steps a second in virtual time, once it has settled."""
    pipeline = Pipeline(shape, random.Random(5))
    pipeline.advance(30, cpus)
    return len(pipeline.advance(30 + seconds, cpus)) / seconds


@pytest.mark.parametrize("cpus", [1, 3, 5, 6, 7, 32])
def test_throughput_is_that_of_the_slower_stage(cpus):
    assert settled(SHAPE, cpus) == pytest.approx(SHAPE.rate(cpus), rel=0.02)


def test_time_may_be_cut_anywhere():
    whole, cut = (Pipeline(SHAPE, random.Random(1)) for _ in range(2))
    ends = whole.advance(20, 5)
    parts = [end for tick in range(1, 1001) for end in cut.advance(tick * 0.02, 5)]
    assert parts == pytest.approx(ends)


def test_nothing_comes_before_the_start_up():
    ends = Pipeline(SHAPE, random.Random(1)).advance(10, 32)
    assert ends[0] > SHAPE.startup


def test_after_a_cut_of_the_cpus_the_queue_goes_at_the_old_pace():
    pipeline = Pipeline(SHAPE, random.Random(2))
    pipeline.advance(60, 32)
    ends = pipeline.advance(90, 2)
    gaps = [after - before for before, after in pairwise(ends)]
    assert sum(gaps[: SHAPE.queue - 1]) / (SHAPE.queue - 1) == pytest.approx(0.1, rel=0.2)
    assert sum(gaps[SHAPE.queue + 4 :]) / len(gaps[SHAPE.queue + 4 :]) == pytest.approx(0.3, rel=0.2)


def test_the_next_end_is_foretold():
    pipeline = Pipeline(SHAPE, random.Random(3))
    for _ in range(200):
        end = pipeline.soonest(5)
        assert len(pipeline.advance(end + 1e-9, 5)) <= 1
        assert pipeline.now >= end


def test_shapes_are_the_same_for_a_seed_and_within_bounds():
    shapes = [drawn(seed) for seed in range(200)]
    assert shapes == [drawn(seed) for seed in range(200)]
    assert min(shape.knee for shape in shapes) >= 3 and max(shape.knee for shape in shapes) <= 24
    assert all(0.02 <= shape.noise <= 0.08 for shape in shapes)
    assert all(shape.knee == round(shape.knee) for shape in shapes[1::2])
    assert len({shape.enough for shape in shapes}) > 15


@pytest.mark.parametrize(
    ("env", "lever", "cpus"),
    [
        ({"SLURM_CPUS_ON_NODE": "12"}, None, 12),
        ({"SLURM_CPUS_ON_NODE": "12", "SLURM_CPUS_PER_TASK": "4"}, "", 12),
        ({"SLURM_CPUS_PER_TASK": "4"}, None, 4),
        ({"SLURM_CPUS_ON_NODE": "12"}, "5\n", 5),
        ({"SLURM_CPUS_ON_NODE": "12"}, "0\n", 12),
        ({"SLURM_CPUS_ON_NODE": "12"}, "9999999\n", 12),
        ({"SLURM_CPUS_ON_NODE": "12"}, "five", 12),
        ({}, None, os.cpu_count()),
    ],
)
def test_the_cpus_are_the_levers_then_slurms(env, lever, cpus, tmp_path):
    if lever is not None:
        (tmp_path / "cpus").write_text(lever)
        env = {**env, LEVER: str(tmp_path / "cpus")}
    assert cpus_given(env) == cpus


@pytest.mark.slow
def test_the_program_follows_the_lever_and_tells_of_its_steps(tmp_path):
    lever = tmp_path / "cpus"
    lever.write_text("32\n")
    env = {"PATH": os.environ["PATH"], LEVER: str(lever), "SLURM_GPUS_ON_NODE": "1"}
    argv = [sys.executable, str(Path(emulated_pipeline.__file__)), "--draw=1", "--low=8", "--high=8"]
    with subprocess.Popen(
        [*argv, "--step=0.01", "--steps=120", "--tell=log"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr and process.stdout
        marks: list[tuple[float, str]] = []
        text = b""
        while part := os.read(process.stderr.fileno(), 4096):
            text += part
            *lines, text = text.split(b"\r")
            marks += [(time.monotonic(), line.decode()) for line in lines]
            if len(marks) == 3:
                lever.write_text("2\n")
        told = json.loads(process.stdout.read().splitlines()[-1])
    assert process.returncode == 0
    assert told["steps"] == 120 and told["cpus"] == 2 and not told["counted"]
    # At first 100 a second, in the end 2 CPUs of 8 make a quarter of these.
    assert told["rate"] < 50
    found = step_rate(marks)
    assert found is not None and found.format == "tqdm" and found.total == 120
    assert math.isfinite(found.rate)
