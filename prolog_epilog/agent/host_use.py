"""What jobs use of the node's CPUs and memory: by the cgroups that Slurm made for them, else by /proc.

Slurm makes ``system.slice/[NODE_]slurmstepd.scope/job_N`` (cgroup v2) or ``slurm[_NODE]/uid_U/job_N`` in each
controller (v1) where its plugins are set so; elsewhere the job's processes are looked for: see `proc_use`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from profiler.host import HostReading
from prolog_epilog.agent.proc_use import ProcReader, read_text

_UNLIMITED = 2**60  # a limit of v1 that nobody set is 2**63 less a page


class HostReader:
    """Reads jobs of this node. Not for several threads, as it remembers what processes used that have ended.

    `cgroups` and `proc` are folders as /sys/fs/cgroup and /proc are. `node` and `cluster` are Slurm's names of this
    node: where several slurmd share a machine, each has its own jobs.
    """

    def __init__(
        self,
        node: str = "",
        *,
        cluster: str = "",
        cgroups: Path = Path("/sys/fs/cgroup"),
        proc: Path = Path("/proc"),
    ) -> None:
        self._node = node
        self._cgroups = cgroups
        self._unified = (cgroups / "cgroup.controllers").exists()
        self._processes = ProcReader(node, cluster=cluster, proc=proc)

    def read(self, jobs: Collection[int]) -> dict[int, HostReading]:
        """What each of these jobs uses now; without those of which nothing is known. Never raises OSError."""
        found: dict[int, HostReading] = {}
        for job in jobs:
            reading = self._version2(job) if self._unified else self._version1(job)
            if reading is not None:
                found[job] = reading
        missing = [job for job in jobs if job not in found]
        if missing:
            found |= self._processes.read(missing)
        return found

    def _version2(self, job: int) -> HostReading | None:
        scopes = [
            *self._cgroups.glob("system.slice/*slurmstepd.scope"),
            *self._cgroups.glob("slurmstepd.scope"),
        ]
        folder = self._ours(scope / f"job_{job}" for scope in scopes)
        if folder is None:
            return None
        cpu = _fields(folder / "cpu.stat").get("usage_usec")
        memory = _number(folder / "memory.current")
        if cpu is None or memory is None:  # a controller that Slurm was not told to use
            return None
        return HostReading(
            source="cgroup2",
            cpu_seconds=cpu / 1e6,
            cpus=_cpus(folder / "cpuset.cpus.effective"),
            memory_bytes=memory,
            memory_working_bytes=_less(memory, _fields(folder / "memory.stat").get("inactive_file")),
            memory_peak_bytes=_number(folder / "memory.peak"),
            memory_limit_bytes=_number(folder / "memory.max"),
            oom_kills=_fields(folder / "memory.events").get("oom_kill"),
        )

    def _version1(self, job: int) -> HostReading | None:
        def of(controller: str) -> Path | None:
            return self._ours(self._cgroups.glob(f"{controller}/slurm*/uid_*/job_{job}"))

        cpuacct, memory, cpuset = of("cpuacct") or of("cpu,cpuacct"), of("memory"), of("cpuset")
        if cpuacct is None or memory is None:
            return None
        cpu, used = _number(cpuacct / "cpuacct.usage"), _number(memory / "memory.usage_in_bytes")
        if cpu is None or used is None:
            return None
        limit = _number(memory / "memory.limit_in_bytes")
        return HostReading(
            source="cgroup1",
            cpu_seconds=cpu / 1e9,
            cpus=_cpus(cpuset / "cpuset.cpus") if cpuset else None,
            memory_bytes=used,
            memory_working_bytes=_less(used, _fields(memory / "memory.stat").get("total_inactive_file")),
            memory_peak_bytes=_number(memory / "memory.max_usage_in_bytes"),
            memory_limit_bytes=None if limit is None or limit >= _UNLIMITED else limit,
            oom_kills=_fields(memory / "memory.oom_control").get("oom_kill"),
        )

    def _ours(self, folders: Iterable[Path]) -> Path | None:
        """The one of this node, where several slurmd share a machine and name their cgroups after themselves."""
        there = [folder for folder in folders if folder.is_dir()]
        named = [folder for folder in there if _slurmd_of(folder) == self._node]
        return next(iter(named or [folder for folder in there if not _slurmd_of(folder)]), None)


def _slurmd_of(folder: Path) -> str:
    """The node in "n1_slurmstepd.scope" or "slurm_n1"; "" where there is one slurmd."""
    for part in folder.parts[::-1]:
        match = re.fullmatch(r"(?:(.+)_)?slurmstepd\.scope|slurm(?:_(.+))?", part)
        if match:
            return match[1] or match[2] or ""
    return ""


def _number(path: Path) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is none


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    found: dict[str, int] = {}
    for line in read_text(path).splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal():
            found[name] = int(number)
    return found


def _cpus(path: Path) -> float | None:
    """How many CPUs "0-3,8" are."""
    count = 0
    for part in read_text(path).strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return None
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return float(count)


def _less(total: int, part: int | None) -> int | None:
    return None if part is None else max(total - part, 0)
