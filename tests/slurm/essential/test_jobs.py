"""What a user of gsub relies on, from the submission of a job to the reason of its failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.slurm.decide.bare import steps
from tests.slurm.essential.jobs import MODULE, EssentialJobs
from tests.slurm.record.load import utilisation
from tests.slurm.smoke.test_on_slurm import outcome
from tests.waiting import wait_until

pytestmark = [pytest.mark.essential, pytest.mark.root]


def decision_of(jobs: EssentialJobs, name: str) -> dict[str, Any]:
    """Return what gsubd wrote down of a job's decision, found by the id in the job's AdminComment."""
    mark = jobs.stage.shown(jobs.ids[name])["AdminComment"]
    assert mark.startswith("gsub:d-"), mark
    found = wait_until(
        lambda: [one for one in jobs.cluster.decisions() if f"gsub:{one.get('decision')}" == mark],
        message=f"the decision {mark}",
    )
    assert len(found) == 1
    return found[0]


def edits(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a decision's changes to what the user asked for."""
    keys = ("field", "before", "after", "reason", "stage")
    return [tuple(change[key] for key in keys) for change in changes if change["field"] != "admin_comment"]


def test_gsub_submits_a_script_and_prints_the_job_id(jobs: EssentialJobs) -> None:
    done = jobs.output["open"]
    assert (done.returncode, done.stdout) == (0, f"Submitted batch job {jobs.ids['open']}\n")
    shown = jobs.stage.shown(jobs.ids["open"])
    assert (shown["JobName"], shown["Command"]) == ("train.sh", str(jobs.stage.home / "train.sh"))
    assert shown["UserId"].startswith(f"{jobs.stage.user}(")


def test_an_open_shape_is_closed_and_the_user_told_why(jobs: EssentialJobs) -> None:
    shown = jobs.stage.shown(jobs.ids["open"])
    assert (shown["NumNodes"].split("-")[0], shown["OverSubscribe"]) == ("2", "NO")
    assert shown["TresPerNode"] in ("gres:gpu:4", "gres/gpu:4")
    changes = {
        change["field"]: (change["before"], change["after"])
        for change in decision_of(jobs, "open")["changes"]
    }
    assert changes["min_nodes"] == changes["max_nodes"] == (None, 2)
    assert "gsub set --nodes=2 (not stated before): 2 nodes x 4 GPUs" in jobs.output["open"].stderr


def test_plain_sbatch_gets_the_same_decision(jobs: EssentialJobs) -> None:
    plain, other = decision_of(jobs, "plain"), decision_of(jobs, "open")
    assert plain["decision"] != other["decision"]
    assert edits(plain["changes"]) == edits(other["changes"]) != []
    assert jobs.output["plain"].stderr.replace("sbatch: ", "") == jobs.output["open"].stderr
    shown = jobs.stage.shown(jobs.ids["plain"])
    assert (shown["NumNodes"].split("-")[0], shown["OverSubscribe"]) == ("2", "NO")
    assert shown["TresPerNode"] in ("gres:gpu:4", "gres/gpu:4")


@pytest.mark.parametrize("way", ["--comment=gsub:off", "GSUB=off"])
def test_a_job_that_opts_out_is_left_as_it_was(jobs: EssentialJobs, way: str) -> None:
    words, env = (("--comment=gsub:off",), {}) if way.startswith("--") else ((), {"GSUB": "off"})
    done = jobs.run("sbatch", "--parsable", "--hold", *words, "train.sh", **env)
    assert (done.returncode, done.stderr) == (0, "")
    shown = jobs.stage.shown(done.stdout.strip())
    assert shown["NumNodes"] in ("1", "1-1")
    assert shown.keys().isdisjoint({"AdminComment", "TresPerNode"})
    assert shown["TresPerJob"] in ("gres:gpu:8", "gres/gpu:8")


def test_explain_previews_the_decision_and_submits_nothing(jobs: EssentialJobs) -> None:
    done = jobs.run("gsub", "explain", "--json", "--job-name=preview", "train.sh")
    assert (done.returncode, done.stderr) == (0, "")
    (preview,), decision = json.loads(done.stdout)["components"], decision_of(jobs, "open")
    assert preview["mode"] == decision["mode"] == "enforce"
    assert edits(preview["changes"]) == edits(decision["changes"]) != []
    assert not jobs.is_submitted("preview")


