"""Are the CPUs that a workload can use found, and given to its next submission? With knees unknown to the profiler.

    python -m benchmarks.knees [--workloads 8] [--seed N] [--tell step|log] [--by script|here] [--slurm RELEASE]

Emulated pipelines with knees drawn at random between 3 and 24 CPUs run as jobs on a real Slurm with the real service,
on nodes of 64 emulated CPUs and 8 emulated GPUs. First `gsub learn` measures each of them, several side by side
(they mostly sleep), and delivers what it found to the service. Then each is submitted three times: with `gsub`, when
the service decides with what was learnt; with gsub off, when it gets its GPU's share (8 CPUs); and with gsub off and 32
CPUs, for the best that it can do. Told are the knees, the seconds that learning took, and the throughput that was
measured in these runs.

    python -m benchmarks.knees --virtual 200

Without a cluster and without waiting: so many knees for each length of the queue of prefetched batches, in the
pipelines' own time, with and without using up what lies ready (`profiler.draining`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.emulated_jobs import Job, Ran, Rig, rig
from benchmarks.emulated_pipeline import LEVER, SECONDS, Shape, drawn
from profiler.workload import exact
from site_configs.devcluster.spec import RELEASES
from tests.unit.profiler.learn.virtual import TooFewStepsError
from tests.unit.profiler.learn.virtual import learnt as in_virtual_time

CAP = 32
"""CPUs that a learning job asks for, as a site's cap would let it."""
STATE = "XDG_STATE_HOME"
LEAST = 0.97
LONGEST_S = 180.0
RUN_S = 90.0
"""How long a run is whose throughput is measured."""


@dataclass(frozen=True)
class Workload:
    """An emulated pipeline, its jobs, and what its shape is: nobody but this bench knows."""

    name: str
    shape: Shape
    tell: str
    draw: int

    @property
    def plain(self) -> Job:
        """The job that a user submits again and again."""
        return Job(self.name, (f"--draw={self.draw}", f"--tell={self.tell}"))

    @property
    def job(self) -> Job:
        """The same by gsub."""
        return replace(self.plain, command=("gsub",))

    @property
    def named(self) -> Job:
        """The same by gsub, under the name by which `here` learns it."""
        return replace(self.plain, command=("gsub", f"--workload={self.name}"))

    @property
    def learning(self) -> Job:
        """What measures it: `gsub learn SCRIPT`."""
        return replace(self.plain, command=("gsub", "learn"))

    @property
    def here(self) -> Job:
        """What measures it in a job of the user's own: `gsub learn --here`."""
        words = f"gsub learn --here --json --workload={self.name} -- bash {self.name}.sh"
        script = f'#!/bin/bash\n{words}\necho "{{\\"seconds\\": $SECONDS}}"\n'
        options = ("--gpus=1", "--nodes=1", f"--cpus-per-gpu={CAP}")
        return Job(f"learn-{self.name}", (), options, other=script)


@dataclass(frozen=True)
class Learnt:
    """What `gsub learn` told."""

    knee: int
    sure: bool
    seconds: float
    points: int


@dataclass(frozen=True)
class Found:
    """One workload: what was learnt, and its runs as tuned, in proportion, and with all CPUs."""

    workload: Workload
    learnt: Learnt
    tuned: Ran
    proportional: Ran
    best: Ran

    @property
    def share_of_best(self) -> float:
        """Its throughput as tuned, over the best that was measured."""
        return self.tuned.rate / self.best.rate

    @property
    def good(self) -> bool:
        """Whether all that is asked of it is met."""
        near = abs(self.learnt.knee - self.workload.shape.enough) <= 1
        given = self.tuned.cpus == self.learnt.knee
        return near and given and self.share_of_best >= LEAST and self.learnt.seconds < LONGEST_S


def learn(rig: Rig, workloads: Sequence[Workload], by: str) -> list[Learnt]:
    """Measure all, side by side, until the service knows. Raises RuntimeError where one told nothing."""
    home = rig.cluster.home(rig.user)
    # Outside of the job's folder, of which a smoke run has a layer of its own: it would not see the lever move.
    levers = rig.cluster.paths.root / "levers"
    levers.mkdir()
    levers.chmod(0o1777)
    jobs = []
    for one in workloads:
        rig.write(f"{one.name}.sh", one.plain.script)
        env = {LEVER: f"{levers}/{one.name}", SECONDS: "600", STATE: str(home / "state")}
        jobs.append(rig.submit(one.learning if by == "script" else one.here, env))
    rig.wait(2 * LONGEST_S)
    told = {"script": of_smoke, "here": of_json}[by]
    found = [told(rig, job) for job in jobs]
    rig.await_curves(
        exact(one.plain.script, one.name)[1] if by == "script" else f"own:{one.name}" for one in workloads
    )
    return found


def of_json(rig: Rig, job: str) -> Learnt:
    """From the output of `gsub learn --here --json`."""
    text = rig.output(job)
    facts: dict[str, Any] = {}
    try:
        for line in text.splitlines():
            if line.startswith("{"):
                facts |= json.loads(line)
        return Learnt(facts["knee"], facts["sure"], facts["seconds"], len(facts["points"]))
    except (ValueError, KeyError, TypeError):
        raise RuntimeError(f"learning job {job} told nothing of use:\n{text[-3000:]}") from None


def of_smoke(rig: Rig, job: str) -> Learnt:
    """From what the job of `gsub learn SCRIPT` left in the user's state."""
    text = rig.cluster.run(["cat", f"state/gsub/smoke/{job}/result.json"], user=rig.user).stdout
    try:
        facts = json.loads(text)
        said = next(line for line in facts["said"] if line.startswith("the knee:"))
        knee = int(said.split()[2])
        return Learnt(knee, "not sure" not in said, facts["seconds"], len(facts["points"]))
    except (ValueError, KeyError, TypeError, StopIteration):
        raise RuntimeError(f"learning job {job} told nothing of use:\n{text[-3000:]}") from None


