"""The long run: ``python -m tests.fuzz --side service|shim|collector|api|rows|sbatch --count 100000 --seed N``.

Each case is made of the seed and its number alone; what is found names both. The shim's cases are shared out among the
Luas of this machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES
from tests.fuzz import api, collector, rows, sbatch, service, shim

_Found = TypeVar("_Found")


def main() -> int:
    """Run one side or both; exit 1 at the first thing that must not be."""
    parser = argparse.ArgumentParser(
        description="Wicked questions for the service, answers for the shim, records and requests for the keeper."
    )
    parser.add_argument("--side", choices=("service", "shim", "both", *_KEEPER), default="both")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="default: a new one")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    try:
        if asked.side in ("service", "both"):
            _service(asked.count, seed)
        if asked.side in ("shim", "both"):
            _shim(asked.count, seed)
        if asked.side in _KEEPER:
            _KEEPER[asked.side](asked.count, seed)
    except AssertionError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


def _timed(run: Callable[[int, int], _Found], count: int, seed: int) -> tuple[_Found, float]:
    """Run one side. Returns what it found, and seconds."""
    start = time.monotonic()
    found = run(count, seed)
    return found, time.monotonic() - start


def _service(count: int, seed: int) -> None:
    found, took = _timed(service.run, count, seed)
    print(
        f"service: {count} questions, {found.answered} decided, {found.refused} not to be read, {took:.0f} s"
    )
    print(
        f"  slowest answer {found.slowest * 1000:.1f} ms; changed {found.changed}, rejected {found.rejected}"
    )


def _shim(count: int, seed: int) -> None:
    luas = shim.interpreters()
    if not luas:
        raise AssertionError("there is no Lua with lua-posix here")
    for number, lua in enumerate(luas):
        first, last = number * count // len(luas), (number + 1) * count // len(luas)
        start = time.monotonic()
        found = shim.run(lua, last - first, seed, first)
        said = ", ".join(f"{number} {what}" for what, number in found.items())
        print(f"{lua}: {last - first} answers, {said}, {time.monotonic() - start:.0f} s", flush=True)


def _collector(count: int, seed: int) -> None:
    found, took = _timed(collector.run, count, seed)
    print(
        f"collector: {count} records, {found.accepted} taken, {found.refused} refused each with its reason,"
    )
    print(f"  {found.batches_refused} batches refused whole, {took:.0f} s")


def _api(count: int, seed: int) -> None:
    found, took = _timed(api.run, count, seed)
    said = ", ".join(f"{status}: {number}" for status, number in sorted(found.statuses.items()))
    print(f"api: {count} requests, {found.over_socket} of them over a socket, {took:.0f} s; {said}")


def _rows(count: int, seed: int) -> None:
    found, took = _timed(rows.run, count, seed)
    print(
        f"rows: {found.rows} read one by one, {found.unread} of them left out, no answer lost, {took:.0f} s;"
        f" slowest answer {found.slowest:.2f} s"
    )


def _sbatch(count: int, seed: int) -> None:
    for release in RELEASES:
        name = f"fuzz{os.getpid()}-{release}"
        try:
            cluster = Cluster.up(ClusterSpec(name, slurm=release, agents=False))
            user = cluster.users[0] if cluster.users else None
            found = sbatch.run(cluster, user, cluster.home(user), count, seed)
        finally:
            Cluster.down(name)
        print(
            f"sbatch on {release}: {found.submitted} jobs of {len(found.tried)} options, {found.refused} refused,"
            f" {found.facts} in the store, {found.records} rows of sacct, {found.seconds:.0f} s",
            flush=True,
        )


_KEEPER = {"collector": _collector, "api": _api, "rows": _rows, "sbatch": _sbatch}


if __name__ == "__main__":
    sys.exit(main())
