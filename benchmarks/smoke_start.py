"""What smoke costs the start of good jobs on a busy cluster: race, gate and no smoke, at the same time.

    python -m benchmarks.smoke_start [--slurm RELEASE] [--rounds N] [--seed N] [--jobs N] [--longer N] [--ways WAY...]
        [--json FILE]

Clusters of 4 nodes x 8 emulated GPUs live the same minutes side by side: other people's jobs that fill the GPUs, and
8-GPU jobs of a user whose scripts are well, submitted by plain `sbatch`, by `gsub --no-smoke`, by that on another
cluster (what differs there is chance), by `gsub --smoke=race` and by `gsub --smoke=gate`. Jobs end long before their
time limits, as they do, and their priority grows with their age. Told are the waits of the user's jobs and of the
others', from the command to the start by Slurm's books (whole seconds), and the difference to `gsub --no-smoke`, job by
job: the command itself takes a second here, and many where all share a busy machine, and who comes later starts later.
Beside that stands what smoke runs cost directly: for how long they alone held the node on which a job of 8 GPUs started
then. A smoke run takes 30 s here, a job 40 s, and a wait a minute or two: smoke runs take far more of the GPUs than in
life, where they are minutes and jobs hours. `--longer 3` makes all jobs, and the pauses between them, three times as
long. A smoke job's limit is below those of the others, as in life: above them, its node would count as taken for longer
than any job takes, and backfill would fill it with small jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.smoke_scripts import Case
from benchmarks.smoke_stage import Stage, Times, stage
from site_configs.devcluster.spec import RELEASES, Release

Way = Literal["sbatch", "plain", "again", "race", "gate"]
WAYS: Final[tuple[Way, ...]] = ("sbatch", "plain", "again", "race", "gate")
"""`plain`: gsub without smoke. `again`: the same a second time. What differs there is chance."""
SMOKE_S: Final = 30.0
EVERY_S: Final = 9.0
"""Seconds between two jobs of the user's."""
HEAD: Final = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n#SBATCH --time=30\n"


@dataclass(frozen=True)
class Arrival:
    """A job: submitted after so many seconds, its GPUs, seconds that it runs, minutes that it asks for."""

    at: float
    gpus: int
    runs: int
    limit: int
    ours: bool


@dataclass(frozen=True)
class Wait:
    """How long a job waited for its start, in seconds from the command and from its place in the queue, as Slurm's
    books have that; None: it never started. The moments are seconds since the round began."""

    name: str
    ours: bool
    gpus: int
    seconds: float | None
    queued: float | None
    called: float
    started: float | None
    ended: float | None
    nodes: str
    state: str


@dataclass(frozen=True)
class Smoked:
    """A smoke job: its moments, and what its runner says came of it."""

    name: str
    started: float | None
    ended: float | None
    nodes: str
    state: str
    outcome: str
    sentence: str


@dataclass(frozen=True)
class Lived:
    """What a round was in one way: the jobs by name, their smoke jobs, and the GPU-seconds that these held."""

    waits: list[Wait]
    smokes: list[Smoked]
    gpu_seconds: int


def arrivals(seed: int, jobs: int, longer: int) -> list[Arrival]:
    """A cluster that is full from the beginning, and stays so while the user's jobs come.

    Others come some seconds apart from the user's: a job of one GPU that goes ahead in the second that a command takes
    can keep one of eight waiting until the next node is free, and would hide what smoke costs. `longer`: how many times
    as long jobs and pauses are.
    """
    chance = random.Random(seed)
    found = [Arrival(0.0, 8, (15 + 12 * number) * longer, 30, ours=False) for number in range(4)]
    for _ in range(3 * jobs):
        gpus, runs = chance.choice((1, 1, 2, 4, 8)), chance.randint(10, 40) * longer
        at = max(1.0, EVERY_S * longer * chance.randint(0, jobs) + chance.uniform(-1, 2))
        found.append(Arrival(at, gpus, runs, chance.choice((10, 20, 30)), ours=False))
    found += [Arrival(3 + EVERY_S * longer * number, 8, 40 * longer, 30, ours=True) for number in range(jobs)]
    return sorted(found, key=lambda one: one.at)


