"""What smoke costs the start of good jobs on a busy cluster: race, gate and plain sbatch, at the same time.

    python -m tests.bench.smoke_start [--slurm RELEASE] [--rounds N] [--seed N] [--jobs N] [--json]

Four clusters of 4 nodes x 8 emulated GPUs live the same minutes side by side: other people's jobs that fill the GPUs,
and 8-GPU jobs of a user whose scripts are well, submitted by plain `sbatch`, by plain `sbatch` on another cluster (what
differs there is chance), by `gsub --smoke=race` and by `gsub --smoke=gate`. Jobs end long before their time limits, as
they do, and their priority grows with their age. Told are the waits of the user's jobs and of the others', from the
command to the start by Slurm's books (whole seconds), and the difference to plain sbatch, job by job. A smoke run takes
30 s here, a job 40 s, and a wait a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final, Literal

from site_configs.devcluster.spec import RELEASES, Release
from tests.bench.smoke_scripts import Case
from tests.bench.smoke_stage import Stage, stage

Way = Literal["sbatch", "again", "race", "gate"]
WAYS: Final[tuple[Way, ...]] = ("sbatch", "again", "race", "gate")
"""`again`: plain sbatch a second time. What differs there is chance."""
SMOKE_S: Final = 30.0
HEAD: Final = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n#SBATCH --time=3\n"


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
    """How long a job waited for its start, in seconds; None: it never started."""

    ours: bool
    seconds: float | None
    state: str


def arrivals(seed: int, jobs: int) -> list[Arrival]:
    """A cluster that is full from the beginning, and stays so while the user's jobs come."""
    chance = random.Random(seed)
    found = [Arrival(0.0, 8, 15 + 12 * number, 3, ours=False) for number in range(4)]
    for _ in range(3 * jobs):
        gpus, runs = chance.choice((1, 1, 2, 4, 8)), chance.randint(10, 40)
        found.append(Arrival(chance.uniform(1, 10 * jobs), gpus, runs, chance.choice((1, 2, 3)), ours=False))
    found += [Arrival(3 + 9.0 * number, 8, 40, 3, ours=True) for number in range(jobs)]
    return sorted(found, key=lambda one: one.at)


def lived(here: Stage, way: Way, comes: Sequence[Arrival], began: float) -> list[Wait]:
    """Submit each in its time, wait for the end of all, and ask the books."""
    called: list[tuple[Arrival, float, str, str]] = []

    def one(number: int, job: Arrival) -> None:
        time.sleep(max(0.0, began + job.at - time.time()))
        called.append((job, time.time(), *_submit(here, way if job.ours else "sbatch", number, job)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: one(*pair), enumerate(comes)))
    here.wait(f"the jobs of {way}", lambda: not here.queue(), 420)
    starts = here.starts()
    rows = []
    for job, at, name, number in sorted(called, key=lambda row: row[2]):
        state, start = starts.get(number, ("not submitted", None))
        rows.append(Wait(job.ours, None if start is None else max(0.0, start - at), f"{name} {state}"))
    return rows


def _submit(here: Stage, way: Way, number: int, job: Arrival) -> tuple[str, str]:
    name = f"{'ours' if job.ours else 'other'}{number:03}"
    options = (f"--gpus-per-node={job.gpus}", f"--time={job.limit}")
    plain = way in ("sbatch", "again")
    command, words = ("sbatch", ()) if plain else ("gsub", (f"--smoke={way}",))
    # each script is another one: a pass that is remembered would spare the smoke run
    case = Case(name, f"{HEAD}# {name}\nsleep {job.runs}\n", words=options)
    asked = here.submit(case, name, *words, command=command)
    if not asked.job:
        print(f"{name} ({way}): {asked.said}", file=sys.stderr)
    return name, asked.job


def measured(release: Release, seed: int, jobs: int) -> dict[Way, tuple[list[Wait], int]]:
    """The waits of all jobs, and the GPU-seconds of smoke jobs, in each way."""
    comes = arrivals(seed, jobs)
    with ExitStack() as stack, ThreadPoolExecutor(len(WAYS)) as pool:
        stages = [
            stack.enter_context(stage(f"start-{way}-{os.getpid() % 100000}", release, 4, 60, SMOKE_S))
            for way in WAYS
        ]
        for here in stages:
            here.aged()
        began = time.time() + 2
        tasks = [pool.submit(lived, here, way, comes, began) for here, way in zip(stages, WAYS, strict=True)]
        waits = [task.result() for task in tasks]
        spent = [
            sum(job.gpu_seconds for job in here.jobs().values() if job.name.startswith("smoke-"))
            for here in stages
        ]
    return {way: (rows, gpus) for way, rows, gpus in zip(WAYS, waits, spent, strict=True)}


def tell(rounds: Sequence[dict[Way, tuple[list[Wait], int]]]) -> None:
    """The table, and the differences job by job."""
    print(
        "| way | jobs | wait: mean | median | most | beside sbatch: mean (quartiles) | others' mean | smoke GPU-s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        pairs = [
            (mine.seconds, plain.seconds)
            for found in rounds
            for mine, plain in zip(found[way][0], found["sbatch"][0], strict=True)
            if mine.ours and mine.seconds is not None and plain.seconds is not None
        ]
        others = [
            row.seconds
            for found in rounds
            for row in found[way][0]
            if not row.ours and row.seconds is not None
        ]
        waits, differ = [mine for mine, _ in pairs], [mine - plain for mine, plain in pairs]
        low, _, high = statistics.quantiles(differ, n=4)
        spent = sum(found[way][1] for found in rounds)
        print(
            f"| {way} | {len(waits)} | {statistics.mean(waits):.1f} s | {statistics.median(waits):.1f} s "
            f"| {max(waits):.0f} s | {statistics.mean(differ):+.1f} s ({low:+.0f} to {high:+.0f}) "
            f"| {statistics.mean(others):.1f} s | {spent} |"
        )


def main() -> int:
    """Measure and tell. Exit 1 where a job of the user's never ran."""
    parser = argparse.ArgumentParser(description="What smoke costs the start of good jobs.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=9, help="of the user")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rounds = [measured(asked.slurm, asked.seed + number, asked.jobs) for number in range(asked.rounds)]
    if asked.json:
        plain = [{way: [asdict(row) for row in rows] for way, (rows, _) in found.items()} for found in rounds]
        print(json.dumps(plain))
    else:
        tell(rounds)
    lost = [row for found in rounds for rows, _ in found.values() for row in rows if row.seconds is None]
    for row in lost:
        print(f"never started: {row.state}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
