"""What jobs do, for the rules of a site: usage, and the course of who was seen stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.alerts import facts_of
from profiler.answers import JobSummary, NodeSeries, NodeUse, Usage
from profiler.records import GpuSeries
from profiler.store import JobFacts, open_store
from profiler.store.use import in_use
from tests.store.records import CLUSTER, T0, gpu, series, started, usage, use

NOW = T0 + 3600


@pytest.mark.parametrize(("serial", "known"), [(None, False), (1, False), (7, False), (8, True), (9, True)])
def test_a_course_that_stayed_behind_tells_of_no_gpu_that_it_is_stuck(
    tmp_path: Path, serial: int | None, known: bool
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.migrate()
    stuck = use(
        0,
        100.0,
        power_limit_w=400.0,
        stuck_seconds=2400.0,
        idle_at_start_seconds=0.0,
        idle_at_end_seconds=0.0,
    )
    course = GpuSeries(gpu(0), (100.0,) * 60, (1e9,) * 60, (80.0,) * 60)
    store.take([started(gpus=(gpu(0),)), usage(1, "n1", 9, at=NOW, since=T0, until=NOW, gpus=(stuck,))], NOW)
    if serial is not None:
        store.take([series(1, "n1", serial, at=NOW, step=60.0, gpus=(course,))], NOW)
    store.enrich([JobFacts(cluster=CLUSTER, job_id=1, state="RUNNING", started=T0, nodes="n1", gpus=1)], NOW)
    (one,) = in_use(store, CLUSTER)
    store.close()
    stuck_for = facts_of(one.usage, one.courses, now=NOW, fresh=170.0).values["stuck_s"]
    assert stuck_for == (2400.0 if known else None)


@pytest.mark.parametrize(("minutes", "known"), [(60, True), (56, True), (54, False), (0, False)])
def test_a_course_that_ends_early_tells_of_no_gpu_that_it_is_stuck(minutes: int, known: bool) -> None:
    stuck = use(0, 100.0, power_limit_w=400.0, stuck_seconds=1800.0, idle_at_end_seconds=0.0)
    course = GpuSeries(gpu(0), (100.0,) * minutes, (1e9,) * minutes, (80.0,) * minutes)
    job = JobSummary(CLUSTER, 1, started=T0, nodes="n1", gpus=1, state="RUNNING")
    usage = Usage(job, (NodeUse("n1", since=T0, until=NOW, gpus=(stuck,)),))
    facts = facts_of(usage, [NodeSeries("n1", T0, 60.0, (course,))], now=NOW, fresh=170.0)
    assert facts.values["stuck_s"] == (1800.0 if known else None)
