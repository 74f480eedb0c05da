"""Hungry and light jobs together on a cluster: with CPUs in proportion to GPUs, and with what was learnt of each.

    python -m benchmarks.mix [--jobs 48] [--hungry 0.33] [--nodes 2] [--seed N] [--slurm RELEASE]

Nodes of 64 CPUs and 8 GPUs, all emulated, under a real Slurm with the real service. Each job runs an emulated pipeline
on one GPU; a third of them need 12 to 24 CPUs to keep it busy, the others 1 to 4. All are submitted at once by plain
sbatch, in one order, twice: with gsub off, when each gets its GPU's share (8 CPUs), and with curves that were learnt
from the same pipelines before (in the pipelines' own time, so that nothing waits for it), when the service's
sensitivity stage gives each its knee. Told are the makespan, the mean completion time (JCT) and how busy the GPUs were.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.emulated_jobs import Job, Ran, Rig, rig
from benchmarks.emulated_pipeline import Shape, drawn
from site_configs.devcluster.spec import RELEASES
from tests.unit.profiler.learn.virtual import learnt

WORKLOADS = 3
"""Of each kind; jobs of a workload differ in nothing."""
BEST_S = 25.0
"""What a job takes where its GPU never waits, without its start."""
STEP_S = 0.1
HUNGRY, LIGHT = (12.0, 24.0), (1.0, 4.0)


@dataclass(frozen=True)
class Workload:
    """Jobs of one script, and the shape that they have."""

    job: Job
    shape: Shape
    hungry: bool


def workloads(seed: int) -> list[Workload]:
    """Hungry ones and light ones, drawn by chance."""
    found = []
    for hungry, (low, high) in ((True, HUNGRY), (False, LIGHT)):
        for number in range(WORKLOADS):
            draw = 1000 * seed + 2 * number
            words = (f"--draw={draw}", f"--low={low}", f"--high={high}", f"--step={STEP_S}", "--tell=nothing")
            steps = f"--steps={round(BEST_S / STEP_S)}"
            name = f"{'hungry' if hungry else 'light'}-{'abcdefgh'[number]}"
            found.append(Workload(Job(name, (*words, steps)), drawn(draw, low, high, STEP_S), hungry))
    return found


@dataclass(frozen=True)
class Way:
    """What came of all jobs submitted one way."""

    ran: Sequence[Ran]
    gpus: int

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end."""
        return max(one.ended for one in self.ran) - min(one.submitted for one in self.ran)

    def completion(self, kind: str = "") -> float:
        """Mean seconds from submission to end of the jobs whose names begin so."""
        return statistics.fmean(one.completion for one in self.ran if one.name.startswith(kind))

    def running(self, kind: str) -> float:
        """Mean seconds that these jobs ran."""
        return statistics.fmean(one.ended - one.began for one in self.ran if one.name.startswith(kind))

    def cpus(self, kind: str) -> float:
        """Mean CPUs that these jobs had."""
        return statistics.fmean(one.cpus for one in self.ran if one.name.startswith(kind))

    @property
    def busy(self) -> float:
        """The share of all GPUs' time until the last end in which they made a step."""
        return sum(one.steps for one in self.ran) * STEP_S / (self.makespan * self.gpus)


def measured(rig: Rig, asked: argparse.Namespace) -> tuple[Way, Way]:
    """The same jobs in the same order, in proportion and as tuned."""
    draw = random.Random(asked.seed)
    kinds = workloads(asked.seed)
    hungry = [one for one in kinds if one.hungry]
    light = [one for one in kinds if not one.hungry]
    count = round(asked.jobs * asked.hungry)
    jobs = [hungry[n % WORKLOADS] for n in range(count)]
    jobs += [light[n % WORKLOADS] for n in range(asked.jobs - count)]
    draw.shuffle(jobs)
    gpus = asked.nodes * rig.cluster.spec.gpus
    proportional = Way(rig.run_all([(one.job, {"GSUB": "off"}) for one in jobs]), gpus)
    curves = []
    for one in kinds:
        done, _, seconds = learnt(one.shape, asked.seed)
        curves.append((one.job, done.curve))
        print(
            f"  {one.job.name:10} knee {one.shape.enough:2}, learnt: {done.knee:2} in {seconds:3.0f} s (emulated)"
        )
    rig.know(curves)
    return proportional, Way(rig.run_all([(one.job, {}) for one in jobs]), gpus)


def table(proportional: Way, tuned: Way) -> list[str]:
    """Both side by side."""

    def row(name: str, one: float, other: float, form: str = "{:.0f} s") -> str:
        ratio = f"x{one / other:.2f}" if form.endswith(" s") else ""
        return f"| {name} | {form.format(one)} | {form.format(other)} | {ratio} |"

    lines = [
        "| emulated CPUs and GPUs, real Slurm and service | in proportion | as tuned | |",
        "|---|---|---|---|",
        row("makespan", proportional.makespan, tuned.makespan),
        row("mean JCT", proportional.completion(), tuned.completion()),
    ]
    for kind in ("hungry", "light"):
        lines += [
            row(f"mean JCT, {kind}", proportional.completion(kind), tuned.completion(kind)),
            row(f"run time, {kind}", proportional.running(kind), tuned.running(kind)),
            row(f"CPUs, {kind}", proportional.cpus(kind), tuned.cpus(kind), "{:.1f}"),
        ]
    return [*lines, row("GPUs busy", 100 * proportional.busy, 100 * tuned.busy, "{:.0f} %")]


def main() -> int:
    """Run both, print the table; 1 where tuning made it worse."""
    parser = argparse.ArgumentParser(
        description="Hungry and light jobs together, in proportion and as tuned."
    )
    parser.add_argument("--jobs", type=int, default=48)
    parser.add_argument("--hungry", type=float, default=0.33, help="share of the jobs")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    asked = parser.parse_args()
    os.umask(0o022)
    with rig(f"mix-{os.getpid()}", asked.nodes, asked.slurm, {"keep_cpus_per_gpu": 2}) as found:
        print(
            f"{asked.jobs} jobs of 1 GPU on {asked.nodes} nodes x 8 GPUs, Slurm {found.cluster.version}",
            flush=True,
        )
        proportional, tuned = measured(found, asked)
    print(*table(proportional, tuned), sep="\n")
    worse = tuned.makespan > proportional.makespan or tuned.completion() > proportional.completion()
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