def test_preflight_refuses_a_script_that_would_fail_and_names_the_line(jobs: EssentialJobs) -> None:
    jobs.stage.put("typo.sh", "#!/bin/bash\n#SBATCH --gpus=1\nsrun python3 lod.py\n")
    done = jobs.run("gsub", "--job-name=typo", "typo.sh")
    assert (done.returncode, done.stdout) == (1, "")
    assert "typo.sh:3: there is no such file: lod.py" in done.stderr
    assert "did you mean load.py?" in done.stderr
    assert not jobs.is_submitted("typo")


def test_a_smoke_run_stops_a_broken_script_before_its_job_runs(jobs: EssentialJobs) -> None:
    found = outcome(jobs.site, int(jobs.ids["smoke"]))
    assert (found.outcome, found.reason, found.held) == ("failed", "import_error", True)
    assert found.dependants == (int(jobs.ids["smoked"]),)
    shown = jobs.site.until(int(jobs.ids["smoked"]), "Reason=JobHeldUser")
    assert "JobState=PENDING" in shown and "StartTime=Unknown" in shown
    assert not list(jobs.site.work.glob("slurm-*.out"))


def test_the_steps_of_a_job_get_what_was_decided(jobs: EssentialJobs) -> None:
    job = jobs.ids["open"]
    step = steps(jobs.cluster, [job], jobs.stage.home)[job]
    assert step.tasks_per_node == [1, 1] and step.gpus == frozenset({4})
    assert (step.tres["node"], step.tres["gres/gpu"]) == (2, 8)
    decided = decision_of(jobs, "open")["decision"]
    assert f"decision {decided}" in (jobs.stage.home / f"{job}.out").read_text().splitlines()


def test_the_record_of_a_job_has_its_user_nodes_gpus_and_exit_code(jobs: EssentialJobs) -> None:
    user = jobs.stage.user
    done = jobs.record.complete(int(jobs.ids["open"])).job
    assert (done.user, done.state, done.exit_code, done.gpus) == (user, "COMPLETED", 0, 8)
    assert done.nodes == "n[1-2]"
    failed = jobs.record.complete(int(jobs.ids["broken"])).job
    assert (failed.user, failed.state, failed.exit_code, failed.gpus) == (user, "FAILED", 1, 1)


def test_usage_shows_how_busy_each_gpu_was(jobs: EssentialJobs) -> None:
    jobs.record.complete(int(jobs.ids["open"]))
    done = jobs.run("gsub", "usage", jobs.ids["open"])
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] in (["n1"], ["n2"])]
    p95 = {(row[0], int(row[1])): int(row[6]) for row in rows if row[1].isdecimal() and row[3] == "%"}
    assert p95 == {(node, gpu): utilisation(gpu) for node in ("n1", "n2") for gpu in range(4)}


def test_a_failed_job_gets_a_verdict_with_its_reason(jobs: EssentialJobs) -> None:
    verdict = wait_until(lambda: jobs.stage.verdict(jobs.ids["broken"], 0), message="the verdict")
    assert verdict.finding.reason == "import_error"
    jobs.stage.end("broken")
    (row,) = jobs.stage.rows(jobs.ids["broken"])
    assert (row.reason, row.action) == ("import_error", "never"), "it is not run again"
    assert jobs.stage.shown(jobs.ids["broken"])["Restarts"] == "0"


def test_why_names_the_reason_and_the_line_of_the_log(jobs: EssentialJobs) -> None:
    jobs.stage.end("broken")
    text = jobs.stage.why(jobs.ids["broken"])
    log = (jobs.stage.home / f"slurm-{jobs.ids['broken']}.out").read_text().splitlines()
    error = f"ModuleNotFoundError: No module named '{MODULE}'"
    assert "why import_error, surely" in text
    assert f"slurm-{jobs.ids['broken']}.out:{log.index(error) + 1}: {error}" in text
