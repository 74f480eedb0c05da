"""Steps read from a log as it grows: lines with the time at which they came, and their rate between two times.

A log is read some times a second, its lines are written in between: the newest is as old as the file's time of
change says. Who has the output itself gives it to `heard` as it comes.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from profiler.probing import LEAST_STEPS, Speed, measure
from profiler.refining import assumed_error
from profiler.step_counter import Entry, evenly
from profiler.step_rate import StepRate, mark, step_rate

__all__ = ["StepLog"]

_AT_ONCE: Final = 256 * 1024  # bytes that are read of a file in one look
_KEPT: Final = 4000  # lines with a count
_LINE: Final = 8192  # bytes of a line that has no end
_SPELL: Final = 0.1
_MOST_LINES: Final = 200
"""Lines that are looked through in a spell of seconds."""
_RECENT: Final = 10.0
_FEW: Final = 2  # intervals between lines that a rate can rest on at all


class StepLog:
    """A log: the file at `path`, read a piece at a time, or what is given to `heard` (path None).

    `clock` is that of files' times, in seconds since the epoch.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._looked = -math.inf
        self._since, self._left = -math.inf, 0
        self._offset = 0
        self._file = (0, 0)  # device, inode
        self._rest = b""
        self._lines: deque[tuple[float, str]] = deque(maxlen=_KEPT)

    def look(self, now: float) -> None:
        """Read what has been written since; a file that was cut off or replaced is read anew."""
        if self._path is None:
            return
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            about = os.fstat(descriptor)
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
                self._file, self._offset, self._rest = (about.st_dev, about.st_ino), 0, b""
            # Of a log that grows faster than it is read, what is old is left out
            behind = about.st_size - self._offset - _AT_ONCE
            if behind > 0:
                self._offset, self._rest = self._offset + behind, b""
            data = os.pread(descriptor, _AT_ONCE, self._offset)
            self._offset += len(data)
        except OSError:
            return
        finally:
            os.close(descriptor)
        # Since the last look, or it is another machine's clock
        written = now - max(self._clock() - about.st_mtime, 0.0)
        self.heard(written if self._looked <= written else now, data)
        self._looked = now

    def heard(self, now: float, data: bytes) -> None:
        """Take what was written until `now`, in seconds on a clock that never goes back."""
        parts = (self._rest + data[-_AT_ONCE:]).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()[-_LINE:]
        if now - self._since >= _SPELL:
            self._since, self._left = now, _MOST_LINES
        # Of lines that come in one go the last one counts: a log that pours costs a bounded time
        parts = parts[-self._left :] if self._left else []
        self._left -= len(parts)
        for part in parts:
            if part:
                text = part.decode("utf-8", "replace")
                if mark(now, text) is not None:
                    self._lines.append((now, text))

    @property
    def steps(self) -> int:
        """The count in the newest line of the training."""
        found = self.read(self._lines[-1][0] - _RECENT) if self._lines else None
        return 0 if found is None else int(found.step)

    def read(self, begin: float, end: float = math.inf) -> StepRate | None:
        """What the lines between two times tell."""
        return step_rate((at, line) for at, line in self._lines if begin <= at < end)

    def speed(self, begin: float, end: float = math.inf) -> Speed | None:
        """The throughput between two times, by the times of the lines; None where they are too few."""
        found = self.read(begin, end)
        if found is None or not found.from_times or len(found.times) < _FEW:
            return None
        entries = _growing(found.counts)
        if len(entries) > LEAST_STEPS and found.of == "step":
            times, width = evenly(entries)
            if speed := measure(times):
                return Speed(speed.rate, speed.error, speed.steps * width, speed.cut * width)
        # Few lines, each of many steps: their scatter says little of how sure they are
        span = found.counts[-1][0] - found.counts[0][0]
        steps = max(round(found.rate * span), 1)
        error = max(found.error or 0.0, assumed_error(found.rate, steps), 0.02 * found.rate)
        return Speed(found.rate, error, steps, 0)

    def counted(self, begin: float, end: float = math.inf) -> int:
        """How many times a line counted on between two times."""
        found = self.read(begin, end)
        return 0 if found is None or not found.from_times else len(found.times)


def _growing(counts: tuple[tuple[float, float], ...]) -> list[Entry]:
    """Counts that go on where a line counts from 0 again (an epoch ended); of lines that came in one go the last."""
    found: list[Entry] = []
    last, total = 0.0, 0
    for at, count in counts:
        if found:
            total += round(count - last) if count >= last else round(count)
        last = count
        entry = Entry(at, total, total)
        if found and at <= found[-1].at:
            found[-1] = Entry(found[-1].at, total, total)
        elif not found or total > found[-1].steps:
            found.append(entry)
    return found
