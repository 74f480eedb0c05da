"""A mixed day on a real Slurm, and what the audit makes of it: every cell against the ledger of what was run.

    python -m benchmarks.mixed_day [--slurm RELEASE]

160 jobs of 27 kinds (`mixed_kinds`) in some two minutes: all outcomes, ten reasons, users, accounts, sizes, with
agents and the service. Then the tables of ``gsub admin audit --json`` against what jobs themselves say of their run.
Prints what differs, and ends with 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.mixed_kinds import DAY, LAG, STAMP, USE, Attempt, Kind, cells, differences, read
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES
from tests.slurm.record.recorded import Recorded

PATIENCE = 60.0
"""Seconds from the last job's end in which the store must know all: verdicts change while facts come in."""


class Day:
    """The jobs of DAY on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.record = Recorded(cluster)
        self.users = cluster.users or (None,)
        self.jobs: dict[int, tuple[Kind, str]] = {}

    def prepare(self) -> None:
        """A short delay of requeued jobs, a second account, and in each home the programs and a script a kind."""
        conf = self.cluster.paths.slurm_conf
        # Not by StartTime: while its credential lives, 22.05 starts the next attempt without a prolog now and then
        conf.write_text(re.sub(r"(AuthInfo=socket=\S+)", r"\1,cred_expire=10", conf.read_text()))
        for name in ("slurmctld", *(f"slurmd-{node}" for node in self.cluster.spec.node_names)):
            self.cluster.restart(name)
        self.record.wait_for("the nodes", lambda: self.idle_nodes() or None)
        names = ",".join(name or self.me for name in self.users)
        for step in (["account", "phys"], ["user", names, "Account=phys"]):
            self.cluster.run(
                ["sacctmgr", "-i", "add", *step, f"Cluster={self.cluster.spec.name}"], check=True
            )
        for user in self.users:
            files = {"stamp.sh": STAMP, "use.py": USE} | {f"{kind.name}.sh": kind.script for kind in DAY}
            puts = [f"cat > {name} <<'END OF FILE'\n{text}END OF FILE\n" for name, text in files.items()]
            self.cluster.run(["sh", "-s"], user=user, input="mkdir day\n" + "".join(puts), check=True)

    def idle_nodes(self) -> bool:
        """Whether all can be given jobs."""
        return set(self.cluster.run(["sinfo", "-hN", "-pgpu", "-o%t"]).stdout.split()) == {"idle"}

    @property
    def me(self) -> str:
        """Who runs the test."""
        return self.cluster.run(["id", "-un"], check=True).stdout.strip()

    def folder(self, kind: Kind) -> Path:
        """Where attempts stamp."""
        return self.cluster.home(self.user(kind)) / "day"

    def user(self, kind: Kind) -> str | None:
        """Who submits it."""
        return self.users[kind.user % len(self.users)]

    def submit(self, *kinds: Kind) -> None:
        """Submit all of them, each user's in one go."""
        for user in self.users:
            mine = [kind for kind in kinds if self.user(kind) == user]
            each = [kind for kind in mine for _ in range(1 if kind.array else kind.times)]
            lines = [shlex.join(["sbatch", "--parsable", *kind.asked, f"{kind.name}.sh"]) for kind in each]
            done = self.cluster.run(["sh", "-es"], user=user, input="\n".join(lines), timeout=120, check=True)
            for kind, job in zip(each, done.stdout.split(), strict=True):
                self.jobs[int(job)] = (kind, user or self.me)

    def ids(self, act: str) -> list[int]:
        """The jobs to which this is to happen."""
        return [job for job, (kind, _) in self.jobs.items() if kind.act == act]

    def stamped(self, job: int, word: str) -> bool:
        """Whether its first attempt has come so far."""
        path = self.folder(self.jobs[job][0]) / f"{job}-{job}-0-"
        return path.exists() and word in path.read_text()

    def control(self, *words: str) -> None:
        """Have Slurm do it."""
        self.cluster.run([*words], check=True)

    def act(self) -> None:
        """What befalls jobs from outside, once they have been at work for some seconds."""
        acts = ("preempt", "requeue", "cancel")
        jobs = [job for act in acts for job in self.ids(act)]
        self.record.wait_for("all to run", lambda: all(self.stamped(job, "began") for job in jobs) or None)
        time.sleep(5)  # a run of no length is no part of a day
        self.control("scancel", *map(str, [*self.ids("cancel"), *self.ids("withdraw")]))
        self.submit(*(kind for kind in DAY if kind.act == "urgent"))
        for job in self.ids("requeue"):
            self.control("scontrol", "requeue", str(job))

    def end(self) -> None:
        """Wait for the last job, and for Slurm's books."""
        books = ["sacct", "-nXDP", "-Snow-1hour", "-oEnd"]
        self.record.wait_for("the last job", lambda: not self.cluster.run(["squeue", "-h"]).stdout or None)
        self.record.wait_for("accounting", lambda: "Unknown" not in self.cluster.run(books).stdout or None)

    def ledger(self) -> list[Attempt]:
        """What was run."""
        words = ["sacct", "-nXDP", "-Snow-1hour", "-oJobIDRaw,Start,ElapsedRaw"]
        # Of a job's attempts the first to start comes first
        rows = sorted(line.split("|") for line in self.cluster.run(words, check=True).stdout.split())
        held: dict[tuple[int, int], float] = {}
        for job, start, seconds in rows:
            if start[:1].isdigit():
                held[int(job), sum(other == int(job) for other, _ in held)] = float(seconds)
        return [one for user in self.users for one in read(self.cluster.home(user) / "day", self.jobs, held)]

    def audit(self) -> dict[str, Any]:
        """What the audit says."""
        tables: dict[str, Any] = json.loads(self.record.admin("audit", "--since", "1d", "--json"))["tables"]
        return tables


