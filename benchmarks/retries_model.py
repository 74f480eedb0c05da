"""The failed jobs that Philly's Table 7 counts, each at its first failure, with a hidden cause that is supposed.

The table, the causes and their shares are those of replays: `slurm_plugins.replay.failing`, which says what they are.
Here each reason has as many jobs as the table counts, none of which is of a trace, and the GPU-hours of a reason's
attempts have the table's mean exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from profiler.early import TABLE7, Reason
from prolog_epilog.failures.taxonomy import NO_SIGNATURE
from slurm_plugins.replay.failing import KINDS, Cause, Supposed, curve, named, shares

__all__ = ["FailedJob", "failed_jobs", "hours_a_trial"]


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that failed for the first time. `reason` is what the verdict says, right or wrong; minutes and GPU-hours
    are of that attempt. `needs` is the memory that it needs over what it asked for, `most` what its node has over that.
    """

    name: str
    cause: Cause
    reason: str
    confidence: float
    minutes: float
    gpu_hours: float
    gpus: int
    needs: float = 1.0
    most: float = 1.0

    @property
    def recoverable(self) -> bool:
        """Whether any other attempt could succeed."""
        return self.cause != "always" and (self.cause != "memory" or self.needs <= self.most)


def hours_a_trial(row: Reason) -> float:
    """GPU-hours of a reason's attempts, the table's mean."""
    return row.gpu_seconds / row.trials / 3600


def failed_jobs(
    rows: Sequence[Reason], model: Supposed, random: Random, share: float = 1.0
) -> list[FailedJob]:
    """All jobs of the table, or a share of each reason's, at their first failure."""
    found = []
    supposed = shares(model)
    for row in rows:
        parts = _strayed(
            supposed[[one.name for one in TABLE7].index(row.name)].tolist(), model.spread, random
        )
        count = max(1, round(row.jobs * share))
        minutes = [_minutes(row, random) for _ in range(count)]
        gpus = random.choices((1, random.choice((2, 4)), random.choice((8, 16))), weights=row.gpus, k=count)
        held = [one * of for one, of in zip(minutes, gpus, strict=True)]
        scale = hours_a_trial(row) * count / sum(held)
        for one, of, hours in zip(minutes, gpus, held, strict=True):
            cause = random.choices(KINDS, weights=parts)[0]
            reason, confidence = _verdict(row, cause, rows, model, random)
            found.append(
                FailedJob(
                    row.name,
                    cause,
                    reason,
                    confidence,
                    one,
                    hours * scale,
                    of,
                    needs=1.05 * 4 ** random.random() if cause == "memory" else 1.0,
                    most=max(1.0, 8 / of),
                )
            )
    return found


def _strayed(parts: Sequence[float], spread: float, random: Random) -> list[float]:
    """Shares of a seed: as many as are supposed in the mean (a Dirichlet's)."""
    return [random.gammavariate(max(part * spread, 1e-3), 1.0) if part else 0.0 for part in parts]


def _minutes(row: Reason, random: Random) -> float:
    """Minutes to a failure."""
    levels, logs = curve(row)
    return math.exp(float(np.interp(random.random(), levels, logs))) / 60


def _verdict(
    row: Reason, cause: Cause, rows: Sequence[Reason], model: Supposed, random: Random
) -> tuple[str, float]:
    """What gsub calls it: right, or nothing it knows, or another reason, the more common the more often."""
    if random.random() < model.accuracy:
        return named(row, cause), 0.9
    if random.random() < 0.5:
        return NO_SIGNATURE, 0.5
    return named(random.choices(rows, weights=[one.jobs for one in rows])[0], "always"), 0.8
