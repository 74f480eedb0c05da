"""Jobs drawn from a seed: Poisson arrivals, the papers' run times and sizes, mixes of models.

The short form of the command line names the same as a text (`parse`): ``generate:jobs=1000,per_hour=60,like=philly``.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from slurm_plugins.replay.traces.files import Reading, TraceError
from slurm_plugins.replay.values import Job, Trace
from slurm_plugins.tuner.draws import poisson

__all__ = ["PREFIX", "Drawn", "generate", "generated"]

PREFIX: Final = "generate:"
MOST: Final = 10_000_000

# Of Philly's jobs: GPUs, and how many asked for so many
_PHILLY_SIZES: Final = (
    (1, 76627), (2, 1818), (4, 1870), (8, 1643), (12, 7), (16, 199), (24, 7), (32, 67), (64, 6), (128, 3),
)  # fmt: skip
# Seconds that these shares of Philly's jobs of a size ran for, at most
_SHARES: Final = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_PHILLY_SECONDS: Final = (
    (1, (1, 52, 62, 122, 1117, 2716, 8512, 19137, 135404, 868927, 3256045)),
    (4, (2, 11, 15, 21, 367, 45476, 166199, 233725, 748678, 2416865, 2750674)),
    (8, (1, 125, 216, 1871, 23683, 173288, 352409, 525631, 1066894, 2658784, 4628226)),
    (math.inf, (1, 35, 69, 566, 21137, 104218, 252560, 446126, 1152387, 1710643, 1710643)),
)
_ONE: Final = ((1, 1),)
SIZES: Final[Mapping[str, Sequence[tuple[int, int]]]] = {
    "one": _ONE,
    "philly": _PHILLY_SIZES,
    "synergy": tuple(pair for pair in _PHILLY_SIZES if pair[0] in (1, 2, 4, 8, 16)),
}
"""Sizes: one GPU each, Philly's, and those of Philly that Synergy takes; each with its weight."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn. `split` is the weight of image, language and speech jobs (Synergy's mixes)."""

    jobs: int = 1000
    per_hour: float = 60.0
    seed: int = 0
    like: str = "gavel"
    """Run times: gavel (80 % 60 * 10^U(1.5, 3) s, the others 60 * 10^U(3, 4) s) or philly (its own, by size)."""
    sizes: str = ""
    """Unset: one GPU each with gavel, philly's with philly."""
    split: tuple[int, int, int] = (20, 70, 10)
    limit: float = math.inf
    """Time limits are drawn between the run time and so many times it; inf: none."""


def generate(drawn: Drawn) -> Trace:
    """The jobs; a function of what is drawn alone.

    >>> trace = generate(Drawn(jobs=3, per_hour=3600.0, seed=1, sizes="philly"))
    >>> trace["gpus"].tolist(), trace.words["workload"]
    ([1, 1, 1], ('alexnet', 'gnmt', 'transformer'))

    Raises TraceError for numbers out of range and words that are none of ours.
    """
    _check(drawn)
    # A stream of numbers for each question, so that other sizes do not give other arrivals
    sizes, times, limits = (random.Random(f"{drawn.seed} {what}") for what in ("sizes", "times", "limits"))  # noqa: S311
    table = SIZES[drawn.sizes or ("one" if drawn.like == "gavel" else "philly")]
    count = [gpus for gpus, _ in table]
    weights = list(accumulate(weight for _, weight in table))
    percents = [round(100 * weight / sum(drawn.split)) for weight in drawn.split]
    jobs = []
    for job in poisson(drawn.seed, drawn.jobs, drawn.per_hour, percents):
        gpus = sizes.choices(count, cum_weights=weights)[0]
        work = job.work if drawn.like == "gavel" else _philly_seconds(gpus, times.random())
        limit = work * limits.uniform(1, drawn.limit) if math.isfinite(drawn.limit) else math.inf
        jobs.append(Job(job.job, job.arrival, work, gpus, limit=limit, workload=job.profile.name))
    return Trace.of(jobs, f"{drawn.jobs} jobs like {drawn.like}'s")


def _philly_seconds(gpus: int, share: float) -> float:
    """The run time that this share of Philly's jobs of the size stays below; between those known, by logarithms."""
    seconds = next(table for most, table in _PHILLY_SECONDS if gpus <= most)
    place = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[place - 1], _SHARES[place]
    part = (share - low) / (high - low)
    return math.exp((1 - part) * math.log(seconds[place - 1]) + part * math.log(seconds[place]))


def _check(drawn: Drawn) -> None:
    if not 1 <= drawn.jobs <= MOST:
        raise TraceError(f"jobs={drawn.jobs}", f"draw 1 to {MOST:,} jobs")
    if not 0 < drawn.per_hour < math.inf:
        raise TraceError(f"per_hour={drawn.per_hour:g}", "let more than none arrive in an hour")
    if drawn.like not in ("gavel", "philly"):
        raise TraceError(f"like={drawn.like}", "write gavel or philly")
    if drawn.sizes and drawn.sizes not in SIZES:
        raise TraceError(f"sizes={drawn.sizes}", f"write {', '.join(SIZES)}")
    if len(drawn.split) != 3 or min(drawn.split) < 0 or not sum(drawn.split):
        raise TraceError(f"split={'/'.join(map(str, drawn.split))}", "write three weights, like 20/70/10")
    if not drawn.limit >= 1:
        raise TraceError(f"limit={drawn.limit:g}", "a time limit is once the run time or more")


def _split(text: str) -> tuple[int, int, int]:
    image, language, speech = (int(word) for word in text.split("/"))
    return image, language, speech


_READ: Final[Mapping[str, Callable[[str], object]]] = {
    "jobs": int,
    "per_hour": float,
    "seed": int,
    "like": str,
    "sizes": str,
    "split": _split,
    "limit": float,
}


def generated(text: str) -> Reading:
    """The jobs that a text like ``generate:jobs=1000,per_hour=60,sizes=philly,seed=7`` names. Raises TraceError."""
    values: dict[str, Any] = {}
    for word in filter(None, text.removeprefix(PREFIX).split(",")):
        name, equals, value = word.partition("=")
        if name not in _READ or not equals:
            raise TraceError(f"{word}: nothing that can be drawn", f"write KEY=VALUE of {', '.join(_READ)}")
        try:
            values[name] = _READ[name](value)
        except ValueError as error:
            raise TraceError(f"{word}: a value that cannot be read") from error
    return Reading(generate(Drawn(**values)), "generated")
