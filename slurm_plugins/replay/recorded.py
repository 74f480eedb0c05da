"""How near a replay comes to what was recorded: start by start, over several draws of what the books do not tell.

Accounting has whole seconds, and nothing of where slurmctld was in its rhythm. On a busy cluster a moment's difference
decides who gets the last GPU, and everything after depends on it: single replays of the same export differ from each
other as much as from the record. So several are made (seeds 0, 1, 2...), and a job's start is told as their median with
the range that nine in ten of them lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_plugins.replay.values import Floats, Replayed, Trace

__all__ = ["Nearness", "nearness"]


@dataclass(frozen=True, slots=True)
class Nearness:
    """Errors of starts in seconds, over the jobs that have a start both recorded and replayed."""

    jobs: int
    median: float
    mean: float
    p90: float
    most: float
    signed: float
    """Mean of replayed minus recorded."""
    within: tuple[float, float, float]
    """Shares of jobs that start within 1, 5 and 10 s of the record."""
    rank: float
    """Spearman's correlation of the order of starts."""
    wait: float
    """Mean wait as recorded."""
    wait_replayed: float
    """The same in the replays, mean over them."""
    wait_spread: float
    """Standard deviation of that mean from replay to replay."""
    covered: float
    """Share of jobs whose recorded start lies in their own range of nine in ten replays, a second either way."""
    single: float
    """Median error of one replay by itself, median over the replays."""


def nearness(trace: Trace, replays: Sequence[Replayed]) -> Nearness:
    """Compare replays of a trace, which differ in their seeds, with what its column `began` tells.

    Raises ValueError where no job has a start in the record and in every replay.
    """
    starts = np.array([done.started for done in replays])
    both = np.isfinite(trace["began"]) & np.isfinite(starts).all(axis=0)
    if not len(replays) or not both.any():
        raise ValueError("no job that started both in the record and in the replays")
    began, arrival, starts = trace["began"][both], trace["arrival"][both], starts[:, both]
    middle = np.median(starts, axis=0)
    error = np.abs(middle - began)
    low, high = np.percentile(starts, [5, 95], axis=0)
    waits = (starts - arrival).mean(axis=1)
    near = [float(np.mean(error <= most)) for most in (1, 5, 10)]
    return Nearness(
        int(both.sum()),
        float(np.median(error)),
        float(error.mean()),
        float(np.percentile(error, 90)),
        float(error.max()),
        float((middle - began).mean()),
        (near[0], near[1], near[2]),
        _spearman(middle, began),
        float((began - arrival).mean()),
        float(waits.mean()),
        float(waits.std()),
        float(np.mean((began >= low - 1) & (began <= high + 1))),
        float(np.median(np.median(np.abs(starts - began), axis=1))),
    )


def _spearman(one: Floats, other: Floats) -> float:
    """Correlation of ranks; equal values share the mean of theirs."""
    ranks = [_ranks(values) for values in (one, other)]
    if min(float(np.std(rank)) for rank in ranks) == 0:
        return 1.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: Floats = (last - (count - 1) / 2)[place]
    return ranks
