"""Batches that lie ready hide a lack of CPUs: they are used up before a point below the plateau is measured. Pure.

A loader prefetches. After a cut of the CPUs the GPU takes what lies ready at its best pace, and the loader goes on
filling: Q batches last for Q / (1 - CPUs / knee) steps, which just below the knee is longer than any point. (With
PyTorch there are prefetch_factor times num_workers of them, 2 x 16 and more.) So the job is held at one CPU for each
GPU until steps come slower than at its best: then nothing is ready any more, and what is measured at the next count is
what that count can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from profiler.curves import Point

__all__ = ["Drain", "needed"]

_PLATEAU: Final = 0.85  # of the best: slower than that, whatever the noise, what was ready is used up
_DRY: Final = 0.8  # of the best: slower than that, nothing is ready
_WINDOW_STEPS: Final = 12  # a hiccup of three steps among them is no lack
_WINDOW_S: Final = 0.6  # counts come some times a second only
_LONGEST_WINDOW_S: Final = 10.0
_MOST_STEPS: Final = 200  # a queue of 64 lasts for 96 where the knee is 3
_LEAST_S, _MOST_S = 5.0, 36.0


def needed(done: Sequence[Point], cpus: int) -> bool:
    """Whether batches may lie ready that would hide what `cpus` can do. `done` are the points so far, in order.

    >>> warm, most, low = Point(32, 9.0, 0.1), Point(32, 10.0, 0.1), Point(8, 7.0, 0.1)
    >>> needed([warm], 32), needed([warm, most], 16), needed([warm, most, low], 11)
    (False, True, False)
    """
    if not done or cpus >= done[-1].cpus:
        return False  # as many as were enough are enough
    return done[-1].rate >= _PLATEAU * max(point.rate for point in done)


class Drain:
    """Holds a job at one CPU for each GPU until `over`. Times are seconds on any one clock, steps a count.

    `best` is the job's best rate so far, in steps a second. `dry` is whether nothing is ready any more; where it ended
    without that, one CPU does not slow the job down, and no count above it needs a drain.

    >>> drain = Drain(10.0, now=0.0, steps=50)
    >>> [drain.over(tick * 0.25, 50 + min(tick * 2, 9)) for tick in range(1, 6)]
    [False, False, False, False, True]
    >>> drain.dry
    True
    """

    def __init__(self, best: float, now: float, steps: int) -> None:
        self._best = best
        self._window = min(max(_WINDOW_STEPS / best, _WINDOW_S), _LONGEST_WINDOW_S)
        self._end = now + min(max(_MOST_STEPS / best, _LEAST_S), _MOST_S)
        self._seen = deque([(now, steps)])
        self.dry = False

    def over(self, now: float, steps: int) -> bool:
        """Whether to go on to the next count: nothing is ready, or it takes too long. Ask some times a second."""
        seen = self._seen
        if steps < seen[-1][1]:
            seen.clear()  # it counts from 0 again: an epoch ended
        seen.append((now, steps))
        while len(seen) > 2 and seen[1][0] <= now - self._window:
            seen.popleft()
        at, before = seen[0]
        passed = now - at
        if passed >= self._window and steps - before < _DRY * self._best * passed:
            self.dry = True
        return self.dry or now >= self._end
