"""A busy stretch of a development cluster, and its export from accounting: what `benchmarks.replay_sacct` replays.

Plain `sbatch` and no gsub in the way: jobs of 1 to 16 GPUs on 1 to 4 nodes that run 2 to 40 s, of two users in two
accounts, two partitions, two QOS, in bursts, on a cluster that has less than they want. Priority is multifactor as most
sites have it, with a site's days as minutes.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.accounting import ACCOUNT
from site_configs.devcluster.spec import Release
from slurm_plugins.replay.traces.sacct import FIELDS

OTHER: Final = "phys"
QOS: Final = "high"
PRIORITY: Final = {
    "PriorityWeightAge": "1000",
    "PriorityMaxAge": "00:10:00",
    "PriorityWeightFairshare": "2000",
    "PriorityWeightJobSize": "500",
    "PriorityWeightPartition": "400",
    "PriorityWeightQOS": "800",
    "PriorityDecayHalfLife": "00:05:00",
    "PriorityCalcPeriod": "1",
}
SHAPES: Final = (
    (34, 1, 1), (20, 1, 2), (16, 1, 4), (12, 1, 8), (7, 2, 8), (4, 2, 4), (3, 4, 1), (2, 4, 4), (2, 3, 2)
)  # fmt: skip
"""How many in a hundred, on so many nodes, with so many GPUs on each."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A job: submitted after so many seconds by `user`, runs `runs` seconds, asks for `limit` minutes."""

    at: float
    user: str
    nodes: int
    gpus: int
    runs: float
    limit: int
    words: tuple[str, ...]

    @property
    def line(self) -> list[str]:
        """Its sbatch."""
        shape = [f"--nodes={self.nodes}", f"--gpus-per-node={self.gpus}", f"--time={self.limit}"]
        return [
            "sbatch",
            "--parsable",
            "--output=/dev/null",
            *shape,
            *self.words,
            f"--wrap=sleep {self.runs:.1f}",
        ]


def asks(seed: int, jobs: int, users: tuple[str, ...], span: float) -> list[Ask]:
    """A mix drawn by chance: half of the jobs come one by one, half in bursts of one user's."""
    chance = random.Random(seed)
    weights = [weight for weight, _, _ in SHAPES]
    found: list[Ask] = []
    while len(found) < jobs:
        at, user = chance.uniform(0, span), chance.choice(users)
        burst = chance.randint(4, 9) if chance.random() < 0.15 else 1
        _, nodes, gpus = chance.choices(SHAPES, weights)[0]
        account = chance.choice((ACCOUNT, OTHER))
        for _ in range(burst):
            if burst == 1 or chance.random() < 0.3:
                _, nodes, gpus = chance.choices(SHAPES, weights)[0]
            runs = 2 * 20 ** chance.random()
            limit = chance.choice((1, 1, 1, 2, 2, 3, 5, 10, 30))
            words = [f"--account={account}"]
            if chance.random() < 0.12:
                words.append(f"--qos={QOS}")
            if chance.random() < 0.1:
                words.append("--nice=200")
            if chance.random() < 0.15 and limit <= 30:
                words.append("--partition=debug")
            found.append(Ask(at + chance.uniform(0, 1), user, nodes, gpus, runs, limit, tuple(words)))
    return sorted(found[:jobs], key=lambda one: one.at)


@contextmanager
def cluster(name: str, release: Release, nodes: int) -> Iterator[Cluster]:
    """A cluster of its own without gsub, with multifactor priority; it is taken down."""
    os.umask(0o022)
    spec = ClusterSpec(name, nodes, 8, release, gsub=False, agents=False)
    try:
        found = Cluster.up(spec)
        _prepare(found)
        yield found
    finally:
        if name in Cluster.names():
            Cluster.down(name)


def _prepare(found: Cluster) -> None:
    admin = ["sacctmgr", "-i"]
    users = ",".join(found.users)
    own = f"Cluster={found.spec.name}"
    found.run([*admin, "add", "qos", QOS, "Priority=10"], check=True)
    found.run([*admin, "add", "account", OTHER, own, "Fairshare=2"], check=True)
    found.run([*admin, "add", "user", users, f"Account={OTHER}", own], check=True)
    found.run([*admin, "modify", "account", f"{ACCOUNT},{OTHER}", "set", f"qos+={QOS}"], check=True)
    found.run([*admin, "modify", "user", users, "set", f"qos+={QOS}"], check=True)
    conf = found.paths.slurm_conf
    text = re.sub(r"(PartitionName=debug .*)", r"\1 PriorityJobFactor=10", conf.read_text())
    text += "".join(f"{key}={value}\n" for key, value in PRIORITY.items())
    # the log tells each look of the schedulers, to a millisecond: what the books cannot tell is known from there
    text = text.replace("SlurmctldDebug=info", "SlurmctldDebug=debug\nDebugFlags=Backfill,Priority")
    conf.write_text(text)
    # the priority plugin starts its clock anew: PriorityCalcPeriod counts from here
    found.restart("slurmctld")
    until = time.monotonic() + 60
    while set(found.run(["sinfo", "-hN", "-pgpu", "-o%t"]).stdout.split()) != {"idle"}:
        if time.monotonic() > until:
            raise TimeoutError("the nodes do not come back after the restart of slurmctld")
        time.sleep(0.5)


class Load:
    """This machine's load, looked at every five seconds."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(5):
            self.seen.append(os.getloadavg()[0])

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def lived(found: Cluster, comes: list[Ask], folder: Path, patience: float = 1200) -> None:
    """Submit each in its time, wait for the end of all, and write into the folder what Slurm tells of it.

    Raises TimeoutError where jobs are left after `patience` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"qos.psv": ["sacctmgr", "-P", "show", "qos"], "sshare.psv": ["sshare", "-alP"]}
    for name, command in tables.items():
        (folder / name).write_text(found.run(command, check=True).stdout)
    since = time.strftime("%Y-%m-%dT%H:%M:%S")
    began = time.time() + 1

    def one(job: Ask) -> None:
        time.sleep(max(0.0, began + job.at - time.time()))
        done = found.run(job.line, user=job.user)
        if done.returncode:
            raise RuntimeError(f"{job.line}: {done.stderr}")

    with Load() as load, ThreadPoolExecutor(6) as pool:
        list(pool.map(one, comes))
        until = time.monotonic() + patience
        while found.run(["squeue", "-h", "-o%i"], check=True).stdout.strip():
            if time.monotonic() > until:
                raise TimeoutError(f"jobs are left after {patience:.0f} s")
            time.sleep(1)
    export = ["sacct", "-a", "-D", "-X", "-P", "-S", since, "-E", "now", "-o", ",".join(FIELDS)]
    while "Unknown" in (said := found.run(export, env={"SLURM_TIME_FORMAT": "%s"}, check=True).stdout):
        if time.monotonic() > until:
            raise TimeoutError("accounting does not learn of the last end")
        time.sleep(1)
    (folder / "export.psv").write_text(said)
    config = found.run(["scontrol", "show", "config"], check=True).stdout
    boot = re.search(r"BOOT_TIME\s*=\s*(\S+)", config)
    facts = {
        "release": found.version,
        "load": round(statistics.fmean(load.seen), 1) if load.seen else None,
        "boot": time.mktime(time.strptime(boot[1], "%Y-%m-%dT%H:%M:%S")) if boot else None,
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    for path in (
        found.paths.log / "slurmctld.log",
        found.paths.slurm_conf,
        found.paths.etc / "topology.conf",
    ):
        shutil.copy(path, folder / path.name)
