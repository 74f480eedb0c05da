"""Cost of gsub on a cluster of 10,000 nodes with a long queue, beside what it may cost: a real slurmctld, as root.

    python -m benchmarks.scale [--slurm RELEASE] [--pending 1000,10000,70000] [--nodes N] [--json]

`benchmarks.scale_cluster` builds the controller. Measured at each length of the queue, the longest first: CPU seconds
of gsubd, the keeper and all that they start in 30 s, while a job is submitted every two seconds; slurmctld's time for
their JOB_INFO, by sdiag; the memory of gsub's processes; `gsub why` and `gsub status` of a user; milliseconds inside
the plugin; seconds until each of 1,000 jobs of 50 users has its record. Exit 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.process_costs import cpu_seconds, find_child, memory
from benchmarks.scale_cluster import PENDING_NODES, RELEASES, ScaleCluster, enter_namespace, scale_cluster
from benchmarks.submit import percentile
from benchmarks.submitting import GPU, bench
from site_configs.devcluster import Cluster, DevClusterError

PENDING: Final = (1_000, 10_000, 70_000)
NODES: Final = {"host": 10_000, "trixie": 1_000, "forky": 1_000}

AIMS: Final = {
    "polls, CPU s in 30 s": 3.0,
    "JOB_INFO, % of slurmctld": 2.0,
    "memory, MB": 400.0,
    "gsub why, p50 s": 0.5,
    "gsub status, p50 s": 0.5,
    "inside, p99 ms": 3.0,
    "joined, s at most": 60.0,
}
"""All are met from below."""

_PERIOD: Final = 30.0
_SETTLE: Final = 45.0
"""Seconds for the first polls of a new queue."""
_SUBMIT_EVERY: Final = 2.0
_SAMPLE: Final = 0.5
_KEEPER: Final = "slurm_plugins.service.keeper"
_RUNS: Final = 5
_COMMAND_SECONDS: Final = 120.0
_JOINED_JOBS: Final = 1_000
_JOINED_USERS: Final = 50
_JOINED_SECONDS: Final = 180.0
_JOB_INFO: Final = re.compile(r"REQUEST_JOB(?:_USER)?_INFO(?:_SINGLE)?\s.*?count:(\d+).*?total_time:(\d+)")


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value at a length of the queue; `about` says more of it in a few words."""

    pending: int
    name: str
    value: float
    about: str = ""

    @property
    def aim(self) -> float | None:
        """The bound that the value must not exceed; None for one that is only reported."""
        return AIMS.get(self.name)

    @property
    def is_met(self) -> bool:
        """True where the value has no bound, too."""
        return self.aim is None or self.value <= self.aim


def job_info_seconds(report: str) -> tuple[int, float]:
    """Read how many times slurmctld answered with jobs, and how long that took, of what sdiag prints.

    >>> job_info_seconds("	REQUEST_JOB_INFO      ( 2003) count:4   ave_time:650000 total_time:2600000")
    (4, 2.6)
    """
    found = [(int(count), int(micros)) for count, micros in _JOB_INFO.findall(report)]
    return sum(count for count, _ in found), sum(micros for _, micros in found) / 1e6


def measure_polls(scale: ScaleCluster, seconds: float) -> Iterator[Figure]:
    """CPU, slurmctld's time and memory over some polls, while jobs are submitted as users do."""
    cluster, pending = scale.cluster, len(scale.pending)
    daemons = cluster.daemons()
    service, hand = daemons["gsubd"], daemons["gsub-act"]
    keeper = find_child(service, _KEEPER)
    began, before = time.monotonic(), _costs(cluster, service, keeper)
    most = most_of_all = 0.0
    submit_at, number, ids = began, 0, list[int]()
    while time.monotonic() < began + seconds:
        if time.monotonic() >= submit_at:
            uids = scale.users.uids
            ids += scale.jobs.submit([uids[number % len(uids)]], 1, nodes=PENDING_NODES, name="poll")
            submit_at, number = submit_at + _SUBMIT_EVERY, number + 1
        ours, every = memory(service, hand)
        most, most_of_all = max(most, ours), max(most_of_all, every)
        time.sleep(_SAMPLE)
    after, took = _costs(cluster, service, keeper), time.monotonic() - began
    scale.jobs.cancel(ids)
    periods = took / _PERIOD
    whole, keepers = ((after[i] - before[i]) / periods for i in (0, 1))
    about = f"gsubd {whole - keepers:.2f}, keeper {keepers:.2f}; over {took:.0f} s"
    yield Figure(pending, "polls, CPU s in 30 s", whole, about)
    times, busy = (int(after[2] - before[2]), after[3] - before[3])
    about = f"{times} answers of {busy / max(1, times) * 1000:.0f} ms on average"
    yield Figure(pending, "JOB_INFO, % of slurmctld", 100 * busy / took, about)
    yield Figure(pending, "memory, MB", most, f"with Slurm's own commands {most_of_all:.0f}")


def _costs(cluster: Cluster, service: int, keeper: int | None) -> tuple[float, float, float, float]:
    """CPU seconds of all and of the keeper, answers with jobs and slurmctld's seconds for them, until now."""
    report = cluster.run(["sdiag"], timeout=60, check=True).stdout
    count, busy = job_info_seconds(report)
    return cpu_seconds(service), cpu_seconds(keeper) if keeper else 0.0, float(count), busy


