"""SIGTERM at any moment of a daemon's first seconds, on a machine that is busy: it ends, and nothing stays of it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.slurm_plugins.service.serving import PATIENCE
from tests.unit.slurm_plugins.service.test_look import SCONTROL, slurm_in
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

MARK = "GSUB_TEST_ENDING"
"""In the environment of a daemon, and so of all that it starts, in whatever session."""
SITE = """\
cluster = "lab"
[policy]
mode = "observe"
[service]
user = "root"
[slurm]
munge_socket = "{folder}/no-munged"
[agent]
interval = "1s"
[store]
url = "sqlite:///{folder}/store.db"
"""
AT_ONCE = 4
HANGS = "#!/bin/sh\ntouch {folder}/asked\nexec sleep 1000\n"


@dataclass(frozen=True)
class Daemon:
    """How a daemon is started in a folder, and how many seconds from its own first line on it is told to end."""

    module: str
    options: tuple[str, ...]
    seconds: float
    scontrol: str = SCONTROL


GSUBD = Daemon(
    "slurm_plugins.service",
    (
        "--socket={0}/decision.sock",
        "--state={0}/state",
        "--listen=127.0.0.1:0",
        "--api=127.0.0.1:0",
        "--poll=5",
    ),
    1.5,
)
# Root may not act for gsub: what this Slurm lets it do stays unknown
ACT = Daemon(
    "slurm_plugins.act", ("--socket={0}/act.sock", "--state={0}/state"), 1.0, "#!/bin/sh\nsleep 0.2\nexit 1\n"
)
NODED = Daemon(
    "prolog_epilog.agent", ("--node=n1", "--run={0}/run", "--spool={0}/state", "--slurmd-spool={0}"), 1.0
)


@pytest.fixture
def busy() -> Iterator[None]:
    """A machine that has other things to do."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    burner.kill()
    burner.wait()


@pytest.mark.parametrize(
    ("daemon", "moments"), [(GSUBD, 30), (ACT, 6), (NODED, 4)], ids=["gsubd", "gsub-act", "gsub-noded"]
)
@pytest.mark.usefixtures("busy")
def test_it_ends_at_whatever_moment_it_is_told(daemon: Daemon, moments: int, tmp_path: Path) -> None:
    at = [daemon.seconds * (number + random.random()) / moments for number in range(moments)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        told = threads.map(lambda one: _told_to_end(daemon, tmp_path / str(one[0]), one[1]), enumerate(at))
        assert [one for one in told if one] == []


@pytest.mark.parametrize("daemon", [GSUBD, ACT], ids=["gsubd", "gsub-act"])
def test_what_it_asks_a_silent_slurm_ends_with_it(daemon: Daemon, tmp_path: Path) -> None:
    assert _told_to_end(replace(daemon, scontrol=HANGS), tmp_path / "one", 0.0, sign="bin/asked") == ""


def _told_to_end(daemon: Daemon, folder: Path, moment: float, *, sign: str = "") -> str:
    """What went wrong with one that is told to end so many seconds after its first line, or after a file is there."""
    (folder / "state").mkdir(parents=True, mode=0o700)
    site = folder / "site.toml"
    site.write_text(SITE.format(folder=folder))
    mark = f"{MARK}={folder}"
    env = slurm_in(folder / "bin", daemon.scontrol) | {MARK: str(folder)}
    argv = [
        sys.executable,
        "-m",
        daemon.module,
        f"--site={site}",
        *(one.format(folder) for one in daemon.options),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    try:
        # While Python itself starts there is nothing to end
        begun = (folder / sign).exists if sign else lambda: _catches(process.pid)
        wait_until(lambda: process.poll() is not None or begun(), PATIENCE, "its begin", pause=0.05)
        time.sleep(moment)
        wrong = [] if process.poll() is None else ["ended before it was told to"]
        process.terminate()
        code = process.wait(PATIENCE)
        if code != 0:
            wrong.append(f"ended with {code}")
        try:
            wait_until(lambda: not _marked(mark), PATIENCE, "the end of its processes", pause=0.05)
        except AssertionError:
            wrong.append(f"left {_marked(mark)}")
        if "Traceback" in (said := (folder / "log").read_text()):
            wrong.append("failed")
        for name in ("decision.sock", "act.sock"):
            if (folder / name).exists():
                wrong.append(f"left {name}")
    except subprocess.TimeoutExpired:
        wrong, said = ["did not end"], (folder / "log").read_text()
    finally:
        for pid in _marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder)
    return f"after {moment:.3f} s: {', '.join(wrong)}\n{said}" if wrong else ""


def _catches(pid: int) -> bool:
    """Whether a process has its own answer to SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _marked(mark: str) -> list[int]:
    """The living processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # a process that is dead and not waited for has none
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