def run(cluster: Cluster) -> list[str]:
    """Run the day, print how it went; what is wrong in the audit."""
    began = time.monotonic()
    day = Day(cluster)
    day.record.wait_for("the service", day.record.jobs)
    day.prepare()
    day.submit(*(kind for kind in DAY if kind.reason == "time_limit" or kind.act not in ("", "urgent")))
    day.act()
    day.submit(*(kind for kind in DAY if kind.reason != "time_limit" and not kind.act))
    day.end()
    ledger = day.ledger()
    took = time.monotonic() - began
    print(
        f"{sum(kind.times for kind in DAY)} jobs, {len(ledger)} attempts that ran, in {took:.0f} s",
        flush=True,
    )
    print(
        ", ".join(
            f"{count} {outcome}" for outcome, count in Counter(one.outcome for one in ledger).most_common()
        )
    )
    print(f"{len({one.reason for one in ledger if one.failed})} reasons, {len(cells(ledger))} cells")
    # All that was submitted, twice where it was requeued, less what was withdrawn before it ran
    wanted = sum(kind.times * (1 + (kind.before is not None)) for kind in DAY if kind.act != "withdraw")
    wrong = [] if len(ledger) == wanted else [f"{len(ledger)} attempts ran, not {wanted}"]
    wrong += [
        f"job {one.job}: Slurm charged {one.held_s} s for {one.run_s:.1f} s"
        for one in ledger
        if not -1.1 < one.held_s - one.run_s < LAG
    ]
    patience = time.monotonic() + PATIENCE
    while (differs := differences(day.audit(), ledger)) and time.monotonic() < patience:
        time.sleep(2)
    return wrong + differs


def main() -> int:
    """Run the day on a cluster of its own; 1 where the audit says something else."""
    parser = argparse.ArgumentParser(description="A mixed day of real jobs against the audit's tables.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    asked = parser.parse_args()
    os.umask(0o022)
    name = f"day-{os.getpid()}"
    try:
        cluster = Cluster.up(ClusterSpec(name, 4, 8, asked.slurm, deadline=1.0, agents=True))
        wrong = run(cluster)
    finally:
        Cluster.down(name)
    print("\n".join(wrong) or "the audit tells what was run", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
