"""Which jobs of a trace fail, of what, after how long, and why: faults by Philly's Table 7 and a seed.

No trace that is published tells this of its jobs, so it is drawn. How many fail goes by their size (Jeon et al.,
ATC'19, Fig. 9), of what and after how long by Table 7 (`profiler.early.TABLE7`): run times are linear in their
logarithm between its percentiles, as there, and the last twentieth goes on to where the reason's GPU time is the
table's. A failure of so many seconds strikes a job that runs for that long at least, each such job of its size alike.

What the table does not have is whether another attempt would have succeeded. Each fault has a hidden cause that says
it, one of five, by shares that `CAUSES` supposes and `Supposed` lets be supposed otherwise:

- always: it ends the same way, after the same time, wherever it runs;
- chance: each other attempt succeeds in four of five cases, and otherwise fails after a time of its own;
- outage: it ends the same way until something that others mend is mended, after ten minutes in the mean;
- node: one node is broken; another attempt without it succeeds, and every second one that may have it gets it;
- memory: it needs so many times what it asked for, from a little more to four times.

A fault is drawn with all the luck that its job may come to need, whatever policy then meets it: two policies with one
seed differ by what they do and by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from profiler.early import TABLE7, Reason
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, REASONS
from slurm_plugins.replay.values import Floats, Ints, Trace

__all__ = [
    "ALIKE",
    "CAUSES",
    "KINDS",
    "QUEUE_S",
    "SAME",
    "TRIES",
    "VERDICTS",
    "Cause",
    "Faults",
    "Supposed",
    "curve",
    "named",
    "run_time",
    "shares",
    "size",
    "strike",
]

Cause: TypeAlias = Literal["always", "chance", "outage", "node", "memory"]
KINDS: Final[tuple[Cause, ...]] = ("always", "chance", "outage", "node", "memory")

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
VERDICTS: Final = tuple(REASONS)
"""The taxonomy's reasons, by code."""
TRIES: Final = 40
"""Further attempts for which a fault has luck; nobody makes more."""
QUEUE_S: Final = 120.0
"""From a requeue to its start, where an outage is waited out: the faults are drawn before anything has queued."""
ALIKE: Final = 0.8
"""How often another attempt succeeds after a failure by chance."""
SAME: Final = 0.5
"""How often another attempt comes to the node that is broken, if it may."""

_SIZES: Final = (1, 4, 8)
"""The largest jobs of Fig. 9's classes; what is larger is the last."""
_UNSUCCESSFUL: Final = (0.13, 0.37, 0.42, 0.47)
"""Fig. 9, by class: the share of jobs that end unsuccessful, read off the figure."""
_UNSUCCESSFUL_JOBS: Final = 16_568
"""Table 6; Table 7 counts a few more that failed at all."""
_DEMAND: Final = (1.0, 3.0, 10.0)
"""GPUs of a trial of Table 7's three classes in the mean: supposed, where it has only "2-4" and "more than 4"."""
_FIRST: Final = 1.0  # seconds: nothing fails sooner, as in profiler.early
_LONGEST: Final = 75 * 86_400.0  # the whole of Philly's record


@dataclass(frozen=True, slots=True)
class Supposed:
    """What no record tells.

    `accuracy`: how often a verdict names the right reason. `recoverable` multiplies the share of what is not "always".
    `spread` is how far a seed's shares stray from the supposed ones (a Dirichlet's weight). `rate` multiplies how
    many jobs fail. `alone`: of the failures that a smoke run can see by their reason, the part that one GPU shows, and
    not only many. `outage_s`: the mean of an outage.
    """

    accuracy: float = 0.88
    recoverable: float = 1.0
    spread: float = 20.0
    rate: float = 1.0
    alone: float = 0.85
    outage_s: float = 600.0

    def __post_init__(self) -> None:
        shares_ = (self.accuracy, self.alone)
        if not all(0 <= one <= 1 for one in shares_):
            raise ValueError(f"no share: {shares_}")
        if not all(0 <= one < math.inf for one in (self.recoverable, self.rate)):
            raise ValueError(f"no factor: recoverable {self.recoverable}, rate {self.rate}")
        if not (0 < self.spread < math.inf and 0 < self.outage_s < math.inf):
            raise ValueError(f"spread {self.spread}, outage {self.outage_s} s: both are above 0")


