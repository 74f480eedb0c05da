"""`gsub report` of a user with 10,000 jobs among a million of many users: seconds of the whole command.

    python -m benchmarks.report [--jobs 1000000] [--share 100] [--rounds 7] [--on sqlite,postgresql] [--store FILE]

A keeper as gsubd starts it serves the store, with a munged of its own; each run is the command as a user types it, a
process of its own. Beside it, in turns: the same question of a year in which nothing ran (what starting, MUNGE and
HTTP cost), and what a client would have to do that has no sums to ask for: read all of the user's jobs, a page of 1000
at a time. Every `--share`th attempt is the user's. The first run is told apart: with SQLite nothing of
the store's file is in memory then. With --store SQLite's file is kept there, and used again when it is there already.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import update

from profiler.store import ReportQuery, open_store
from profiler.store.schema import job, verdict
from tests.unit.gsub.cli.service import keeper
from tests.unit.profiler.report import history
from tests.unit.profiler.store.postgres import Postgres
from tests.unit.profiler.store.records import CLUSTER

GSUB = (sys.executable, "-c", "import sys; from gsub.cli import main; sys.exit(main())")
PAGES = (
    sys.executable,
    "-c",
    """
from gsub.service import records
service, query, count = records(), {"limit": 1000, "uid": __import__("os").getuid()}, 0
while True:
    page = service.jobs(**query)
    count += len(page.jobs)
    if page.next is None:
        break
    query["cursor"] = page.next
print(count)
""",
)
YEAR = ("--since=2024-12-31", "--until=2026-01-02")
NOTHING = ("--since=2019-01-01", "--until=2020-01-02")


def fill(url: str, attempts: int, share: int) -> None:
    """A year of a site, every so manieth attempt the asker's."""
    store = open_store(url)
    store.migrate()
    history.CLUSTER = CLUSTER  # the one that the keeper serves
    history.fill(store, attempts)
    with store.writing("The history cannot be changed.") as connection:
        for table in (job, verdict):
            key = table.c.pk if table is job else table.c.job
            mine = update(table).where(key % share == 0)
            connection.execute(mine.values(uid=os.getuid(), user="me"))
    store.close()


@contextmanager
def filled(kind: str, asked: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The address of a store of that kind, with the year in it."""
    if kind == "sqlite":
        file = (asked.store or folder / "store.db").resolve()
        url = f"sqlite:///{file}"
        if not file.exists():
            fill(url, asked.jobs, asked.share)
        yield url
        return
    place = folder / "postgres"
    place.mkdir()
    server = Postgres(place)
    server.start()
    try:
        url = server.database()
        fill(url, asked.jobs, asked.share)
        yield url
    finally:
        server.stop("immediate")


def seconds(argv: Sequence[str]) -> tuple[float, float, str]:
    """How long a program takes, its seconds of CPU, and what it prints; "" where it fails."""
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True)
    took, after = time.perf_counter() - begun, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return took, used, "" if done.returncode else done.stdout


def summed_up(url: str) -> float:
    """Seconds of CPU that the sums take whoever works them out, once they are prepared."""
    store = open_store(url, read_only=True)
    asked = ReportQuery(cluster=CLUSTER, uid=os.getuid(), since=history.SINCE, until=history.UNTIL)
    for _ in range(3):
        begun = time.process_time()
        store.report(asked)
        used = time.process_time() - begun
    store.close()
    return used


def forget(file: Path) -> None:
    """Let the system drop what it holds of a file in memory."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(kind: str, url: str, rounds: int, folder: Path) -> None:
    """Ask in turns, and tell."""
    place = folder / f"keeper-{kind}"
    place.mkdir()
    with keeper(place, store_url=url) as site:
        os.environ["GSUB_SITE"] = str(site.file)
        programs = {
            "report": [*GSUB, "report", *YEAR],
            "report, JSON": [*GSUB, "report", *YEAR, "--json"],
            "report of nothing": [*GSUB, "report", *NOTHING],
            "all jobs, by pages": [*PAGES],
        }
        if kind == "sqlite":
            forget(Path(url.removeprefix("sqlite:///")))
        cold, _, said = seconds(programs["report"])
        print(f"{kind}: the first report: {cold:.2f} s{'' if said else ', without an answer'}", flush=True)
        took: dict[str, list[float]] = {name: [] for name in programs}
        cpu: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, argv in programs.items():
                span, used, said = seconds(argv)
                assert said, f"{name}: no answer"
                took[name].append(span)
                cpu[name].append(used)
        print(f"{kind}: {seconds(programs['report'])[2].splitlines()[1]}", flush=True)
        base = statistics.median(took["report of nothing"])
        for name, spans in took.items():
            middle = statistics.median(spans)
            times = f"median {middle:.2f} s, best {min(spans):.2f} s, worst {max(spans):.2f} s, x{middle / base:.1f}"
            print(f"{kind}: {name}: {times}; {min(cpu[name]):.2f} s of CPU here", flush=True)
    if kind == "sqlite":
        print(f"{kind}: the service's sums: {summed_up(url):.2f} s of CPU", flush=True)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="How long a user's report takes.")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--share", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--on", default="sqlite,postgresql")
    parser.add_argument("--store", type=Path)
    asked = parser.parse_args()
    # PostgreSQL's user must reach its folder
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for kind in asked.on.split(","):
            with filled(kind, asked, folder) as url:
                measure(kind, url, asked.rounds, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
