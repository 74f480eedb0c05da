"""What an administrator of gsub relies on: the plan of an installation, the doctor, requeues by gsub-act, the audit.

The last two wait longest, so they are last.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.essential.jobs import EssentialJobs
from tests.slurm.install.test_doctor_cluster import diagnosed, drained
from tests.waiting import wait_until

pytestmark = [pytest.mark.essential, pytest.mark.root]

RAN = ("open", "broken", "flaky", "smoke")


def test_the_plan_of_an_installation_shows_all_and_changes_nothing(cluster: Cluster) -> None:
    """At a site whose slurm.conf has no hooks and no plugin of gsub yet."""
    prefix, etc = cluster.paths.root / "planned", cluster.paths.root / "etc-without"
    etc.mkdir()
    text = cluster.paths.slurm_conf.read_text()
    conf = etc / "slurm.conf"
    conf.write_text(re.sub(r"(?m)^(Prolog|Epilog|TaskProlog|JobSubmitPlugins)=.*\n", "", text))
    before = sums(etc, cluster.paths.etc, cluster.paths.libexec)
    words = [
        "--plan",
        "--role=controller",
        "--role=node",
        "--nodes-ready",
        f"--prefix={prefix}",
        f"--slurm-conf={conf}",
    ]
    done = cluster.run(["gsub", "admin", "install", *words])
    assert done.returncode == 0, done.stderr
    for line in (
        f"+Prolog={prefix}/libexec/prolo[g]",
        f"+Epilog={prefix}/libexec/epilo[g]",
        "+JobSubmitPlugins=lua",
        f"write {prefix}/libexec/prolog (0755, root)",
        f"write {etc}/job_submit.lua",
    ):
        assert line in done.stdout, done.stdout
    assert sums(etc, cluster.paths.etc, cluster.paths.libexec) == before
    assert not prefix.exists()


def sums(*folders: Path) -> dict[Path, str]:
    """Return the digest of each file."""
    return {
        path: sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_doctor_finds_nothing_wrong_and_then_what_was_broken(cluster: Cluster) -> None:
    assert [one for one in diagnosed(cluster) if one[1] == "error"] == []
    assert doctor(cluster, "drained-nodes") == (0, [("ok", "none of 3 nodes is drained by a hook")])
    with drained(cluster):
        code, findings = doctor(cluster, "drained-nodes")
        assert (code, findings) == (1, [("error", "n2: drained with the reason 'Prolog error'")])
    assert doctor(cluster, "drained-nodes")[0] == 0


def doctor(cluster: Cluster, check: str) -> tuple[int, list[tuple[str, str]]]:
    """Run `gsub admin doctor` as root; its exit code, and of each finding the level and what was seen."""
    done = cluster.run(["gsub", "admin", "doctor", "--json", f"--only={check}"])
    return done.returncode, [(one["level"], one["seen"]) for one in json.loads(done.stdout)["findings"]]


def test_a_job_that_failed_by_chance_is_requeued_and_runs_again(jobs: EssentialJobs) -> None:
    job = jobs.ids["flaky"]
    jobs.stage.end("flaky")
    shown = jobs.stage.shown(job)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1")
    assert [each.restarts for each in jobs.stage.tries("flaky")] == [0, 1]
    (row,) = wait_until(lambda: jobs.stage.rows(job), message="the decision on its failure")
    assert (row.reason, row.action, row.restarts, row.state) == ("core_dump", "once", 0, "done")
    assert len(jobs.stage.done(job, "requeue")) == 1, "by gsub-act, once"


def test_the_audit_adds_up_to_what_slurm_has_in_its_books(jobs: EssentialJobs) -> None:
    for name in RAN:
        jobs.record.complete(int(jobs.ids[name]))
    jobs.stage.end("flaky")
    jobs.record.complete(int(jobs.ids["flaky"]), restarts=1)
    line = ["sacct", "-nXPD", "-oState,ElapsedRaw,AllocTRES", "-j", ",".join(jobs.ids[name] for name in RAN)]
    books = [row.split("|") for row in jobs.cluster.run(line, check=True).stdout.splitlines()]
    completed = [row for row in books if row[0] == "COMPLETED"]
    seconds = sum(int(row[1]) * int(re.findall(r"gres/gpu=(\d+)", row[2])[0]) for row in completed)
    failed = [row for row in books if row[0] in ("FAILED", "REQUEUED")]
    assert (len(completed), len(failed)) == (2, 3)

    def tables() -> dict[str, Any] | None:
        """Return its tables, once the reason of each failure is in the store."""
        found: dict[str, Any] = json.loads(jobs.record.admin("audit", "--since", "1h", "--json"))["tables"]
        return found if sum(row["attempts"] for row in found["failures"]["rows"]) == len(failed) else None

    audit = jobs.record.wait_for("the reasons of all failures", tables)
    totals = {row["figure"]: row["value"] for row in audit["totals"]["rows"]}
    assert (totals["attempts"], totals["jobs"], totals["users"]) == (len(books), len(RAN), 1)
    outcomes = {row["outcome"]: row for row in audit["outcomes"]["rows"]}
    assert outcomes["completed"]["gpu_hours"] * 3600 == pytest.approx(seconds)
    attempts = [outcomes[outcome]["attempts"] for outcome in ("completed", "failed")]
    assert attempts == [len(completed), len(failed)]
    reasons = {row["reason"]: row["attempts"] for row in audit["failures"]["rows"]}
    assert reasons["import_error"] == 1
