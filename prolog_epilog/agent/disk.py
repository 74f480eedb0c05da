"""Files that are whole or not there, whenever the power goes: written beside, synced, renamed, the folder synced.

The system's calls come from a table (`Calls`), so that a test can fail each of them, or end the process at it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["BLOCK", "Calls", "Disk", "disk_cost"]

BLOCK = 4096
"""What a file takes of a disk comes in these bytes, on the file systems of compute nodes."""

_TEMPORARY = ".tmp."
_Call: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Calls:
    """The system calls that change or read a disk."""

    open: _Call = os.open
    write: _Call = os.write
    fsync: _Call = os.fsync
    close: _Call = os.close
    replace: _Call = os.replace
    unlink: _Call = os.unlink
    read: _Call = os.read
    listdir: _Call = os.listdir
    makedirs: _Call = os.makedirs


def disk_cost(size: int) -> int:
    """Bytes that a file of this size takes of a disk, about: whole blocks, and one for its name."""
    return max(-(-size // BLOCK), 1) * BLOCK


class Disk:
    """Reads and writes small files of root's. Raises OSError."""

    def __init__(self, calls: Calls | None = None) -> None:
        self._calls = calls or Calls()

    def write(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Put these bytes into a file, in one step; with `durable` it outlives a power cut once this returns.

        A folder that is not there is made.
        """
        beside = path.with_name(_TEMPORARY + secrets.token_hex(8))
        try:
            try:
                handle = self._create(beside)
            except FileNotFoundError:
                self.make(path.parent)
                handle = self._create(beside)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._calls.write(handle, rest) :]
                if durable:
                    self._calls.fsync(handle)
            finally:
                self._calls.close(handle)
            self._calls.replace(beside, path)
        except OSError:
            with suppress(OSError):
                self._calls.unlink(beside)
            raise
        if durable:
            self.sync(path.parent)

    def move(self, old: Path, new: Path) -> None:
        """Give a file another name. The folder of the new one is made where it is missing."""
        try:
            self._calls.replace(old, new)
        except FileNotFoundError:
            self.make(new.parent)
            self._calls.replace(old, new)

    def read(self, path: Path, most: int) -> bytes:
        """A file's bytes, no more than `most` of them. Links are not followed."""
        handle = self._calls.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            parts, size = [], 0
            while size < most and (part := self._calls.read(handle, most - size)):
                parts.append(part)
                size += len(part)
            return b"".join(parts)
        finally:
            self._calls.close(handle)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._calls.unlink(path)

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; those that a crash left half-written are removed first."""
        names = []
        for name in sorted(self._calls.listdir(folder)):
            if name.startswith(_TEMPORARY):
                with suppress(OSError):
                    self._calls.unlink(folder / name)
            else:
                names.append(name)
        return names

    def make(self, folder: Path) -> None:
        """Make a folder that only its owner enters, and those above it."""
        self._calls.makedirs(folder, mode=0o700, exist_ok=True)
        with suppress(OSError):
            self.sync(folder.parent)

    def sync(self, folder: Path) -> None:
        """See that the names in a folder are on the disk."""
        handle = self._calls.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._calls.fsync(handle)
        finally:
            self._calls.close(handle)

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle: int = self._calls.open(path, flags, 0o600)
        return handle
