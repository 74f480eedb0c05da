"""What retries and smoke runs save on traces that fail as Philly's did: ``python -m benchmarks.replay_failures``.

Philly's 82,247 jobs and the four clusters of ITP, with faults drawn by Table 7 (`slurm_plugins.replay.failing`), under
pairs of a retry policy and a smoke policy that meet the same faults:

    pairs        GPU-hours that failed runs and smoke runs hold, beside no retries and beside Philly's, and jobs rescued
    engine       the same pairs replayed on a cluster: how long the jobs wait that nothing is wrong with
    reasons      the GPU-hours of failed runs, and the jobs rescued, by the reasons of Table 7
    sizes        what a gate saves and costs by the jobs' size
    supposed     the first table's main figures, with other suppositions
    checked      what was drawn, beside what the paper says

Every figure is a mean of --seeds, with a 95 % confidence interval (Student's t); differences are seed by seed. The
traces are no part of gsub: see `benchmarks.traces` for how to get them.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.traces import add_data_option, find_trace
from profiler.early import TABLE7
from site_configs.site_model import Resubmit
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.failing import Faults, Supposed, size, strike
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.remedies import Bill, Lived, lived
from slurm_plugins.replay.retrying import RETRIES, Retry, Tried, tried
from slurm_plugins.replay.smoking import SMOKES, Smoke, learned
from slurm_plugins.replay.traces.read import read
from slurm_plugins.replay.values import Cluster, Floats, Trace

FILES: Final = ("philly_jobs", "itp_cluster01", "itp_cluster02", "itp_cluster03", "itp_cluster05")
NONE, RACE, GATE = SMOKES["none"], SMOKES["race"], SMOKES["gate"]
BIG: Final = Smoke("gate above 8 GPUs", "gate", above=8)
ALL: Final = Smoke("gate, 1 GPU too", "gate", above=0)
NAMES: Final = {
    "none": "none",
    "philly": "Philly's",
    "three": "everything 3 times",
    "gsub": "gsub's table",
    "knowing": "who knows the cause",
    "once": "gsub's table, late failures once",
}
Pairs = Sequence[tuple[Retry, Smoke]]
ONCE: Final = Retry(
    "once",
    "table",
    policy=Resubmit(actions=(("checkpoint_error", "once"), ("mpi_runtime_failure", "once"))),
)
"""gsub's table as a site may have it whose late failures come again."""
PAIRS: Final[Pairs] = (
    *((retry, NONE) for retry in RETRIES.values()),
    *((RETRIES[retry], smoke) for retry in ("none", "philly", "gsub") for smoke in (RACE, GATE)),
    (RETRIES["gsub"], BIG),
    (RETRIES["gsub"], ALL),
)
ORDER: Final = "fifo+skip+even"
BUSY: Final = 0.5
"""Of the cluster's GPU time, the trace's work: with more the waits of these traces grow over days (they are bursty, and
their own clusters were larger by what is not in them)."""
HOUR: Final = 3600.0

Key = tuple[str, str]
Life = dict[Key, Bill]


def key(retry: Retry, smoke: Smoke) -> Key:
    """How a pair is called in the tables."""
    return NAMES[retry.name], smoke.name


FIRST, PHILLY, OURS = (key(RETRIES[name], NONE) for name in ("none", "philly", "gsub"))


@dataclass(frozen=True)
class Seed:
    """One drawing of faults, and all that is worked out from it alone."""

    faults: Faults
    runs: Mapping[str, Tried]
    lessons: Floats

    @classmethod
    def of(cls, trace: Trace, supposed: Supposed, seed: int, pairs: Pairs) -> Seed:
        """The faults of a trace, and what each retry policy makes of them."""
        faults = strike(trace, supposed, seed)
        runs = {retry.name: tried(trace, faults, retry) for retry in {one for one, _ in pairs}}
        return cls(faults, runs, learned(trace, faults))

    def under(self, trace: Trace, retry: Retry, smoke: Smoke, waits: Floats) -> Lived:
        """A pair of policies."""
        return lived(
            trace, self.faults, retry, smoke, waits=waits, runs=self.runs[retry.name], lessons=self.lessons
        )


