"""Lets jobs fail, judges and decides until it is killed: the other end of a test of test_resubmissions."""

from __future__ import annotations

import sys

from profiler.resubmissions import Resubmission
from profiler.store import JobFacts, Store, open_store
from tests.unit.profiler.store.records import CLUSTER, T0, ended, found, judge_by_logs, started

END = T0 + 3600.0
NOW = END + 10.0
JOBS = 10


def decide(store: Store, limit: int, why: str) -> int:
    """Decide about some of the attempts that wait; how many that were."""
    of = store.undecided(CLUSTER, limit, NOW)
    rows = [
        Resubmission(CLUSTER, one.job.job_id, 0, one.finding.reason, "once", "planned", NOW, why)
        for one in of
    ]
    return len(store.put_resubmissions(rows, NOW, of=of))


if __name__ == "__main__":
    store = open_store(sys.argv[1])
    first = int(sys.argv[2])
    while True:
        numbers = range(first, first + JOBS)
        store.take([one for n in numbers for one in (started(n), ended(n, at=END), found(n))], NOW)
        store.enrich(
            [
                JobFacts(
                    cluster=CLUSTER, job_id=n, restarts=0, state="FAILED", started=T0, ended=END, final=True
                )
                for n in numbers
            ],
            NOW,
        )
        judge_by_logs(store, NOW)
        print(first, flush=True)
        decide(store, JOBS // 2, f"from {sys.argv[2]}")
        first += JOBS
