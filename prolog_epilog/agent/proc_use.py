"""What jobs use, by their processes in /proc: for nodes on which Slurm makes no cgroups. Less exact, and cheap.

A process is of a job if a step daemon of that job began it (`step_daemon`), or by SLURM_JOB_ID in the environment that
it began with, which anybody can set; so that counts only if it belongs to the user for whom a step daemon has begun a
process of that job. Processes that are known cost two reads a look; what is none of ours is looked at again now and
then, as its number may be given to another. However many a user has, looks take a small part of a CPU's time, and each
begins with another process.

CPU time is what the living processes used and what those used that they have waited for, so a process that came and
went between two looks counts. What nobody waited for is kept from the last look, and no time counts twice: a process
that ended below a living one is in that one's time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiler.host import HostReading
from prolog_epilog.agent.step_daemon import NAME, StepDaemon, read, real_uid, step_daemon

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_PIDS = 32768  # looked at in a look; of a fork bomb the rest waits
_MAX_NEW = 4096  # environments read in a look
_MAX_ENVIRON = 1 << 18
_MOST_SECONDS = 0.5  # of CPU time in a look
_DEAR = 0.1  # seconds of CPU time: after a look that took as long there is none for 20 times as long
_PAUSE = 20
_DIGITS = 10  # of a job's id
_AGAIN = 16  # every so many looks a process that is none of a job's is looked at again
_YOUNG = 2  # looks in which a process may still be between fork and exec, with another's environment


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
class _Daemon:
    """A step daemon: `waited` ticks of what it waited for, at this look; `ticks` with what it has yet to wait for."""

    start: int
    waited: int
    ticks: int


@dataclass(slots=True)
class _Job:
    """What is remembered of a job: whose it is, its step daemons, and the ticks of what ended unseen."""

    uid: int | None = None
    daemons: dict[int, _Daemon] = field(default_factory=dict)
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
        self._next = 0.0  # when to look again, by the monotonic clock
        self._proc = proc
        self._root = root
        self._known: dict[int, _Process] = {}
        self._jobs: dict[int, _Job] = {}
        self._looks = 0

    def read(self, jobs: Collection[int]) -> dict[int, HostReading]:
        """What each of these jobs uses now; without those of which no process was ever seen.

        Of none while looking would be too dear: CPU time that was used meanwhile is in the next reading.
        """
        self._jobs = {job: self._jobs.get(job, _Job()) for job in jobs}
        if time.monotonic() < self._next:
            return {}
        self._looks += 1
        began = time.thread_time()
        self._look(began + _MOST_SECONDS)
        if (spent := time.thread_time() - began) > _DEAR:
            self._next = time.monotonic() + _PAUSE * spent
        return {job: self._sum(job, about) for job, about in self._jobs.items() if about.uid is not None}

    # --- looking ---

    def _look(self, until: float) -> None:
        # Before the processes: what ends from now on must not count as one of these and in its daemon's time.
        for about in self._jobs.values():
            self._look_at_daemons(about)
        pids = self._pids()
        living = set(pids)
        gone = {pid: self._known.pop(pid) for pid in list(self._known) if pid not in living}
        new = 0
        first = self._looks * 7919 % max(len(pids), 1)
        for pid in (pids[first:] + pids[:first])[:_MAX_PIDS]:
            if time.thread_time() > until:
                break
            known = self._known.get(pid)
            if (
                known is not None
                and not known.job
                and (known.looks > _YOUNG and (pid + self._looks) % _AGAIN)
            ):
                continue
            stat = self._stat(pid)
            if stat is None:
                if known is not None:
                    gone[pid] = self._known.pop(pid)
                continue
            if known is None or known.start != stat.start or not known.job:
                new += 1
                if new > _MAX_NEW:
                    continue
                if known is not None and known.start != stat.start:
                    gone[pid] = self._known.pop(pid)
                looks = known.looks + 1 if known is not None else 0
                known = self._known[pid] = self._recognise(pid, stat)
                known.looks = looks
            if known.job:
                known.parent, known.ticks = stat.parent, max(known.ticks, stat.ticks)
                known.private, known.shared = self._memory(pid)
        for process in gone.values():
            self._settle(process, gone)
        for about in self._jobs.values():
            for daemon in about.daemons.values():
                daemon.ticks = max(daemon.ticks, daemon.waited)

    def _pids(self) -> list[int]:
        try:
            with os.scandir(self._proc) as entries:
                return [int(entry.name) for entry in entries if entry.name.isdecimal()]
        except OSError:
            return []

    def _recognise(self, pid: int, stat: _Stat) -> _Process:
        """Whose a new process is."""
        folder = self._proc / str(pid)
        process = _Process(stat.start, uid=-1, parent=stat.parent)
        environment = b"\0" + read(folder / "environ", _MAX_ENVIRON)
        number = _value(environment, b"SLURM_JOB_ID")
        others = any(
            ours and _value(environment, name).lower() not in (b"", ours) for name, ours in self._ours
        )
        if not (number.isdigit() and len(number) <= _DIGITS) or others:
            return process
        uid = real_uid(folder)
        if uid is None:
            return process
        process.uid, process.job = uid, int(number)
        daemon = self._stat(stat.parent)
        whose = self._daemon(stat.parent, daemon)
        if daemon is None or whose is None:
            return process
        if whose.job is not None:
            process.job = whose.job
        about = self._jobs.get(process.job)
        if about is None:
            return process
        if about.uid in (None, self._root):  # root's: a prolog that the step daemon runs, or a job of root's
            about.uid = uid
        about.daemons.setdefault(stat.parent, _Daemon(daemon.start, daemon.waited, daemon.waited))
        return process

    def _daemon(self, pid: int, stat: _Stat | None) -> StepDaemon | None:
        if stat is None or stat.name != NAME:
            return None
        return step_daemon(self._proc / str(pid), self._root)

    def _look_at_daemons(self, about: _Job) -> None:
        """A step daemon waits for what it began: with it goes what it knows of those."""
        for pid, daemon in list(about.daemons.items()):
            stat = self._stat(pid)
            if stat is None or stat.start != daemon.start:
                about.ended += daemon.ticks
                del about.daemons[pid]
            else:
                daemon.waited = stat.waited

    def _settle(self, ended: _Process, gone: Mapping[int, _Process]) -> None:
        """Keep the time of a process that has ended, unless a living one that waited for it has it now.

        Args:
            ended: the process.
            gone: all that ended since the last look, by number: those between it and who still lives are passed over.
        """
        about = self._jobs.get(ended.job)
        if about is None or ended.uid != about.uid:
            return
        above = ended.parent
        for _ in gone:  # a number that was given again could close a circle
            between = gone.get(above)
            if between is None or between.job != ended.job:
                break
            above = between.parent
        if daemon := about.daemons.get(above):
            daemon.ticks += (
                ended.ticks
            )  # if the daemon waited for it, this look's figure or the next has no less
            return
        living = self._known.get(above)
        if living is None or living.job != ended.job:
            about.ended += ended.ticks

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
        numbers = read(self._proc / str(pid) / "statm").split()
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

    @classmethod
    def read(cls, folder: Path) -> _Stat | None:
        """None if the process has gone."""
        head, _, tail = read(folder / "stat").rpartition(b")")
        fields = tail.split()
        if len(fields) < 20:
            return None
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return cls(head.partition(b"(")[2], int(fields[1]), own + waited, waited, int(fields[19]))


def _value(environment: bytes, name: bytes) -> bytes:
    """A variable's value; without splitting what may be a hundred thousand of them."""
    start = environment.find(b"\0" + name + b"=")
    if start < 0:
        return b""
    start += len(name) + 2
    end = environment.find(b"\0", start)
    return environment[start : end if end >= 0 else None]


def read_text(path: Path) -> str:
    """A small file of the kernel; "" if it cannot be read."""
    return read(path).decode(errors="replace")
