"""The file by which the agent keeps new jobs off this node: the prolog reads it, and tells Slurm its reason.

``v1 <expiry, seconds since the epoch> <reason>``. It expires soon and is rewritten while it holds, so that an agent
that died, or was removed, drains nothing. It is written beside its place and renamed: no link at its name is
followed, and no reader sees half of it.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from prolog_epilog.health.finding import cleaned

__all__ = ["EXPIRY", "DrainFile"]

EXPIRY: Final = 600.0
"""Seconds for which a drain holds when nobody renews it."""


class DrainFile:
    """Its folder must be the agent's own (by default root's), and nobody else's to write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, reason: str, now: float) -> None:
        """Keep new jobs off for EXPIRY seconds from `now` (of the epoch). Raises OSError."""
        text = cleaned(reason.encode("ascii", "replace").decode(), 250)
        line = f"v1 {int(now + EXPIRY)} {text}\n".encode()
        folder = self._folder()
        name = f".drain.{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
            try:
                os.write(descriptor, line)
                os.fchmod(descriptor, 0o644)
            finally:
                os.close(descriptor)
            os.rename(name, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(folder)

    def remove(self) -> None:
        """Let jobs come again; it need not be there. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - removes a link, not what it leads to

    def _folder(self) -> int:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.close(descriptor)
            raise PermissionError(f"{self._path.parent} is another's, or others may write in it")
        return descriptor
