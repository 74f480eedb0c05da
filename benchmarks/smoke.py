"""What smoke is worth: 24 broken scripts and 30 good ones on a development cluster, all of 2 nodes x 8 emulated GPUs.

    python -m benchmarks.smoke [--slurm RELEASE] [--nodes N] [--minute S] [--only broken|good|scenes] [--both] [--json]

The broken ones are submitted by `gsub --smoke=race` and `--smoke=gate` while one GPU is taken, so that no real job
starts, and then by plain `sbatch` on the empty cluster: told is where each stops, and the GPU-minutes that it held.
A minute of a script's life takes `--minute` seconds (default 4), a smoke run 30 s, the shortest that there is:
GPU-minutes are of the scripts' own time. What Slurm and gsub take to start and end a job is not scaled, so it counts
for more than it is, on both sides. The good ones are submitted in the two ways by turns; while their real jobs wait,
every file of theirs must be as it was, and afterwards every real job must end well. Then smokes that are preempted,
lose their node or never start. Exit 1 when a good script was held or not run, or a file was changed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.smoke_scripts import BROKEN, GOOD, SLOW, Case
from benchmarks.smoke_stage import Asked, Job, Stage, stage, tree
from site_configs.devcluster.spec import RELEASES

SMOKE_S = 30.0
"""At 4 s a minute 7.5 minutes of the script's; `profiler.early.smoke_time` says 3.5 before a site has a history."""
GPUS = 16


@dataclass(frozen=True)
class Row:
    """A script: where it stopped, and GPU-minutes in its own time, with smoke and without."""

    name: str
    way: str
    stopped: str
    wanted: str
    smoke: float
    plain: float
    note: str = ""

    @property
    def ours(self) -> float:
        """With smoke: what is not stopped costs what it cost before."""
        return self.smoke + (0.0 if self.stopped in ("preflight", "sbatch", "smoke") else self.plain)


def submitted(
    stage: Stage, cases: Sequence[Case], way: str, before: Sequence[str] = (), kind: str = "bad"
) -> list[Asked]:
    """All of them, two at a time. `way`: race, gate or sbatch. No two jobs or folders have one name."""
    command, words = ("sbatch", ()) if way == "sbatch" else ("gsub", (f"--smoke={way}",))
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(stage.submit, case, f"{kind}-{way}{number}", *words, command=command, before=before)
            for number, case in enumerate(cases)
        ]
        return [task.result() for task in tasks]


# --- broken scripts ---------------------------------------------------------------------------------------------------


def broken(stage: Stage, cases: Sequence[Case]) -> list[Row]:
    """Where each stops in race and in gate, and what it costs beside plain sbatch."""
    ways: dict[str, tuple[list[Asked], dict[str, tuple[str, float, str]]]] = {}
    for way in ("race", "gate"):
        with stage.taken():
            asked = submitted(stage, cases, way)
            stage.quiet("smoke-")
            ways[way] = asked, {one.name: stopped(stage, one) for one in asked}
            ids = [one.job for one in asked if one.job]
            stage.admin("scancel", *ids)
    plain = submitted(stage, cases, "sbatch")
    stage.wait("the plain jobs", lambda: not stage.queue(), 400)
    jobs, fine = stage.jobs(), stage.seconds()
    rows = []
    for way, (asked, ends) in ways.items():
        for one, alone in zip(asked, plain, strict=True):
            where, seconds, note = ends[one.name]
            took = jobs[alone.job].seconds if alone.job in jobs else 0
            cost = fine.get(alone.job, took) * GPUS / stage.minute if alone.job else 0.0
            rows.append(Row(one.case.name, way, where, one.case.stops, seconds / stage.minute, cost, note))
    return rows


def stopped(stage: Stage, one: Asked) -> tuple[str, float, str]:
    """Where a submission stopped, the GPU-seconds of its smoke job, and what it was told."""
    if not one.job:
        where = "preflight" if "this job would fail" in one.said else "sbatch"
        return where, 0.0, " ".join(one.said.split())[:160]
    smoke = stage.smokes({one.name}).get(one.name)
    if smoke is None:
        return "no smoke", 0.0, " ".join(one.said.split())[:160]
    found = stage.result(smoke.job)
    held = stage.queue().get(one.job, ("", "", ""))[2] == "JobHeldUser"
    note = f"{found.outcome} {found.reason} {found.sentence}" if found else f"no result; {smoke.state}"
    seconds = stage.seconds().get(smoke.job, smoke.seconds) * smoke.gpus
    return ("smoke" if held else "nothing"), seconds, note


