"""Smoke policies over faults: which jobs are tried on one GPU first, for how long, and what that shows.

The length is `profiler.early.smoke_time`'s, from what the trace's own failures have taught until then; the reasons that
count are `profiler.early.SEEN`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from profiler.early import SEEN, History, smoke_time
from slurm_plugins.replay.failing import KINDS, VERDICTS, Faults
from slurm_plugins.replay.values import Floats, Trace

__all__ = ["SMOKES", "Smoke", "Smoked", "learned", "smoked"]

Bools = NDArray[np.bool_]

_SURE: Final = (
    0.8  # the confidence from which a smoke run fails a job: gsub.smoke.judging.SURE, above this floor
)
_RACE_START_S: Final = 10.0
"""Supposed: from the submission of a race to its smoke run's start, one GPU being free mostly."""
_LESSONS: Final = 1000
"""After so many jobs each the length of a smoke run is looked at anew."""
_REMEMBERED: Final = 20_000  # as in profiler.store.early: the last jobs
_STARTED_LONG: Final = 600.0  # as in profiler.store.early: whoever ran for so long counts, however it ended


@dataclass(frozen=True, slots=True)
class Smoke:
    """Which jobs are tried on one GPU first: those with more than `above` GPUs. `seconds` None: as long as is learned.

    way: none; gate, the job queues when its smoke run has ended; race, it queues at once and is held if the smoke run
    fails before it has started.
    """

    name: str
    way: Literal["none", "gate", "race"] = "none"
    above: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.above < 0:
            raise ValueError(f"above {self.above} GPUs")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"a smoke run of {self.seconds} s")


SMOKES: Final = {one.name: one for one in (Smoke("none"), Smoke("race", "race"), Smoke("gate", "gate"))}


@dataclass(frozen=True)
class Smoked:
    """By row of the trace: whether it has a smoke run, how long that held its GPU, whether it ended the job."""

    tried: Bools
    seconds: Floats
    held: Bools


def smoked(
    trace: Trace,
    faults: Faults,
    smoke: Smoke,
    *,
    waits: Floats | None = None,
    lessons: Floats | None = None,
) -> Smoked:
    """A smoke policy over all jobs; `waits` and `lessons` as in `remedies.lived`.

    Raises ValueError for a race without the wait of each job.
    """
    work = trace["work"]
    if smoke.way == "none":
        nobody = np.zeros(len(trace), np.bool_)
        return Smoked(nobody, np.zeros(len(trace)), nobody)
    wanted: Bools = (trace["gpus"] > smoke.above) & (work > 0)
    seconds, shown = _runs(trace, faults, _lengths(trace, faults, smoke, lessons))
    if smoke.way == "race":
        if waits is None or np.shape(waits) != (len(trace),):
            raise ValueError("a race needs how long each job waits")
        room = np.where(np.isnan(waits), math.inf, np.maximum(waits - _RACE_START_S, 0.0))
        shown &= seconds <= room
        seconds = np.minimum(seconds, room)
    return Smoked(wanted, np.where(wanted, seconds, 0.0), wanted & shown)


def learned(trace: Trace, faults: Faults) -> Floats:
    """How long each job's smoke run would take: by Philly's failures, and by those of the trace that came before it.

    As the service does it, jobs with one GPU and with several are two histories, of what a smoke run can see and of
    jobs that ran for ten minutes.
    """
    found = np.empty(len(trace))
    arrival, work = trace["arrival"], trace["work"]
    runs = work.copy()
    runs[faults.row] = faults.seconds
    ended = arrival + runs
    visible = np.zeros(len(trace), np.bool_)
    visible[faults.row] = np.isin(faults.verdict, _seen())
    counts = visible | (runs >= _STARTED_LONG)
    for several in (False, True):
        able = np.flatnonzero((trace["gpus"] > 1) == several)
        for chunk in range(0, len(able), _LESSONS):
            rows = able[chunk : chunk + _LESSONS]
            before = able[max(chunk - _REMEMBERED, 0) : chunk]
            known = before[counts[before] & (ended[before] <= arrival[rows[0]])]
            history = History.of(len(known), runs[known[visible[known]]].tolist())
            found[rows] = smoke_time(history, several=several)
    return found


def _lengths(trace: Trace, faults: Faults, smoke: Smoke, lessons: Floats | None) -> Floats:
    if smoke.seconds is not None:
        return np.full(len(trace), smoke.seconds)
    return learned(trace, faults) if lessons is None else lessons


def _runs(trace: Trace, faults: Faults, length: Floats) -> tuple[Floats, Bools]:
    """How long each smoke run lasts, and whether it shows that the job is sure to fail.

    What fails the job's first attempt fails its smoke run too, after the same time, unless it takes many GPUs or a node
    is broken: that is another one. Sure is what the live judge takes for sure: a reason that has nothing to do with the
    number of GPUs, from a verdict that is confident.
    """
    lasts = np.minimum(length, trace["work"] * np.maximum(trace["gpus"], 1))
    row = faults.row
    ends = faults.alone & (faults.cause != KINDS.index("node")) & (faults.seconds <= lasts[row])
    lasts[row[ends]] = faults.seconds[ends]
    shown = np.zeros(len(trace), np.bool_)
    shown[row] = ends & np.isin(faults.verdict, _seen()) & (faults.confidence >= _SURE)
    return lasts, shown


@cache
def _seen() -> tuple[int, ...]:
    return tuple(VERDICTS.index(name) for name in SEEN)
