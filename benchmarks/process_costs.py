"""CPU and memory of a process and all that it started, from /proc."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from site_configs.devcluster.supervisor import descendants

__all__ = ["cpu_seconds", "find_child", "memory"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PSS: Final = re.compile(r"^Pss:\s+([0-9]+) kB", re.MULTILINE)
_PYTHON: Final = re.compile(r"python[0-9.]*$")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, of its children that have ended, and of those that run, since their starts."""
    total = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            # utime, stime, cutime, cstime of proc_pid_stat(5); the state is the first of these fields, and its third
            total += sum(map(int, fields[11:15]))
    return total / _TICKS


def find_child(pid: int, word: str) -> int | None:
    """Find the descendant whose command line has the word; None where there is none."""
    for one in descendants(pid):
        with suppress(OSError):
            if word.encode() in Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0"):
                return one
    return None


def memory(*pids: int) -> tuple[float, float]:
    """MB (10^6 bytes) that the processes and their descendants hold, what they share counted in part (PSS).

    Returns those of Python processes, and those of all, with Slurm's commands.
    """
    python = every = 0
    for one in {*pids, *descendants(*pids)}:
        with suppress(OSError):
            found = _PSS.search(Path(f"/proc/{one}/smaps_rollup").read_text())
            size = int(found[1]) if found else 0
            every += size
            if _PYTHON.search(str(Path(f"/proc/{one}/exe").readlink())):
                python += size
    return python * 1024 / 1e6, every * 1024 / 1e6
