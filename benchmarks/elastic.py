"""What Elastic Tiresias's rules are worth: ``python -m benchmarks.elastic [--trace NAME] [--seeds N] [--gate]``.

Tiresias with two queues, alone and with R1 (compaction), R2 (expansion) and both, on Philly's and ITP's jobs as they
came, on two sizes of cluster each: tight, a tenth more GPUs than jobs hold on average, so that busy weeks ask for more
than there is; and roomy, what the busiest week holds. A trace does not tell how a job scales: each gets one of the six
models of `profiler.scaling` by chance, with the batch that fills the GPUs it asked for, and keeps that batch on any
number. It may shrink to half of what it asked for (--least) and grow to four times that (--most). A change of size
costs what stop-resume costs (30 s, or 120 s), or what stop-free scaling does (1 s to grow, none to shrink); the start
of a job that was stopped costs 30 s (120 s) in all. Printed is the mean job completion time against Tiresias's with the
same costs, mean and bounds of the seeds.

The traces are no part of gsub: see `benchmarks.traces` for how to get them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Final

from benchmarks.traces import add_data_option, find_trace
from profiler.scaling import MEASURED, speeds
from slurm_plugins.replay.traces.read import read
from slurm_plugins.replay.values import Trace
from slurm_plugins.tuner.elastic import TIRESIAS, Rules, Wish
from slurm_plugins.tuner.queues import STOP_FREE, STOP_RESUME, TWO_QUEUES, Costs, Job, Lived, Queues, live

CLUSTERS: Final = {
    "philly": ("philly_jobs.csv.gz", (416, 720)),
    "itp01": ("itp_cluster01.csv.gz", (64,)),
    "itp02": ("itp_cluster02.csv.gz", (96, 152)),
    "itp03": ("itp_cluster03.csv.gz", (160, 248)),
    "itp05": ("itp_cluster05.csv.gz", (16,)),
}
"""Trace -> its file, and GPUs, tight and roomy, where both hold its largest job."""

RULES: Final = {
    "R1": Rules(expand=False),
    "R2": Rules(compact=False),
    "R1 and R2": Rules(),
}
COSTS: Final[dict[str, Costs]] = {
    "stop-resume 30 s": STOP_RESUME,
    "stop-resume 120 s": Costs(120.0, 120.0, 120.0),
    "stop-free": STOP_FREE,
}


@dataclass(frozen=True, slots=True)
class Supposed:
    """How far a job may be scaled, in times of what it asked for, and whether jobs of one GPU may be too."""

    least: float = 0.5
    most: float = 4.0


SUPPOSED: Final = Supposed()


@cache
def wish(model: str, asked: int, supposed: Supposed, gpus: int) -> Wish:
    """A job of that model that asked for so many GPUs, of a cluster of `gpus`."""
    least = max(int(asked * supposed.least), 1)
    most = min(max(int(asked * supposed.most), asked), gpus)
    return Wish(asked, least, most, speeds(model, asked, most))


def cut(trace: Trace, days: str) -> Trace:
    """The jobs that came from day to day, ``42:56``."""
    first, last = (float(day) * 86_400 + float(trace["arrival"][0]) for day in days.split(":"))
    kept = (trace["arrival"] >= first) & (trace["arrival"] < last)
    return replace(trace, columns={name: column[kept] for name, column in trace.columns.items()})


def jobs_of(trace: Trace, gpus: int, seed: int, supposed: Supposed = SUPPOSED) -> list[Job]:
    """The trace's jobs, each with a model drawn for it; those that ask for more than there is are left out."""
    rng = Random(seed)
    models = list(MEASURED)
    columns = zip(trace["arrival"].tolist(), trace["work"].tolist(), trace["gpus"].tolist(), strict=True)
    return [
        Job(row, arrival, work, wish(rng.choice(models), asked, supposed, gpus))
        for row, (arrival, work, asked) in enumerate(columns)
        if work > 0 and 1 <= asked <= gpus
    ]


def mean(jobs: Sequence[Job], lived: Lived) -> float:
    """Mean completion time, hours."""
    return sum(lived.completion(jobs)) / len(jobs) / 3600


@dataclass(slots=True)
class Found:
    """Of one row: mean completion times of Tiresias and of the rules (h), a seed each; and of the last seed more."""

    plain: list[float]
    theirs: list[float]
    changes: float = 0.0
    lost: float = 0.0
    took: float = 0.0

    @property
    def less(self) -> list[float]:
        """Per cent by which it is shorter."""
        return [100 * (1 - one / base) for one, base in zip(self.theirs, self.plain, strict=True)]


