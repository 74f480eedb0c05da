"""A folder as a job's, an environment without third-party modules, and the checks over both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from gsub.argv import split
from gsub.preflight.look import submission
from gsub.preflight.runner import preflight
from gsub.preflight.table import CHECKS
from gsub.preflight.values import Submission, Verdict
from gsub.sbatch_options import Table
from tests.unit.gsub.preflight.scripts import Case

NOBODY = 65534
PATIENCE = 60.0
"""Far above any deadline: what is tested is what is found, on whatever machine."""


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A home folder with an environment and a conda installation that has none; others may go in."""
    folder = Path(tempfile.mkdtemp(prefix="preflight-")).resolve()
    folder.chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (folder / "conda/etc/profile.d").mkdir(parents=True)
    (folder / "conda/etc/profile.d/conda.sh").touch()
    (folder / "conda/envs/torch/conda-meta").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name, told in (("sbatch", "echo slurm 22.05.8"), ("scontrol", "echo Partition not found; exit 1")):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{told}\n")
        (folder / "bin" / name).chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def ordinary() -> Iterator[None]:
    """As somebody whom permissions bind, where we are root."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


Lay = Callable[[Case], Submission]
Look = Callable[[Case], Verdict]


@pytest.fixture
def laid(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lay]:
    """Lays out a case's files in a folder below that home, and reads its command line."""
    folder = Path(tempfile.mkdtemp(prefix="job-", dir=home))
    folder.chmod(0o755)
    monkeypatch.chdir(folder)

    def lay(case: Case) -> Submission:
        def text(said: str) -> str:
            return said.replace("VENV", str(home / "env")).replace("HOME/", f"{home}/")

        for name, said in {**case.files, "job.sh": text(case.script)}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(said.encode())
        for name, mode in case.modes.items():
            (folder / name).chmod(mode)
        line = split([*case.words, "job.sh", *case.args], Table.of_all())
        environ = {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), "USER": "ada"}
        return replace(submission(line, text(case.script), environ), home=str(home))

    yield lay
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)


@pytest.fixture
def look(laid: Lay) -> Look:
    """All checks but Slurm's own over a case."""

    def one(case: Case) -> Verdict:
        found = laid(case)
        rows = [replace(check, deadline=PATIENCE) for check in CHECKS if check.name != "test-only"]
        with ordinary() if case.modes else nullcontext():  # that somebody may not even find our Python
            return preflight(found, alone=case.alone, deadline=PATIENCE, checks=rows)

    return one
