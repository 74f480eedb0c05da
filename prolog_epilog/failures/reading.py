"""Reads the two ends of a log that someone else may be writing to, replacing or preparing as a trap.

Nothing but a regular file is ever opened for reading: what the path leads to is looked at first through a descriptor
that cannot be read (O_PATH), and that very file is then opened through it. So a FIFO is not waited for, a device not
touched, and no race lies between look and read. What could not be seen is said in a sentence.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prolog_epilog.failures.text import LogText

__all__ = ["HEAD", "TAIL", "Unseen", "read_log"]

HEAD: Final = 4 << 20
"""Bytes read from the beginning of a long log..."""
TAIL: Final = 12 << 20
"""...and from its end, where failures are."""
_CHUNK: Final = 1 << 20
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISDIR, "is a directory"),
    (stat.S_ISFIFO, "is a named pipe, which keeps nothing"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISLNK, "is a symbolic link, which is not followed here"),
)
_COMPRESSED: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip"),
)
_ERRORS: Final = {
    errno.ENOENT: "is not there",
    errno.ENOTDIR: "is not there: a part of its path is no directory",
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.ELOOP: "is a symbolic link in a circle",
    errno.ENAMETOOLONG: "has too long a name",
    errno.ESTALE: "lies on a file system that has lost it (stale file handle)",
    errno.EIO: "cannot be read: input/output error",
    errno.ENXIO: "is a device or a pipe",
}


@dataclass(frozen=True, slots=True)
class Unseen:
    """A log of which nothing could be read, and why: the end of a sentence that begins with its path."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


class _Refused(Exception):  # noqa: N818 - told, not raised further
    """It is not read, and this is why."""


def _because(error: OSError) -> str:
    return _ERRORS.get(error.errno or 0) or f"cannot be read: {error.strerror or 'unknown error'}"


def _opened(path: str, *, follow_links: bool) -> int:
    """A descriptor of the regular file at the path. Raises OSError and _Refused."""
    look = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW))
    try:
        mode = os.fstat(look).st_mode
        if not stat.S_ISREG(mode):
            raise _Refused(next((said for is_kind, said in _KINDS if is_kind(mode)), "is no regular file"))
        return os.open(f"/proc/self/fd/{look}", _FLAGS)
    finally:
        os.close(look)


class _Reader:
    """Reads a descriptor in chunks until a deadline."""

    def __init__(self, descriptor: int, seconds: float | None, clock: Callable[[], float]) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._until = None if seconds is None else clock() + seconds
        self.trouble = ""
        """What ended a read early."""

    def read(self, at: int, count: int) -> bytes:
        """Up to `count` bytes; fewer if the file ends, or there is `trouble`."""
        chunks: list[bytes] = []
        while count > 0 and not self.trouble:
            if self._until is not None and self._clock() > self._until:
                self.trouble = "took too long to read"
                break
            try:
                chunk = os.pread(self._descriptor, min(count, _CHUNK), at)
            except OSError as error:
                self.trouble = _because(error)
                break
            if not chunk:
                break
            chunks.append(chunk)
            at += len(chunk)
            count -= len(chunk)
        return b"".join(chunks)


def _size(count: int) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def read_log(
    path: str | Path,
    *,
    head: int = HEAD,
    tail: int = TAIL,
    follow_links: bool = True,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LogText | Unseen:
    """The log at a path: whole if it is not longer than `head` and `tail` bytes, else its two ends.

    Links are followed, which is right for who reads as the user whose path it is; `follow_links=False` refuses one in
    the last part of the path. `seconds`: after which no further chunk is read (a read that hangs in the kernel is not
    ended by it: that is the work of who started this process). Compressed files are not unpacked.
    """
    name = str(path)
    try:
        descriptor = _opened(name, follow_links=follow_links)
    except _Refused as refused:
        return Unseen(name, str(refused))
    except OSError as error:
        return Unseen(name, _because(error))
    except ValueError:
        return Unseen(name, "has no possible name")
    try:
        return _read(name, descriptor, head, tail, _Reader(descriptor, seconds, clock))
    finally:
        os.close(descriptor)


def _read(name: str, descriptor: int, head: int, tail: int, reader: _Reader) -> LogText | Unseen:
    before = os.fstat(descriptor)
    size = before.st_size
    unseen: list[str] = []
    last: bytes | None = None
    if size <= head + tail:
        first = reader.read(0, size)
    else:
        tail += (size - tail) % 4  # a tail of UTF-16 or UTF-32 begins with a whole character
        first = reader.read(0, head)
        last = reader.read(size - tail, tail)
        unseen.append(
            f"{_size(size - head - tail)} between its first {_size(head)} and its last {_size(tail)} were not read"
        )
    kind = next((kind for magic, kind in _COMPRESSED if first.startswith(magic)), None)
    if kind:
        return Unseen(name, f"is compressed ({kind}): unpack it first")
    if reader.trouble and not first and not last:
        return Unseen(name, reader.trouble)
    if reader.trouble:
        unseen.append(f"{reader.trouble}, after {_size(len(first) + len(last or b''))} of {_size(size)}")
    unseen += _changed(name, before, os.fstat(descriptor))
    told = tuple(f"{name}: {said}" for said in unseen)
    return LogText.of(name, first, last, base=before.st_mtime, unseen=told)


def _changed(name: str, before: os.stat_result, after: os.stat_result) -> list[str]:
    """What happened to the file meanwhile, as sentences."""
    said = []
    if after.st_size < before.st_size:
        said.append(f"it was cut from {_size(before.st_size)} to {_size(after.st_size)} while it was read")
    elif after.st_size > before.st_size:
        said.append(
            f"it was still written to: {_size(after.st_size - before.st_size)} came while it was read"
        )
    try:
        now = os.stat(name)  # noqa: PTH116 - of the path as it was given
    except OSError:
        now = None
    if now is None:
        said.append("it was removed while it was read")
    elif (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
        said.append("it was replaced while it was read; this is the older file")
    return said
