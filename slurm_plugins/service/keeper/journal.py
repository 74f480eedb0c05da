"""gsubd's decisions, from its journal into the store: read on where the last reading ended, over restarts.

A file of the journal is known by its first line, which never changes, whatever it is renamed to when the journal is
turned over. The place is written down after the store has what lies before it: what is read twice is one fact there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from slurm_plugins.service.records import FILES

__all__ = ["JournalReader", "Place"]

_LINE: Final = 4 << 20
_MOST: Final = 500
"""Lines of one reading."""


class Place(msgspec.Struct, frozen=True):
    """How far the journal was read: `file` is a digest of the file's first line."""

    file: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Lines of the journal, and the place behind them."""

    records: tuple[dict[str, Any], ...]
    place: Place


class JournalReader:
    """Reads on in the journal at `path`; `kept` is the file that the place is written down in."""

    def __init__(self, path: Path, kept: Path) -> None:
        self._path = path
        self._kept = kept
        self._place = _kept_place(kept)

    def read(self, most: int = _MOST) -> Read:
        """The next lines, none when there is nothing new. Raises OSError."""
        records: list[dict[str, Any]] = []
        place = self._place
        with ExitStack() as stack:
            for first, file in self._from(place, stack):
                offset = place.offset if first == place.file else 0
                file.seek(offset)
                while len(records) < most and (line := file.readline(_LINE)).endswith(b"\n"):
                    offset += len(line)
                    record = _decoded(line)
                    if record is not None:
                        records.append(record)
                place = Place(first, offset)
                if len(records) >= most:
                    break
        return Read(tuple(records), place)

    def done(self, read: Read) -> None:
        """The store has these: go on behind them, next time too. Raises OSError."""
        if read.place == self._place:
            return
        self._place = read.place
        temporary = self._kept.with_name(f".{self._kept.name}.{os.getpid()}")
        handle = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640
        )
        try:
            os.write(handle, msgspec.json.encode(read.place))
        finally:
            os.close(handle)
        temporary.replace(self._kept)

    def _from(self, place: Place, stack: ExitStack) -> Iterator[tuple[str, BinaryIO]]:
        """The files from the one that was read last to the newest, each with the digest of its first line.

        All are opened before the first is read: a turn of the journal meanwhile moves names, not open files.
        """
        newest_first: list[tuple[str, BinaryIO]] = []
        for number in range(FILES + 1):
            path = self._path.with_name(f"{self._path.name}.{number}") if number else self._path
            with suppress(FileNotFoundError):
                file = stack.enter_context(path.open("rb"))
                first = file.readline(_LINE)
                if not first.endswith(b"\n"):
                    continue
                newest_first.append((hashlib.sha256(first).hexdigest()[:32], file))
                if newest_first[-1][0] == place.file:
                    break
        return reversed(newest_first)


def _kept_place(kept: Path) -> Place:
    """What was written down; the journal's beginning where that cannot be read."""
    try:
        return msgspec.json.decode(kept.read_bytes(), type=Place)
    except (OSError, msgspec.MsgspecError):
        return Place()


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
