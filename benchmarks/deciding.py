"""How long a decision takes in gsubd, on a small cluster and on one of 10,000 nodes that knows 10,000 workloads."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeAlias

from benchmarks import world
from slurm_plugins.service.asking import Connections
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from slurm_plugins.service.peers import Peers
from tests.fuzz import questions, words

BIG = 10_000
SMALL = 8
Times: TypeAlias = tuple[list[float], list[float]]
"""Seconds of each question, small and big."""


def asked(count: int, *, named: bool = False) -> list[bytes]:
    """Questions as users' jobs make them, of workloads that the big store knows.

    `named`: they leave some nodes out (-x), which no other does; a cluster has to be looked through for those.
    """
    found = []
    for number in range(count):
        random = Random(number)
        question = questions.usual(random)
        job = question["job"] | {"partition": "gpu", "name": f"job-{random.randrange(BIG)}", "comment": ""}
        for field in ("exc_nodes", "req_nodes"):
            job.pop(field, None)
        if named:
            job["exc_nodes"] = f"n[{random.randrange(1, 50):05}-{random.randrange(50, 70):05}]"
        job.setdefault("tres_per_job", f"gres/gpu:{random.choice((1, 2, 4, 8, 16, 32))}")
        found.append(words.encode(random, question | {"job": job, "env": {}}))
    return found


def desks() -> tuple[Desk, Desk]:
    """The line handler of a small cluster and of a big one."""
    small, big = world.context(SMALL * 10), world.context(BIG, BIG)
    return Desk(small, Counts()), Desk(big, Counts())


def in_process(count: int = 3000, *, named: bool = False) -> Times:
    """The line handler alone: each question on both, in turns; the first pass fills what is remembered.

    CPU time, so that a neighbour on the machine is not taken for a slow decision.
    """
    found: Times = ([], [])
    pair = desks()
    lines = asked(count, named=named)
    for measured in (False, True):
        for number, line in enumerate(lines):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                start = time.thread_time()
                pair[which].answer(line)
                if measured:
                    found[which].append(time.thread_time() - start)
    return found


def over_the_socket(count: int = 3000) -> Times:
    """A question and its answer through gsubd's socket, from a process beside it, on both in turns."""
    found: Times = ([], [])
    lines = asked(count)
    with server() as paths:
        peers = tuple(socket.socket(socket.AF_UNIX) for _ in paths)
        for peer, path in zip(peers, paths, strict=True):
            peer.connect(str(path))
        for measured in (False, True):
            for number, line in enumerate(lines):
                for which in (0, 1) if number % 2 else (1, 0):
                    start = time.perf_counter()
                    peers[which].sendall(line + b"\n")
                    while not peers[which].recv(1 << 16).endswith(b"\n"):
                        pass
                    if measured:
                        found[which].append(time.perf_counter() - start)
        for peer in peers:
            peer.close()
    return found


@contextmanager
def server() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="gsub-bench-") as folder:
        paths = Path(folder, "small.sock"), Path(folder, "big.sock")
        argv = [sys.executable, "-m", "benchmarks.deciding", *map(str, paths)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[1])
        try:
            assert process.stdout
            process.stdout.readline()
            yield paths
        finally:
            process.terminate()
            process.wait()


async def _serve(paths: list[str]) -> None:
    loop = asyncio.get_running_loop()
    for path, desk in zip(paths, desks(), strict=True):
        counts = Counts()
        await loop.create_unix_server(Connections(desk.answer, Peers([os.geteuid()]), counts).new, path)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1:]))
