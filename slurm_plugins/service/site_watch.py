"""The site file while gsubd runs: taken when it changes, kept as it was when the new one is bad."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from site_configs.site import SiteError, parse_site
from site_configs.site_model import Site
from site_configs.textfile import read_text

__all__ = ["SiteFile", "Taken"]

_log = logging.getLogger("gsubd")
_MAX_BYTES = 1 << 20
_Mark: TypeAlias = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """A site file that is in force: its text, and when it was last changed (seconds since the epoch)."""

    site: Site
    text: str = ""
    changed: float | None = None


class SiteFile:
    """Reads the site file at `path` when it, or the topology file that it names, has changed. None: there is no file.

    `taken` is what is in force. Raises SiteError when the first one is bad.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.ok = True
        self.taken = Taken(Site(cluster="")) if path is None else _read(path)
        self._mark = self._seen = self._marks()

    def changed(self) -> bool:
        """Whether there is something new to read: a change that has stood from one call to the next.

        An editor that writes in place leaves half a file for a moment.
        """
        marks = self._marks()
        settled, self._seen = marks == self._seen, marks
        return settled and marks != self._mark

    def read(self) -> bool:
        """Take the file if it is good; False and a line in the log if not. What was in force stays then."""
        self._mark = self._seen = self._marks()
        if self.path is None:
            return True
        try:
            self.taken = _read(self.path)
        except SiteError as error:
            if self.ok:
                _log.error("the site file is not taken, the one before it stays in force: %s", error)
            self.ok = False
            return False
        self.ok = True
        return True

    def _marks(self) -> _Mark:
        if self.path is None:
            return ()
        files = [self.path]
        if self.taken.site.topology.file:
            files.append(Path(self.taken.site.topology.file))
        return tuple(map(_mark, files))


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The change time, too: a file that was made readable has the same content
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read(path: Path) -> Taken:
    """Raises SiteError."""
    try:
        changed = path.stat().st_mtime
        text = read_text(path, _MAX_BYTES)
    except (OSError, ValueError):
        # told in load_site's words
        from site_configs.site import load_site

        return Taken(load_site(path))
    return Taken(parse_site(text, os.fspath(path)), text, changed)
