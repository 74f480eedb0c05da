"""`gsub explain`: what it says, and that it is what gsubd decides."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.decide.conftest import policy, site_text
from tests.waiting import wait_until

LINES = [
    ["-G", "16"],
    ["-G", "24", "-t", "1:00:00"],
    ["-G", "12", "-n", "12"],
    ["-G", "64", "--ntasks-per-node=8", "-N", "8"],
    ["-N", "2", "--gpus-per-node=8"],
    ["-N", "2", "--gres=gpu:4", "--exclusive"],
    ["-n", "16", "--gpus-per-task=1", "-c", "4"],
    ["--ntasks-per-gpu=2", "-G", "8"],
    ["-G", "2", "--cpus-per-gpu=2", "--mem-per-gpu=8G"],
    ["-G", "8", "-c", "2", "--mem=16G"],
    ["-G", "4", "-C", "leaf1"],
    ["-G", "16", "--switches=1@5"],
    ["-G", "9"],
    ["-G", "9999"],
    ["-G", "1", "-p", "debug,gpu"],
    ["--gpus=16", "-a", "1-2"],
]


@pytest.fixture
def folder(clean: Cluster, user: str | None) -> Path:
    home = clean.home(user) / "explain"
    clean.run(["mkdir", "-p", str(home)], user=user, check=True)
    clean.run(["sh", "-c", f"printf '#!/bin/sh\\n:\\n' > {home}/t.sh"], user=user, check=True)
    return home


@pytest.fixture
def gsub(clean: Cluster, user: str | None, folder: Path):
    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return clean.run(["gsub", *words], user=user, cwd=folder, env=env, timeout=90)

    return run


def recorded(cluster: Cluster, names: set[str]) -> dict[str, dict[str, Any]]:
    """The decisions about the jobs of those names, once gsubd has written all of them down."""

    def look() -> dict[str, dict[str, Any]] | None:
        found = {
            one["asked"]["name"]: one
            for one in cluster.decisions()
            if one["kind"] == "decision" and one["asked"].get("name") in names
        }
        return found if found.keys() == names else None

    return wait_until(look, message=f"the decisions about {names}")


@pytest.mark.all_releases
def test_it_explains_what_gsubd_decides(clean, user, folder, gsub):
    explanations = {}
    for number, words in enumerate(LINES):
        done = gsub("explain", "--json", "-J", f"e{number}", *words, "t.sh")
        assert done.returncode in (0, 1) and not done.stderr, done
        explanations[f"e{number}"] = json.loads(done.stdout)["components"][0]
    # neither slurmctld nor gsubd was asked
    assert not [one for one in clean.decisions() if one.get("asked", {}).get("name") in explanations]
    assert not clean.run(["squeue", "-h"], check=True).stdout
    for number, words in enumerate(LINES):
        clean.run(["sbatch", "-H", "-J", f"e{number}", *words, "t.sh"], user=user, cwd=folder)
    decided = recorded(clean, set(explanations))
    changed = 0
    for number, words in enumerate(LINES):
        said, made = explanations[f"e{number}"], decided[f"e{number}"]
        same = ("field", "before", "after", "reason", "stage")
        told_changes = [tuple(change[key] for key in same) for change in said["changes"]]
        assert told_changes == [tuple(change[key] for key in same) for change in made["changes"]], words
        assert [note["text"] for note in said["notes"]] == [note["text"] for note in made["notes"]], words
        assert (said["mode"], said["reject"], said["set_env"]) == (
            made["mode"],
            made["reject"],
            made["env"],
        ), words
        assert said["failures"] == made["failures"] == [] and said["shape"] == made["facts"], words
        changed += bool(told_changes)
    assert changed >= 6


def test_it_needs_no_service(clean, gsub):
    with_service = gsub("explain", "--json", "-G", "16", "t.sh")
    clean.stop("gsubd")
    try:
        without = gsub("explain", "--json", "-G", "16", "t.sh")
    finally:
        clean.start("gsubd")
    assert without.returncode == 0
    alone, beside = json.loads(without.stdout), json.loads(with_service.stdout)
    assert alone["components"][0]["changes"]
    # nothing but the nodes that are avoided is the service's to tell
    (unknown,) = alone.pop("problems")
    assert "which nodes are avoided" in unknown and beside.pop("problems") == []
    assert alone == beside


def test_exit_codes_and_forms(clean, user, gsub, folder):
    plain = gsub("explain", "-G", "16", "t.sh")
    assert plain.returncode == 0 and "gsub would set" in plain.stdout and not plain.stderr
    never = gsub("explain", "-G", "9999", "t.sh")
    assert never.returncode == 1 and "would refuse it" in never.stdout
    assert gsub("explain", "-G", "16", "--wrap=hostname").returncode == 0
    piped = clean.run(
        ["gsub", "explain", "--json"], user=user, cwd=folder, input="#!/bin/sh\n#SBATCH -G 16\n", timeout=60
    )
    assert json.loads(piped.stdout)["components"][0]["asked_for"]["gpus"]["source"] == "script line 2"
    silent = gsub("explain", "-G", "16", "t.sh", GSUB="off")
    assert silent.returncode == 0 and "the job says so" in silent.stdout
    nowhere = clean.run(
        ["env", "-u", "GSUB_SITE", "gsub", "explain", "-G", "16", "t.sh"], user=user, cwd=folder, timeout=60
    )
    assert nowhere.returncode == 0 and "gsub observes" in nowhere.stdout
    unknown = gsub("explain", "-G", "16", "--nonsense", "t.sh")
    assert unknown.returncode == 2 and "no such option: --nonsense" in unknown.stderr and not unknown.stdout
    several = gsub("explain", "-G", "16", "--ntasks-per=2", "t.sh")
    assert several.returncode == 2 and "--ntasks-per is an abbreviation of several" in several.stderr
    assert not clean.run(["squeue", "-h"], check=True).stdout


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("#SBATCH -G 16\nhostname\n", "the script does not begin with #!"),
        ("#!/bin/sh\r\n#SBATCH -G 16\r\nhostname\r\n", "the script has DOS line ends"),
        ("#!/bin/sh\n#SBATCH -G 16\n: \0\n", "the script is not text"),
        (" \n\n", "the script is empty"),
    ],
)
def test_a_script_that_sbatch_would_not_take(clean, user, folder, script, what):
    for words in (["sbatch"], ["gsub"], ["gsub", "explain"]):
        done = clean.run(words, user=user, cwd=folder, input=script, timeout=90)
        assert done.returncode != 0 and not done.stdout, words
        if words != ["sbatch"]:
            assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"gsub: {what}"), words


def test_what_was_said_at_submission(clean, user, folder, gsub):
    """sbatch prints what gsub says on standard error, as "sbatch: gsub set ..."."""
    with policy(clean, site_text(clean, "enforce")):
        plain = clean.run(["sbatch", "-H", "-G", "16", "t.sh"], user=user, cwd=folder)
        assert "sbatch: gsub set --nodes=2" in plain.stderr  # what this release's sbatch does with it
        done = gsub("-H", "-G", "16", "t.sh")
        assert done.returncode == 0 and done.stdout.startswith("Submitted batch job ")
        said = done.stderr.splitlines()
        assert said and all(line.startswith("gsub set --") for line in said), said
        changes = json.loads(gsub("explain", "--json", "-H", "-G", "16", "t.sh").stdout)["components"][0][
            "changes"
        ]
        # one line a change
        assert [line.split()[2] for line in said] == [one["option"] for one in changes if one["reason"]]

        parsable = gsub("--parsable", "-H", "-G", "16", "t.sh")
        assert parsable.stdout.strip().isdigit() and parsable.stderr.splitlines() == said
        answer = json.loads(gsub("--json", "-H", "-G", "16", "t.sh").stdout)
        assert answer["messages"] == said
        estimate = json.loads(gsub("--dry-run", "--json", "-G", "16", "t.sh").stdout)
        assert estimate["messages"] == said and "gsub" not in estimate["estimate"]

        refused = gsub("-G", "9999", "t.sh")
        assert refused.returncode == 1 and not refused.stdout
        told_why = json.loads(gsub("explain", "--json", "-G", "9999", "t.sh").stdout)["components"][0][
            "reject"
        ]
        assert refused.stderr.splitlines()[0] == told_why.splitlines()[0]
        assert "sbatch says" not in refused.stderr


def test_the_mode_of_an_account(clean, user, folder, gsub):
    """The user's default account counts, as it does in slurmctld."""
    if not clean.spec.accounting:
        pytest.skip("a cluster without accounts")
    account = clean.run(
        ["sacctmgr", "-nP", "show", "user", user or "root", "format=DefaultAccount"], check=True
    ).stdout.strip()
    with policy(clean, site_text(clean, "observe", f'\n[accounts.{account}]\nmode = "advise"\n')):
        said = json.loads(gsub("explain", "--json", "-J", "acc", "-G", "16", "t.sh").stdout)
        clean.run(["sbatch", "-H", "-J", "acc", "-G", "16", "t.sh"], user=user, cwd=folder, check=True)
        made = recorded(clean, {"acc"})["acc"]
    assert said["components"][0]["mode"] == made["mode"] == "advise"
    assert account == made["asked"]["default_account"] == said["components"][0]["job"]["default_account"]
