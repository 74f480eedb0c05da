"""What the hooks missed: jobs that run here untold, and jobs that are gone untold.

Two witnesses. *Here*: each step of a job has a daemon with a socket, ``<node>_<job id>.<step>``, in slurmd's spool
folder. *Slurm*, by way of the service: the jobs that it had on this node at some moment. A job is gone when both say
so, and Slurm twice: an answer may be old, or wrong for a moment, and an allocation without a step has no socket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiler.records import LAST_JOB_ID, JobRef
from prolog_epilog.agent.step_daemon import NAME, StepDaemon, read, real_uid, step_daemon

__all__ = ["Found", "Reconciler", "look_up", "traces"]

GRACE = 60.0
"""Seconds for which a prolog's file may be late, and for which an end may go untold while the epilog still runs."""
EMPTY_FOR = 900.0
"""An answer without any job is believed when nothing else was said for so long: it may come of a wrong moment."""

_MAX_ENVIRON = 1 << 20
_KEYS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "SLURMD_NODENAME",
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_GID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_UID",
        "SLURM_JOB_USER",
        "SLURM_RESTART_COUNT",
    }
)


def traces(spool: Path, node: str, unix: Path = Path("/proc/net/unix")) -> frozenset[int]:
    """The ids of the jobs that have a step daemon on this node: its socket is there, and open.

    A daemon that was killed leaves its file behind; the kernel's list tells which are open, without asking them.
    """
    pattern = re.compile(re.escape(node) + r"_([1-9][0-9]{0,9})\.[0-9]+(?:\.[0-9]+)?")
    try:
        there = {entry.name for entry in spool.iterdir() if pattern.fullmatch(entry.name)}
        if not there:
            return frozenset()
        # As the daemon bound it, so with the folder: nodes of several clusters may share a machine, and a name
        wanted = {os.fsencode(folder / name): name for folder in (spool, spool.resolve()) for name in there}
        open_now = set()
        with unix.open("rb") as file:
            for line in file:  # a user may have a million sockets: it is never all in memory
                if (start := line.find(b"/")) >= 0 and (name := wanted.get(line[start:].rstrip(b"\n"))):
                    open_now.add(name)
    except OSError:
        return frozenset()
    ids = (int(entry[len(node) + 1 :].partition(".")[0]) for entry in open_now)
    return frozenset(job for job in ids if 0 < job <= LAST_JOB_ID)


@dataclass(frozen=True, slots=True)
class Found:
    """A job that runs here, by the environment of its first process."""

    job: JobRef
    uid: int | None
    env: Mapping[str, str]


def look_up(
    jobs: Collection[int], cluster: str, node: str, proc: Path = Path("/proc"), *, root: int = 0
) -> dict[int, Found]:
    """What the processes that step daemons started tell of these jobs. May be held up by a process that hangs.

    Only a daemon's own children are looked at, and whose they are is the daemon's word and the kernel's. The rest of
    their environment they may have changed.
    """
    called: set[int] = set()
    parents: dict[int, int] = {}
    for entry in (path.name for path in proc.iterdir()):
        if entry.isdecimal():
            before, _, after = read(proc / entry / "stat").rpartition(b")")
            try:
                parents[int(entry)] = int(after.split()[1])
            except (ValueError, IndexError):
                continue
            if before.partition(b"(")[2] == NAME:
                called.add(int(entry))
    daemons: dict[int, StepDaemon] = {}
    for pid in called:
        if (daemon := step_daemon(proc / str(pid), root)) is not None:
            daemons[pid] = daemon
    found: dict[int, Found] = {}
    for pid in sorted(parents):
        began_by = daemons.get(parents[pid])
        if began_by is None or pid in daemons:
            continue
        env, uid = _environment(read(proc / str(pid) / "environ", _MAX_ENVIRON)), real_uid(proc / str(pid))
        job_id = _number(env.get("SLURM_JOB_ID")) if began_by.job is None else began_by.job
        ours = env.get("SLURMD_NODENAME", node) == node and env.get("SLURM_CLUSTER_NAME", cluster) == cluster
        if job_id in jobs and ours and env and job_id is not None:
            job = JobRef(job_id, min(_number(env.get("SLURM_RESTART_COUNT")) or 0, 1 << 20))
            found.setdefault(job_id, Found(job, uid, env))
    return found


def _environment(data: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    texts = (
        (key.decode(errors="replace"), value.decode(errors="backslashreplace")) for key, _, value in pairs
    )
    return {key: value for key, value in texts if key in _KEYS and value}


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,10}", text) else None


@dataclass(slots=True)
class Reconciler:
    """Weighs the two witnesses. Pure: times of this node are given, in seconds of the monotonic clock."""

    grace: float = GRACE
    empty_for: float = EMPTY_FOR
    _named: dict[int, int] = field(default_factory=dict)  # the last answer: job id -> restart count
    _seen_at: float = 0.0
    _unnamed: dict[JobRef, tuple[int, float]] = field(
        default_factory=dict
    )  # answers in a row, first heard at
    _untold: dict[int, float] = field(default_factory=dict)  # a socket without a job -> since when
    _empty_since: float | None = None

    def hear(
        self, running: Collection[JobRef], seen_at: float, jobs: Mapping[JobRef, float], now: float
    ) -> None:
        """What Slurm had here at `seen_at` (by the service's clock); `jobs` are those we know, with their start."""
        if seen_at == self._seen_at:  # the same look, told again; its clock may have been set back
            return
        self._seen_at = seen_at
        if running:
            self._empty_since = None
            self._named = {job.job_id: job.restarts for job in running}
        elif self._empty_since is None:
            self._empty_since = now
        if not running and now - (self._empty_since or now) < self.empty_for:
            return
        unnamed: dict[JobRef, tuple[int, float]] = {}
        for job, began in jobs.items():
            if job not in running and now - began >= self.grace:
                times, first = self._unnamed.get(job, (0, now))
                unnamed[job] = (times + 1, first)
        self._unnamed = unnamed

    def restarts(self, job_id: int) -> int | None:
        """Which attempt of a job Slurm had here at its last answer."""
        return self._named.get(job_id)

    def gone(
        self,
        jobs: Mapping[JobRef, float],
        traces: Collection[int],
        now: float,
        known: Mapping[JobRef, float] | None = None,
    ) -> list[JobRef]:
        """Those of our jobs that have left: told by both witnesses, or by a later attempt of the same job.

        `known` has those, too, that have ended, with their start.
        """
        known = {**(known or {}), **jobs}
        latest: dict[int, JobRef] = {}
        for job in known:
            if job.job_id not in latest or job.restarts > latest[job.job_id].restarts:
                latest[job.job_id] = job
        gone = []
        for job in jobs:
            successor = latest[job.job_id]
            times, _ = self._unnamed.get(job, (0, 0.0))
            named = self._named.get(job.job_id)
            # A later attempt has the same sockets: then they speak for that one
            here = job.job_id in traces and (named is None or named == job.restarts)
            if (successor != job and now - known[successor] >= self.grace) or (times >= 2 and not here):
                gone.append(job)
        return gone

    def missed(self, jobs: Collection[JobRef], traces: Collection[int], now: float) -> list[int]:
        """Jobs that have had a step daemon here for longer than a prolog's file may be late."""
        known = {job.job_id for job in jobs}
        self._untold = {job: self._untold.get(job, now) for job in traces if job not in known}
        return [job for job, since in self._untold.items() if now - since >= self.grace]