def lived(here: Stage, way: Way, comes: Sequence[Arrival], began: float, patience: float) -> Lived:
    """Submit each in its time, wait for the end of all (so many seconds at most), and ask the books."""
    called: list[tuple[Arrival, float, str, str]] = []

    def one(number: int, job: Arrival) -> None:
        time.sleep(max(0.0, began + job.at - time.time()))
        called.append((job, time.time(), *_submit(here, way if job.ours else "sbatch", number, job)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: one(*pair), enumerate(comes)))
    here.wait(f"the jobs of {way}", lambda: not here.queue(), patience)
    times = here.times()

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    waits = []
    for job, at, name, number in sorted(called, key=lambda row: row[2]):
        told = times.get(number, Times(name, "not submitted", None, None, None, ""))
        start = told.started
        seconds = None if start is None else max(0.0, start - at)
        queued = None if start is None or told.submitted is None else start - told.submitted
        moments = (since(start), since(told.ended))
        waits.append(
            Wait(name, job.ours, job.gpus, seconds, queued, at - began, *moments, told.nodes, told.state)
        )
    smokes, spent = [], 0
    for number, told in times.items():
        if told.name.startswith("smoke-"):
            result = here.result(number)
            said = (result.outcome, result.sentence) if result else ("", "")
            moments = (since(told.started), since(told.ended))
            smokes.append(Smoked(told.name, *moments, told.nodes, told.state, *said))
            spent += int((told.ended or 0) - told.started) if told.started and told.ended else 0
    return Lived(waits, smokes, spent)


def _submit(here: Stage, way: Way, number: int, job: Arrival) -> tuple[str, str]:
    name = f"{'ours' if job.ours else 'other'}{number:03}"
    options = (f"--gpus-per-node={job.gpus}", f"--time={job.limit}")
    smoke = f"--smoke={way}" if way in ("race", "gate") else "--no-smoke"
    command, words = ("sbatch", ()) if way == "sbatch" else ("gsub", (smoke,))
    # each script is another one: a pass that is remembered would spare the smoke run
    case = Case(name, f"{HEAD}# {name}\nsleep {job.runs}\n", words=options)
    asked = here.submit(case, name, *words, command=command)
    if not asked.job:
        print(f"{name} ({way}): {asked.said}", file=sys.stderr)
    return name, asked.job


def measured(release: Release, seed: int, jobs: int, longer: int, ways: Sequence[Way]) -> dict[Way, Lived]:
    """One round: the same jobs in each way, in the same minutes."""
    comes = arrivals(seed, jobs, longer)
    # Drawn: the cluster that was made first is the oldest, and its commands are the first of each second
    order = random.Random(f"order {seed}").sample(ways, len(ways))
    with ExitStack() as stack, ThreadPoolExecutor(len(ways)) as pool:
        stages = {
            way: stack.enter_context(stage(f"start-{way}-{os.getpid() % 100000}", release, 4, 60, SMOKE_S))
            for way in order
        }
        for here in stages.values():
            here.aged()
        began = time.time() + 2
        tasks = {way: pool.submit(lived, here, way, comes, began, 600.0 * longer) for way, here in stages.items()}
        return {way: tasks[way].result() for way in ways}


