"""`gsub usage` and receipts as the user guide has them, by an ordinary user of a cluster with agents."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.cli.test_commands import Terminal
from tests.record.recorded import PATIENCE, Recorded
from tests.test_docs import REPOSITORY, commands, needs_agents

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
    wait = [
        "sbatch",
        "--parsable",
        "--wait",
        "-N1",
        "-n1",
        "--gpus-per-node=1",
        "--mem=500",
        "--wrap=sleep 3",
    ]
    job = record.cluster.run(wait, user=record.user, cwd=folder, timeout=300, check=True).stdout.strip()
    until = time.monotonic() + PATIENCE
    shown = ""
    # its end must reach the service first; and a busy machine may not make it within the budget of one command
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
