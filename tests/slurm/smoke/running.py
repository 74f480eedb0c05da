"""The runner in jobs of a real Slurm, without the submitting side: what that does, by hand."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

from gsub.smoke.plan import Mode, Plan, encoded
from gsub.smoke.result import Result, read
from site_configs.devcluster import Cluster
from tests.waiting import wait_until

PATIENCE_S = 120.0


class Site:
    """A user's folder on a cluster, and smoke jobs from it."""

    def __init__(self, cluster: Cluster, user: str | None) -> None:
        self.cluster = cluster
        self.user = user
        self.folder = cluster.home(user) / "smoke"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.state = self.folder / "state"
        self.work = self.folder / "work"
        for path in (self.folder, self.state, self.work):
            path.mkdir(mode=0o755)
            self._give(path)

    def _give(self, path: Path) -> None:
        if self.user:
            shutil.chown(path, self.user, self.user)

    def file(self, name: str, text: str) -> Path:
        """A file in the folder where jobs begin."""
        path = self.work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self._give(path.parent)
        self._give(path)
        return path

    def sbatch(self, *words: str, script: str) -> int:
        """Submit a script from standard input; the job's id."""
        argv = ["sbatch", "--parsable", *words]
        done = self.cluster.run(argv, user=self.user, cwd=self.work, input=script, check=True)
        return int(done.stdout.strip().partition(";")[0])

    def smoke(self, plan: Plan, *words: str) -> int:
        """Submit the runner with a plan."""
        inside = base64.b64encode(encoded(plan)).decode()
        python = self.cluster.paths.venv / "bin/python"
        script = f"#!/bin/sh\nbase64 -d <<E >$PWD/../state/plan$SLURM_JOB_ID\n{inside}\nE\n"
        script += f"exec {python} -I -m gsub.smoke.runner < $PWD/../state/plan$SLURM_JOB_ID\n"
        ours = [
            "--job-name=smoke-train.sh",
            "--gres=gpu:1",
            "-t3",
            "--no-requeue",
            f"--output={self.state}/%j.out",
        ]
        return self.sbatch(*ours, *words, script=script)

    def plan(self, script: str, *, mode: Mode = "only", real: int = 0, seconds: float = 30.0) -> Plan:
        """A plan for a script in the folder."""
        return Plan(
            script=script.encode(),
            name="train.sh",
            cwd=str(self.work),
            state=str(self.state),
            mode=mode,
            real=real,
            seconds=seconds,
        )

    def result(self, job: int) -> Result:
        """What came of it."""
        try:
            return wait_until(lambda: read(self.state, job), PATIENCE_S, f"the result of job {job}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said(job)}") from None

    def said(self, job: int) -> str:
        """The smoke job's output, and what Slurm says of it."""
        path = self.state / f"{job}.out"
        out = path.read_text(errors="replace") if path.is_file() else "no output"
        return out + self.shown(job)

    def shown(self, job: int) -> str:
        """A job in scontrol's words."""
        return self.cluster.run(["scontrol", "show", "job", "-o", str(job)]).stdout

    def until(self, job: int, word: str) -> str:
        """Wait until scontrol says a word of a job."""
        try:
            return wait_until(lambda: now if word in (now := self.shown(job)) else None, PATIENCE_S, word)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.shown(job)}") from None
