"""What the table of retries is worth on Philly's failures: ``python -m benchmarks.retries [--gate]``.

Each failed job of Table 7 is tried again by five rules, with the same hidden causes: never; everything three times, as
clusters with a fixed number of retries do; by gsub's table and budgets, through the same `plan` as in production; by
these with `once` left to start where it failed; and by somebody who knows the cause. Printed are the GPU-hours of
repeats that failed, and how many of the jobs were saved that another attempt could save, with 95 % of the seeds between
the bounds; then the same with other suppositions.

--gate takes few seeds, and fails when a direction is wrong. `benchmarks.replay_failures` does the same over traces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import msgspec

from benchmarks.retries_model import FailedJob, failed_jobs, hours_a_trial
from profiler.early import TABLE7, Reason
from profiler.resubmissions import Resubmission
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, REASONS
from site_configs.site_model import Resubmit
from slurm_plugins.replay.failing import ALIKE, QUEUE_S, SAME, Supposed, named
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past, Switches

CLUSTER: Final = tuple(f"n{number}" for number in range(100))
GPUS_A_NODE: Final = 8
ASKED: Final = 32_768
QUEUE_MIN: Final = QUEUE_S / 60
"""Minutes from a requeue to its start, for every rule alike."""
OUTAGE_MIN: Final = Supposed().outage_s / 60
THREE: Final = 3


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt: after so many minutes, kept off these nodes, with so many times the memory of the first."""

    after_min: float = 0.0
    avoid: tuple[str, ...] = ()
    memory: float = 1.0


@dataclass(slots=True)
class Seen:
    """What a rule may look at of a job: how it failed so far."""

    job: FailedJob
    nodes: list[tuple[str, ...]]
    minutes: list[float]
    rows: list[Resubmission]
    chance: Random


Rule: TypeAlias = Callable[[Seen], Again | None]


def never(_: Seen) -> Again | None:
    """Nothing is tried again."""
    return None


def three_times(seen: Seen) -> Again | None:
    """Everything is, unchanged and at once, three times."""
    return Again() if len(seen.nodes) <= THREE else None


def knowing(seen: Seen) -> Again | None:
    """The right thing at once, where there is one: no rule can do better."""
    return Again(1e6, CLUSTER, 1e6) if seen.job.recoverable else None


def by_table(policy: Resubmit, *, once_anywhere: bool = False) -> Rule:
    """gsub's own: verdict, table and budgets. `once_anywhere`: `once` does not keep off the node that failed."""

    def rule(seen: Seen) -> Again | None:
        job = seen.job
        memory = next((row.memory_mib for row in reversed(seen.rows) if row.memory_mib), ASKED)
        off = tuple(dict.fromkeys(node for row in seen.rows for node in row.avoid))
        why = [_failure(job, nodes) for nodes in seen.nodes]
        earlier = tuple(
            Earlier(failure, nodes, row, minutes * 60)
            for failure, nodes, row, minutes in zip(why, seen.nodes, seen.rows, seen.minutes, strict=False)
        )
        row = plan(
            _attempt(job, seen, memory, off),
            why[-1],
            Past(earlier),
            Switches("enforce"),
            policy,
            now=0.0,
            random=seen.chance.random,
        )
        if row.state != "planned":
            return None
        if once_anywhere and row.action == "once":
            row = msgspec.structs.replace(row, avoid=())
        seen.rows.append(msgspec.structs.replace(row, state="done"))
        return Again(row.delay_s / 60, (*off, *row.avoid), (row.memory_mib or memory) / ASKED)

    return rule


def _attempt(job: FailedJob, seen: Seen, memory: int, off: tuple[str, ...]) -> Attempt:
    return Attempt(
        "philly",
        1,
        len(seen.nodes) - 1,
        "1",
        1000,
        "PREEMPTED" if job.reason == "preempted" else "FAILED",
        nodes=seen.nodes[-1],
        excluded=off,
        partition_nodes=CLUSTER,
        runtime_s=seen.minutes[-1] * 60,
        batch=True,
        requeue=True,
        memory=Memory(memory, "node", None, int(ASKED * job.most)),
    )


def _failure(job: FailedJob, nodes: tuple[str, ...]) -> Failure:
    # which of several nodes failed is known as often as the verdict is right: here, where there is one to be known
    node = nodes[0] if job.cause == "node" or len(nodes) == 1 else ""
    same = "" if job.reason == NO_SIGNATURE else f"{job.name} {job.cause}"
    return Failure(job.reason, job.confidence, "explicit", "user", same, node)


