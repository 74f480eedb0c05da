"""Which files a smoke run changed: a look at its folder and the paths that it names, before and after, within bounds.

inotify would need a watch a folder; a walk that is bounded by entries and by time costs what we allow it. Two looks
cannot tell who changed a file: what others changed in these minutes is told as well.
"""

# ruff: noqa: PTH116, PTH118 - os functions: this walks thousands of entries

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from stat import S_ISDIR, S_ISREG
from typing import Final, TypeAlias

__all__ = ["Changes", "Seen", "changes", "look", "named_paths"]

ENTRIES: Final = 40_000
SECONDS: Final = 3.0
"""What one look may cost."""
_PATHS: Final = 64
_SKIPPED: Final = frozenset({".git", ".snapshot", ".snapshots", "__pycache__", ".zfs"})
"""Folders in which nobody looks for a run's results; snapshots of file servers have everything again."""
Mark: TypeAlias = tuple[int, int, int, int]


@dataclass(slots=True)
class Seen:
    """A look: files with (device and inode folded, size, mtime, ctime in ns); `cut`: bounds were met."""

    files: dict[str, Mark] = field(default_factory=dict)
    cut: bool = False
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths that were made, changed or removed, those of which that is sure first; `cut`: there may be more."""

    paths: tuple[str, ...] = ()
    cut: bool = False


def look(roots: Iterable[str], *, entries: int = ENTRIES, seconds: float = SECONDS) -> Seen:
    """The files at and below some paths, those near the top first; file systems that lie below are not entered."""
    seen = Seen(at=time.time())
    until = time.monotonic() + seconds
    ahead: deque[tuple[str, int]] = deque()
    for root in roots:
        with suppress(OSError, ValueError):
            found = os.stat(root)
            if S_ISDIR(found.st_mode):
                ahead.append((root, found.st_dev))
            elif S_ISREG(found.st_mode):
                seen.files[root] = _mark(found)
    left = entries
    entered: set[tuple[int, int]] = set()
    while ahead:
        folder, device = ahead.popleft()
        try:
            with os.scandir(folder) as inside:
                for entry in inside:
                    left -= 1
                    if left < 0 or time.monotonic() > until:
                        seen.cut = True
                        return seen
                    _entry(entry, device, seen, ahead, entered)
        except OSError:
            continue  # gone, or not ours to read
    return seen


def _entry(
    entry: os.DirEntry[str],
    device: int,
    seen: Seen,
    ahead: deque[tuple[str, int]],
    entered: set[tuple[int, int]],
) -> None:
    with suppress(OSError):
        found = entry.stat(follow_symlinks=False)
        if S_ISREG(found.st_mode):
            seen.files[entry.path] = _mark(found)
        elif S_ISDIR(found.st_mode):
            seen.files[entry.path + "/"] = (found.st_dev ^ found.st_ino, 0, 0, 0)
            if (
                entry.name not in _SKIPPED
                and found.st_dev == device
                and (found.st_dev, found.st_ino) not in entered
            ):
                entered.add((found.st_dev, found.st_ino))
                ahead.append((entry.path, device))


def _mark(found: os.stat_result) -> Mark:
    return (found.st_dev ^ found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def changes(
    before: Seen, after: Seen, *, opened: Sequence[str] = (), ours: Sequence[str] = (), slack: float = 2.0
) -> Changes:
    """What is different. `opened`: files that were seen open for writing; `ours`: folders of our own, left out.

    Where the first look was cut, a file that only the second one has may be an old one: it counts when its inode was
    changed since (within `slack` seconds of the two clocks).
    """
    found: dict[str, None] = {}
    for path in opened:
        name = path.removesuffix(" (deleted)")
        if name == path and not _below(path, ours):
            found[path] = None
    since = (before.at - slack) * 1e9
    for path, mark in after.files.items():
        different = before.files[path] != mark if path in before.files else not before.cut or mark[3] >= since
        if different and not _below(path, ours):
            found[path] = None
    if not after.cut:
        for path in before.files:
            if path not in after.files and not _below(path, ours) and not os.path.lexists(path.rstrip("/")):
                found[path] = None
    return Changes(tuple(found), before.cut or after.cut)


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def named_paths(words: Iterable[str], cwd: str) -> list[str]:
    """Those words of command lines that are paths outside of a folder, and are there; `--out=PATH` counts as PATH."""
    found: dict[str, None] = {}
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if "/" not in value or len(value) > 4096 or len(found) >= _PATHS:
            continue
        path = os.path.normpath(os.path.join(cwd, value))
        if path.count("/") < 2 or path.startswith(
            ("/dev/", "/proc/", "/sys/", "/usr/", "/bin/", "/etc/", "/lib")
        ):
            continue
        if not _below(path, (cwd,)) and os.path.lexists(path):
            found[path] = None
    return list(found)
