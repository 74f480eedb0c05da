"""Which processes are slurmd's step daemons, and of which job: by what no user can have a process look like.

A process calls itself what it likes, says what it likes in its environment (``exec env SLURM_JOB_ID=17 ...``), and one
that is not dumpable has a folder in /proc that is root's. So a step daemon is one that root began (the real uid, not
the folder's owner) and that runs slurmstepd; its job is the one in its title, ``slurmstepd: [17.batch]``, which it
writes itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NAME", "StepDaemon", "read", "real_uid", "step_daemon"]

NAME = b"slurmstepd"
"""What the kernel calls it; everybody can be called so."""

_MAX_FILE = 1 << 16
_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+]")


@dataclass(frozen=True, slots=True)
class StepDaemon:
    """A step daemon; `job` is None where its title does not tell."""

    job: int | None


def step_daemon(process: Path, root: int = 0) -> StepDaemon | None:
    """What the process in this folder of /proc is, if it is a step daemon. Reading may hang as any of /proc may."""
    if real_uid(process) != root:
        return None
    try:
        program = os.path.basename(os.readlink(process / "exe"))  # noqa: PTH115, PTH119 - no path, if it was deleted
    except OSError:
        return None
    if not program.startswith("slurmstepd"):  # slurmstepd-wlm at Debian
        return None
    title = _TITLE.match(read(process / "cmdline"))
    return StepDaemon(int(title[1]) if title else None)


def real_uid(process: Path) -> int | None:
    """Who began a process: of one that is not dumpable the folder's owner does not tell."""
    found = _UID.search(read(process / "status"))
    return int(found[1]) if found else None


def read(path: Path, most: int = _MAX_FILE) -> bytes:
    """A small file of the kernel; nothing if it cannot be read."""
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