@dataclass(slots=True)
class Sums:
    """What a rule brought: GPU-hours of repeats that failed, attempts, jobs that ended well of those that could.

    `saved_as_is` and `recoverable_as_is` are without the jobs that need more memory than they asked for.
    """

    repeats: float = 0.0
    attempts: int = 0
    saved: int = 0
    recoverable: int = 0
    saved_as_is: int = 0
    recoverable_as_is: int = 0


def tried(job: FailedJob, rule: Rule, seed: int, sums: Sums) -> None:
    """One job until it succeeds or the rule gives it up. The same seed makes the same luck for every rule."""
    luck = Random(seed)
    end_of_outage = luck.expovariate(1 / OUTAGE_MIN)
    count = -(-job.gpus // GPUS_A_NODE)
    nodes = tuple(luck.sample(CLUSTER, count))
    bad = nodes[0]
    seen = Seen(job, [nodes], [job.minutes], [], Random(seed + 1))
    hours, clock = job.gpu_hours, 0.0
    as_is = job.recoverable and job.cause != "memory"
    sums.recoverable += job.recoverable
    sums.recoverable_as_is += as_is
    while True:
        sums.attempts += 1
        again = rule(seen)
        if again is None:
            return
        clock += QUEUE_MIN + again.after_min
        back = luck.random() < SAME
        minutes, hours, ends_well = job.minutes, job.gpu_hours, False
        placed = nodes if back else tuple(luck.sample(CLUSTER, count))
        free = [node for node in CLUSTER if node not in again.avoid]
        if len(free) >= count and not set(placed).isdisjoint(again.avoid):
            placed = tuple(luck.sample(free, count))
        other = luck.random()  # drawn for all causes alike
        if job.cause == "chance":
            ends_well = other < ALIKE
            # a time of its own, as long as the first in the mean
            own = 2 * (other - ALIKE) / (1 - ALIKE)
            minutes, hours = job.minutes * own, job.gpu_hours * own
        elif job.cause == "outage":
            ends_well = clock > end_of_outage
        elif job.cause == "node":
            ends_well = bad not in placed or len(again.avoid) == len(CLUSTER)
            placed = placed if ends_well else (bad, *(node for node in placed if node != bad))
        elif job.cause == "memory":
            ends_well = again.memory >= job.needs
        if ends_well:
            sums.saved += job.recoverable
            sums.saved_as_is += as_is
            return
        clock += minutes
        sums.repeats += hours
        seen.nodes.append(placed)
        seen.minutes.append(minutes)


RULES: Final[dict[str, Callable[[], Rule]]] = {
    "none": lambda: never,
    "everything 3 times": lambda: three_times,
    "gsub's table": lambda: by_table(Resubmit()),
    "... `once` anywhere": lambda: by_table(Resubmit(), once_anywhere=True),
    "who knows the cause": lambda: knowing,
}


def lived(rows: Sequence[Reason], model: Supposed, seed: int, share: float) -> dict[str, Sums]:
    """All failed jobs under each rule."""
    jobs = failed_jobs(rows, model, Random(seed), share)
    found = {}
    for name, rule in RULES.items():
        sums = Sums()
        for number, job in enumerate(jobs):
            tried(job, rule(), seed * 1_000_003 + number, sums)
        found[name] = sums
    return found


# --- the report -------------------------------------------------------------------------------------------------------


def bounds(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and between what 95 % of the values are."""
    ordered = sorted(values)
    cut = int(len(ordered) * 0.025)
    return sum(ordered) / len(ordered), ordered[cut], ordered[-1 - cut]


def shown(values: Sequence[float], form: str = "{:.0f}") -> str:
    """``12 (11 to 13)``."""
    mean, low, high = (form.format(value) for value in bounds(values))
    return f"{mean} ({low} to {high})"


def report(lives: Sequence[dict[str, Sums]], share: float) -> list[str]:
    """The table, a line a rule. GPU-hours are of all jobs, whatever share of them was looked at."""
    lines = [
        "| rule | attempts a failed job | GPU-hours of repeats that failed, in 1,000 "
        "| saved of the jobs that can be | of those that need no more memory |",
        "|---|---|---|---|---|",
    ]
    for name in RULES:
        sums = [life[name] for life in lives]
        jobs = [life["none"].attempts for life in lives]
        lines.append(
            f"| {name} | {shown([one.attempts / of for one, of in zip(sums, jobs, strict=True)], '{:.2f}')} "
            f"| {shown([one.repeats / share / 1000 for one in sums], '{:.1f}')} "
            f"| {shown([100 * one.saved / one.recoverable for one in sums])} % "
            f"| {shown([100 * one.saved_as_is / one.recoverable_as_is for one in sums])} % |"
        )
    return lines


def of_three(lives: Sequence[dict[str, Sums]]) -> tuple[list[float], list[float], list[float]]:
    """Of what "everything 3 times" wastes the part that the table does not; jobs saved over those that it saves, all
    and those that need no more memory.
    """
    pairs = [(life["gsub's table"], life["everything 3 times"]) for life in lives]
    less = [1 - ours.repeats / theirs.repeats for ours, theirs in pairs]
    kept = [ours.saved / theirs.saved for ours, theirs in pairs]
    return less, kept, [ours.saved_as_is / theirs.saved_as_is for ours, theirs in pairs]


def counted(rows: Sequence[Reason]) -> str:
    """What the table of failures says by itself, with no supposition but that a repeat costs its reason's mean."""
    hours = sum(row.gpu_seconds for row in rows) / 3600
    repeats = [(row, row.trials - row.jobs) for row in rows]
    never_again = [(row, count) for row, count in repeats if REASONS[named(row, "always")].retry == "never"]
    count = sum(count for _, count in never_again)
    saved = sum(hours_a_trial(row) * count for row, count in never_again)
    return (
        f"{sum(row.trials for row in rows):,} attempts of {sum(row.jobs for row in rows):,} jobs (a job once for each "
        f"of its reasons) held {hours:,.0f} GPU-hours and failed. {count:,} of them repeated a reason that gsub never "
        f"tries again: {saved:,.0f} GPU-hours, {100 * saved / hours:.0f} %."
    )


OTHERWISE: Final = {
    "as supposed": Supposed(),
    "verdicts right 7 times in 10": Supposed(accuracy=0.7),
    "every verdict right": Supposed(accuracy=1.0),
    "half as much can be saved": Supposed(recoverable=0.5),
    "twice as much can be saved": Supposed(recoverable=2.0),
}


def main() -> int:
    """Measure, print, and with --gate judge."""
    parser = argparse.ArgumentParser(description="What the table of retries is worth on Philly's failures.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.1, help="of each reason's jobs")
    parser.add_argument("--gate", action="store_true", help="few seeds; fail when a direction is wrong")
    options = parser.parse_args()
    rows = TABLE7
    seeds, share = (4, 0.05) if options.gate else (options.seeds, options.share)
    lives = [lived(rows, Supposed(), seed, share) for seed in range(seeds)]
    print(counted(rows), "", *report(lives, share), "", sep="\n")
    if options.gate:
        return judged(lives)
    print(
        "| supposed | GPU-hours of repeats that failed, beside three times each | jobs saved, beside that "
        "| of those that need no more memory |",
        "|---|---|---|---|",
        sep="\n",
    )
    for name, model in OTHERWISE.items():
        one = lives if model == Supposed() else [lived(rows, model, seed, share) for seed in range(seeds)]
        less, kept, as_is = of_three(one)
        print(
            f"| {name} | {shown([100 * part for part in less])} % less | x{shown(kept, '{:.2f}')} "
            f"| x{shown(as_is, '{:.2f}')} |"
        )
    return 0


def judged(lives: Sequence[dict[str, Sums]]) -> int:
    """Whether the table wastes less than trying everything three times, and saves more than trying nothing."""
    wrong = [
        life
        for life in lives
        if life["gsub's table"].repeats >= life["everything 3 times"].repeats
        or not life["none"].saved == 0 < life["gsub's table"].saved <= life["who knows the cause"].saved
        or life["who knows the cause"].saved != life["none"].recoverable
    ]
    less, kept, as_is = of_three(lives)
    print(
        f"beside three times each: GPU-hours of repeats that failed {100 * bounds(less)[0]:.0f} % less; "
        f"jobs saved x{bounds(kept)[0]:.2f}, without lack of memory x{bounds(as_is)[0]:.2f}"
    )
    if wrong:
        print(f"retries: in {len(wrong)} of {len(lives)} seeds the table is no better", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
