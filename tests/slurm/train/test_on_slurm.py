"""The batch scripts of examples/checkpoint on a real Slurm, which warns them before their time is up."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.unit.gsub.train.running import HELPER
from tests.waiting import wait_until

EXAMPLES = HELPER.parents[1] / "examples/checkpoint"
STEPS = 800
PATIENCE_S = 400.0
"""For a job to end: Slurm's own bound on its time is a minute."""


@pytest.fixture
def folder(clean: Cluster, user: str | None) -> Path:
    made = clean.home(user) / "outlives"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(EXAMPLES, made)
    for path in (made, *made.iterdir()):
        if user:
            shutil.chown(path, user, user)
    return made


def shown(cluster: Cluster, job: str) -> dict[str, str]:
    text = cluster.run(["scontrol", "show", "job", "-o", job], check=True).stdout
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S+)", text))


_UNDER_WAY = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING")


def ended(cluster: Cluster, job: str) -> dict[str, str]:
    """What Slurm says of a job when it has ended."""
    return wait_until(
        lambda: now if (now := shown(cluster, job))["JobState"] not in _UNDER_WAY else None,
        PATIENCE_S,
        f"the end of job {job}",
    )


def test_they_stop_when_warned_and_go_on_after_a_requeue(
    clean: Cluster, user: str | None, folder: Path
) -> None:
    # The least that Slurm gives is a minute. It looks every 30 s, and warns up to that much ahead of what is asked for.
    asks = {"train.sh": "--signal=USR1@5", "batch.sh": "--signal=B:USR1@5"}
    jobs = {}
    for script, warning in asks.items():
        argv = ["sbatch", "--parsable", "-t1", warning, script, "--steps", str(STEPS), "--every", "1000000"]
        done = clean.run([*argv, "--seconds-per-step", "0.1"], user=user, cwd=folder, check=True)
        jobs[script] = done.stdout.strip().partition(";")[0]
    saved = {}
    for script, job in jobs.items():
        now = ended(clean, job)
        log = (folder / f"resumes-{job}.out").read_text()
        assert (now["JobState"], now["ExitCode"]) == ("FAILED", "75:0"), f"{script}: {log}"
        line = re.search(
            r"^gsub: stopped before its time limit \(SIGUSR1\), checkpoint=(\S+) step=(\d+)$", log, re.M
        )
        assert line, f"{script}: {log}"
        assert Path(line[1]) == folder / f"checkpoints-{job}/{line[2]}.ckpt"
        saved[job] = line[1]
    for job in jobs.values():
        clean.run(["scontrol", "requeue", job], check=True)
        clean.run(["scontrol", "update", f"JobId={job}", "StartTime=now+5", "TimeLimit=10"], check=True)
    never_stopped = subprocess.run(
        [sys.executable, EXAMPLES / "train.py", "--steps", str(STEPS), "--folder", folder / "whole"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    for script, job in jobs.items():
        now = ended(clean, job)
        log = (folder / f"resumes-{job}.out").read_text()
        assert (now["JobState"], now["Restarts"]) == ("COMPLETED", "1"), f"{script}: {log}"
        assert f"goes on from {saved[job]}, step " in log
        assert log.splitlines()[-1] == never_stopped
