"""Records that will never be delivered, set aside for an administrator to look at: a file, and beside it why."""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from pathlib import Path

from prolog_epilog.agent.disk import Disk, disk_cost

__all__ = ["Poison"]

_MOST = 200
_WHY = ".why"
_LONGEST_WHY = 2000

_log = logging.getLogger(__name__)


class Poison:
    """The folder of what was set aside: at most 200 records and `limit_bytes`; then the oldest go.

    The disk not being well is logged, and never raised: what is in here is lost anyhow.
    """

    def __init__(self, folder: Path, limit_bytes: int, disk: Disk) -> None:
        self._folder, self._limit, self._disk = folder, limit_bytes, disk
        with suppress(OSError):
            disk.names(folder)  # half-written ones of a crash

    def keep(self, name: str, what: Path | bytes, why: str) -> bool:
        """Set a record aside: a file, which is moved here, or bytes. False: it could not be kept."""
        kept = False
        path = self._folder / f"{secrets.token_hex(4)}.{name}"
        try:
            if isinstance(what, bytes):
                self._disk.write(path, what, durable=False)
            else:
                self._disk.move(what, path)
            kept = True
            self._disk.write(
                path.with_name(path.name + _WHY), why[:_LONGEST_WHY].encode() + b"\n", durable=False
            )
            self._bound(path)
        except OSError as error:
            _log.warning(
                "A record that was set aside (%s) could not be kept in %s: %s", why, self._folder, error
            )
        return kept

    def __len__(self) -> int:
        with suppress(OSError):
            return sum(not name.endswith(_WHY) for name in self._disk.names(self._folder))
        return 0

    def _bound(self, newest: Path) -> None:
        kept = []
        for name in self._disk.names(self._folder):
            if not name.endswith(_WHY):
                path = self._folder / name
                with suppress(OSError):
                    state = path.lstat()
                    kept.append((path != newest, -state.st_mtime_ns, disk_cost(state.st_size) * 2, path))
        size = 0
        for number, (_, _, cost, path) in enumerate(sorted(kept)):
            size += cost
            if number and (number >= _MOST or size > self._limit):
                self._disk.remove(path)
                self._disk.remove(path.with_name(path.name + _WHY))
