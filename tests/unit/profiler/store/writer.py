"""Writes batches of records until it is killed, and says after each that it is taken: the other end of test_crash."""

from __future__ import annotations

import sys

from profiler.records import Record
from profiler.store import open_store
from tests.unit.profiler.store.records import T0, ended, series, started, usage

JOBS = 20


def batch(number: int) -> list[Record]:
    """The records of one batch: of twenty jobs of its own, and of job 1."""
    jobs = range(number * JOBS + 2, number * JOBS + 2 + JOBS)
    told: list[Record] = [
        record for job in jobs for record in (started(job), usage(job), series(job), ended(job))
    ]
    return [*told, usage(1, serial=number)]


if __name__ == "__main__":
    store = open_store(sys.argv[1])
    for count in range(int(sys.argv[2]), sys.maxsize):
        store.take(batch(count), T0)
        print(count, flush=True)
