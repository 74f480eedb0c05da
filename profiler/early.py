"""How long a smoke run takes: the shortest time by which most early failures have shown themselves. Pure.

Before a site has a history of its own there is Philly's (Jeon et al., ATC'19, Table 7): for each reason how many
trials failed of it, and the 50th, 90th and 95th percentile of their run times. Between percentiles the share of those
that have failed is taken as linear in the logarithm of the time, from none after a second on; what lies beyond the
95th counts as late. Summed over the reasons these are the curves that `philly` gives.

A site's own failures are mixed with that: the share of failures that come in each stretch of time has a Dirichlet
prior with Philly's shares and the weight of `PRIOR_WEIGHT` failures, so a site with a few hundred of its own goes by
these.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from profiler.wording import percent, span

__all__ = [
    "MOST",
    "PRIOR_WEIGHT",
    "SEEN",
    "TABLE7",
    "History",
    "Reason",
    "merged",
    "philly",
    "price",
    "smoke_time",
]

PRIOR_WEIGHT: Final = 50.0
"""Philly's word counts as that many failures."""
MOST: Final = 0.7
"""Of the failures of the first hour, the share that a smoke run waits for."""
SEEN: Final = (
    "bad_arguments", "corrupt_input", "environment_error", "import_error", "missing_input", "permission_error",
    "semantic_error", "syntax_error",
)  # fmt: skip
"""Reasons of the taxonomy that a smoke run can see: they do not depend on how many GPUs there are."""
_EARLY: Final = 3600.0
_FIRST: Final = 1.0  # seconds: nothing fails sooner
_STEP: Final = 30.0
_SHORTEST, _LONGEST = 60.0, 600.0
_LEAST_JOBS: Final = 20  # fewer say nothing about a share


@dataclass(frozen=True, slots=True)
class Reason:
    """A row of Table 7: trials that failed, those of them with several GPUs, and percentiles of their run times (s).

    And how many jobs had it, the trials with more than four GPUs, and the GPU-seconds that all trials held.
    """

    name: str
    trials: int
    several: int
    p50: float
    p90: float
    p95: float
    jobs: int = 0
    many: int = 0
    gpu_seconds: float = 0.0

    @property
    def gpus(self) -> tuple[int, int, int]:
        """Trials with one GPU, with two to four, and with more."""
        return self.trials - self.several, self.several - self.many, self.many

    def failed(self, seconds: float) -> float:
        """The share of the trials that have failed after `seconds`.

        >>> row = Reason("x", 10, 5, 100.0, 1000.0, 2000.0)
        >>> row.failed(1), row.failed(10), row.failed(100), row.failed(1000), row.failed(9999)
        (0.0, 0.25, 0.5, 0.9, 0.95)
        """
        points = ((_FIRST, 0.0), (self.p50, 0.5), (self.p90, 0.9), (self.p95, 0.95))
        if seconds >= self.p95:
            return 0.95
        for (before, low), (after, high) in pairwise(points):
            if seconds < after:
                return low + (high - low) * max(math.log(seconds / before), 0.0) / math.log(after / before)
        return 0.95


def _row(
    name: str,
    jobs: int,
    gpus: tuple[int, int, int],
    minutes: tuple[float, float, float],
    gpu_minutes: float,
) -> Reason:
    p50, p90, p95 = (one * 60 for one in minutes)
    return Reason(name, sum(gpus), gpus[1] + gpus[2], p50, p90, p95, jobs, gpus[2], gpu_minutes * 60)


# Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC'19, Table 7: jobs,
# trials with 1, 2 to 4 and more GPUs, percentiles in minutes, GPU-minutes of all trials.
TABLE7: Final = (
    _row("CPU out of memory", 2803, (11465, 235, 376), (13.45, 17.73, 33.97), 3982320),
    _row("Incorrect inputs", 4936, (5844, 2638, 1208), (1.87, 404.83, 2095.73), 11979474),
    _row("Semantic error", 2049, (1603, 494, 846), (2.72, 376.00, 1436.88), 8442835),
    _row("Core dump", 1784, (1936, 496, 480), (0.85, 72.75, 431.65), 1493632),
    _row("Invalid mem access", 1235, (712, 774, 1116), (1.03, 403.50, 1357.38), 2352994),
    _row("Model ckpt error", 948, (743, 384, 868), (181.67, 3728.93, 8196.02), 8080374),
    _row("CUDA failure", 571, (133, 1153, 198), (1.32, 19.87, 82.17), 357119),
    _row("Syntax error", 883, (780, 184, 168), (0.58, 5.02, 12.00), 130094),
    _row("Traceback from crash", 271, (356, 277, 144), (1.02, 894.33, 1394.07), 863130),
    _row("MPI error", 166, (456, 54, 124), (1.62, 3015.27, 5143.98), 613059),
    _row("GPU out of memory", 261, (237, 70, 180), (18.53, 353.62, 2740.28), 1040249),
    _row("MPI runtime failure", 420, (240, 141, 97), (1389.48, 13778.60, 18090.88), 7593398),
    _row("Permission error", 151, (56, 202, 41), (1.00, 8.15, 15.85), 15185),
    _row("Import error", 148, (108, 30, 10), (0.67, 4.58, 10.73), 10803),
    _row("Job preempted", 95, (25, 95, 27), (559.08, 2682.85, 5892.23), 2338772),
    _row("CUDA init failed", 69, (16, 66, 59), (1.08, 2.18, 4.63), 64512),
    _row("Model diverged", 30, (78, 5, 1), (1.48, 44.37, 76.53), 2562),
    _row("CUDA ver. mismatch", 49, (1, 1, 47), (0.83, 1.65, 1.67), 421),
    _row("GPU ECC error", 10, (1, 5, 4), (26.82, 671.92, 2035.02), 23575),
    _row("Output node error", 3, (3, 0, 0), (0.85, 0.95, 0.95), 2),
    _row("Cannot load libs", 1, (1, 0, 0), (0.12, 0.12, 0.12), 0.12),
    _row("No signature", 698, (1235, 294, 155), (1.87, 28.00, 95.17), 102138),
)
"""All reasons; of a smoke run's point of view the run times of all failures, not only of those that it could see."""


