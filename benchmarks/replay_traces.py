"""How fast traces are read and compared: ``python -m benchmarks.replay_traces [--rows N] [--trace FILE]``.

An export of sacct is made up with N rows (a million): arrays, requeues, steps, jobs that never started, in the order of
sacct. Told are rows a second and the peak of memory, in a process of its own, packed by gzip and not. With --trace, or
where Philly's is found ($GSUB_DATA, else shared/data beside the repository), `gsub admin replay` itself is timed on it:
one process a policy, and all in one.
"""

from __future__ import annotations

import argparse
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

HEAD: Final = (
    "JobIDRaw|JobID|Cluster|User|Account|QOS|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|NNodes|"
    "NodeList|ReqTRES|AllocTRES"
)
NODES: Final = 1000
POLICIES: Final = ("fifo+pack", "fifo+skip", "fifo+skip+strict", "fifo+skip+spread")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "export.psv"), Path(folder, "export.psv.gz")
        with plain.open("w") as file:
            file.write(f"{HEAD}\n")
            file.writelines(f"{row}\n" for row in rows(given.rows))
        packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
        for path in (plain, packed):
            found = measured(path)
            told = found["jobs"] + found["left_out"]
            print(
                f"{path.name} ({path.stat().st_size / 2**20:,.0f} MiB): {told:,.0f} rows, {found['jobs']:,.0f} jobs in "
                f"{found['s']:.1f} s, {found['cpu_s']:.1f} s of CPU ({told / found['cpu_s']:,.0f} rows/s), "
                f"{found['mib']:,.0f} MiB"
            )
    folder_of_data = Path(os.environ.get("GSUB_DATA", Path(__file__).parents[2] / "shared/data"))
    trace = given.trace or folder_of_data / "philly_jobs.csv.gz"
    if not trace.exists():
        print(
            f"replay_traces: skipped the command, there is no {trace.name} here (--trace FILE, or GSUB_DATA)"
        )
        return
    for processes in (1, os.cpu_count() or 1):
        took, used = command(trace, POLICIES, processes)
        print(
            f"gsub admin replay {trace.name}, {len(POLICIES)} policies, {processes} at a time: {took:.1f} s, "
            f"{used:.1f} s of CPU"
        )


if __name__ == "__main__":
    main()
