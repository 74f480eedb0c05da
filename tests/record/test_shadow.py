"""The page of `gsub admin shadow` on a real Slurm in observe mode: it counts what was run."""

from __future__ import annotations

import time

import pytest

from profiler.report.evidence import Figure
from profiler.report.shadow import Overview, Shadow, shadow
from profiler.report.shadow_values import Stage
from profiler.store import open_store
from site_configs.devcluster.spec import RELEASES
from site_configs.site import load_site
from tests.record.recorded import Recorded

CHANCE = "echo by chance; exit 3"
COUNTS = {"gang": 2, "topology": 0, "avoid_nodes": 0, "limits": 0, "smoke": 0, "resubmission": 2}


def test_it_counts_what_was_run(record: Recorded) -> None:
    cluster = record.cluster
    if cluster.spec.slurm != RELEASES[0]:
        pytest.skip(f"a look at Slurm's jobs every 30 s: seen on {RELEASES[0]}")
    since = int(time.time())  # Slurm's ends are whole seconds
    stated = ("-N1", "--gpus-per-node=1")
    # Names of their own: jobs that are alike within seconds are told apart from no decision
    record.submit("-J", "open", "-G2", script="sleep 1")
    record.submit("-J", "also-open", "-G3", script="sleep 1")
    record.submit("-J", "not-there", *stated, script="python3 -c 'import not_there'")
    record.submit("-J", "chance", *stated, script=CHANCE)
    record.wait_for("the failures", lambda: page(record, since).overview.failures == 2 or None)
    record.submit("-J", "again", *stated, script=CHANCE)

    def known() -> Shadow | None:
        found = page(record, since)
        whole = found.overview.attempts == 5 and found.overview.failures == 3
        return found if whole and stage(found, "resubmission").attempts == 2 else None

    found = record.wait_for("all to be joined and judged", known)
    assert found.overview == Overview(decisions=5, attempts=5, failures=3)
    assert {name: stage(found, name).attempts for name in COUNTS} == COUNTS
    assert stage(found, "gang").changes["min_nodes"] == 2
    assert Figure("ended: completed", 2, "", 2) in stage(found, "gang").happened
    again = stage(found, "resubmission")
    assert again.changes == {"no_signature": 2} and (again.known, again.harmed, again.helped) == (1, 1, 0)
    assert Figure("next runs that failed for the same reason", 1, "", 1) in again.harm
    assert (
        "Nothing to turn on" in cluster.run(["gsub", "admin", "shadow", "--since", "1h"], check=True).stdout
    )


def page(record: Recorded, since: int) -> Shadow:
    """The page of what was submitted since then."""
    site = load_site(record.cluster.paths.site)
    store = open_store(site.store.url, read_only=True)
    try:
        return shadow(store, cluster=site.cluster, since=since, until=time.time(), site=site)
    finally:
        store.close()


def stage(found: Shadow, name: str) -> Stage:
    """A stage's row."""
    return next(one for one in found.stages if one.name == name)