@dataclass(frozen=True)
class Faults:
    """The jobs that fail, an entry each by row of the trace, and all that luck holds for them."""

    seed: int
    jobs: int
    """Of the trace that they were drawn for."""
    row: Ints
    """Of the trace, ascending."""
    reason: Ints
    """Row of `TABLE7`."""
    cause: Ints
    """Of `KINDS`."""
    verdict: Ints
    """Of `VERDICTS`: what gsub calls it, right or wrong."""
    confidence: Floats
    seconds: Floats
    """Run time of the first attempt; of all of them, but for a failure by chance."""
    needs: Floats
    """Memory that it needs over what it asked for."""
    most: Floats
    """Memory that a job of its size can get, over what it asked for."""
    alone: NDArray[np.bool_]
    """One GPU would show it."""
    outage_s: Floats
    """Seconds from the first failure to the end of the outage."""
    patience: Ints
    """Further attempts that Philly would make, if none succeeds."""
    luck: NDArray[np.float32]
    """[fault, further attempt, what for]: it ends well; it comes to the same node; its own run time; its delay."""
    cut: int
    """Failures that Table 7 has later than any job of that size is long: they come at the end of a long one."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def recoverable(self) -> NDArray[np.bool_]:
        """Whether any other attempt could succeed."""
        always, memory = KINDS.index("always"), KINDS.index("memory")
        found: NDArray[np.bool_] = (self.cause != always) & (
            (self.cause != memory) | (self.needs <= self.most)
        )
        return found


def strike(trace: Trace, supposed: Supposed = Supposed(), seed: int = 0) -> Faults:
    """The faults of a trace's jobs: a function of the three alone. Jobs without GPUs or without a run have none.

    Raises ValueError for a negative seed.
    """
    streams = [np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(4)]
    which, what, how, luck = streams
    work, gpus = trace["work"], trace["gpus"]
    sizes = size(gpus)
    rate = np.array(_UNSUCCESSFUL) * sum(row.jobs for row in TABLE7) / _UNSUCCESSFUL_JOBS * supposed.rate
    struck = (which.random(len(trace)) < np.minimum(rate, 1.0)[sizes]) & (gpus > 0) & (work > 0)
    rows, reasons, times, cut = [], [], [], 0
    for of in range(len(_UNSUCCESSFUL)):
        able = np.flatnonzero((sizes == of) & (gpus > 0) & (work > 0))
        count = int(np.count_nonzero(struck & (sizes == of)))
        reason = what.choice(len(TABLE7), count, p=_reasons(min(of, 2)))
        seconds = run_time(reason, what.random(count))
        at = able[_matched(seconds, work[able], what.random(count))]
        cut += int(np.count_nonzero(seconds > work[at]))
        rows.append(at)
        reasons.append(reason)
        times.append(np.minimum(seconds, work[at]))
    row = np.concatenate(rows)
    order = np.argsort(row)
    row, reason, seconds = row[order], np.concatenate(reasons)[order], np.concatenate(times)[order]
    cause = _picked(_strayed(shares(supposed), supposed.spread, how)[reason], how.random(len(row)))
    verdict, confidence = _verdicts(reason, cause, supposed, how)
    memory = cause == KINDS.index("memory")
    return Faults(
        seed=seed,
        jobs=len(trace),
        row=row,
        reason=reason,
        cause=cause,
        verdict=verdict,
        confidence=confidence,
        seconds=seconds,
        needs=np.where(memory, 1.05 * 4 ** how.random(len(row)), 1.0),
        most=np.maximum(1.0, 8 / gpus[row]),
        alone=how.random(len(row)) < supposed.alone,
        outage_s=how.exponential(supposed.outage_s, len(row)),
        patience=_patience(supposed, reason, how.random(len(row))),
        luck=luck.random((len(row), TRIES, 4), np.float32),
        cut=cut,
    )


def size(gpus: Ints) -> Ints:
    """The class of Fig. 9 that a job is of.

    >>> size(np.array([1, 2, 4, 5, 8, 9])).tolist()
    [0, 1, 1, 2, 2, 3]
    """
    return np.searchsorted(_SIZES, gpus).astype(np.int64)


# --- Table 7 ----------------------------------------------------------------------------------------------------------


def run_time(reason: Ints, at: Floats) -> Floats:
    """Seconds after which a share `at` of a reason's trials has failed: the inverse of `profiler.early.Reason.failed`.

    >>> [round(one) for one in run_time(np.array([7, 7, 7]), np.array([0.5, 0.9, 0.95])) / 0.6]  # 0.58, 5.02, 12 min
    [58, 502, 1200]
    """
    found = np.empty(np.broadcast(reason, at).shape)
    wide = np.broadcast_to(reason, found.shape)
    for number in range(len(TABLE7)):
        mask = wide == number
        levels, logs = curve(TABLE7[number])
        found[mask] = np.exp(np.interp(np.broadcast_to(at, found.shape)[mask], levels, logs))
    return found


@cache
def curve(row: Reason) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shares of a reason's trials, and the logarithms of the seconds after which so many have failed."""
    times = (min(_FIRST, row.p50), row.p50, row.p90, row.p95, _last(row))
    return (0.0, 0.5, 0.9, 0.95, 1.0), tuple(math.log(time) for time in times)


