"""The mark of a job that gsub submitted, by which its processes know that their steps are asked for.

The job finds a folder of its user's in its environment (`RUNS`), and `gsub.train.step()` tells there how fast it steps
(`gsub/train.py`, `_Run`), if the job's mark lies there: jobs that it submits by plain sbatch inherit its variables.
`gsub.runs` reads what was told. The mark is left beside the command; whatever goes wrong with it, the submission went
well.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gsub.briefly import is_off
from gsub.submissions import SWITCH
from profiler.whole_file import put

__all__ = ["MARK", "RUNS", "TOLD", "Announcing", "any_told", "is_own", "runs_folder"]

RUNS: Final = "GSUB_RUNS"
"""The variable that names the folder to the job."""
MARK: Final = re.compile(r"\d{1,10}\.json")
TOLD: Final = re.compile(r"(\d{1,10})-(\d{1,6})-\d{1,10}-[0-9a-f]{12}\.run(\.part)?")
"""Names of what a process tells: job, restarts."""
_CLUSTER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MARKS: Final = 2000
"""Jobs of whose runs a point may come, the latest: one whose mark is gone tells nothing any more."""
_AGE: Final = 60 * 86400.0
_LEFT: Final = 3600.0
"""Seconds after which what a writer that was killed had begun is nobody's."""
_WAIT: Final = 0.2
"""Seconds that a submission may last longer for its mark: a home directory on a network may hang."""


def runs_folder(environ: Mapping[str, str], cluster: str) -> str:
    """Where runs of this user tell their steps; empty where there is no such place. Asks no file system.

    Clusters may share a home, and give the same numbers to their jobs: each has a folder.

    >>> runs_folder({"HOME": "/home/ada"}, "lab"), runs_folder({"HOME": "/", "XDG_STATE_HOME": "/s"}, "a")
    ('/home/ada/.local/state/gsub/runs/lab', '/s/gsub/runs/a')
    >>> runs_folder({}, "lab"), runs_folder({"HOME": "/home/ada"}, "../lab")
    ('', '')
    """
    if not _CLUSTER.fullmatch(cluster):
        return ""
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if is_off(environ, SWITCH) or not (state.startswith("/") or home.startswith("/")):
        return ""
    base = state if state.startswith("/") else f"{home}/.local/state"
    return os.path.join(base, "gsub", "runs", cluster)  # noqa: PTH118


def any_told(runs: Path) -> bool:
    """Whether a process has told anything in one of these folders. Costs no import, so it can be asked each time."""
    try:
        folders = [entry.path for entry in os.scandir(runs) if entry.is_dir(follow_symlinks=False)]
        return any(TOLD.fullmatch(name) for folder in folders for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


class Announcing:
    """Leaves the mark of a job beside the command: `start` it when sbatch has named the job, and `end` with it."""

    def __init__(self, workload: Sequence[str], environ: Mapping[str, str], cluster: str) -> None:
        self._workload = tuple(workload)[:8]
        self._environ = environ
        self._cluster = cluster
        self._thread: threading.Thread | None = None

    def start(self, job_id: int, cluster: str | None) -> None:
        """Begin to write it down; never raises an Exception."""
        elsewhere = cluster is not None and cluster.lower() != self._cluster.lower()
        if not self._workload or RUNS not in self._environ or elsewhere:
            return
        with suppress(Exception):
            mark = {
                "v": 1,
                "job": job_id,
                "workload": self._workload,
                "cluster": self._cluster,
                "at": time.time(),
            }
            self._thread = threading.Thread(target=self._write, args=(job_id, mark), name="runs", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait for a moment until it is written."""
        if self._thread is not None:
            self._thread.join(_WAIT)

    def _write(self, job_id: int, mark: Mapping[str, object]) -> None:
        import json

        from gsub.receipts import memory_folder

        with suppress(Exception):
            state = memory_folder(self._environ)
            if state is None:
                return
            folder = state / "runs" / self._cluster
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_own(folder):
                put(folder / f"{job_id}.json", json.dumps(mark).encode())
                _forget(folder)


def is_own(folder: Path) -> bool:
    """Whether it is a folder of this user's, and no link. Raises OSError."""
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _forget(folder: Path) -> None:
    """Remove marks and what runs told beyond what is kept; `gsub.train` bounds how many there are. Raises OSError."""
    with os.scandir(folder) as found:
        entries = [(_written(entry), entry.name) for entry in found]
    # By their time: numbers of jobs begin anew one day
    marks = sorted((one for one in entries if MARK.fullmatch(one[1])), reverse=True)
    gone = [name for _, name in marks[_MARKS:]]
    for at, name in entries:
        age = _LEFT if name.startswith(".") else _AGE
        if (name.startswith(".") or MARK.fullmatch(name) or TOLD.fullmatch(name)) and time.time() - at > age:
            gone.append(name)
    for name in gone:
        (folder / name).unlink(missing_ok=True)


def _written(entry: os.DirEntry[str]) -> float:
    with suppress(OSError):
        return entry.stat(follow_symlinks=False).st_mtime
    return time.time()
