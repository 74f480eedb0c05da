"""Scripts with a copy of gsub/train.py beside them, run as a job's process would be."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.paths import REPOSITORY

HELPER = REPOSITORY / "gsub/train.py"
PATIENCE = 120.0
"""Seconds for a process to end: a bound for a machine under load, no claim."""


def _pythons() -> dict[str, str]:
    """This Python, and the oldest that the helper is for, where there is one that runs."""
    found = {"python": sys.executable}
    for path in (shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8.*/bin/python")):
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found["python3.8"] = str(path)
    return found


PYTHONS = _pythons()


def in_job(**more: str) -> dict[str, str]:
    """The environment of a job's process."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "GSUB_"))}
    return {**inherited, "SLURM_JOB_ID": "7", **more}


class Script:
    """A script that is running. Its standard output is for events, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def says(self) -> str:
        """The next line of its output; "" at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> tuple[int, str, str]:
        """Its exit code, the rest of its output, its standard error."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


@contextlib.contextmanager
def script(
    folder: Path, code: str, env: dict[str, str] | None = None, python: str = sys.executable
) -> Iterator[Script]:
    """A script of this code, running in a folder with the helper's copy; killed at the end if it is still there."""
    shutil.copy(HELPER, folder / "gsub_train.py")
    path = folder / "script.py"
    path.write_text("import gsub_train\n" + textwrap.dedent(code))
    process = subprocess.Popen(
        [python, "-u", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=in_job() if env is None else env,
    )
    try:
        yield Script(process)
    finally:
        process.kill()
        process.communicate()