def tell(rounds: Sequence[Mapping[Way, Lived]]) -> None:
    """The table, and the differences job by job: from the command, and from the place in the queue."""
    print(
        "| way | jobs | wait: mean | median | most | beside plain: mean +- error (quartiles) "
        "| the same from the queue | held up by smoke runs alone: ours | others | others' mean | smoke GPU-s "
        "| smoke runs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for way in rounds[0]:
        pairs = [
            (mine, plain)
            for found in rounds
            for mine, plain in zip(found[way].waits, found["plain"].waits, strict=True)
            if mine.ours
        ]
        waits = [mine.seconds for mine, _ in pairs if mine.seconds is not None]
        whole = _beside([(mine.seconds, plain.seconds) for mine, plain in pairs])
        queued = _beside([(mine.queued, plain.queued) for mine, plain in pairs])
        others = [
            row.seconds
            for found in rounds
            for row in found[way].waits
            if not row.ours and row.seconds is not None
        ]
        direct = " | ".join(
            _held([seconds for found in rounds for seconds in behind(found[way], ours)])
            for ours in (True, False)
        )
        spent = sum(found[way].gpu_seconds for found in rounds)
        came = Counter(run.outcome or "none" for found in rounds for run in found[way].smokes)
        print(
            f"| {way} | {len(waits)} | {statistics.mean(waits):.1f} s | {statistics.median(waits):.1f} s "
            f"| {max(waits):.0f} s | {whole} | {queued} | {direct} | {statistics.mean(others):.1f} s | {spent} "
            f"| {', '.join(f'{count} {word}' for word, count in sorted(came.items()))} |"
        )


def behind(found: Lived, ours: bool) -> list[float]:
    """For each job of a whole node, the user's or the others': seconds for which nothing but smoke runs held its node
    before it started there, while it waited. It need not have been the job's turn, so this is the most that they cost.
    """
    held = []
    for job in found.waits:
        if job.ours is not ours or job.gpus < 8 or job.started is None:
            continue
        queued = job.started - (job.queued or 0.0)
        own = [one for one in found.waits if one.nodes == job.nodes and one.name != job.name]
        ends = [one.ended for one in own if one.ended is not None and one.ended <= job.started]
        smokes = [
            one.ended
            for one in found.smokes
            if one.nodes == job.nodes and one.ended is not None and one.ended <= job.started
        ]
        held.append(max(0.0, max(smokes, default=queued) - max([queued, *ends])))
    return held


def _held(seconds: Sequence[float]) -> str:
    """How many of the jobs, the mean over all of them, and the most."""
    held = [one for one in seconds if one]
    mean = sum(held) / max(1, len(seconds))
    return f"{len(held)} of {len(seconds)} jobs: {mean:.1f} s, at most {max(held, default=0):.0f} s"


def _beside(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """The mean difference with its standard error (were the jobs independent: they are not), and the quartiles."""
    differ = [mine - plain for mine, plain in pairs if mine is not None and plain is not None]
    low, middle, high = statistics.quantiles(differ, n=4)
    error = statistics.stdev(differ) / len(differ) ** 0.5
    return f"{statistics.mean(differ):+.1f} +- {error:.1f} s ({low:+.0f}, {middle:+.0f}, {high:+.0f})"


def main() -> int:
    """Measure and tell. Exit 1 where a job of the user's never ran."""
    parser = argparse.ArgumentParser(description="What smoke costs the start of good jobs.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=9, help="of the user")
    parser.add_argument(
        "--longer",
        type=int,
        choices=range(1, 11),
        default=1,
        metavar="N",
        help="how many times as long jobs and pauses are, up to 10: the jobs still end long before their limits",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="`plain` is always among them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every job and smoke run there, too")
    asked = parser.parse_args()
    ways = [way for way in WAYS if way == "plain" or way in asked.ways]
    rounds = [
        measured(asked.slurm, asked.seed + number, asked.jobs, asked.longer, ways)
        for number in range(asked.rounds)
    ]
    if asked.json:
        plain = [{way: asdict(lived) for way, lived in found.items()} for found in rounds]
        asked.json.write_text(json.dumps(plain))
    tell(rounds)
    lost = [row for found in rounds for one in found.values() for row in one.waits if row.seconds is None]
    for row in lost:
        print(f"never started: {row.name} {row.state}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
