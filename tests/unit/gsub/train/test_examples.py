"""examples/checkpoint without Slurm: its scripts stop when they are signalled, and end at the same numbers."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gsub import train
from tests.unit.gsub.train.running import HELPER, PATIENCE, PYTHONS, in_job

EXAMPLES = HELPER.parents[1] / "examples/checkpoint"
ASKS = ("--steps", "3000", "--every", "1000")
LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1:]).returncode and 1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    shutil.copytree(EXAMPLES, made)
    (made / "launcher.py").write_text(LAUNCHER)
    return made


def start(folder: Path, *argv: str, python: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=in_job(PYTHON=python, PYTHONUNBUFFERED="1"),
    )


def stopped(folder: Path, *argv: str, python: str, code: int = train.STOPPED) -> str:
    """What a run said that was signalled amid its work, which is slow enough for that."""
    process = start(folder, *argv, "--seconds-per-step", "0.01", "--every", "10", python=python)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("step 10 "), first
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, out
    return first + out


def finished(folder: Path, *argv: str, python: str) -> list[str]:
    out, _ = start(folder, *argv, python=python).communicate(timeout=PATIENCE)
    return out.splitlines()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
@pytest.mark.parametrize("by", ["itself", "batch.sh", "hand_on.sh"])
def test_a_run_that_was_stopped_ends_at_the_same_numbers(folder, python, by):
    loop = (python, "train.py", "--folder", "checkpoints-7")
    argv, code = {
        "itself": (loop, train.STOPPED),
        "batch.sh": (("bash", "batch.sh"), train.STOPPED),
        "hand_on.sh": (("bash", "hand_on.sh", python, "launcher.py", *loop), 1),
    }[by]
    never_stopped = finished(folder, python, "train.py", "--folder", "whole", *ASKS, python=python)
    log = stopped(folder, *argv, *ASKS, python=python, code=code)
    assert re.search(r"^gsub: stopped before its time limit \(SIGUSR1\), checkpoint=\S+ step=\d+$", log, re.M)
    path = train.latest(folder / "checkpoints-7")
    goes_on = finished(folder, *argv, *ASKS, python=python)
    assert goes_on[0].startswith(f"goes on from {path}, step ")
    assert goes_on[-1] == never_stopped[-1]
    assert goes_on[-1].startswith("final slope 1.9")


@pytest.mark.parametrize("script", ["train.sh", "batch.sh"])
def test_a_batch_script_in_the_wrong_folder_says_so(tmp_path, script):
    done = subprocess.run(
        ["bash", EXAMPLES / script], cwd=tmp_path, env=in_job(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"no gsub_train.py in {tmp_path}" in done.stderr
