"""Folders that are ours alone: whose files are believed, moved and removed as root.

Where gsubd shares the host, the folder above (/run/gsub) is its user's, who could put a link in the place of ours, at
any moment. So a folder is opened once, looked at, and its files are reached from it and not by their paths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["own_folder"]


@contextmanager
def own_folder(path: Path, *, close_to_others: bool = False) -> Iterator[int]:
    """A descriptor of a folder that only this user may write in.

    `close_to_others`: one of ours that others may enter is closed to them. Raises OSError (FileNotFoundError, a link,
    no folder), PermissionError for one that is another's.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to uid {found.st_uid}: its files are left alone")
        if close_to_others and found.st_mode & 0o077:
            os.fchmod(folder, 0o700)
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write in {path}: its files are left alone")
        yield folder
    finally:
        os.close(folder)