def compared(
    trace: Trace,
    gpus: int,
    seeds: Sequence[int],
    supposed: Supposed = SUPPOSED,
    queues: Queues = TWO_QUEUES,
    rules_of: Sequence[str] = tuple(RULES),
    costs_of: Sequence[str] = tuple(COSTS),
) -> dict[tuple[str, str], Found]:
    """(rules, cost) -> what they gave."""
    found: dict[tuple[str, str], Found] = {}
    for seed in seeds:
        jobs = jobs_of(trace, gpus, seed, supposed)
        plain: dict[float, float] = {}
        for cost, costs in ((name, COSTS[name]) for name in costs_of):
            if costs.resume not in plain:
                plain[costs.resume] = mean(jobs, live(jobs, gpus, TIRESIAS, costs, queues=queues))
            for rule, rules in ((name, RULES[name]) for name in rules_of):
                begun = time.perf_counter()
                lived = live(jobs, gpus, rules, costs, queues=queues)
                one = found.setdefault((rule, cost), Found([], []))
                one.took = time.perf_counter() - begun
                one.plain.append(plain[costs.resume])
                one.theirs.append(mean(jobs, lived))
                one.changes = lived.changes / len(jobs)
                one.lost = lived.lost / lived.gpu_seconds
    return found


def report(name: str, trace: Trace, gpus: int, found: dict[tuple[str, str], Found]) -> None:
    """Rows of the table."""
    span = float(trace["arrival"][-1] - trace["arrival"][0])
    load = float((trace["work"] * trace["gpus"]).sum()) / span / gpus
    for (rule, cost), one in found.items():
        less = one.less
        spread = f" ({min(less):.1f} to {max(less):.1f})" if len(less) > 1 else ""
        print(
            f"| {name}, {len(trace):,} jobs | {gpus}, load {load:.2f} | {sum(one.plain) / len(one.plain):.2f} "
            f"| {rule} | {cost} | {sum(less) / len(less):.1f} %{spread} | {one.changes:.1f} | {100 * one.lost:.1f} % "
            f"| {one.took:.0f} s |",
            flush=True,
        )


def main() -> int:
    """Replay, print, and with --gate judge."""
    parser = argparse.ArgumentParser(description="What Elastic Tiresias's rules are worth.")
    add_data_option(parser)
    parser.add_argument("--trace", choices=CLUSTERS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gpus", type=int, action="append", help="other sizes of the cluster")
    parser.add_argument("--days", metavar="A:B", help="only jobs that came from day A to day B of the trace")
    parser.add_argument("--rules", choices=RULES, action="append")
    parser.add_argument("--costs", choices=COSTS, action="append")
    parser.add_argument("--least", type=float, default=SUPPOSED.least)
    parser.add_argument("--most", type=float, default=SUPPOSED.most)
    parser.add_argument("--last-run", action="store_true", help="a job rises by its last run alone: slow")
    parser.add_argument(
        "--gate", action="store_true", help="one trace, one seed; fail unless both rules gain"
    )
    options = parser.parse_args()
    names = ["itp02"] if options.gate else options.trace or list(CLUSTERS)
    paths = {name: find_trace(CLUSTERS[name][0], options.data) for name in names}
    supposed, queues = Supposed(options.least, options.most), Queues(executed=not options.last_run)
    print(
        "| trace | GPUs | Tiresias's mean JCT, h | rules | a change costs | mean JCT less | changes a job "
        "| GPU time lost | took |",
        "|---|---|---|---|---|---|---|---|---|",
        sep="\n",
    )
    for name, path in paths.items():
        trace = read(path).trace
        if options.days:
            trace = cut(trace, options.days)
        for gpus in CLUSTERS[name][1][:1] if options.gate else options.gpus or CLUSTERS[name][1]:
            found = compared(
                trace,
                gpus,
                range(1 if options.gate else options.seeds),
                supposed,
                queues,
                options.rules or tuple(RULES),
                options.costs or tuple(COSTS),
            )
            report(name, trace, gpus, found)
            if (
                options.gate
                and min(one.less[0] for (rule, _), one in found.items() if rule == "R1 and R2") < 10
            ):
                print("elastic: R1 and R2 gain less than 10 %", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