def philly(seconds: float, *, several: bool = False) -> float:
    """The share of Philly's failing trials that have failed after `seconds`; `several`: of those with several GPUs.

    >>> [round(100 * philly(60 * minutes)) for minutes in (0.5, 1, 2, 5, 10, 15, 20, 30, 60)]
    [33, 40, 46, 54, 59, 67, 76, 79, 82]
    """
    weights = [row.several if several else row.trials for row in TABLE7]
    share = sum(weight * row.failed(seconds) for weight, row in zip(weights, TABLE7, strict=True))
    return share / sum(weights)


@dataclass(frozen=True, slots=True)
class History:
    """What a site has seen of jobs of a kind: how many ran, and after how many seconds each that failed did so.

    Only failures that a smoke run can see belong here (an error of the user's that does not depend on how many GPUs
    there are), and only jobs that failed, or ran for longer than a smoke run may take.
    """

    jobs: int = 0
    failed: tuple[float, ...] = ()
    """Seconds, ascending."""

    @classmethod
    def of(cls, jobs: int, failed: Iterable[float]) -> History:
        """From run times in any order. Raises ValueError for more failures than jobs, or a time that is none."""
        times = tuple(sorted(failed))
        if len(times) > jobs or not all(0 <= time < math.inf for time in times):
            raise ValueError(f"no history: {len(times)} failures of {jobs} jobs")
        return cls(jobs, times)

    def by(self, seconds: float) -> int:
        """How many have failed after `seconds`."""
        return bisect_right(self.failed, seconds)

    def share(self, seconds: float, *, several: bool = True, weight: float = PRIOR_WEIGHT) -> float:
        """The expected share of failures that have shown themselves after `seconds`: the mean of the Dirichlet
        posterior, whose prior is Philly's with the weight of `weight` failures.

        >>> round(History().share(120.0), 2), round(philly(120.0, several=True), 2)
        (0.49, 0.49)
        >>> round(History(200, (10.0,) * 150).share(30.0), 2)
        0.84
        """
        prior = weight * philly(max(seconds, _FIRST), several=several)
        return (prior + self.by(seconds)) / (weight + len(self.failed))


def smoke_time(
    history: History | None = None, *, several: bool = True, most: float = MOST, start_up: float = 0.0
) -> float:
    """How long a smoke run takes, in seconds: the shortest time, in half minutes, after which at least `most` of the
    failures of the first hour have shown themselves; between one minute and ten.

    `start_up` is what this workload needs before its first step, where that is known: the smoke run is that much
    longer.
    Raises ValueError unless 0 < most <= 1.

    >>> smoke_time(), smoke_time(several=False)
    (210.0, 510.0)
    >>> smoke_time(History(100, (200.0,) * 90)), smoke_time(History(300, (5.0,) * 200))
    (210.0, 60.0)
    """
    if not 0 < most <= 1:
        raise ValueError(f"no share: {most!r}")
    known = history or History()
    enough = most * known.share(_EARLY, several=several)
    time = _SHORTEST
    while time < _LONGEST and known.share(time, several=several) < enough:
        time += _STEP
    return min(math.ceil((time + max(start_up, 0.0)) / _STEP) * _STEP, _LONGEST)


def price(
    seconds: float, history: History | None = None, *, gpus: int = 1, nodes: int = 1, several: bool = True
) -> str:
    """The line that says what a smoke run costs, and why it is worth that.

    >>> price(240.0, History(212, (30.0,) * 66 + (9000.0,) * 5))
    '1 GPU x 4 min; 31 % of 212 jobs like this failed in their first 4 min'
    >>> price(120.0)
    '1 GPU x 2 min; of the jobs that fail, 49 % do so in their first 2 min (seen on Philly; none of our own yet)'
    """
    took = span(seconds)
    count = gpus * nodes
    cost = f"{count} GPU{'s' if count > 1 else ''} x {took}"
    if history is not None and history.jobs >= _LEAST_JOBS:
        share = percent(100 * history.by(seconds) / history.jobs)
        return f"{cost}; {share} of {history.jobs} jobs like this failed in their first {took}"
    share = percent(100 * philly(seconds, several=several))
    return (
        f"{cost}; of the jobs that fail, {share} do so in their first {took} "
        "(seen on Philly; none of our own yet)"
    )


def merged(histories: Sequence[History]) -> History:
    """Several histories as one.

    >>> merged([History(3, (5.0,)), History(2, (1.0,))])
    History(jobs=5, failed=(1.0, 5.0))
    """
    return History.of(sum(one.jobs for one in histories), (time for one in histories for time in one.failed))