# --- good scripts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Good:
    """A good script: whether it was held, which of its files were changed, how its real job ended."""

    name: str
    way: str
    smoke: str
    held: bool
    changed: tuple[str, ...]
    state: str
    note: str = ""

    @property
    def well(self) -> bool:
        """As it must be."""
        return not self.held and not self.changed and self.state == "COMPLETED" and self.smoke != "no smoke"


def good(stage: Stage, cases: Sequence[Case], *, both: bool) -> list[Good]:
    """In race and gate by turns, or each in both; their real jobs start when all smoke runs are over."""
    seen = []
    with stage.taken():
        others = earlier(stage)
        turns = {"race": cases if both else cases[::2], "gate": cases if both else cases[1::2]}
        ways = {way: submitted(stage, turns[way], way, others, "good") for way in ("race", "gate")}
        before = {
            one.name: tree(stage.lay(one.case, f"again-{one.name}"))
            for asked in ways.values()
            for one in asked
        }
        stage.quiet("smoke-", 240)
        for way, asked in ways.items():
            queue = stage.queue()
            smokes = stage.smokes({one.name for one in asked})
            for one in asked:
                smoke = smokes.get(one.name)
                found = stage.result(smoke.job) if smoke else None
                rows = [row for job, row in queue.items() if job.split("_")[0] == one.job]
                held = any(reason.startswith("JobHeld") for _, _, reason in rows)
                then, now = before[one.name], tree(one.folder)
                outcome = found.outcome if found else (smoke.state if smoke else "no smoke")
                note = found.sentence if found else " ".join(one.said.split())[:200]
                seen.append((one, way, outcome, held, differing(then, now), note))
        held_ids = [one.job for one, _, _, held, _, _ in seen if held]
        if held_ids:
            stage.admin("scontrol", "release", ",".join(held_ids))
    stage.wait("the real jobs", lambda: not stage.queue(), 420)
    jobs = stage.jobs()
    return [
        Good(one.case.name, way, outcome, held, changed, ended(jobs, one.job), note)
        for one, way, outcome, held, changed, note in seen
    ]


def earlier(stage: Stage) -> tuple[str, str]:
    """Two jobs that others can depend on: they take no GPU and end well within a minute."""
    line = ["sbatch", "--parsable", "-Jearlier", "-n1", "-t1", "-o/dev/null", "--wrap=sleep 20"]
    first, second = (stage.run(line)[1].split()[-1] for _ in range(2))
    return first, second


def differing(
    before: dict[str, tuple[int, int, str]], after: dict[str, tuple[int, int, str]]
) -> tuple[str, ...]:
    """Paths that came, went, or have another content."""
    return tuple(
        path
        for path in sorted({*before, *after})
        if before.get(path, (0, 0, ""))[1:] != after.get(path, (0, 0, ""))[1:]
    )


def ended(jobs: dict[str, Job], job: str) -> str:
    """The state in which a job, or all tasks of an array, ended."""
    states = {row.state for number, row in jobs.items() if number.split("_")[0] == job}
    return "COMPLETED" if states == {"COMPLETED"} else " ".join(sorted(states)) or "not submitted"


# --- scenes -----------------------------------------------------------------------------------------------------------


def scenes(stage: Stage) -> list[Good]:
    """A smoke that is preempted, one whose node dies, one that never starts; each in race and in gate."""
    found: list[tuple[Asked, str, str]] = []

    def two(what: str, *, start: bool = True) -> list[Asked]:
        ones = [
            stage.submit(SLOW, f"{what[6:10].strip()}-{way}", f"--smoke={way}") for way in ("race", "gate")
        ]
        found.extend((one, way, what) for one, way in zip(ones, ("race", "gate"), strict=True))
        for one in ones if start else []:
            running(stage, one)
        return ones

    def gone(ones: Sequence[Asked]) -> None:
        for one in ones:
            stage.quiet(f"smoke-{one.name}", 120)

    with stage.taken("-w", "n1", "--gpus=8"):
        ones = two("smoke preempted")
        line = ["sbatch", "--parsable", "-purgent", "-w", "n2", "--gpus=8", "--exclusive", "-o/dev/null"]
        stage.run([*line, "--wrap=true"])
        gone(ones)
        ones = two("smoke loses its node")
        os.kill(stage.cluster.daemons()["slurmd-n2"], signal.SIGKILL)
        stage.admin("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=dead")
        gone(ones)
        stage.cluster.start("slurmd-n2")
        stage.admin("scontrol", "update", "NodeName=n2", "State=RESUME")
        stage.bounds(SMOKE_S, 20)
        with stage.taken("-w", "n2", "--gpus=8", "-t20"):
            gone(two("smoke never starts", start=False))
    stage.wait("the real jobs of the scenes", lambda: not stage.queue(), 300)
    jobs = stage.jobs()
    smokes = stage.smokes({one.name for one, _, _ in found})
    rows = []
    for one, way, what in found:
        smoke = smokes[one.name].state if one.name in smokes else "no smoke"
        rows.append(Good(what, way, smoke, False, (), ended(jobs, one.job), ""))
    return rows


