"""What an act of gsub-act costs: acts a second and commands of slurmctld's each, beside plain scontrol in the same run.

    python -m benchmarks.act [--slurm RELEASE] [--rounds N] [--gate] [--json]

A round takes two sets of jobs that have failed. One is requeued by gsub-act, and then changed twice (its start; its
memory, for which the limits of accounting are read), the other by scontrol in a loop, by the same user of Slurm; which
goes first takes turns. Both are one command after the other, as gsub-act does it. What slurmctld did for each is its
own count (sdiag). A set has so many jobs that the acts of a round are within the burst that gsub-act allows at once.
Exit 1 when an aim is missed; with --gate only when a bound far from the aims is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES, Release

JOBS: Final = 50
"""Of a set: three acts on each are less than what gsub-act allows at once."""
KINDS: Final = ("requeue", "update of the start", "update of the memory")
AIMS: Final = {"requeue": 4, "update of the start": 4, "update of the memory": 5}
"""RPC of slurmctld's for each act: three for a look by squeue, one for the act, one for what accounting allows. Where a
limit is set that jobs share, three more for those that wait with memory that gsub-act set."""
SLOWEST: Final = 0.05
"""For --gate: so much of plain scontrol's rate at least."""
_ASKER: Final = """
import json, socket, sys, time
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(300)
connection.connect(sys.argv[1])
answers = connection.makefile("r")
lines = sys.stdin.read().splitlines()
results = []
begun = time.perf_counter()
for line in lines:
    connection.sendall(line.encode() + b"\\n")
    results.append(json.loads(answers.readline()))
print(json.dumps([time.perf_counter() - begun, results]))
"""
_PLAIN: Final = """
import json, subprocess, sys, time
commands = json.load(sys.stdin)
begun = time.perf_counter()
codes = [subprocess.run(command, capture_output=True).returncode for command in commands]
print(json.dumps([time.perf_counter() - begun, codes]))
"""


@dataclass(frozen=True)
class Figure:
    """Of one kind of act, the medians of the rounds."""

    kind: str
    acts_s: float
    plain_s: float
    rpc: float
    plain_rpc: float
    busy_ms: float
    """What slurmctld says that it worked for each act."""
    plain_busy_ms: float

    @property
    def ratio(self) -> float:
        """Our rate over plain scontrol's."""
        return self.acts_s / self.plain_s


@dataclass(frozen=True)
class Taken:
    """What a set took: seconds, slurmctld's RPC, and its own time for them in ms."""

    seconds: float
    rpc: int
    busy_ms: float