def measure_commands(scale: ScaleCluster) -> Iterator[Figure]:
    """`gsub why` of a job that waits, and `gsub status`, as the first of the users types them."""
    cluster, pending = scale.cluster, len(scale.pending)
    shown = cluster.run(
        ["squeue", "-h", f"--user={scale.users.first}", "--states=PENDING", "-o", "%F"],
        timeout=120,
        check=True,
    )
    mine = shown.stdout.split()
    for name, argv in (("why", ["gsub", "why", mine[len(mine) // 2]]), ("status", ["gsub", "status"])):
        times = []
        for _ in range(_RUNS):
            began = time.perf_counter()
            try:
                done = cluster.run(argv, user=scale.users.first, timeout=_COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                times.append(_COMMAND_SECONDS)
                continue
            times.append(time.perf_counter() - began)
            if done.returncode:
                raise DevClusterError(f"{' '.join(argv)}: {done.stderr.strip()[-300:]}")
        about = f"{len(mine)} jobs of the user, most {max(times):.2f} s"
        yield Figure(pending, f"gsub {name}, p50 s", statistics.median(times), about)


def measure_decisions(scale: ScaleCluster, seconds: float) -> Iterator[Figure]:
    """Milliseconds inside the plugin, of a client that submits one job after the other."""
    pending = len(scale.pending)
    with bench(scale.cluster) as clients:
        clients.submit("timed plugin", 1, seconds, GPU)
        ordered = sorted(clients.times()["plugin"][5:])
    scale.cluster.run(["scancel", f"--user={scale.users.first}", "--name=bench.sh"], timeout=300, check=True)
    yield Figure(pending, "inside, p50 ms", percentile(ordered, 50), f"{len(ordered)} jobs")
    yield Figure(pending, "inside, p99 ms", percentile(ordered, 99), f"most {ordered[-1]:.1f} ms")


def measure_joins(scale: ScaleCluster) -> Iterator[Figure]:
    """Seconds from the submission of each of a thousand jobs to its record, which the store has in the end, too."""
    pending = len(scale.pending)
    uids = scale.users.uids[1 : _JOINED_USERS + 1]
    began = time.time()
    ids = set(scale.jobs.submit(uids, _JOINED_JOBS, nodes=PENDING_NODES, name="join"))
    submitted = time.time()
    waits: dict[int, float] = {}
    stored = 0
    while time.time() < submitted + _JOINED_SECONDS and stored < len(ids):
        time.sleep(1.0)
        for record in scale.cluster.decisions():
            if record.get("kind") == "job" and record["job"] in ids and record["at"] >= began:
                waits[record["job"]] = record["at"] - record["submitted"]
        stored = _stored(scale.cluster, ids) if len(waits) == len(ids) else 0
    longest = max(waits.values(), default=0.0) if len(waits) == len(ids) else float("inf")
    about = f"{len(waits)} of {len(ids)}, {stored} in the store; submitted in {submitted - began:.0f} s"
    yield Figure(pending, "joined, s at most", longest if stored == len(ids) else float("inf"), about)
    scale.jobs.cancel(sorted(ids))


def _stored(cluster: Cluster, ids: set[int]) -> int:
    """Count the decisions of these jobs that the store holds with their job and all that was asked."""
    path = cluster.paths.gsub_state / "store.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
        rows = store.execute(
            "SELECT job_id FROM decision WHERE outcome = 'job' AND body IS NOT NULL AND joined IS NOT NULL"
        )
        return len(ids & {row[0] for row in rows})


def measure(scale: ScaleCluster, seconds: float) -> Iterator[Figure]:
    """All figures at the present length of the queue."""
    time.sleep(_SETTLE)
    yield from measure_polls(scale, seconds)
    yield from measure_commands(scale)
    yield from measure_decisions(scale, 5.0)
    yield from measure_joins(scale)


def describe(figure: Figure) -> str:
    """Write a line of the table."""
    aim = ""
    if figure.aim is not None:
        aim = f"   aim <= {figure.aim:g}: {'met' if figure.is_met else 'MISSED'}"
    return f"{figure.pending:>7,} pending  {figure.name:<26} {figure.value:8.2f}  {figure.about}{aim}"


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(word) for word in text.split(",")}, reverse=True)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: want numbers, such as 1000,10000") from None
    if found[-1] < 200:
        raise argparse.ArgumentTypeError(f"{found[-1]}: want 200 records or more")
    return tuple(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="What gsub costs beside a long queue."
    )
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the cluster")
    parser.add_argument(
        "--pending",
        type=_lengths,
        default=_lengths(",".join(map(str, PENDING))),
        metavar="N,N...",
        help="records that wait (1000,10000,70000)",
    )
    parser.add_argument("--nodes", type=int, help="nodes (10000; 1000 of other releases than the host's)")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="seconds over which polls are measured (%(default)g)"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    nodes = asked.nodes or NODES[asked.slurm]
    if nodes < 2 * PENDING_NODES:
        parser.error(f"--nodes {nodes}: want {2 * PENDING_NODES} or more")
    os.umask(0o022)
    # What ends a command must let it clean up, as Ctrl-C does
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda got, _: sys.exit(128 + got))
    try:
        figures = _run(asked, nodes)
    except DevClusterError as error:
        print(f"scale: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if asked.json:
        print(json.dumps({"slurm": asked.slurm, "nodes": nodes, "figures": [asdict(one) for one in figures]}))
    missed = [one for one in figures if not one.is_met]
    for one in missed:
        print(f"aim missed at {one.pending} pending: {one.name}: {one.value:.2f}", file=sys.stderr)
    return 1 if missed else 0


def _run(asked: argparse.Namespace, nodes: int) -> list[Figure]:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", file=sys.stderr, flush=True)

    figures = []
    enter_namespace()
    with scale_cluster(asked.slurm, nodes, asked.pending[0], say) as scale:
        for pending in asked.pending:
            if pending < len(scale.pending):
                say(f"shortening the queue to {pending} records")
                scale.shorten(pending)
            say(f"measuring at {pending} records")
            for figure in measure(scale, asked.seconds):
                figures.append(figure)
                if not asked.json:
                    print(describe(figure), flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
