"""How fast traces are read and compared, and what the public ones hold.

    python -m benchmarks.replay_traces export     read a drawn export of sacct: rows a second, and the peak of memory
    python -m benchmarks.replay_traces command    time `gsub admin replay` on Philly's trace, or on --trace FILE
    python -m benchmarks.replay_traces check      compare the public traces with the totals that were counted

Without a part, the first two. The export has --rows N (a million): arrays, requeues, steps, jobs that never started, in
the order of sacct; it is read in a process of its own, packed by gzip and not. The command runs one process a policy,
and all in one. The public traces are no part of gsub: see `benchmarks.traces` for how to get them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.traces import add_data_option, find_trace
from tests.paths import DATA

HEAD: Final = (
    "JobIDRaw|JobID|Cluster|User|Account|QOS|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|NNodes|"
    "NodeList|ReqTRES|AllocTRES"
)
NODES: Final = 1000
POLICIES: Final = ("fifo+pack", "fifo+skip", "fifo+skip+strict", "fifo+skip+spread")
PARTS: Final = ("export", "command", "check")
TOTALS: Final = {
    "philly_jobs.csv.gz": ("philly", 82_247, 107_235, 978_078),
    "itp_cluster01.csv.gz": ("itp", 1_595, 3_728, 22_740),
    "itp_cluster02.csv.gz": ("itp", 5_778, 11_785, 123_748),
    "itp_cluster03.csv.gz": ("itp", 3_011, 18_760, 165_442),
    "itp_cluster05.csv.gz": ("itp", 3_629, 4_329, 14_303),
    "openb_pods.csv.gz": ("openb", 7_255, None, None),
    "synergy_static_100jobs.csv": ("synergy", 100, 100, None),
}
"""Of each public trace the kind, jobs, GPUs and GPU-hours; None: not counted."""


def rows(count: int) -> Iterator[str]:
    """So many rows of sacct -P -D, from one seed."""
    rng = random.Random(1)
    at = 1_790_000_000
    for n in range(count):
        at += rng.randrange(6)
        gpus = rng.choice((0, 1, 1, 1, 2, 4, 8, 16))
        nodes = max(gpus // 8, 1)
        first = rng.randrange(NODES - nodes) + 1
        where = f"n[{first}-{first + nodes - 1}]" if nodes > 1 else f"n{first}"
        ran, waited = rng.randrange(20_000), rng.randrange(3000)
        tres = f"billing={gpus * 8},cpu={max(gpus, 1) * 8},mem={max(gpus, 1) * 60}G,node={nodes}"
        if gpus:
            tres += f",gres/gpu={gpus},gres/gpu:a100={gpus}"
        state = rng.choice(
            ("COMPLETED", "COMPLETED", "FAILED", f"CANCELLED by {rng.randrange(5000)}", "TIMEOUT")
        )
        if rng.random() < 0.05:
            state, where, ran, held = "CANCELLED", "None assigned", 0, ""
        else:
            held = tres
        shown = f"{n - n % 10}_{n % 10}" if n % 7 == 0 else str(n)
        start = at + waited
        times = f"{state}|{at}|{at}|{start}|{start + ran}|{ran}"
        yield f"{n}|{shown}|lab|u{n % 300}|a{n % 40}|normal|gpu|{times}|1440|{nodes}|{where}|{tres}|{held}"
        if n % 10 == 0:
            yield f"{n}.batch|{shown}.batch|lab||a{n % 40}|||{times}||{nodes}|{where}||{held}"


def read(path: Path) -> None:
    """In this process: how long it takes, and what it comes to, as one line of JSON."""
    from slurm_plugins.replay.traces import read as reading

    begun, used = time.perf_counter(), time.process_time()
    made = reading(path)
    told = {
        "jobs": len(made.trace),
        "left_out": sum(made.trace.left_out.values()),
        "s": time.perf_counter() - begun,
        "cpu_s": time.process_time() - used,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(told))


def measured(path: Path) -> dict[str, float]:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.replay_traces", "--read", path],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def command(trace: Path, policies: Sequence[str], processes: int) -> tuple[float, float]:
    """Seconds of `gsub admin replay`, and of CPU in all its processes."""
    words = [word for policy in policies for word in ("--policy", policy)]
    code = "import sys; from gsub.cli import main\nif __name__ == '__main__': sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "gsub_here.py")
        script.write_text(code)
        argv = [
            sys.executable,
            str(script),
            "admin",
            "replay",
            str(trace),
            "--nodes",
            "321x2+180x8/24",
            "--json",
            *words,
        ]
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        subprocess.run(
            [*argv, "--processes", str(processes)], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, used


def check(data: Path | None) -> None:
    """Read the public traces whole; an assertion fails where one holds anything else than was counted."""
    from slurm_plugins.replay.traces import read as reading
    from slurm_plugins.replay.traces.openb import is_nodes, nodes_of

    paths = {name: find_trace(name, data) for name in (*TOTALS, "openb_nodes.csv.gz")}
    readings = {name: reading(paths[name]) for name in TOTALS}
    for name, made in readings.items():
        kind, jobs, gpus, hours = TOTALS[name]
        trace = made.trace
        assert (made.kind, len(trace)) == (kind, jobs), name
        assert gpus is None or trace["gpus"].sum() == gpus, name
        assert hours is None or int((trace["gpus"] * trace["work"]).sum() / 3600) == hours, name
        assert trace["arrival"].min() >= 0 and (np.diff(trace["arrival"]) >= 0).all(), name
        assert (trace["work"] > 0).all(), name
        print(f"{name}: {len(trace):,} jobs, as counted")

    pods, nodes = readings["openb_pods.csv.gz"], paths["openb_nodes.csv.gz"]
    assert pods.trace.left_out == {"never started": 897}
    assert (
        pods.notes[0].startswith("2,573 jobs asked for a part of a GPU") and "openb_nodes" in pods.notes[-1]
    )
    assert pods.cluster is not None and pods.cluster.gpus == 6_212
    assert sum(group.count for group in pods.cluster.nodes) == 1_213
    assert is_nodes(nodes) and not is_nodes(paths["openb_pods.csv.gz"]) and nodes_of(nodes) == pods.cluster
    print(f"{nodes.name}: 1,213 nodes, as counted")

    philly = readings["philly_jobs.csv.gz"].trace
    with (DATA / "traces/philly_durations.csv").open() as file:
        for row in csv.DictReader(file):
            low, _, high = row["gpus"].partition("-")
            sized = (philly["gpus"] >= int(low)) & (philly["gpus"] <= int(high or low))
            assert sized.sum() == int(row["jobs"]), row["gpus"]
            for name, seconds in row.items():
                if name.startswith("p"):
                    measured = np.quantile(philly["work"][sized], float(name[1:]) / 100)
                    assert abs(measured - int(seconds)) <= 0.5, (row["gpus"], name)
    print("tests/data/traces/philly_durations.csv: the quantiles of philly_jobs.csv.gz")


def read_export(count: int) -> None:
    """Print how fast a drawn export of so many rows is read."""
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "export.psv"), Path(folder, "export.psv.gz")
        with plain.open("w") as file:
            file.write(f"{HEAD}\n")
            file.writelines(f"{row}\n" for row in rows(count))
        packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
        for path in (plain, packed):
            found = measured(path)
            told = found["jobs"] + found["left_out"]
            print(
                f"{path.name} ({path.stat().st_size / 2**20:,.0f} MiB): {told:,.0f} rows, {found['jobs']:,.0f} jobs in "
                f"{found['s']:.1f} s, {found['cpu_s']:.1f} s of CPU ({told / found['cpu_s']:,.0f} rows/s), "
                f"{found['mib']:,.0f} MiB"
            )


def time_command(trace: Path) -> None:
    """Print how long `gsub admin replay` takes."""
    for processes in (1, os.cpu_count() or 1):
        took, used = command(trace, POLICIES, processes)
        print(
            f"gsub admin replay {trace.name}, {len(POLICIES)} policies, {processes} at a time: {took:.1f} s, "
            f"{used:.1f} s of CPU"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    add_data_option(parser)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    parts = given.parts or ("export", "command")
    trace = None
    if "command" in parts:
        trace = given.trace or find_trace("philly_jobs.csv.gz", given.data)
    if "export" in parts:
        read_export(given.rows)
    if trace is not None:
        time_command(trace)
    if "check" in parts:
        check(given.data)


if __name__ == "__main__":
    main()