class Acts:
    """A cluster in enforce with jobs that fail."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = 0

    def failed(self, count: int) -> list[str]:
        """So many jobs that have failed."""
        words = ["sbatch", "--parsable", "--requeue", "--output=/dev/null", "--mem=100M", "--wrap=exit 3"]
        user = self._cluster.users[0]
        jobs = [self._cluster.run(words, user=user, check=True).stdout.strip() for _ in range(count)]
        asked = [
            "squeue",
            "--noheader",
            f"--user={user}",
            "--states=pending,running,completing",
            "--format=%i",
        ]
        deadline = time.monotonic() + 300
        while set(self._cluster.run(asked, check=True).stdout.split()) & set(jobs):
            if time.monotonic() > deadline:
                raise RuntimeError("the jobs did not end")
            time.sleep(0.5)
        return jobs

    def by_gsub(self, kind: str, jobs: Sequence[str]) -> Taken:
        """Through gsub-act, as gsubd's user."""
        lines = [json.dumps(self._request(kind, job)) for job in jobs]
        paths = self._cluster.paths
        return self._taken(
            lambda: self._python("gsub", _ASKER, "\n".join(lines), str(paths.act_socket)), _done_by_gsub
        )

    def plain(self, kind: str, jobs: Sequence[str]) -> Taken:
        """By scontrol, as gsub-act's user."""
        commands = json.dumps([_command(kind, job) for job in jobs])
        return self._taken(lambda: self._python("gsub-act", _PLAIN, commands), lambda code: code == 0)

    def _request(self, kind: str, job: str) -> dict[str, object]:
        self._number += 1
        return {
            "v": 1, "id": f"bench-{os.getpid()}-{self._number}", "at": time.time(), "cluster": self._cluster.spec.name,
            "job": job, "verb": kind.partition(" ")[0], "fields": _FIELDS[kind], "why": "a bench", "by": "v-00000000",
            "restarts": 0 if kind == "requeue" else 1,
        }  # fmt: skip

    def _python(self, user: str, program: str, stdin: str, *words: str) -> str:
        cluster = self._cluster
        python = f"{cluster.paths.venv}/bin/python3"
        line = cluster.rootfs.argv(
            [python, "-I", "-c", program, *words], user=cluster.daemon_user(user), cwd=Path("/")
        )
        env = cluster.env | {"HOME": "/", "LC_ALL": "C"}
        done = subprocess.run(
            line, env=env, cwd="/", input=stdin, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def _taken(self, do: Callable[[], str], is_done: Callable[[object], bool]) -> Taken:
        before = self._counted()
        seconds, results = json.loads(do())
        after = self._counted()
        bad = [result for result in results if not is_done(result)]
        if bad:
            raise RuntimeError(f"{len(bad)} of {len(results)} were not done, the first: {bad[0]}")
        return Taken(seconds, after[0] - before[0], (after[1] - before[1]) / 1000)

    def _counted(self) -> tuple[int, int]:
        """RPC of gsub-act's user so far, and microseconds that they took."""
        uid = self._cluster.daemon_user("gsub-act").uid
        told = self._cluster.run(["sdiag"], check=True).stdout.partition("statistics by user")[2]
        found = re.search(rf"\( *{uid}\)\s*count:(\d+)\s*ave_time:\d+\s*total_time:(\d+)", told)
        return (int(found[1]), int(found[2])) if found else (0, 0)


_FIELDS: Final[dict[str, dict[str, str]]] = {
    "requeue": {},
    # an hour away: they are not to start between
    "update of the start": {"StartTime": "now+3600"},
    "update of the memory": {"MinMemoryNode": "200"},
}


def _command(kind: str, job: str) -> list[str]:
    if kind == "requeue":
        return ["scontrol", "requeue", job]
    return [
        "scontrol",
        "update",
        f"JobId={job}",
        *(f"{name}={value}" for name, value in _FIELDS[kind].items()),
    ]


def _done_by_gsub(answer: object) -> bool:
    return isinstance(answer, dict) and answer["result"] == "done"


def measure(cluster: Cluster, rounds: int) -> Iterator[Figure]:
    """All kinds, one after the other as they follow on a job."""
    acts = Acts(cluster)
    # What is asked for once in a while is known after the first of each
    first = acts.failed(1)
    for kind in KINDS:
        acts.by_gsub(kind, first)
    found: dict[tuple[str, bool], list[Taken]] = {}
    for number in range(rounds):
        sets = {True: acts.failed(JOBS), False: acts.failed(JOBS)}
        for kind in KINDS:
            for ours in (True, False) if number % 2 else (False, True):
                taken = (acts.by_gsub if ours else acts.plain)(kind, sets[ours])
                found.setdefault((kind, ours), []).append(taken)
        cluster.run(["scancel", f"--user={cluster.users[0]}"], check=True)
    for kind in KINDS:
        ours_all, plain_all = found[kind, True], found[kind, False]

        def middle(of: Callable[[Taken], float], taken: list[Taken]) -> float:
            return statistics.median(of(one) for one in taken)

        yield Figure(
            kind,
            middle(lambda one: JOBS / one.seconds, ours_all),
            middle(lambda one: JOBS / one.seconds, plain_all),
            middle(lambda one: one.rpc / JOBS, ours_all),
            middle(lambda one: one.rpc / JOBS, plain_all),
            middle(lambda one: one.busy_ms / JOBS, ours_all),
            middle(lambda one: one.busy_ms / JOBS, plain_all),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 when one of them misses."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.act")
    parser.add_argument("--slurm", choices=list(RELEASES), default="host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    release: Release = options.slurm
    os.umask(0o022)
    name = f"b{os.getpid()}-act"
    try:
        cluster = Cluster.up(ClusterSpec(name, 2, 2, release, policy="enforce", deadline=1.0, agents=False))
        figures = list(measure(cluster, options.rounds))
    finally:
        Cluster.down(name)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
    else:
        for one in figures:
            print(
                f"{one.kind:22} {one.acts_s:5.1f}/s beside {one.plain_s:5.1f}/s (x{one.ratio:.2f}); slurmctld: "
                f"{one.rpc:.1f} RPC, {one.busy_ms:.2f} ms beside {one.plain_rpc:.1f}, {one.plain_busy_ms:.2f} ms"
            )
    missed = [
        one.kind
        for one in figures
        if one.rpc > AIMS[one.kind] + 0.5 or (options.gate and one.ratio < SLOWEST)
    ]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
