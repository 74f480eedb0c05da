"""What jobs use, by their processes in /proc: for nodes on which Slurm makes no cgroups. Less exact, and cheap.

A process is of a job by SLURM_JOB_ID in the environment that it began with, which anybody can set; so it counts only
if it belongs to the user for whom a step daemon (slurmstepd, root's) has begun a process of that job. Processes that
are known cost one or two reads a look; what is none of ours is looked at again now and then, as its number may be
given to another.

CPU time is what the living processes used and what those used that they have waited for, so a process that came and
went between two looks counts. What nobody waited for is kept from the last look.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from profiler.host import HostReading

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_PIDS = 32768  # looked at in a look; of a fork bomb the rest waits
_MAX_NEW = 4096  # environments read in a look
_MAX_ENVIRON = 1 << 18
_MAX_FILE = 1 << 16
_AGAIN = 16  # every so many looks a process that is none of a job's is looked at again
_YOUNG = 2  # looks in which a process may still be between fork and exec, with another's environment
_STEP_DAEMON = b"slurmstepd"


@dataclass(slots=True)
class _Process:
    """A process as it was last seen; `job` 0: of none."""

    start: int
    job: int = 0
    uid: int = 0
    parent: int = 0
    ticks: int = 0
    private: int = 0
    shared: int = 0
    looks: int = 0


@dataclass(slots=True)
class _Job:
    """What is remembered of a job: whose it is, its step daemons, and the ticks of what ended unseen."""

    uid: int | None = None
    daemons: dict[int, _Process] = field(default_factory=dict)
    ended: int = 0
    most: int = 0


class ProcReader:
    """The processes of this node's jobs. Must be root to see those of others."""

    def __init__(
        self, node: str = "", *, cluster: str = "", proc: Path = Path("/proc"), root: int = 0
    ) -> None:
        self._ours = (
            (b"SLURMD_NODENAME", node.lower().encode()),
            (b"SLURM_CLUSTER_NAME", cluster.lower().encode()),
        )
        self._proc = proc
        self._root = root
        self._known: dict[int, _Process] = {}
        self._jobs: dict[int, _Job] = {}
        self._looks = 0

    def read(self, jobs: Collection[int]) -> dict[int, HostReading]:
        """What each of these jobs uses now; without those of which no process was ever seen."""
        self._jobs = {job: self._jobs.get(job, _Job()) for job in jobs}
        self._looks += 1
        self._look()
        return {job: self._sum(job, about) for job, about in self._jobs.items() if about.uid is not None}

    # --- looking ---

    def _look(self) -> None:
        pids = self._pids()
        living = set(pids)
        gone = [self._known.pop(pid) for pid in list(self._known) if pid not in living]
        new = 0
        for pid in pids[:_MAX_PIDS]:
            known = self._known.get(pid)
            if (
                known is not None
                and not known.job
                and (known.looks > _YOUNG and (pid + self._looks) % _AGAIN)
            ):
                continue
            stat = self._stat(pid)
            if stat is None:
                continue
            if known is None or known.start != stat.start or not known.job:
                new += 1
                if new > _MAX_NEW:
                    continue
                if known is not None and known.start != stat.start:
                    gone.append(self._known.pop(pid))
                looks = known.looks + 1 if known is not None else 0
                known = self._known[pid] = self._recognise(pid, stat)
                known.looks = looks
            if known.job:
                known.parent, known.ticks = stat.parent, max(known.ticks, stat.ticks)
                known.private, known.shared = self._memory(pid)
        for process in gone:
            self._settle(process)
        for about in self._jobs.values():
            self._look_at_daemons(about)

    def _pids(self) -> list[int]:
        try:
            with os.scandir(self._proc) as entries:
                return [int(entry.name) for entry in entries if entry.name.isdecimal()]
        except OSError:
            return []

    def _recognise(self, pid: int, stat: _Stat) -> _Process:
        """Whose a new process is."""
        process = _Process(stat.start, uid=stat.uid, parent=stat.parent)
        environment = _read(self._proc / str(pid) / "environ", _MAX_ENVIRON).split(b"\0")
        values = dict(item.partition(b"=")[::2] for item in environment)
        number = values.get(b"SLURM_JOB_ID", b"")
        others = any(ours and values.get(name, ours).lower() != ours for name, ours in self._ours)
        if not number.isdigit() or others:
            return process
        process.job = int(number)
        about = self._jobs.get(process.job)
        daemon = self._stat(stat.parent)
        if about is None or daemon is None or daemon.name != _STEP_DAEMON or daemon.uid != self._root:
            return process
        if about.uid in (None, self._root):  # root's: a prolog that the step daemon runs, or a job of root's
            about.uid = stat.uid
        about.daemons.setdefault(stat.parent, _Process(daemon.start))
        return process

    def _look_at_daemons(self, about: _Job) -> None:
        """A step daemon waits for what it began: with it goes what it knows of those."""
        for pid, daemon in list(about.daemons.items()):
            stat = self._stat(pid)
            if stat is None or stat.start != daemon.start:
                about.ended += daemon.ticks
                del about.daemons[pid]
            else:
                daemon.ticks = max(daemon.ticks, stat.waited)

    def _settle(self, gone: _Process) -> None:
        """Keep the time of a process that has ended, unless who waited for it has it now."""
        about = self._jobs.get(gone.job)
        if about is None or gone.uid != about.uid:
            return
        parent = self._known.get(gone.parent)
        if gone.parent not in about.daemons and (parent is None or parent.job != gone.job):
            about.ended += gone.ticks

    # --- summing up ---

    def _sum(self, job: int, about: _Job) -> HostReading:
        ours = [item for item in self._known.values() if item.job == job and item.uid == about.uid]
        ticks = (
            about.ended
            + sum(item.ticks for item in ours)
            + sum(item.ticks for item in about.daemons.values())
        )
        # One that ended while this looked is in nobody's sum for now: a counter must not fall.
        about.most = max(about.most, ticks)
        private = sum(item.private for item in ours)
        # Pages that processes share count once, by the process that has most: who shares with whom is dear to know.
        shared = max((item.shared for item in ours), default=0)
        return HostReading(
            source="proc",
            cpu_seconds=about.most / _TICK,
            memory_bytes=(private + shared) * _PAGE,
            memory_working_bytes=private * _PAGE,
        )

    def _stat(self, pid: int) -> _Stat | None:
        return _Stat.read(self._proc / str(pid))

    def _memory(self, pid: int) -> tuple[int, int]:
        """Private and shared resident pages."""
        numbers = _read(self._proc / str(pid) / "statm").split()
        if len(numbers) < 3:
            return 0, 0
        resident, shared = int(numbers[1]), int(numbers[2])
        return max(resident - shared, 0), shared


@dataclass(frozen=True, slots=True)
class _Stat:
    """/proc/PID/stat (proc(5)); times in clock ticks. `ticks` is with, `waited` is only, of children waited for."""

    name: bytes
    parent: int
    ticks: int
    waited: int
    start: int
    uid: int

    @classmethod
    def read(cls, folder: Path) -> _Stat | None:
        """None if the process has gone."""
        head, _, tail = _read(folder / "stat").rpartition(b")")
        fields = tail.split()
        if len(fields) < 20:
            return None
        try:
            uid = folder.stat().st_uid
        except OSError:
            return None
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return cls(head.partition(b"(")[2], int(fields[1]), own + waited, waited, int(fields[19]), uid)


def read_text(path: Path) -> str:
    """A small file of the kernel; "" if it cannot be read."""
    return _read(path).decode(errors="replace")


def _read(path: Path, most: int = _MAX_FILE) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        parts: list[bytes] = []
        while most > 0 and (part := os.read(descriptor, most)):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
