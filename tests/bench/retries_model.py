"""Failed jobs as Philly's Table 7 counts them, each with a hidden cause that says which other attempt would succeed.

The table (Jeon et al., ATC'19) has, for each reason, how many attempts ("trials") and jobs failed of it, after how
long, and what that held of GPUs. What it does not have is whether another attempt would have succeeded: `CAUSES`
supposes that, and `Model` lets it be supposed otherwise. GPU-hours of a reason's attempts have the table's mean
exactly, and its three percentiles in shape.

A cause is one of five:

- always: it ends the same way, after the same time, wherever it runs;
- chance: each other attempt succeeds in four of five cases, and otherwise fails after a time of its own;
- outage: it ends the same way until something that others mend is mended, after ten minutes in the mean;
- node: one node is broken; another attempt without it succeeds, and every second one that may have it gets it;
- memory: it needs so many times what it asked for, from a little more to four times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeAlias

from prolog_epilog.failures.taxonomy import NO_SIGNATURE, REASONS

__all__ = ["CAUSES", "Cause", "FailedJob", "Model", "Row", "read_table"]

Cause: TypeAlias = Literal["always", "chance", "outage", "node", "memory"]

CAUSES: Final[Mapping[str, Mapping[Cause, float]]] = {
    "CPU out of memory": {"memory": 0.7, "always": 0.3},
    "Incorrect inputs": {"always": 0.9, "outage": 0.1},
    "Semantic error": {"always": 0.97, "chance": 0.03},
    "Core dump": {"always": 0.8, "chance": 0.15, "node": 0.05},
    "Invalid mem access": {"always": 0.8, "chance": 0.15, "node": 0.05},
    "Model ckpt error": {"always": 0.1, "outage": 0.6, "chance": 0.3},
    "CUDA failure": {"always": 0.6, "node": 0.3, "chance": 0.1},
    "Syntax error": {"always": 1.0},
    "Traceback from crash": {"always": 0.9, "chance": 0.1},
    "MPI error": {"always": 0.4, "chance": 0.4, "node": 0.2},
    "GPU out of memory": {"always": 0.95, "chance": 0.05},
    "MPI runtime failure": {"always": 0.1, "chance": 0.4, "outage": 0.2, "node": 0.3},
    "Permission error": {"always": 0.98, "outage": 0.02},
    "Import error": {"always": 0.98, "node": 0.02},
    "Job preempted": {"chance": 1.0},
    "CUDA init failed": {"always": 0.3, "node": 0.7},
    "Model diverged": {"always": 0.9, "chance": 0.1},
    "CUDA ver. mismatch": {"always": 0.9, "node": 0.1},
    "GPU ECC error": {"node": 1.0},
    "Output node error": {"always": 1.0},
    "Cannot load libs": {"always": 0.95, "node": 0.05},
    "No signature": {"always": 0.7, "chance": 0.2, "node": 0.1},
}
"""Supposed shares of the causes of each reason. No source has them: the paper calls syntax, inputs and imports
deterministic and the infrastructure's failures transient (4.2, 5); the rest is judged by what the reasons are."""
_OTHER_REASON: Final = {("Incorrect inputs", "outage"): "filesystem_error"}
"""Philly has one name for what the taxonomy tells apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: counts, minutes to failure, and GPU-minutes of all its trials."""

    name: str
    trials: int
    jobs: int
    percentiles: tuple[float, float, float]
    gpus: tuple[int, int, int]
    gpu_minutes: float

    @property
    def reason(self) -> str:
        """The taxonomy's name for it."""
        return next((one.name for one in REASONS.values() if one.philly == self.name), NO_SIGNATURE)

    @property
    def gpu_hours_a_trial(self) -> float:
        """The table's mean."""
        return self.gpu_minutes / self.trials / 60


def read_table(path: Path) -> tuple[Row, ...]:
    """Table 7, one line a reason with the columns that the header names. Raises OSError, KeyError, ValueError."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines:
        cell = dict(zip(header.split("|"), line.split("|"), strict=True))
        rows.append(
            Row(
                cell["reason"],
                int(cell["trials"]),
                int(cell["jobs"]),
                (float(cell["rtf_p50_min"]), float(cell["rtf_p90_min"]), float(cell["rtf_p95_min"])),
                (int(cell["gpu1"]), int(cell["gpu2_4"]), int(cell["gpu_gt4"])),
                float(cell["rtf_x_demand"]),
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Model:
    """What is supposed. `accuracy`: how often a verdict names the right reason; `recoverable` multiplies the share of
    what is not "always"; `spread` is how far a seed's shares stray from the supposed ones (a Dirichlet's weight).
    """

    accuracy: float = 0.88
    recoverable: float = 1.0
    spread: float = 20.0


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


def failed_jobs(rows: Sequence[Row], model: Model, random: Random, share: float = 1.0) -> list[FailedJob]:
    """All jobs of the table, or a share of each reason's, at their first failure."""
    found = []
    for row in rows:
        shares = _shares(CAUSES[row.name], model, random)
        count = max(1, round(row.jobs * share))
        minutes = [_minutes(row, random) for _ in range(count)]
        gpus = random.choices((1, random.choice((2, 4)), random.choice((8, 16))), weights=row.gpus, k=count)
        held = [one * of for one, of in zip(minutes, gpus, strict=True)]
        scale = row.gpu_hours_a_trial * count / sum(held)
        for one, of, hours in zip(minutes, gpus, held, strict=True):
            cause = random.choices(tuple(shares), weights=tuple(shares.values()))[0]
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


def _shares(supposed: Mapping[Cause, float], model: Model, random: Random) -> dict[Cause, float]:
    """The supposed shares, moved as the model says, and strayed from."""
    other = min(1.0, model.recoverable * (1 - supposed.get("always", 0.0)))
    moved = {
        cause: (1 - other if cause == "always" else part * other / (1 - supposed.get("always", 0.0)))
        for cause, part in supposed.items()
    }
    drawn = {cause: random.gammavariate(max(part * model.spread, 1e-3), 1.0) for cause, part in moved.items()}
    total = sum(drawn.values())
    return {cause: part / total for cause, part in drawn.items()}


def _minutes(row: Row, random: Random) -> float:
    """Minutes to a failure: linear in their logarithm between the table's percentiles, and as steep beyond them."""
    p50, p90, p95 = (math.log(minutes) for minutes in row.percentiles)
    at = random.random()
    if at < 0.5:
        return math.exp(p50 + (at - 0.5) / 0.5 * math.log(20))
    if at < 0.9:
        return math.exp(p50 + (at - 0.5) / 0.4 * (p90 - p50))
    return math.exp(p90 + (at - 0.9) / 0.05 * (p95 - p90))


def _verdict(row: Row, cause: Cause, rows: Sequence[Row], model: Model, random: Random) -> tuple[str, float]:
    """What gsub calls it: right, or nothing it knows, or another reason, the more common the more often."""
    if random.random() < model.accuracy:
        return _OTHER_REASON.get((row.name, cause), row.reason), 0.9
    if random.random() < 0.5:
        return NO_SIGNATURE, 0.5
    return random.choices(rows, weights=[one.jobs for one in rows])[0].reason, 0.8
