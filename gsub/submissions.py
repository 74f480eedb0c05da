"""The command lines that this user submitted by gsub, word by word, for `gsub resubmit` and `gsub fix`.

Slurm keeps a command line without its quotes (SubmitLine), so it cannot say where an argument ends. `submissions.jsonl`
in the user's state folder has the words themselves, of the newest jobs. They may hold secrets and are needed as they
are: the file is its user's alone (0600). It is written beside the command, once the answer was printed; whatever goes
wrong with it, the submission went well.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gsub.briefly import is_off
from gsub.here import here
from profiler.whole_file import put

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FILE", "SWITCH", "Keeping", "Typed", "add", "of_job", "typed_of"]

SWITCH: Final = "GSUB_REMEMBER"
"""The variable that says "off"."""
FILE: Final = "submissions.jsonl"
MOST: Final = 500
"""Jobs that are kept."""
LARGEST: Final = 1 << 20
"""Bytes of the file at most; older jobs go first; no job gets more than half of it."""
_WAIT: Final = 0.2
"""Seconds that a command may last longer for it: a home directory on a network may hang."""
_LOCKED: Final = 1.0
"""Seconds that another command of this user may hold the file for."""
_CLOCKS: Final = 300.0
"""Seconds by which this host's clock and slurmctld's may differ: MUNGE lets no more pass."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A submission: the words behind `sbatch`, the folder, the cluster ("": not known), and when sbatch had answered
    (seconds since 1970, by this host's clock).
    """

    job_id: int
    words: tuple[str, ...]
    folder: str
    cluster: str
    at: float

    def is_of(
        self, job_id: int, *, cluster: str, line: str, submitted: float | None, requeued: bool = False
    ) -> bool:
        """Whether it is that job's: its number and all else that is known of both agree.

        Parameters
        ----------
        line: Slurm's SubmitLine; "" not known.
        submitted: when Slurm says that the job was submitted. Slurm sets that anew at a requeue.
        """
        # Slurm writes a cluster's name in small letters, whatever the site file does
        if job_id != self.job_id or (cluster and self.cluster and cluster.lower() != self.cluster.lower()):
            return False
        if line and line.split() != " ".join(("sbatch", *self.words)).split():
            return False
        # A number alone says little: another cluster has it too, and one that counts anew gives it again
        if not line and not (cluster and self.cluster and submitted is not None):
            return False
        if submitted is None:
            return True
        after = submitted - self.at
        return after > -_CLOCKS - _WAIT if requeued and line else abs(after) < _CLOCKS


class Keeping:
    """One command line, kept beside the command: `start` it when sbatch has named the job, and `end` with it."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._words = tuple(words)
        self._environ = environ
        self._thread: threading.Thread | None = None

    def start(self, job_id: int, cluster: str | None) -> None:
        """Begin to write it down; never raises an Exception."""
        if is_off(self._environ, SWITCH):
            return
        with suppress(Exception):
            one = Typed(job_id, self._words, here(), cluster or "", time.time())
            self._thread = threading.Thread(target=self._write, args=(one,), name="submissions", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait for a moment until it is written."""
        if self._thread is not None:
            self._thread.join(_WAIT)

    def _write(self, one: Typed) -> None:
        from dataclasses import replace

        from gsub.receipts import memory_folder

        with suppress(Exception):
            folder = memory_folder(self._environ)
            if folder is not None:
                add(folder, one if one.cluster else replace(one, cluster=_cluster(self._environ)))


def _cluster(environ: Mapping[str, str]) -> str:
    """The cluster that sbatch speaks to unless it is told another one; "" where no site file says."""
    from site_configs.site import find_site, load_site

    path = find_site(environ)
    site = None if path is None else load_site(path)
    return "" if site is None else site.cluster


def add(folder: Path, one: Typed) -> None:
    """Write it down, all of it or nothing, behind what is kept. Raises OSError."""
    import fcntl
    import json

    row = {
        "v": 1,
        "job": one.job_id,
        "cluster": one.cluster,
        "at": one.at,
        "in": one.folder,
        "words": one.words,
    }
    line = json.dumps(row).encode() + b"\n"
    if len(line) > LARGEST // 2:
        return  # one of that size is not worth all others
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / "submissions.lock", flags, 0o600)
    try:
        until = time.monotonic() + _LOCKED
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)
        # Lines as they are: to read and write 500 of them is ten times the work
        lines = [*_lines(folder)[1 - MOST :], line]
        room = LARGEST
        first = len(lines)
        while first and (room := room - len(lines[first - 1])) >= 0:
            first -= 1
        put(folder / FILE, b"".join(lines[first:]))
    finally:
        os.close(lock)


def _lines(folder: Path) -> list[bytes]:
    """The lines of the file, each with its end; none where there is none. Raises OSError."""
    try:
        handle = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    with os.fdopen(handle, "rb") as file:
        return [line for line in file.read(2 * LARGEST).splitlines(keepends=True) if line.endswith(b"\n")]


def of_job(folder: Path, job_id: int) -> list[Typed]:
    """What is kept for jobs of that number, the newest first; spoilt lines are passed over. Raises OSError."""
    import json

    found = []
    for line in reversed(_lines(folder)):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        one = _typed(row) if isinstance(row, dict) and row.get("job") == job_id else None
        if one is not None:
            found.append(one)
    return found


def _typed(row: dict[str, Any]) -> Typed | None:
    number, words, at = row.get("job"), row.get("words"), row.get("at")
    where, cluster = row.get("in"), row.get("cluster")
    if (
        isinstance(number, int)
        and isinstance(words, list)
        and all(isinstance(word, str) for word in words)
        and isinstance(at, int | float)
        and isinstance(where, str)
        and isinstance(cluster, str)
    ):
        return Typed(number, tuple(words), where, cluster, at)
    return None


def typed_of(
    job_id: int,
    environ: Mapping[str, str],
    *,
    cluster: str,
    line: str,
    submitted: float | None,
    requeued: bool = False,
) -> Typed | None:
    """The submission of a job, where this user made it by gsub and it is kept; see `Typed.is_of`."""
    from gsub.receipts import memory_folder

    try:
        folder = memory_folder(environ)
        kept = [] if folder is None else of_job(folder, job_id)
    except OSError:
        return None
    agree = [
        one
        for one in kept
        if one.is_of(job_id, cluster=cluster, line=line, submitted=submitted, requeued=requeued)
    ]
    return agree[0] if agree else None