def _last(row: Reason) -> float:
    """The longest run time of a reason: so that its trials held the GPU time that the table says."""
    demand = sum(count * of for count, of in zip(row.gpus, _DEMAND, strict=True)) / row.trials
    times = (min(_FIRST, row.p50), row.p50, row.p90, row.p95)
    parts = (0.5, 0.4, 0.05)
    early = sum(part * _mean(*ends) for part, ends in zip(parts, pairwise(times), strict=True))
    wanted = (row.gpu_seconds / row.trials / demand - early) / 0.05
    low, high = row.p95, _LONGEST
    if wanted <= low:
        return low
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _mean(row.p95, middle) < wanted else (low, middle)
    return high


def _mean(first: float, last: float) -> float:
    """Of what is spread evenly in its logarithm between two ends."""
    return first if last <= first else (last - first) / math.log(last / first)


@cache
def _reasons(of: int) -> NDArray[np.float64]:
    """How often a job of one of the table's three classes fails of each reason, if its jobs divide as its trials do."""
    counts = np.array([row.jobs * row.gpus[of] / row.trials for row in TABLE7])
    found: NDArray[np.float64] = counts / counts.sum()
    return found


def _matched(seconds: Floats, work: Floats, chance: Floats) -> Ints:
    """For each failure a job of its own that runs for as long at least; where there is none left, the longest left."""
    order = np.argsort(-seconds, kind="stable")
    longest = np.argsort(-work, kind="stable").tolist()
    able = np.searchsorted(-work[longest], -seconds[order], side="right")
    found = np.empty(len(seconds), np.int64)
    pool: list[int] = []
    known = 0
    for at, count, draw in zip(order.tolist(), able.tolist(), chance.tolist(), strict=True):
        upto = max(count, known if pool else known + 1)
        pool += longest[known:upto]
        known = upto
        index = int(draw * len(pool))
        pool[index], pool[-1] = pool[-1], pool[index]
        found[at] = pool.pop()
    return found


# --- what is supposed -------------------------------------------------------------------------------------------------