def lives(trace: Trace, supposed: Supposed, seeds: int, waits: Floats, pairs: Pairs = PAIRS) -> list[Life]:
    """The bills of all pairs, seed by seed."""
    found = []
    for number in range(seeds):
        seed = Seed.of(trace, supposed, number, pairs)
        found.append({key(*pair): seed.under(trace, *pair, waits).bill for pair in pairs})
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


def interval(values: Iterable[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % confidence interval.

    >>> [round(one, 2) for one in interval([1.0, 2.0, 3.0])]
    [2.0, 2.48]
    """
    found = np.array(list(values), float)
    if len(found) < 2:
        return float(found.mean()), math.nan
    from scipy.stats import t as student  # takes seconds: tests collect this module

    return float(found.mean()), float(
        student.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found))
    )


def shown(values: Iterable[float], form: str = "{:,.0f}") -> str:
    """``12 ± 1``."""
    mean, half = interval(values)
    return f"{form.format(mean)} ± {form.format(half)}"


def of_pairs(found: Sequence[Life]) -> list[str]:
    """The table of GPU-hours, a line a pair."""
    lines = [
        "| retries | smoke | failed runs | GPU-hours they held | GPU-hours of smoke runs | saved beside no retries "
        "| saved beside Philly's | jobs rescued | of those that can be | their GPU-hours of work | held by smoke |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in found[0]:
        bills = [life[name] for life in found]
        lines.append(
            f"| {name[0]} | {name[1]} | {shown(bill.failed_runs for bill in bills)} "
            f"| {shown(bill.failed / HOUR for bill in bills)} | {shown(bill.smoke / HOUR for bill in bills)} "
            f"| {saved(found, name, FIRST)} | {saved(found, name, PHILLY)} "
            f"| {shown(bill.rescued for bill in bills)} "
            f"| {shown(100 * bill.rescued / max(bill.recoverable, 1) for bill in bills)} % "
            f"| {shown(bill.rescued_work / HOUR for bill in bills)} "
            f"| {shown(bill.held for bill in bills)} ({shown((bill.held_wrongly for bill in bills), '{:.1f}')}) |"
        )
    return lines


def saved(found: Sequence[Life], name: Key, beside: Key) -> str:
    """GPU-hours that one pair loses less than another, seed by seed."""
    if name == beside:
        return "-"
    return shown((life[beside].lost - life[name].lost) / HOUR for life in found)


# --- through the engine -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waited:
    """A replay: hours that jobs wait which do not fail, and all jobs' hours from submission to end."""

    wait: float
    wait_p95: float
    jct: float
    lost: float
    sooner: float
    """Hours, in the mean, by which whoever's job a smoke run ends hears of it sooner than by its first attempt."""
    took: float


ENGINE: Final = (
    *((RETRIES[name], NONE) for name in ("none", "three")),
    *((RETRIES[name], smoke) for name in ("philly", "gsub") for smoke in (NONE, RACE, GATE)),
)


def replayed(trace: Trace, cluster: Cluster, order: str, seeds: int) -> list[dict[Key, Waited]]:
    """All pairs through the engine. A race is replayed with the waits of the same retries without smoke runs."""
    found = []
    for number in range(seeds):
        seed = Seed.of(trace, Supposed(), number, ENGINE)
        well = np.ones(len(trace), np.bool_)
        well[seed.faults.row] = False
        waits: dict[str, Floats] = {}
        row: dict[Key, Waited] = {}
        for retry, smoke in ENGINE:
            made = seed.under(trace, retry, smoke, waits.get(retry.name, np.zeros(len(trace))))
            done = replay(trace, cluster, Policy.parse(order), seed=number, attempts=made.attempts)
            wait = done.started - trace["arrival"]
            if smoke is NONE:
                waits[retry.name] = wait
            if smoke is GATE:  # the first start is the smoke run's: the real one is what ends, less its work
                wait = done.ended - trace["arrival"] - trace["work"]
            ran = np.diff(made.attempts.offsets) == 1
            only = made.attempts.offsets[:-1][
                ran
            ]  # of jobs that a smoke run ends it is the only run, on one GPU
            held = np.zeros(len(trace), np.bool_)
            held[ran] = (made.attempts.gpus[only] > 0) & ~made.attempts.kept[only]
            sooner = waits[retry.name] - (done.started - trace["arrival"])
            row[key(retry, smoke)] = Waited(
                float(np.nanmean(wait[well])) / HOUR,
                float(np.nanpercentile(wait[well], 95)) / HOUR,
                float(np.nanmean((done.ended - trace["arrival"])[well])) / HOUR,
                float(np.nansum(done.lost_gpu_s)) / HOUR,
                float(np.nanmean(sooner[held])) / HOUR if held.any() else 0.0,
                done.took_s,
            )
        found.append(row)
    return found


def of_engine(found: Sequence[Mapping[Key, Waited]]) -> list[str]:
    """The table of waits."""
    lines = [
        "| retries | smoke | good jobs wait, h | beside Philly's | p95, h | JCT, h | GPU-hours lost "
        "| held jobs hear so much sooner, h |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in found[0]:
        rows = [one[name] for one in found]
        less = (
            "-" if name == PHILLY else shown((one[name].wait - one[PHILLY].wait for one in found), "{:.3f}")
        )
        lines.append(
            f"| {name[0]} | {name[1]} | {shown((row.wait for row in rows), '{:.3f}')} | {less} "
            f"| {shown((row.wait_p95 for row in rows), '{:.2f}')} | {shown((row.jct for row in rows), '{:.2f}')} "
            f"| {shown(row.lost for row in rows)} | {shown((row.sooner for row in rows), '{:.2f}')} |"
        )
    return lines


# --- by size ----------------------------------------------------------------------------------------------------------

ABOVE: Final = (0, 1, 4, 8, 16, 32)


def of_sizes(trace: Trace, seeds: int, waits: Floats) -> list[str]:
    """What smoke runs of jobs above one size cost, and save of failed runs."""
    rows = []
    for number in range(seeds):
        seed = Seed.of(trace, Supposed(), number, [(RETRIES[name], NONE) for name in ("philly", "gsub")])
        rows.append(
            {
                (name, above): seed.under(trace, RETRIES[name], Smoke("gate", "gate", above), waits).bill
                for name in ("philly", "gsub")
                for above in (*ABOVE, 10**9)
            }
        )
    lines = [
        "| jobs above | smoke runs | of them hold their job | GPU-hours of smoke runs "
        "| of failed runs that they save, with Philly's retries | with gsub's |",
        "|---|---|---|---|---|---|",
    ]
    for above in ABOVE:
        ours = [row["gsub", above] for row in rows]
        if not ours[0].smoked:
            continue
        less = (
            shown(((row[name, 10**9].failed - row[name, above].failed) / HOUR for row in rows), "{:,.1f}")
            for name in ("philly", "gsub")
        )
        lines.append(
            f"| {above} GPU{'s' if above != 1 else ''} | {ours[0].smoked:,} "
            f"| {shown((100 * bill.held / bill.smoked for bill in ours), '{:.1f}')} % "
            f"| {shown((bill.smoke / HOUR for bill in ours), '{:,.1f}')} | {' | '.join(less)} |"
        )
    return lines


# --- by reason --------------------------------------------------------------------------------------------------------


def of_reasons(trace: Trace, seeds: int) -> list[str]:
    """Where failed runs hold their GPUs, and where other attempts help."""
    names = ("none", "philly", "gsub")
    hours = np.zeros((seeds, len(names), len(TABLE7)))
    rescued = np.zeros_like(hours)
    for number in range(seeds):
        faults = strike(trace, Supposed(), number)
        gpus = trace["gpus"][faults.row]
        for at, name in enumerate(names):
            runs = tried(trace, faults, RETRIES[name])
            lost = ~runs.passed
            held = runs.seconds * gpus[runs.fault] / HOUR
            np.add.at(hours[number, at], faults.reason[runs.fault[lost]], held[lost])
            np.add.at(rescued[number, at], faults.reason[runs.fault[runs.passed]], 1)
    lines = [
        "| reason | GPU-hours of failed runs, no retries | Philly's | gsub's table "
        "| rescued, Philly's | gsub's table |",
        "|---|---|---|---|---|---|",
    ]
    for of in np.argsort(-hours[:, 2].mean(axis=0)):
        if hours[:, 2, of].mean() >= 0.001 * hours[:, 2].sum(axis=1).mean():
            cells = [shown(hours[:, at, of]) for at in range(3)] + [
                shown(rescued[:, at, of]) for at in (1, 2)
            ]
            lines.append(f"| {TABLE7[of].name} | {' | '.join(cells)} |")
    return lines


# --- what is supposed, and what was drawn -----------------------------------------------------------------------------

OTHERWISE: Final[Mapping[str, Supposed]] = {
    "as supposed": Supposed(),
    "half as many fail": Supposed(rate=0.5),
    "half as much can be saved": Supposed(recoverable=0.5),
    "twice as much can be saved": Supposed(recoverable=2.0),
    "verdicts right 7 times in 10": Supposed(accuracy=0.7),
    "every verdict right": Supposed(accuracy=1.0),
    "outages of an hour": Supposed(outage_s=3600.0),
    "one GPU shows half": Supposed(alone=0.5),
    "shares as they stand": Supposed(spread=1e6),
}
_SMOKED: Final = tuple(key(RETRIES[name], GATE) for name in ("philly", "gsub"))


def of_suppositions(trace: Trace, seeds: int, waits: Floats) -> list[str]:
    """Main figures under other suppositions."""
    lines = [
        "| supposed | GPU-hours of failed runs, Philly's retries | gsub's table saves | of them "
        "| with late failures once | jobs rescued, Philly's | gsub's | late ones once "
        "| a gate saves, with Philly's retries | with gsub's |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    wanted = (*(pair for pair in PAIRS if key(*pair) in (FIRST, PHILLY, OURS, *_SMOKED)), (ONCE, NONE))
    once = key(ONCE, NONE)
    for name, supposed in OTHERWISE.items():
        found = lives(trace, supposed, seeds, waits, wanted)
        share = shown(100 * (1 - life[OURS].lost / life[PHILLY].lost) for life in found)
        lines.append(
            f"| {name} | {shown(life[PHILLY].failed / HOUR for life in found)} | {saved(found, OURS, PHILLY)} "
            f"| {share} % | {saved(found, once, PHILLY)} | {shown(life[PHILLY].rescued for life in found)} "
            f"| {shown(life[OURS].rescued for life in found)} | {shown(life[once].rescued for life in found)} "
            f"| {saved(found, _SMOKED[0], PHILLY)} "
            f"| {saved(found, _SMOKED[1], OURS)} |"
        )
    return lines


def checked(trace: Trace, seeds: int) -> list[str]:
    """What was drawn, beside the paper: unsuccessful jobs by size under Philly's retries, trials a job, GPU time."""
    classes = size(trace["gpus"])
    jobs = np.bincount(classes, minlength=4)
    shares, trials, time_share, cut, early = [], [], [], [], []
    for number in range(seeds):
        faults = strike(trace, Supposed(), number)
        runs = tried(trace, faults, RETRIES["philly"])
        gave_up = np.setdiff1d(np.arange(len(faults)), runs.fault[runs.passed])
        shares.append(np.bincount(classes[faults.row[gave_up]], minlength=4) / np.maximum(jobs, 1))
        trials.append(float((~runs.passed).sum() / max(len(faults), 1)))
        made = lived(trace, faults, RETRIES["philly"], runs=runs)
        row = np.repeat(np.arange(len(trace)), np.diff(made.attempts.offsets))
        held = float((made.attempts.work * trace["gpus"][row]).sum())
        time_share.append(100 * made.bill.failed / held)
        cut.append(100 * faults.cut / max(len(faults), 1))
        early.append(100 * float((faults.seconds < 600).mean()))
    table = sum(row.trials for row in TABLE7) / sum(row.jobs for row in TABLE7)
    told = ("1 GPU 13 %", "2 to 4: 37 %", "5 to 8: 42 %", "more: 47 %")
    lines = ["| what | drawn | in the paper |", "|---|---|---|"]
    for of, text in enumerate(told):
        if jobs[of]:
            lines.append(
                f"| unsuccessful under Philly's retries, of {jobs[of]:,} jobs "
                f"| {shown((100 * one[of] for one in shares), '{:.1f}')} % | {text} (Fig. 9) |"
            )
    return [
        *lines,
        f"| failed trials of a job that fails | {shown(trials, '{:.2f}')} | {table:.2f} (Table 7) |",
        f"| GPU time of failed trials, of all | {shown(time_share, '{:.1f}')} % "
        "| 17.8 % of unsuccessful jobs (Table 6) |",
        f"| first failures in ten minutes | {shown(early, '{:.1f}')} % | 59 % of trials, log-linear (Table 7) |",
        f"| failures cut at the end of a job | {shown(cut, '{:.1f}')} % | - |",
    ]


PARTS: Final = ("checked", "pairs", "reasons", "sizes", "supposed", "engine")

# --- the command ------------------------------------------------------------------------------------------------------


def alike(trace: Trace, busy: float) -> Cluster:
    """Nodes of 8 GPUs, so many that the trace's work is such a part of their time; as many as its largest job needs."""
    span = float(np.ptp(trace["arrival"]))
    gpus = max(float((trace["work"] * trace["gpus"]).sum()) / span / busy, float(trace["gpus"].max()))
    return Cluster.alike(math.ceil(gpus / 8), 8, 96, 512_000, name="supposed")


def table(part: str, trace: Trace, cluster: Cluster, waits: Floats, options: argparse.Namespace) -> list[str]:
    """The lines of one part."""
    if part == "pairs":
        return of_pairs(lives(trace, Supposed(), options.seeds, waits))
    if part == "sizes":
        return of_sizes(trace, options.seeds, waits)
    if part == "reasons":
        return of_reasons(trace, options.seeds)
    if part == "supposed":
        return of_suppositions(trace, options.seeds, waits)
    if part == "engine":
        return of_engine(replayed(trace, cluster, options.order, options.replays))
    return checked(trace, options.seeds)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="What retries and smoke runs save on traces with Table 7's failures."
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    add_data_option(parser)
    parser.add_argument("--traces", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--replays", type=int, default=5, help="seeds of the part `engine`")
    parser.add_argument(
        "--busy", type=float, default=BUSY, help="of the cluster's GPU time, the trace's work"
    )
    parser.add_argument("--order", default=ORDER, help="the policy of the replays")
    options = parser.parse_args()
    parts = options.parts or PARTS
    paths = {name: find_trace(f"{name}.csv.gz", options.data) for name in options.traces}
    for name, path in paths.items():
        begun = time.perf_counter()
        trace = read(path).trace
        cluster = alike(trace, options.busy)
        before = replay(trace, cluster, Policy.parse(options.order))
        waits = before.started - trace["arrival"]
        work = float((trace["work"] * trace["gpus"]).sum()) / HOUR
        print(
            f"## {name}: {len(trace):,} jobs, {work:,.0f} GPU-hours, on {cluster.gpus:,} GPUs; without failures they "
            f"wait {np.nanmean(waits) / HOUR:.2f} h in the mean ({options.order})\n"
        )
        for part in parts:
            print(*table(part, trace, cluster, waits, options), "", sep="\n", flush=True)
        print(f"({time.perf_counter() - begun:.0f} s)\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
