"""One agent a node: two that take the same hooks' files would each have half of a job."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["NotAloneError", "alone"]


class NotAloneError(Exception):
    """Another agent has these folders; the message says which."""


def alone(folder: Path, proc: Path = Path("/proc")) -> int | None:
    """Take the folder for this process, until it ends. Returns the descriptor to keep; None where none can be had,
    on a disk without room, say: the agent can do something there.

    One that was killed while a thread of it hangs in the kernel holds its lock for as long, and takes in nothing any
    more: it counts as gone. Raises NotAloneError.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode(errors="replace").strip()
        if not _is_a_corpse(holder, proc):
            os.close(lock)
            raise NotAloneError(f"process {holder or '?'} is an agent of {folder} already") from None
    except OSError:  # a file system without locks
        return lock
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _is_a_corpse(pid: str, proc: Path) -> bool:
    """Whether a process has ended but for threads that cannot."""
    try:
        return pid.isdecimal() and (proc / pid / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return False
