"""How long `gsub` takes: `gsub --help` against a bare Python, `gsub SCRIPT` against `sbatch SCRIPT`.

    python -m benchmarks.bench_cli [--cluster NAME] [--runs N] [--gate] [--json]

The two of a pair run in turn, so that whatever else the machine does falls on both; medians and their ratio are
told. Jobs are submitted held to a development cluster (one of its own unless --cluster names one that is up)
and cancelled afterwards. Exit 1 when an aim is missed; with --gate when a command takes more starts
of a bare Python than GATE says: as many on a machine that is slow, or busy with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from site_configs.devcluster import Cluster, ClusterSpec

# Runs inside the cluster, as an ordinary user: both commands in turn, wall times in seconds as JSON.
TIMER = """
import json, subprocess, sys, time
pairs, runs = json.loads(sys.argv[1]), int(sys.argv[2])
found = []
for one, two in pairs:
    times = [[], []]
    for run in range(runs + 1):
        for i, argv in enumerate((one, two)):
            start = time.perf_counter()
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            if run:  # the first one fills caches
                times[i].append(time.perf_counter() - start)
    found.append(times)
json.dump(found, sys.stdout)
"""

GATE = {"--help": 8, "script": 25}
"""Starts of a bare Python that may pass: twice what they took when the aims were met (4 and 12 of 12 ms)."""
SCRIPT = "#!/bin/sh\n#SBATCH --hold\ntrue\n"


@dataclass(frozen=True)
class Comparison:
    """A pair of commands: medians in milliseconds, what the second takes more, their ratio, and the aim."""

    name: str
    base_ms: float
    ours_ms: float
    more_ms: float
    ratio: float
    aim: str
    met: bool
    broken: bool
    """Beyond GATE."""


def measure(cluster: Cluster, runs: int) -> list[Comparison]:
    """Run both comparisons in a cluster that is up."""
    user = cluster.users[0] if cluster.users else None
    home = cluster.home(user)
    cluster.run(["sh", "-c", "cat >bench.sh"], user=user, input=SCRIPT, check=True)
    which = cluster.run(["sh", "-c", "command -v gsub"], user=user, check=True).stdout.strip()
    python = str(cluster.paths.venv / "bin/python")
    pairs = [
        [[python, "-c", "pass"], [which, "--help"]],
        [["sbatch", "bench.sh"], [which, "bench.sh"]],
    ]
    done = cluster.run(
        [python, "-c", TIMER, json.dumps(pairs), str(runs)], user=user, cwd=home, timeout=600, check=True
    )
    cluster.run(["scancel", "--state=PENDING"], user=user)
    (bare, help_), (sbatch, gsub) = (
        [statistics.median(times) * 1000 for times in pair] for pair in json.loads(done.stdout)
    )
    return [
        Comparison(
            "gsub --help / python -c pass",
            bare,
            help_,
            help_ - bare,
            help_ / bare,
            "< 100 ms in all",
            help_ < 100,
            help_ >= GATE["--help"] * bare,
        ),
        Comparison(
            "gsub script / sbatch script",
            sbatch,
            gsub,
            gsub - sbatch,
            gsub / sbatch,
            "< 150 ms more",
            gsub - sbatch < 150,
            gsub - sbatch >= GATE["script"] * bare,
        ),
    ]


@contextmanager
def cluster_for(name: str | None) -> Iterator[Cluster]:
    """The cluster named, or one for this run alone."""
    if name is not None:
        yield Cluster.find(name)
        return
    spec = ClusterSpec(name=f"bench-{os.getpid()}", nodes=1, accounting=False, agents=False)
    yield Cluster.up(spec)
    Cluster.down(spec.name)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="How long gsub takes.")
    parser.add_argument("--cluster", help="a development cluster that is up (default: one of its own)")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--gate", action="store_true", help="fail beyond GATE only")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.umask(0o022)
    with cluster_for(asked.cluster) as cluster:
        found = measure(cluster, asked.runs)
    if asked.json:
        print(json.dumps({"runs": asked.runs, "comparisons": [asdict(each) for each in found]}))
    else:
        print(f"medians of {asked.runs} runs in turn")
        for each in found:
            print(
                f"{each.name:<30} {each.base_ms:6.1f} ms -> {each.ours_ms:6.1f} ms"
                f"   +{each.more_ms:.1f} ms  x{each.ratio:.1f}   aim {each.aim}: {'met' if each.met else 'MISSED'}"
            )
    failed = any(each.broken if asked.gate else not each.met for each in found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
