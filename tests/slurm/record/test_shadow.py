"""The page of `gsub admin shadow` on a real Slurm in observe mode: what was run is on it.

Jobs of other tests on the cluster may be in the window, and a decision is joined to its job by looks at Slurm: so it is
waited for what must come, and counts are least ones, but for the stage that only these jobs concern.
"""

from __future__ import annotations

import time
from pathlib import Path

from profiler.report.evidence import Figure
from profiler.report.shadow import Shadow, shadow
from profiler.report.shadow_values import Stage
from profiler.store import open_store
from site_configs.site import load_site
from tests.slurm.record.recorded import Recorded


def test_it_tells_of_what_was_run(record: Recorded, tmp_path: Path) -> None:
    since = int(time.time())  # Slurm's times are whole seconds
    # Names of their own: jobs that are alike within seconds are told apart from no decision
    done = [record.submit("-J", f"open-{gpus}", f"-G{gpus}", script="sleep 1") for gpus in (2, 3)]
    failed = record.submit(
        "-J", "not-there", "-N1", "--gpus-per-node=1", script="python3 -c 'import not_there'"
    )
    for job in (*done, failed):
        record.complete(job)

    def known() -> Shadow | None:
        found = _page(record, since)
        of = found.overview
        joined = of.attempts >= 3 and of.failures >= 1 and of.lost == 0
        return found if joined and _stage(found, "gang").attempts == len(done) else None

    found = record.wait_for("all to be joined and judged", known)
    gang = _stage(found, "gang")
    assert found.overview.decisions >= 3 and gang.jobs == 2 and gang.changes["min_nodes"] == 2
    assert Figure("ended: completed", 2, "", 2) in gang.happened
    assert gang.verdict == "open", "two jobs are no evidence"
    assert "Nothing to turn on" in record.admin("shadow", "--since", "1h")
    page = tmp_path / "shadow.html"
    record.admin("shadow", "--since", "1h", "--html", str(page))
    assert "gang: not known yet" in page.read_text()


def _page(record: Recorded, since: int) -> Shadow:
    site = load_site(record.cluster.paths.site)
    store = open_store(site.store.url, read_only=True)
    try:
        return shadow(store, cluster=site.cluster, since=since, until=time.time(), site=site)
    finally:
        store.close()


def _stage(found: Shadow, name: str) -> Stage:
    return next(one for one in found.stages if one.name == name)