def measured(rig: Rig, workloads: Sequence[Workload], by: str) -> list[Found]:
    """Learn, let the service know, submit again, and as it would have been without."""
    begun = time.monotonic()
    known = learn(rig, workloads, by)
    print(f"  learnt {len(workloads)} workloads side by side in {time.monotonic() - begun:.0f} s", flush=True)
    run = {SECONDS: str(RUN_S), STATE: str(rig.cluster.home(rig.user) / "state")}
    off = {**run, "GSUB": "off"}
    tuned = [one.job if by == "script" else one.named for one in workloads]
    ran = rig.run_all([(job, run) for job in tuned] + [(one.plain, off) for one in workloads])
    all_cpus = [
        replace(one.plain, options=(*one.plain.options, f"--cpus-per-gpu={CAP}")) for one in workloads
    ]
    best = rig.run_all([(job, off) for job in all_cpus])
    count = len(workloads)
    return [Found(*each) for each in zip(workloads, known, ran[:count], ran[count:], best, strict=True)]


def table(found: Sequence[Found], share: int) -> list[str]:
    """A line a workload, and what they come to."""
    lines = [
        "| emulated CPUs and GPUs, real Slurm and service: true knee | found | seconds | points | given next "
        f"| of the best | with {share} CPUs (share) | against it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(found, key=lambda each: each.workload.shape.knee):
        gain = one.tuned.rate / one.proportional.rate
        freed = one.proportional.cpus - one.tuned.cpus
        against = f"x{gain:.2f} throughput" if freed < 0 else f"{freed} CPUs freed, x{gain:.2f}"
        lines.append(
            f"| {one.workload.shape.knee:.1f} ({one.workload.shape.enough}) "
            f"| {one.learnt.knee}{'' if one.learnt.sure else ' (not sure)'} | {one.learnt.seconds:.0f} "
            f"| {one.learnt.points} | {one.tuned.cpus} | {one.share_of_best:.3f} "
            f"| {one.proportional.rate / one.best.rate:.3f} | {against} |"
        )
    hungry = [
        one.tuned.rate / one.proportional.rate for one in found if one.tuned.cpus > one.proportional.cpus
    ]
    freed_all = sum(max(one.proportional.cpus - one.tuned.cpus, 0) for one in found)
    near = sum(abs(one.learnt.knee - one.workload.shape.enough) <= 1 for one in found)
    lines += [
        "",
        f"within one CPU: {near} of {len(found)}; longest {max(one.learnt.seconds for one in found):.0f} s; "
        f"least of the best {min(one.share_of_best for one in found):.3f}",
    ]
    if hungry:
        lines.append(f"hungry jobs: x{statistics.fmean(hungry):.2f} in the mean, up to x{max(hungry):.2f}")
    return [*lines, f"CPUs freed by light jobs: {freed_all}"]


def virtual(count: int, seed: int) -> list[str]:
    """What is found behind queues of several lengths, in the pipelines' own time."""
    lines = [
        "| all emulated: batches that are prefetched | within one CPU | throughput there, at least | longest, s "
        "| within one CPU without draining |",
        "|---|---|---|---|---|",
    ]
    for queue in (2, 8, 16, 32, 64):
        shapes = [replace(drawn(seed * 10_000 + number), queue=queue) for number in range(count)]
        near, least, longest = 0, 1.0, 0.0
        for number, shape in enumerate(shapes):
            done, _, seconds = in_virtual_time(shape, number, CAP)
            near += abs(done.knee - shape.enough) <= 1
            least = min(least, shape.rate(done.knee) * shape.step)
            longest = max(longest, seconds)
        plain = 0
        for number, shape in enumerate(shapes):
            with suppress(TooFewStepsError):
                found = in_virtual_time(shape, number, CAP, drains=False)[0].knee
                plain += abs(found - shape.enough) <= 1
        lines.append(f"| {queue} | {near} of {count} | {least:.3f} | {longest:.0f} | {plain} |")
    return lines


def main() -> int:
    """Print the table; 1 where one workload misses what is asked."""
    parser = argparse.ArgumentParser(description="Knees that the profiler does not know.")
    parser.add_argument("--workloads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: another one each time")
    parser.add_argument("--tell", choices=("step", "log"), default="step", help="how steps are told")
    parser.add_argument(
        "--by", choices=("script", "here"), default="script", help="gsub learn SCRIPT, or --here"
    )
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument(
        "--virtual", type=int, metavar="N", help="in the pipelines' own time: N knees a queue"
    )
    asked = parser.parse_args()
    if asked.virtual:
        print(*virtual(asked.virtual, asked.seed), sep="\n")
        return 0
    os.umask(0o022)
    draws = [asked.seed * 100 + number for number in range(asked.workloads)]
    workloads = [Workload(f"w{number}", drawn(draw), asked.tell, draw) for number, draw in enumerate(draws)]
    nodes = -(-asked.workloads // 2)
    with rig(
        f"knees-{os.getpid()}", nodes, asked.slurm, {"keep_cpus_per_gpu": 1, "max_cpus_per_gpu": CAP}
    ) as found:
        print(f"{len(workloads)} workloads, seed {asked.seed}, Slurm {found.cluster.version}", flush=True)
        results = measured(found, workloads, asked.by)
        share = found.share
    print(*table(results, share), sep="\n")
    missed = [one.workload.name for one in results if not one.good]
    if missed:
        print(f"knees: missed by {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
