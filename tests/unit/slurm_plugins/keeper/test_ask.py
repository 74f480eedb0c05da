"""The child that asks Slurm: its answer, its deadline, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from profiler.records import JobRef
from slurm_plugins.service.keeper.ask import Question, Seen
from slurm_plugins.service.keeper.enrich import ChildSlurm
from tests.unit.slurm_plugins.keeper.test_keeping import alive, until

SITE = 'cluster = "lab"\n[slurm]\nbin = "{bin}"\n'


def question(folder: Path, *wanted: JobRef) -> Question:
    return Question(site=SITE.format(bin=folder), site_path="", wanted=wanted)


def slurm(folder: Path, **commands: str) -> Path:
    """A folder with commands of a Slurm that does as it is told."""
    for name in ("squeue", "sacct", "scontrol"):
        path = folder / name
        path.write_text("#!/bin/sh\n" + commands.get(name, "exit 1") + "\n")
        path.chmod(0o755)
    return folder


def ask(folder: Path, *, seconds: float = 60.0, path: str = "/usr/bin:/bin") -> Seen:
    env = {**os.environ, "PATH": path}

    async def once() -> Seen:
        slurm = ChildSlurm(env, seconds=seconds)
        try:
            return await slurm.ask(question(folder, JobRef(1)))
        finally:
            await slurm.close()

    return asyncio.run(once())


def test_a_slurm_that_refuses_is_told_in_its_own_words(tmp_path: Path):
    said = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    version = '[ "$1" = --version ] && { echo slurm 22.05.8; exit 0; }; '
    seen = ask(slurm(tmp_path, squeue=version + said, sacct="echo 'sacct: error: nobody there' >&2; exit 1"))
    assert "Unable to contact slurm controller" in seen.error and "nobody there" in seen.accounting_error
    assert seen.running is None and seen.facts == ()


def test_without_slurm_there_is_a_sentence(tmp_path: Path):
    seen = ask(tmp_path / "nowhere", path=str(tmp_path))
    assert "squeue" in seen.error and seen.running is None


@pytest.mark.slow
def test_a_slurm_that_hangs_is_given_up_and_nothing_of_it_is_left(tmp_path: Path):
    pid = tmp_path / "pid"
    seen = ask(slurm(tmp_path, squeue=f"echo $$ > {pid}; exec sleep 1000"), seconds=4.0)
    assert "took more than 4 s" in seen.error
    if pid.exists():  # on a slow machine it had not even begun
        until(lambda: not alive(int(pid.read_text())), "the end of Slurm's command")