def shares(supposed: Supposed) -> NDArray[np.float64]:
    """[reason of Table 7, kind]: the supposed shares of the causes, a reason's sum being 1."""
    table = np.array([[CAUSES[row.name].get(kind, 0.0) for kind in KINDS] for row in TABLE7])
    other = 1 - table[:, :1]
    wanted = np.minimum(1.0, supposed.recoverable * other)
    moved: NDArray[np.float64] = table * np.divide(wanted, other, out=np.zeros_like(other), where=other > 0)
    moved[:, 0] = 1 - wanted[:, 0]
    return moved


def _strayed(table: NDArray[np.float64], spread: float, random: np.random.Generator) -> NDArray[np.float64]:
    drawn = np.where(table > 0, random.standard_gamma(np.maximum(table * spread, 1e-3)), 0.0)
    drawn = np.where(drawn.sum(axis=1, keepdims=True) > 0, drawn, table)  # all may be as good as 0
    found: NDArray[np.float64] = drawn / drawn.sum(axis=1, keepdims=True)
    return found


def _picked(table: NDArray[np.float64], draw: Floats) -> Ints:
    """A kind for each row of shares."""
    found: Ints = np.minimum((draw[:, None] >= np.cumsum(table, axis=1)).sum(axis=1), len(KINDS) - 1)
    return found


def _verdicts(
    reason: Ints, cause: Ints, supposed: Supposed, random: np.random.Generator
) -> tuple[Ints, Floats]:
    """What gsub calls each: right, or nothing it knows, or another reason, the more common the more often."""
    right = np.array([[VERDICTS.index(named(row, kind)) for kind in KINDS] for row in TABLE7])
    jobs = np.array([row.jobs for row in TABLE7], float)
    other = right[random.choice(len(TABLE7), len(reason), p=jobs / jobs.sum()), 0]
    lucky, silent = random.random(len(reason)) < supposed.accuracy, random.random(len(reason)) < 0.5
    wrong = np.where(silent, VERDICTS.index(NO_SIGNATURE), other)
    return (
        np.where(lucky, right[reason, cause], wrong).astype(np.int64),
        np.where(lucky, 0.9, np.where(silent, 0.5, 0.8)),
    )


def named(row: Reason, kind: Cause) -> str:
    """The taxonomy's name for a reason of the table."""
    plain = next((one.name for one in REASONS.values() if one.philly == row.name), NO_SIGNATURE)
    return _OTHER_REASON.get((row.name, kind), plain)


def _patience(supposed: Supposed, reason: Ints, draw: Floats) -> Ints:
    """Further attempts that Philly makes: geometric, so that a reason's trials a job are the table's in the mean.

    The paper says "a fixed number of times" and not which; by the table it was not one for all.
    """
    on = _goes_on(supposed)[reason]
    with np.errstate(divide="ignore"):
        tries = np.where(on > 0, np.log(np.maximum(draw, 1e-300)) / np.log(on), 0.0)
    found: Ints = np.minimum(tries, TRIES).astype(np.int64)
    return found


@cache
def _goes_on(supposed: Supposed) -> NDArray[np.float64]:
    """By reason how likely a job that failed is tried again."""
    grid = (np.arange(200) + 0.5) / 200
    causes = shares(supposed)
    first = np.array(
        [1.0, 1 - ALIKE, math.exp(-QUEUE_S / supposed.outage_s), SAME, 1.0]
    )  # the second one fails
    found = np.zeros(len(TABLE7))
    for number, row in enumerate(TABLE7):
        times = run_time(np.full(len(grid), number), grid)
        lasting = np.exp(-(QUEUE_S + times) / supposed.outage_s)
        later = np.array([np.full(len(grid), one) for one in (1.0, 1 - ALIKE, 0.0, SAME, 1.0)])
        later[KINDS.index("outage")] = lasting
        low, high = 0.0, 0.95
        for _ in range(40):
            middle = (low + high) / 2
            trials = 1 + middle * float(
                (causes[number] * first * (1 / (1 - middle * later)).mean(axis=1)).sum()
            )
            low, high = (middle, high) if trials < row.trials / row.jobs else (low, middle)
        found[number] = low if row.trials > row.jobs else 0.0
    return found
