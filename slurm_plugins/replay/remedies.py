"""What retries and smoke runs make of a trace's faults: the runs of each job for the replay, and the bill.

A retry policy says which failed attempt is followed by another, and how; a smoke policy which jobs are tried on one GPU
first. Both meet the same faults with the same luck (`failing.Faults`), so two of them differ by what they do alone.
gsub's own are the live ones: `slurm_plugins.resubmit.plan` through `again`, the length of a smoke run by
`profiler.early.smoke_time` from what the trace's own failures have taught until then, and of the reasons
`profiler.early.SEEN`.

Work of the trace is what a job would do if nothing failed. A job whose last attempt fails, or that a smoke run holds,
does none of it; one that is tried again begins anew (the trace tells of no checkpoints).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.failing import Faults
from slurm_plugins.replay.retrying import Retry, Tried, tried
from slurm_plugins.replay.smoking import SMOKES, Smoke, Smoked, smoked
from slurm_plugins.replay.values import Floats, Trace

__all__ = ["Bill", "Lived", "lived"]


@dataclass(frozen=True, slots=True)
class Bill:
    """What a pair of policies comes to. Times are GPU-seconds."""

    struck: int = 0
    """Jobs that fail at first, if nothing holds them."""
    recoverable: int = 0
    """Of them those that some other attempt could make good."""
    failed_runs: int = 0
    failed: float = 0.0
    """Held by attempts that failed."""
    repeats: float = 0.0
    """Of that by all but the first of each job."""
    rescued: int = 0
    """Jobs that failed and passed in the end."""
    rescued_work: float = 0.0
    """Work of the trace that they so did."""
    smoked: int = 0
    smoke: float = 0.0
    """Held by smoke runs."""
    held: int = 0
    """Jobs that a smoke run ended."""
    held_wrongly: int = 0
    """Of them those that would have passed under the same retries."""

    @property
    def lost(self) -> float:
        """Held for nothing: attempts that failed, and smoke runs."""
        return self.failed + self.smoke


@dataclass(frozen=True)
class Lived:
    """The runs of all jobs of the trace, and what failures and remedies come to."""

    attempts: Attempts
    bill: Bill


def lived(
    trace: Trace,
    faults: Faults,
    retry: Retry,
    smoke: Smoke = SMOKES["none"],
    *,
    waits: Floats | None = None,
    runs: Tried | None = None,
    lessons: Floats | None = None,
) -> Lived:
    """A trace under a pair of policies.

    Parameters
    ----------
    waits: seconds that each job waits for its first start; a race needs them, as of a replay without smoke runs.
    runs, lessons: what `tried` and `learned` say for these faults, where it is known already.

    In a gate a smoke run is the first of its job's runs, with one GPU. In a race it is only in the bill, unless the job
    is held: then it is all that runs. Raises ValueError for a race without waits, and for faults of another
    trace.
    """
    runs = tried(trace, faults, retry) if runs is None else runs
    tests = smoked(trace, faults, smoke, waits=waits, lessons=lessons)
    work, gpus = trace["work"], trace["gpus"].astype(np.float64)
    passes = np.zeros(len(faults), np.bool_)
    passes[runs.fault[runs.passed]] = True
    kept_out = tests.held[faults.row]
    real = ~kept_out[runs.fault]
    failed = real & ~runs.passed
    first = np.r_[True, runs.fault[1:] != runs.fault[:-1]][: len(runs.fault)]
    held_for = runs.seconds * gpus[faults.row[runs.fault]]
    rescued = passes & ~kept_out
    bill = Bill(
        struck=len(faults),
        recoverable=int(faults.recoverable.sum()),
        failed_runs=int(failed.sum()),
        failed=float(held_for[failed].sum()),
        repeats=float(held_for[failed & ~first].sum()),
        rescued=int(rescued.sum()),
        rescued_work=float((work * gpus)[faults.row[rescued]].sum()),
        smoked=int(tests.tried.sum()),
        smoke=float(tests.seconds.sum()),
        held=int(tests.held.sum()),
        held_wrongly=int((passes & kept_out).sum()),
    )
    return Lived(_attempts(trace, faults, runs, tests, gate=smoke.way == "gate"), bill)


def _attempts(trace: Trace, faults: Faults, runs: Tried, tests: Smoked, *, gate: bool) -> Attempts:
    """Smoke runs, runs of the jobs that fail, and the one run of each of the others, put in their order."""
    work = trace["work"]
    struck = np.zeros(len(trace), np.bool_)
    struck[faults.row] = True
    well = np.flatnonzero(~struck & (work > 0))
    first = np.flatnonzero((tests.seconds > 0) if gate else tests.held)
    real = ~tests.held[faults.row[runs.fault]]
    row = np.concatenate([first, well, faults.row[runs.fault[real]]])
    kind = np.repeat([0, 1, 1], [len(first), len(well), int(real.sum())])
    order = np.lexsort((kind, row))  # stable: a job's own runs stay in time
    counts = np.bincount(row, minlength=len(trace))
    nothing = np.zeros(len(first))
    return Attempts(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([tests.seconds[first], work[well], runs.seconds[real]])[order],
        np.concatenate([nothing, np.zeros(len(well)), runs.delay[real]])[order],
        np.where(kind == 0, 1, 0)[order].astype(np.int64),
        np.concatenate([nothing > 0, np.ones(len(well), np.bool_), runs.passed[real]])[order],
    )
