"""A mixed day on a real Slurm, and what the audit makes of it: every cell against the ledger of what was run."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES
from tests.record.recorded import Recorded
from tests.report.mixed_day import DAY, STAMP, USE, Attempt, Kind, differences, read

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
        """Wait for the last job."""
        self.record.wait_for("the last job", lambda: not self.cluster.run(["squeue", "-h"]).stdout or None)

    def ledger(self) -> list[Attempt]:
        """What was run."""
        return [one for user in self.users for one in read(self.cluster.home(user) / "day", self.jobs)]

    def audit(self) -> dict[str, Any]:
        """What the audit says."""
        done = self.cluster.run(["gsub", "admin", "audit", "--since", "1d", "--json"], check=True)
        tables: dict[str, Any] = json.loads(done.stdout)["tables"]
        return tables


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """4 nodes x 8 GPUs with agents."""
    release = request.param
    if release != RELEASES[0]:
        pytest.skip(f"a day is a minute and a half: seen on {RELEASES[0]}")
    os.umask(0o022)
    name = f"t{os.getpid()}-day{release}"
    try:
        yield Cluster.up(ClusterSpec(name, 4, 8, release, deadline=1.0, agents=True))
    finally:
        Cluster.down(name)


def test_the_audit_tells_what_was_run(cluster: Cluster) -> None:
    day = Day(cluster)
    day.record.wait_for("the service", day.record.jobs)
    day.prepare()
    day.submit(*(kind for kind in DAY if kind.reason == "time_limit" or kind.act not in ("", "urgent")))
    day.act()
    day.submit(*(kind for kind in DAY if kind.reason != "time_limit" and not kind.act))
    day.end()
    ledger = day.ledger()
    # All that was submitted, twice where it was requeued, less what was withdrawn before it ran
    assert len(ledger) == sum(
        kind.times * (1 + (kind.before is not None)) for kind in DAY if kind.act != "withdraw"
    )
    assert sum(kind.times for kind in DAY) >= 150
    patience = time.monotonic() + PATIENCE
    while (wrong := differences(day.audit(), ledger)) and time.monotonic() < patience:
        time.sleep(2)
    assert not wrong, "\n".join(wrong)
