"""What jobs wait for on a real Slurm: seen by the service, stored with their start, told by report and audit."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from profiler.report.frames import Frame, jobs
from profiler.store import open_store
from profiler.waits import CAUSES
from site_configs.site import load_site
from tests.slurm.record.recorded import Recorded

pytestmark = pytest.mark.all_releases

LOOKS = 3
"""Looks at the queue that a wait is to last for: two of them make a stretch, whenever the wait began."""


def test_what_jobs_waited_for(record: Recorded) -> None:
    """One waits for a whole node, one behind a dependency, an array behind both; of each what nobody saw is unknown."""
    since = time.time() - 1
    node = ("-w", "n1", "--gpus=4", "-N1")
    blocker = record.submit(*node, "-J", "blocker", script="sleep 600")
    record.given(blocker)
    waits = record.submit(*node, "-J", "waits", script="sleep 1")
    after = record.submit("-w", "n2", "--gpus=1", f"--dependency=afterany:{waits}", script="sleep 1")
    array = record.submit(*node, "-J", "array", "--array=1-2", script="sleep 1")
    # Starts and ends make the keeper look sooner than every 30 s
    news = record.submit("-w", "n4", "--gpus=1", "-J", "news", "--array=1-20%1", script="sleep 1")
    first = _looks(record)
    record.wait_for("looks at the queue", lambda: _looks(record) >= first + LOOKS or None)
    record.cluster.run(["scancel", str(blocker), str(news)], user=record.user, check=True)
    for job in (waits, after, array):
        record.complete(job)

    def known() -> Frame | None:
        frame = _frame(record, since)
        found = frame[frame.name.isin(["waits", "array"]) | (frame.job == after)]
        return found if len(found) == 4 and found.wait_s.notna().all() else None

    frame = record.wait_for("the waits", known).set_index("job")
    seen = {job: {cause: float(row[f"wait_{cause}_s"]) for cause in CAUSES} for job, row in frame.iterrows()}
    for job, row in frame.iterrows():
        # However long the looks were apart: never more than was waited; what is missing is unknown, not another's
        assert (
            row[[f"wait_{cause}_s" for cause in CAUSES]].isna().all()
            or sum(seen[job].values()) <= row.wait_s + 1e-6
        )
    # It is next on a node that is full; before the scheduler has looked at it, Slurm says "None" or "Priority"
    assert seen[waits]["resources"] > 0 and seen[waits]["locality"] == seen[waits]["limits"] == 0, seen
    assert frame.loc[after].held_s >= frame.loc[waits].wait_s - 1, "its dependency is no time in the queue"
    assert not any(seen[after][cause] > 0 for cause in ("resources", "locality", "limits"))
    tasks = list(frame.index[frame.name == "array"])
    # They waited as part of their array, behind the other; which word Slurm had for that is its own matter
    assert len(tasks) == 2 and all(sum(seen[task].values()) > 0 for task in tasks), seen
    report = record.cluster.run(["gsub", "report", "--json"], user=record.user, check=True).stdout
    causes = {row["cause"]: row for row in json.loads(report)["tables"]["causes"]["rows"]}
    assert (
        causes["resources"]["waited"] >= 1
        and causes["user"]["wait_hours"] * 3600 >= frame.loc[after].held_s - 1
    )
    told = json.loads(record.admin("audit", "--since", "1h", "--json"))
    rows: list[dict[str, Any]] = told["tables"]["waiting_by_cause"]["rows"]
    audited = {row["cause"]: row["wait_hours"] for row in rows}
    assert audited["resources"] * 3600 >= seen[waits]["resources"] - 1e-3


def _looks(record: Recorded) -> int:
    """How often the keeper has looked at Slurm."""
    status, body = record.ask("/metrics")
    assert status == 200
    found = re.search(r'^gsub_enrich_looks_total\{[^}]*"ok"[^}]*\} (\d+)', body.decode(), re.MULTILINE)
    return int(found[1]) if found else 0  # a counter is there with its first count


def _frame(record: Recorded, since: float) -> Frame:
    site = load_site(record.cluster.paths.site)
    store = open_store(site.store.url, read_only=True)
    try:
        return jobs(store, cluster=site.cluster, since=since, until=time.time() + 1)
    finally:
        store.close()
