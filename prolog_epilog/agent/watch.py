"""Learns of new files in a few folders without looking at them over and over: inotify(7), by the C library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from prolog_epilog.agent.own_folder import own_folder

__all__ = ["FolderWatch"]

_CLOSE_WRITE: Final = 0x00000008
_MOVED_TO: Final = 0x00000080
_ONLYDIR: Final = 0x01000000
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC


class FolderWatch:
    """Watches folders, made where they are missing. `descriptor` is readable when something came; None: the kernel
    has no inotify for us, and the folders must be looked at now and then. `usable`: those that `renew` found well.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._watched: dict[Path, tuple[int, int]] = {}
        self.usable: set[Path] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)
        made = self._libc.inotify_init1(_NONBLOCK_CLOEXEC)
        self.descriptor: int | None = made if made >= 0 else None

    def renew(self) -> None:
        """Watch what is there now: a folder may have been removed and made again.

        Raises the OSError of a folder that cannot be used, or is not ours; the others are watched all the same.
        """
        trouble: OSError | None = None
        self.usable = set()
        for folder in self._folders:
            try:
                self._renew(folder)
                self.usable.add(folder)
            except OSError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _renew(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # users' paths and names lie here, and what lies here is believed
        with own_folder(folder, close_to_others=True) as opened:
            found = os.fstat(opened)
            mark = (found.st_dev, found.st_ino)
            if self.descriptor is None or self._watched.get(folder) == mark:
                return
            mask, path = _CLOSE_WRITE | _MOVED_TO | _ONLYDIR, f"/proc/self/fd/{opened}"
            if self._libc.inotify_add_watch(self.descriptor, path.encode(), mask) < 0:
                self.close()  # no more watches to be had: looking now and then will do
            else:
                self._watched[folder] = mark

    def clear(self) -> None:
        """Forget what came until now."""
        if self.descriptor is not None:
            with suppress(BlockingIOError):
                while os.read(self.descriptor, 1 << 16):
                    pass

    def close(self) -> None:
        """Watch no more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
