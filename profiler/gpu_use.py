"""Throughput as GPU use tells it, for runs that tell no steps: the share of time in which the GPUs compute.

A step takes its GPU the same time whatever the CPUs, so what a GPU does in a second grows as the steps do. It says
nothing of how long a step is: such a rate is per cent of the GPU's time, and is compared with its own kind alone.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Final

from profiler.probing import LEAST_STEPS, Speed

__all__ = ["GpuUse"]

_KEPT: Final = 1000
_CUT: Final = 4  # the first of so many parts are of what was before
_LEAST_ERROR: Final = 0.7  # per cent: NVML tells whole ones, of a short while
_WORKS: Final = 5.0  # per cent from which on a GPU is at work


class GpuUse:
    """Looks at the GPUs of a run, one a second or so: when, and per cent busy."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.begun: float | None = None
        """When a GPU was first seen at work."""

    def add(self, at: float, percent: float) -> None:
        """Take a look; what is no per cent is left out."""
        if 0 <= percent <= 100:
            self._looks.append((at, percent))
            if self.begun is None and percent >= _WORKS:
                self.begun = at

    def mean(self, begin: float, end: float = math.inf) -> float | None:
        """Per cent busy between two times; None: nobody looked."""
        found = self._within(begin, end)
        return fmean(found) if found else None

    def speed(self, begin: float, end: float = math.inf) -> Speed | None:
        """Per cent of the GPUs' time that a run uses; its `steps` are looks. None where they are too few.

        >>> use = GpuUse()
        >>> for second in range(12):
        ...     use.add(second, 50.0)
        >>> use.speed(0.0)
        Speed(rate=50.0, error=0.7, steps=9, cut=3)
        """
        found = self._within(begin, end)
        if len(found) < LEAST_STEPS:
            return None
        cut = len(found) // _CUT
        rest = found[cut:]
        rate = fmean(rest)
        if not rate > 0:
            return None
        # No look is left out as odd: a GPU that waits for each batch is seen at 0 and at 100, and nothing between
        return Speed(rate, max(pstdev(rest) / math.sqrt(len(rest)), _LEAST_ERROR), len(rest), cut)

    def counted(self, begin: float, end: float = math.inf) -> int:
        """Looks between two times."""
        return len(self._within(begin, end))

    def work(self, now: float) -> int:
        """What was done up to `now`, in per cent times seconds; it grows as `speed` says."""
        done = sum(percent * (after - at) for (at, percent), (after, _) in pairwise(self._looks))
        at, percent = self._looks[-1] if self._looks else (now, 0.0)
        return round(done + percent * max(now - at, 0.0))

    def _within(self, begin: float, end: float) -> list[float]:
        return [percent for at, percent in self._looks if begin <= at < end]
