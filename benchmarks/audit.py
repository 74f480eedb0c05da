"""A year of a site audited: seconds and peak memory of `gsub admin audit` over a made-up history of a million jobs.

    python -m benchmarks.audit [--jobs 1000000] [--store FILE] [--seed 1]

The history has Philly's distributions (tests/unit/profiler/report/history.py). With --store it is kept there, and used
again when it is there already. Each run is a process of its own, as an admin would start it; memory is its highest
resident set.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from profiler.store import open_store
from tests.unit.profiler.report.history import CLUSTER, fill

FRAME = """
import sys
from profiler.report.frames import jobs
from profiler.store import open_store
from tests.unit.profiler.report.history import CLUSTER, SINCE, UNTIL
frame = jobs(open_store(sys.argv[1], read_only=True), cluster=CLUSTER, since=SINCE, until=UNTIL)
print(len(frame), "attempts", round(frame.memory_usage(deep=True).sum() / 1e6), "MB")
"""
AUDIT = "import sys; from gsub.cli import main; sys.exit(main())"
YEAR = ("--since=2024-12-31", "--until=2026-01-02")


def run(name: str, argv: list[str], *, quiet: bool = False) -> None:
    """Run a program; tell its wall time, processor time and highest memory."""
    silence = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)] if quiet else []
    begun = time.perf_counter()
    child = os.posix_spawn(argv[0], argv, os.environ, file_actions=silence)
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - begun
    code = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    failed = f", exit {code}" if code else ""
    load = f"load {os.getloadavg()[0]:.0f}"
    print(
        f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU, {used.ru_maxrss / 1e6:.2f} GB, {load}{failed}", flush=True
    )


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="How long an audit takes.")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = (asked.store or Path(folder) / "store.db").resolve()
        url = f"sqlite:///{file}"
        if not file.exists():
            begun = time.perf_counter()
            store = open_store(url)
            store.migrate()
            fill(store, asked.jobs, seed=asked.seed)
            store.close()
            print(
                f"made up in {time.perf_counter() - begun:.0f} s: {file.stat().st_size / 1e9:.1f} GB",
                flush=True,
            )
        run("frame", [sys.executable, "-c", FRAME, url])
        audit = [
            sys.executable,
            "-c",
            AUDIT,
            "admin",
            "audit",
            f"--store={url}",
            f"--cluster={CLUSTER}",
            *YEAR,
        ]
        page = Path(folder) / "audit.html"
        for name, more in (
            ("audit, terminal", ["--by=user", "--by=account"]),
            ("audit, JSON", ["--json"]),
            ("audit, CSV", [f"--csv={folder}/csv"]),
            ("audit, Parquet with all jobs", [f"--parquet={folder}/parquet"]),
            ("audit, HTML", [f"--html={page}"]),
        ):
            run(name, [*audit, *more], quiet=True)
        print(f"size of the page: {page.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
