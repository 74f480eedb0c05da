"""What the hooks cost a job: wall time of prolog and epilog on a real slurmd, beside a script that does nothing.

    python -m benchmarks.hooks [--slurm RELEASE] [--rounds N] [--gate] [--json]

A round starts 8 jobs of a GPU each at once on one node, with gsub's hooks and with no-ops in turns; slurmd calls a
small program that times what it runs. The node's agent runs beside, as it would. Exit 1 when an aim is missed; with
--gate only when a bound far above the aims is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES, Release

AT_ONCE = 8
AIMS_MS = {50: 50.0, 99: 150.0}
GATES_MS = {50: 250.0, 99: 1000.0}
"""Far above the aims: two cores that start eight jobs and do other work as well."""
HOOKS = ("prolog", "epilog")
_TIMED = Path(__file__).with_name("timed.c")
_NOOP = "#!/bin/sh\nexit 0\n"


@dataclass(frozen=True)
class Figure:
    """A hook's times in milliseconds, beside those of a no-op, and how many were measured of each."""

    hook: str
    part: int
    ours_ms: float
    noop_ms: float
    measured: int

    @property
    def ratio(self) -> float:
        """Ours over the no-op's."""
        return self.ours_ms / self.noop_ms


class Hooks:
    """The hooks of a cluster of one node, behind the timing program."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = cluster.paths.libexec / "bench"
        self._folder.mkdir()
        noop = self._folder / "noop"
        noop.write_text(_NOOP)
        noop.chmod(0o755)
        for name in HOOKS:
            self.use(name, ours=True)
            words = {"HOOK": self._folder / f"{name}.now", "LOG": self._folder / f"{name}.log"}
            defined = [f'-D{key}="{value}"' for key, value in words.items()]
            timed = self._folder / name
            subprocess.run(["cc", "-O2", "-static", *defined, "-o", timed, _TIMED], check=True)
        conf = cluster.paths.slurm_conf
        text = conf.read_text()
        for name in HOOKS:
            text = text.replace(f"={cluster.paths.libexec}/{name}\n", f"={self._folder}/{name}\n")
        conf.write_text(text)
        cluster.run(["scontrol", "reconfigure"], check=True)

    def use(self, name: str, *, ours: bool) -> None:
        """Make slurmd run gsub's hook, or the one that does nothing."""
        target = self._cluster.paths.libexec / name if ours else self._folder / "noop"
        fresh = self._folder / f"{name}.new"
        fresh.symlink_to(target)
        fresh.replace(self._folder / f"{name}.now")

    def take(self, name: str) -> list[float]:
        """The times since the last call, in milliseconds. Raises RuntimeError if a hook failed."""
        log = self._folder / f"{name}.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        if any(status != "0" for _, status in lines):
            raise RuntimeError(f"a {name} did not end with 0")
        return [float(microseconds) / 1000 for microseconds, _ in lines]

    def count(self, name: str) -> int:
        """How many ended since the last `take`."""
        log = self._folder / f"{name}.log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def start_jobs(cluster: Cluster, hooks: Hooks) -> None:
    """Eight jobs in one array, which slurmctld starts in one go; wait until the node has seen their ends."""
    user = cluster.users[0] if cluster.users else None
    line = ["sbatch", f"--array=1-{AT_ONCE}", "--gpus=1", "--output=/dev/null", "--wrap", "sleep 0.1"]
    cluster.run(line, user=user, check=True)
    deadline = time.monotonic() + 60
    while hooks.count("epilog") < AT_ONCE:
        if time.monotonic() > deadline:
            raise RuntimeError("the jobs of a round did not end in a minute")
        time.sleep(0.05)
    cluster.clean()


def measure(cluster: Cluster, rounds: int) -> list[Figure]:
    """The figures of `rounds` rounds with each."""
    hooks = Hooks(cluster)
    times: dict[tuple[str, bool], list[float]] = {
        (name, ours): [] for name in HOOKS for ours in (True, False)
    }
    start_jobs(cluster, hooks)  # whatever is read for the first time
    for name in HOOKS:
        hooks.take(name)
    for _ in range(rounds):
        for ours in (False, True):
            for name in HOOKS:
                hooks.use(name, ours=ours)
            start_jobs(cluster, hooks)
            for name in HOOKS:
                times[name, ours] += hooks.take(name)
    return [
        Figure(
            name,
            part,
            percentile(times[name, True], part),
            percentile(times[name, False], part),
            len(times[name, True]),
        )
        for name in HOOKS
        for part in AIMS_MS
    ]


def percentile(values: Sequence[float], part: int) -> float:
    """The value below which `part` in a hundred lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


@contextmanager
def cluster_of_one(release: Release, agents: bool) -> Iterator[Cluster]:
    """A cluster of one node with 8 GPUs, for this run alone."""
    spec = ClusterSpec(name=f"bench-{os.getpid()}", nodes=1, slurm=release, accounting=False, agents=agents)
    try:
        yield Cluster.up(spec)
    finally:
        Cluster.down(spec.name)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="What the hooks cost a job.")
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the cluster")
    parser.add_argument("--rounds", type=int, help="of eight jobs with each (25; 10 with --gate)")
    parser.add_argument("--gate", action="store_true", help="fail on the gates only, not on aims")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.umask(0o022)
    with cluster_of_one(asked.slurm, agents=True) as cluster:
        figures = measure(cluster, asked.rounds or (10 if asked.gate else 25))
    bounds = GATES_MS if asked.gate else AIMS_MS
    missed = [each for each in figures if each.ours_ms > bounds[each.part]]
    if asked.json:
        print(json.dumps([asdict(each) for each in figures]))
    else:
        print(f"{AT_ONCE} jobs at once on one node, {figures[0].measured} of each hook and of the no-op")
        for each in figures:
            aim = AIMS_MS[each.part]
            print(
                f"{each.hook} p{each.part:<3} {each.noop_ms:6.1f} ms -> {each.ours_ms:6.1f} ms   x{each.ratio:.1f}"
                f"   aim < {aim:.0f} ms: {'met' if each.ours_ms < aim else 'MISSED'}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
