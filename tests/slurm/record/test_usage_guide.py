"""`gsub usage` and receipts as the user guide has them, by an ordinary user of a cluster with agents."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.answers import Jobs
from tests.paths import REPOSITORY
from tests.slurm.cli.test_commands import Terminal
from tests.slurm.record.recorded import PATIENCE, Recorded
from tests.slurm.test_docs import shorten_training
from tests.unit.test_docs import commands, needs_agents

GUIDE = REPOSITORY / "docs/user-guide.md"


@pytest.fixture
def folder(record: Recorded) -> Path:
    """The example, in the user's home."""
    folder = record.cluster.home(record.user) / "guide"
    shutil.copytree(
        REPOSITORY / "examples/digits",
        folder,
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    shorten_training(folder, epochs=12)
    for path in (folder, *folder.iterdir()):
        if record.user:
            shutil.chown(path, record.user, record.user)
    return folder


def test_its_commands_run(record: Recorded, folder: Path) -> None:
    lines = [command for command in commands(GUIDE) if needs_agents(command)]
    assert lines
    for command in lines:
        done = record.cluster.run(["bash", "-c", command.line], user=record.user, cwd=folder, timeout=300)
        assert done.returncode == command.exit_code, f"{command.line}\n{done.stdout}{done.stderr}"
        assert "utilisation over time" in done.stdout and "next time" in done.stdout


def test_a_receipt_comes_with_the_next_command_on_a_terminal(record: Recorded, folder: Path) -> None:
    line = ["sbatch", "--parsable", "-N1", "-n1", "--gpus-per-node=1", "--mem=500", "--wrap=sleep 3"]
    job = record.cluster.run(line, user=record.user, cwd=folder, check=True).stdout.strip()
    record.complete(int(job))
    until = time.monotonic() + PATIENCE
    shown = ""
    # a busy machine may not make it within the budget of one command
    for attempt in range(1000):
        state = folder / f"state{attempt}"
        terminal = Terminal(
            record.cluster,
            record.user,
            folder,
            "cancel",
            "--help",
            XDG_STATE_HOME=str(state),
            GSUB_RECEIPTS="",
        )
        assert terminal.end() == 0
        shown = terminal.text
        if f"\njob {job} " in shown or time.monotonic() > until:
            break
    assert f"\njob {job} " in shown
    receipt = shown.partition(f"\njob {job} ")[2].splitlines()[:6]
    assert (
        "COMPLETED" in receipt[0]
        and receipt[1].lstrip().startswith("GPUs")
        and "none was ever used" in receipt[1]
    )
    assert receipt[5].lstrip().startswith("next time")


def test_a_report_sums_up_what_the_record_has(record: Recorded, folder: Path) -> None:
    """By the API's own list of the user's jobs; what is held waits for its user; another user is told of none of it."""
    uid = os.getuid() if record.user is None else pwd.getpwnam(record.user).pw_uid
    held = record.submit("-H", "--gpus=2", script="true")

    def reported() -> dict[str, list[dict[str, Any]]]:
        done = record.cluster.run(["gsub", "report", "--json"], user=record.user, cwd=folder)
        assert done.returncode == 0, done.stderr
        return {name: table["rows"] for name, table in json.loads(done.stdout)["tables"].items()}

    def agrees() -> bool | None:
        """What is learnt of a job that has just ended comes bit by bit."""
        totals = {row["figure"]: row["value"] for row in reported()["totals"]}
        status, body = record.ask(f"/v1/jobs?uid={uid}&limit=1000")
        mine = msgspec.json.decode(body, type=Jobs).jobs
        hours = sum((job.gpus or 0) * ((job.ended or 0) - (job.started or 0)) for job in mine) / 3600
        assert status == 200 and mine
        same = totals["attempts"] == len(mine) and totals["GPU-hours"] == pytest.approx(hours, abs=1e-6)
        return (same and hours > 0) or None

    try:
        waits = {row["cause"]: (row["gpus_asked"], row["jobs"]) for row in reported()["waiting_now"]}
        assert waits["user"] == (2, 1)
        record.wait_for("the report to agree with the record", agrees)
    finally:
        record.cluster.run(["scancel", str(held)], user=record.user, check=True)
    for other in record.cluster.users[1:2]:
        done = record.cluster.run(["gsub", "report"], user=other, cwd=record.cluster.home(other))
        assert done.returncode == 0 and "none of yours ran then" in done.stdout, done.stdout + done.stderr
