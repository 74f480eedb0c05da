"""How long decisions take beside a keeper that works as hard as it can, and beside one that has nothing to do.

    python -m benchmarks.beside [--rounds 6] [--seconds 10] [--senders 2]

The server of `deciding` (a cluster of 10,000 nodes) answers questions over its socket, one every 10 ms, as a busy
slurmctld would ask. Beside it runs a keeper as gsubd starts it, over SQLite. In every second round it takes batches of
500 records as fast as it can from `--senders` processes, while the store is backed up and old jobs are removed again
and again. Rounds of both kinds take turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.deciding import asked, server
from benchmarks.store import NOW, YEAR, Site
from profiler.munge import Munge
from profiler.records import Record
from profiler.sealed import Service
from profiler.store import open_store
from tests.unit.prolog_epilog.agent.munged import munged
from tests.unit.slurm_plugins.keeper.door import batch
from tests.unit.slurm_plugins.keeper.keeping import kept

_PAUSE = 0.01
_BATCH = 500


def latencies(path: Path, seconds: float, lines: list[bytes]) -> list[float]:
    """Seconds of each question over the socket."""
    found = []
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            start = time.perf_counter()
            peer.sendall(lines[number % len(lines)] + b"\n")
            while not peer.recv(1 << 16).endswith(b"\n"):
                pass
            found.append(time.perf_counter() - start)
            number += 1
            time.sleep(_PAUSE)
    return found


def send(url: str, munge: str, seed: str) -> None:
    """Deliver made-up jobs until ended; a line on standard output for each batch that was taken: its records."""
    service = Service(url, Munge(munge), {os.geteuid()}, timeout=60.0)
    site = Site(int(seed), 10**9)
    waiting: list[Record] = []
    for number in range(int(seed) * 10**6, 10**9):
        waiting += (replace(one, cluster="lab", node="n1") for one in site.job(number)[0])
        if len(waiting) >= _BATCH:
            answer = service.ask("POST", "/v1/records", batch(*waiting, cluster="lab"))
            print(len(waiting) if answer.status == 200 else 0, flush=True)
            waiting = []


def keep_house(url: str, folder: str, _: str) -> None:
    """Back up and remove what is there until ended; a line for each time."""
    store = open_store(url)
    while True:
        store.backup(Path(folder, "copy"))
        store.purge(NOW + YEAR, 60.0, 60.0)
        print(1, flush=True)


_PARTS: Final = {"send": send, "keep_house": keep_house}


@contextmanager
def working(parts: Sequence[tuple[str, str, str, str]]) -> Iterator[Counter[str]]:
    """The keeper at work; how often each part has done what it does."""
    done: Counter[str] = Counter()

    def read(name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            done[name] += int(line)

    argv = [sys.executable, "-m", "benchmarks.beside", "--part"]
    processes = [subprocess.Popen([*argv, *part], stdout=subprocess.PIPE) for part in parts]
    threads = [
        threading.Thread(target=read, args=(part[0], process))
        for part, process in zip(parts, processes, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        _PARTS[arguments.part[0]](*arguments.part[1:])
    lines = asked(500)
    found: dict[bool, list[float]] = {False: [], True: []}
    total: Counter[str] = Counter()
    busy = 0.0
    with tempfile.TemporaryDirectory(prefix="gsub-bench-") as name, munged() as key, server() as (_, big):
        folder = Path(name)
        url = f"sqlite:///{folder / 'store.db'}"
        with kept(folder, key) as one:
            service = one.service()
            latencies(big, 3.0, lines)
            for number in range(arguments.rounds):
                if number % 2 == 0:
                    found[False] += latencies(big, arguments.seconds, lines)
                    continue
                seeds = range(number * 10, number * 10 + arguments.senders)
                parts = [("send", service.url, key.socket, str(seed)) for seed in seeds]
                parts.append(("keep_house", url, str(folder), ""))
                begun = time.monotonic()
                with working(parts) as done:
                    while not done["send"]:
                        time.sleep(0.1)
                    found[True] += latencies(big, arguments.seconds, lines)
                busy += time.monotonic() - begun
                total += done
    for works, times in found.items():
        times.sort()
        p50, p99, most = (times[int(len(times) * part)] * 1000 for part in (0.5, 0.99, 0.9999))
        print(
            f"keeper {'at work' if works else 'idle   '}: {len(times)} decisions, "
            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, slowest {most:.1f} ms"
        )
    print(f"at work: {total['send'] / busy:.0f} records/s taken, {total['keep_house']} backups and purges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
