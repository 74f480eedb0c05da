"""The contract of a store, on SQLite and on PostgreSQL."""

from __future__ import annotations

from profiler.store import Store
from tests.store.records import CLUSTER, T0, ended, started, usage


def test_job_from_start_to_end(store: Store) -> None:
    store.take([started()], T0)
    store.take([usage(serial=1), ended(exit_code=3)], T0)
    job = store.job(CLUSTER, 1)
    assert job is not None
    assert (job.user, job.uid, job.nodes, job.exit_code, job.complete) == ("ada", 1000, "n1", 3, True)
    assert (job.gpus, job.gpus_known, job.gpus_idle, job.utilisation_mean) == (2, 2, 1, 40.0)
