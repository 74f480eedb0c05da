"""The processes of a run on this node: the descendants of one, and whatever carries the run's mark.

A task that `srun` starts is a child of Slurm's own process, not of the script that called it; but it has the script's
environment. So a process is of the run when a parent of it is, or when its environment has `GSUB_STEPS=` and the run's
own folder. One that was seen once stays of the run, also when its parent has ended. A job that the run submits has
that environment too, and may come to the same node: it is another's number in SLURM_JOB_ID that tells it apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MARK", "Process", "ProcessTree", "about", "ancestors"]

MARK: Final = "GSUB_STEPS"
"""The variable that names the run's folder; `gsub.train.step()` counts there."""
_JOB: Final = "SLURM_JOB_ID"
_MOST: Final = 8192  # processes of the user that are looked at
_MOST_ENVIRON: Final = 1 << 20
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process: its number, its parent's, when it began (clock ticks since boot), its CPU time so far in seconds."""

    pid: int
    parent: int
    began: int
    cpu_seconds: float
    command: str


class ProcessTree:
    """The run that begins with process `pid`; `mark` is the folder that its environment names ("": none)."""

    def __init__(self, pid: int, mark: str | os.PathLike[str] = "") -> None:
        self._pid = pid
        text = os.fsencode(mark)
        self._mark = MARK.encode() + b"=" + text if text else b""
        self._job = os.fsencode(os.environ.get(_JOB, ""))
        root = about(pid)
        self._began = root.began if root is not None else -1  # its number may be given to another in time
        self._known: dict[tuple[int, int], bool] = {}
        self._aside = ancestors(os.getpid())

    def processes(self) -> tuple[Process, ...]:
        """Those that are there now, parents ahead of children. This process and its own ancestors are never among
        them, nor are other users'.
        """
        found = {one.pid: one for one in _own()}
        members: dict[int, Process] = {}
        asked: dict[tuple[int, int], bool] = {}
        for one in sorted(found.values(), key=lambda each: each.began):
            if one.pid in self._aside:
                continue
            key = (one.pid, one.began)
            # A mark of its own is looked for once; whose child it is may change when its parent ends.
            mine = self._known.get(key)
            if mine is None:
                mine = key == (self._pid, self._began) or (bool(self._mark) and self._marked(one.pid))
            if mine or one.parent in members:
                members[one.pid] = one
                mine = True
            asked[key] = mine
        self._known = asked
        return tuple(members.values())

    def _marked(self, pid: int) -> bool:
        try:
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                found = file.read(_MOST_ENVIRON).split(b"\0")
        except OSError:
            return False
        jobs = {one for one in found if one.startswith(_JOB.encode() + b"=")}
        return self._mark in found and (not self._job or jobs <= {_JOB.encode() + b"=" + self._job})

    def leaves(self, before: Iterable[Process], seconds: float, least: float = 0.05) -> tuple[Process, ...]:
        """The processes that used `least` CPUs or more since `before`, `seconds` ago, and have no children that did.

        A DataLoader's workers are such; the process that trains and the shells above it are not, where there are any.
        """
        used = {(one.pid, one.began): one.cpu_seconds for one in before}
        busy = [
            one
            for one in self.processes()
            if seconds > 0 and one.cpu_seconds - used.get((one.pid, one.began), 0.0) >= least * seconds
        ]
        parents = {one.parent for one in busy}
        return tuple(one for one in busy if one.pid not in parents)


def ancestors(pid: int) -> frozenset[int]:
    """A process and all above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found and len(found) < 256:
        found.add(pid)
        one = about(pid)
        pid = one.parent if one is not None else 0
    return frozenset(found)


def _own() -> Iterator[Process]:
    """This user's processes."""
    user, count = os.geteuid(), 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdecimal():
                continue
            try:
                if entry.stat().st_uid != user:
                    continue
            except OSError:
                continue
            found = about(int(entry.name))
            if found is not None:
                yield found
                count += 1
            if count >= _MOST:
                return


def about(pid: int) -> Process | None:
    """What /proc/PID/stat tells (proc(5)); None when it has gone or is dead but not waited for.

    A dead leader of threads that still run counts as dead, too: they end with it or hold nothing of a run's.
    """
    try:
        # Not by pathlib: a turn of the driver reads hundreds of these
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        # The name may have blanks and parentheses: what follows the last one is figures
        head, _, rest = text.rpartition(b")")
        words = rest.split()
        if words[0] in (b"Z", b"X"):
            return None
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return Process(pid, int(words[1]), int(words[19]), (int(words[11]) + int(words[12])) / _TICKS, name)
    except (OSError, ValueError, IndexError):
        return None