def running(stage: Stage, one: Asked) -> str:
    """The smoke job of a submission, once its script runs."""

    def look() -> str | None:
        for job, (name, state, _) in stage.queue().items():
            if name == f"smoke-{one.name}" and state == "RUNNING":
                return job
        return None

    job = stage.wait(f"the smoke of {one.name}: {one.said}", look, 60)
    time.sleep(2)  # the runner is under way, and the script most likely too
    return job


# --- the report -------------------------------------------------------------------------------------------------------


def tell_broken(rows: Sequence[Row]) -> None:
    """Two tables."""
    print(
        "\n| broken | race | gate | smoke run | with smoke | plain sbatch |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    half = len(rows) // 2
    for race, gate in zip(rows[:half], rows[half:], strict=True):
        print(
            f"| {race.name} | {race.stopped} | {gate.stopped} | {race.smoke:.1f} | {race.ours:.1f} | {race.plain:.1f} |"
        )
    for way, part in (("race", rows[:half]), ("gate", rows[half:])):
        counts = {where: sum(row.stopped == where for row in part) for where in {row.stopped for row in part}}
        ours, plain = sum(row.ours for row in part), sum(row.plain for row in part)
        stopped = [row for row in part if row.stopped in ("preflight", "sbatch", "smoke")]
        theirs, spent = sum(row.plain for row in stopped), sum(row.ours for row in stopped)
        print(f"{way}: {counts}; GPU-minutes of all {ours:.0f} beside {plain:.0f} of plain sbatch;", end=" ")
        print(f"of the {len(stopped)} that were stopped {spent:.1f} beside {theirs:.0f}")
    for row in rows:
        if row.stopped != row.wanted and not (row.stopped == "sbatch" and row.wanted == "preflight"):
            print(
                f"  otherwise than meant: {row.name} ({row.way}): {row.stopped}, not {row.wanted}: {row.note}"
            )


def tell_good(rows: Sequence[Good]) -> None:
    """One line each, and the sums."""
    print("\n| good | way | smoke | real job |", "|---|---|---|---|", sep="\n")
    for row in rows:
        print(f"| {row.name} | {row.way} | {row.smoke} | {row.state} |")
    held, changed = (sum(bool(getattr(row, what)) for row in rows) for what in ("held", "changed"))
    stranded = sum(row.state != "COMPLETED" for row in rows)
    print(
        f"{len(rows)} submissions: {held} false alarms, {stranded} not run to their end, {changed} with changed files"
    )
    for row in rows:
        if not row.well:
            print(f"  NOT WELL: {row}")


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="What smoke is worth.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--minute", type=float, default=4.0, help="seconds that a minute of a script takes")
    parser.add_argument("--only", choices=("broken", "good", "scenes"))
    parser.add_argument(
        "--both", action="store_true", help="each good script in both ways, some 3 minutes more"
    )
    parser.add_argument("--case", help="only cases with this in their name")
    parser.add_argument("--cluster", help="its name; one that is up stays up")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    pick = [[case for case in cases if (asked.case or "") in case.name] for cases in (BROKEN, GOOD)]
    begun = time.monotonic()
    name = asked.cluster or f"smoke-{os.getpid()}"
    rows: list[Row] = []
    fine: list[Good] = []
    with stage(name, asked.slurm, asked.nodes, asked.minute, smoke_s=SMOKE_S) as here:
        if asked.only in (None, "broken"):
            rows = broken(here, pick[0])
            if not asked.json:
                tell_broken(rows)
        if asked.only in (None, "good"):
            fine = good(here, pick[1], both=asked.both)
        if asked.only in (None, "scenes"):
            fine += scenes(here)
    if asked.json:
        print(json.dumps({"broken": [asdict(row) for row in rows], "good": [asdict(row) for row in fine]}))
    else:
        if fine:
            tell_good(fine)
        print(f"{time.monotonic() - begun:.0f} s in all, Slurm {asked.slurm}, a minute in {asked.minute:g} s")
    return 0 if all(row.well for row in fine) else 1


if __name__ == "__main__":
    sys.exit(main())
