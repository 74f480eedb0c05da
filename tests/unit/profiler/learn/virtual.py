"""What a driver would find out about an emulated pipeline, in the pipeline's own time: seconds pass without waiting."""

from __future__ import annotations

import random
from itertools import pairwise

from benchmarks.emulated_pipeline import Pipeline, Shape
from profiler.curves import Point
from profiler.draining import Drain, needed
from profiler.probing import measure
from profiler.sensitivity import Done, Probe, plan

__all__ = ["TooFewStepsError", "learnt"]

_TICK = 0.1


class TooFewStepsError(RuntimeError):
    """A point could not be told from its steps."""


def learnt(
    shape: Shape, seed: int, cap: int = 32, *, drains: bool = True
) -> tuple[Done, tuple[Point, ...], float]:
    """What is known in the end, from which points (without the warm-up), and after how many seconds."""
    pipeline = Pipeline(shape, random.Random(seed))
    steps = len(pipeline.advance(shape.startup + 1, cap))
    done: tuple[Point, ...] = ()
    enough = False
    while isinstance(step := plan(done, cap), Probe):
        begun = pipeline.now
        if drains and (not enough or step.cpus == 1) and needed(done, step.cpus):
            drain = Drain(max(point.rate for point in done), pipeline.now, steps)
            while not drain.over(pipeline.now, steps):
                steps += len(pipeline.advance(pipeline.now + _TICK, 1))
            enough = not drain.dry
        steps += len(pipeline.advance(pipeline.now + 0.5, step.cpus))
        ends = pipeline.advance(pipeline.now + step.seconds, step.cpus)
        steps += len(ends)
        speed = measure([after - before for before, after in pairwise(ends)])
        if speed is None:
            raise TooFewStepsError(f"{len(ends)} steps in {step.seconds} s with {step.cpus} CPUs")
        done += (Point(step.cpus, speed.rate, speed.error, speed.steps, pipeline.now - begun),)
    return step, done[1:], pipeline.now
