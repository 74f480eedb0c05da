"""Following a job's output file: new lines as they come, over truncation and requeue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Literal

Begin = Literal["start", "recent", "end"]

CHUNK: Final = 1 << 16
"""Bytes read at a time: a job that floods its output does not flood our memory."""
_RECENT: Final = 8192
_RECENT_LINES: Final = 10
_MARK: Final = 64


class Tail:
    """The lines that a file gains.

    Parameters
    ----------
    path: the file; it need not exist yet.
    begin: where; `end` for a job that has not started (what lies there is of an earlier one), `recent` for the
        last lines of one that has long been running, `start` for all.
    """

    def __init__(self, path: Path, begin: Begin = "start") -> None:
        self.path = path
        self._offset = 0
        self._partial = b""
        self._mark = b""
        try:
            with path.open("rb") as file:
                self._offset = _offset(file, begin)
                file.seek(max(0, self._offset - _MARK))
                # A job may append to the file or write it anew: these bytes tell which.
                self._mark = file.read(min(_MARK, self._offset))
        except OSError:
            pass  # not there yet, or not to be read: lines() tries again

    def lines(self) -> list[str]:
        """The lines that came since the last call, of CHUNK bytes at most."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                if end < self._offset or not self._marked(file):
                    self._offset, self._partial, self._mark = 0, b"", b""
                file.seek(self._offset)
                chunk = file.read(CHUNK)
                self._offset += len(chunk)
                self._mark = (self._mark + chunk)[-_MARK:]
        except OSError:
            chunk = b""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > CHUNK:
            lines.append(self._partial)
            self._partial = b""
        return [shown(line) for line in lines]

    def rest(self) -> Iterator[str]:
        """All that is left, also a last line that has no end."""
        yield from self.lines()
        while self._behind:
            yield from self.lines()
        if self._partial:
            yield shown(self._partial)
            self._partial = b""

    @property
    def _behind(self) -> bool:
        try:
            return self.path.stat().st_size > self._offset
        except OSError:
            return False

    def _marked(self, file: IO[bytes]) -> bool:
        """Whether what we have read still stands ahead of our place."""
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark


def _offset(file: IO[bytes], begin: Begin) -> int:
    if begin == "start":
        return 0
    end = file.seek(0, 2)
    if begin == "end":
        return end
    first = max(0, end - _RECENT)
    file.seek(first)
    lines = file.read(_RECENT).splitlines(keepends=True)
    if first:
        first += len(lines.pop(0))  # most likely the rest of one
    return first + sum(map(len, lines[:-_RECENT_LINES]))


def shown(line: bytes) -> str:
    r"""A line as a terminal would end up showing it: a progress bar is what follows its last carriage return.

    >>> shown(b"10 %\r55 %\r"), shown(b"ok\r")
    ('55 %', 'ok')
    """
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
