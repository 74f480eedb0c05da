"""The steady rate of an ordinary run, from the times of its steps. Pure.

Nobody drives such a run: it starts slowly, saves checkpoints, validates, and has neighbours. Its entries, a second or
more apart, are cut into stretches of equally many steps, wide enough that a loader's bursts are within one of them;
the rate is that of the median stretch after the start, so that what comes now and then does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from profiler.probing import Speed, settled
from profiler.step_counter import Entry, counted, together

__all__ = ["LEAST_SECONDS", "LEAST_STEPS", "steady", "stretches"]

LEAST_SECONDS: Final = 15.0
LEAST_STEPS: Final = 60
"""A shorter run tells nothing."""
_STRETCHES: Final = 40
_SECONDS: Final = (1.0, 5.0)  # of a stretch: the least, and what it need not be longer than
_BURST: Final = 32  # steps: what loaders prepare at once
_MOST: Final = 2000  # stretches, whatever the entries say
_LEAST: Final = 6  # stretches after the start
_MEDIAN: Final = 1.2533  # standard error of a median over that of a mean
_MAD: Final = 1.4826
_SURE: Final = 0.005
_BESIDE: Final = 0.5  # of the time of the process that counted most: who was there for less does something else
_SHARE: Final = 0.1  # of its steps, likewise


def stretches(entries: Sequence[Entry], width: int) -> tuple[float, ...]:
    """Seconds of a step in each whole stretch of `width` steps, oldest first.

    >>> stretches([Entry(0.0, 0, 0), Entry(1.0, 10, 10), Entry(3.0, 20, 20), Entry(4.0, 25, 25)], 10)
    (0.1, 0.2)
    """
    times, place, last = [], 1, entries[0].at
    for wanted in range(entries[0].steps + width, entries[-1].steps + 1, width):
        while entries[place].steps < wanted:
            place += 1
        before, after = entries[place - 1], entries[place]
        at = before.at + (wanted - before.steps) / (after.steps - before.steps) * (after.at - before.at)
        times.append((at - last) / width)
        last = at
    return tuple(times)


def steady(processes: Sequence[Sequence[Entry]]) -> Speed | None:
    """Steps in a second of all processes that stepped together; None where they tell too little.

    Entries are ascending. Of trainings one after another it is the one with the most steps.

    >>> def went(seconds, gap): return [Entry(i + 10.0 * (i // gap), 8 * i, 8 * i) for i in range(seconds)]
    >>> round(steady([went(600, 60), went(600, 60)]).rate, 6)
    16.0
    """
    told = [one for one in processes if len(one) >= 2]
    if not told:
        return None
    most = max(told, key=counted)
    span = most[-1].at - most[0].at
    found = []
    for one in told:
        beside = min(one[-1].at, most[-1].at) - max(one[0].at, most[0].at)
        if beside >= _BESIDE * span and counted(one) >= _SHARE * counted(most):
            found.append(_alone(one))
    speeds = [one for one in found if one is not None]
    if len(speeds) < len(found):
        return None
    return together(speeds)


def _alone(entries: Sequence[Entry]) -> Speed | None:
    seconds, steps = entries[-1].at - entries[0].at, counted(entries)
    if steps < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    wide = min(max(seconds / _STRETCHES, _SECONDS[0]), _SECONDS[1])
    width = max(math.ceil(wide * steps / seconds), min(_BURST, steps // _STRETCHES), -(-steps // _MOST))
    times = stretches(entries, width)
    cut = settled(times) if len(times) >= 2 else 0
    rest = times[max(cut, 1) :]
    if len(rest) < _LEAST or min(rest) <= 0:
        return None
    middle = median(rest)
    scatter = _MAD * median([abs(time - middle) for time in rest]) / middle
    error = max(_MEDIAN * scatter / math.sqrt(len(rest)), _SURE)
    return Speed(1 / middle, error / middle, len(rest) * width, max(cut, 1) * width)
