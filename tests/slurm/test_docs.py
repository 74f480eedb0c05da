"""What the documents say holds: every link leads somewhere, every command runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.unit.test_docs import DOCUMENTS, commands, needs_agents


def shorten_training(folder: Path, epochs: int) -> None:
    """Give a copy of the example fewer epochs by default, where only the commands around it are tried."""
    program = folder / "train.py"
    text, whole = program.read_text(), 'add("--epochs", type=count, default=60,'
    assert whole in text
    program.write_text(text.replace(whole, whole.replace("60", str(epochs))))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_run(document, clean, user):
    """As an ordinary user, in a folder with the example; those of the development cluster against this one."""
    folder = clean.home(user) / f"docs-{document.stem}"
    shutil.copytree(
        REPOSITORY / "examples/digits",
        folder,
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    shorten_training(folder, epochs=4)
    for path in (folder, *folder.iterdir()):
        if user:
            shutil.chown(path, user, user)
    for command in commands(document):
        if command.line.startswith("make") or needs_agents(command):
            continue
        if command.line.startswith(".venv/bin/python -m site_configs.devcluster"):
            if clean.rootfs.is_chroot and " env" in command.line:
                continue
            # the documents speak of the cluster with the default name, this one has another
            line = re.sub(r"(site_configs\.devcluster \w+)", rf"\1 --name {clean.spec.name}", command.line)
            done = subprocess.run(
                line, shell=True, cwd=REPOSITORY, input="", capture_output=True, text=True, timeout=60
            )
        else:
            done = clean.run(["bash", "-c", command.line], user=user, cwd=folder, timeout=400)
        assert done.returncode == command.exit_code, (
            f"{document.name}: {command.line}: exit code {done.returncode}: {done.stdout}{done.stderr}"
        )
