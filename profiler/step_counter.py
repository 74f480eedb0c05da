"""Reads the steps that training processes count with `gsub.train.step()`: a small file a process, a ring of times.

    counters = StepCounters(folder)
    counters.look()                      # some times a second
    counters.speed(begin, end)           # of all processes together

What stands in the files is the user's word: it is read with bounds and never mapped, as a file that is cut off under
a map would end the reader. An entry that cannot be (a count or a time that goes back) ends what is read of its file.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from profiler.probing import Speed, measure

__all__ = ["Entry", "StepCounters", "counted", "evenly", "together"]

# The layout is that of gsub/train.py, which imports nothing of ours.
_HEAD: Final = struct.Struct("=8sIIQQ")
_ENTRY: Final = struct.Struct("=QdQ")
_MAGIC: Final = b"GSUBSTEP"
_MOST_RING: Final = 8192
_MOST_FILES: Final = 256
_KEPT: Final = 4096  # entries of a file, at 20 in a second: three minutes
_BINS: Final = 400
_SHARE: Final = 0.1
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(NamedTuple):
    """Steps and samples so far, `at` a time on the monotonic clock, in seconds."""

    at: float
    steps: int
    samples: float


def evenly(entries: Sequence[Entry]) -> tuple[tuple[float, ...], int]:
    """Seconds of a step over stretches of equally many steps, oldest first, and how many steps a stretch has.

    An entry may stand for many quick steps and the next for a single slow one: each as one figure, their mean would
    not be that of the steps.

    >>> evenly([Entry(0.0, 0, 0), Entry(0.5, 10, 10), Entry(2.5, 11, 11), Entry(3.0, 20, 20)])
    ((0.05, 0.25), 10)
    """
    if len(entries) < 2 or entries[-1].steps <= entries[0].steps:
        return (), 1
    total = entries[-1].steps - entries[0].steps
    most = max(after.steps - before.steps for before, after in pairwise(entries))
    # Not so wide that too few stretches are left to see where the sequence changes
    width = max(min(most, total // 30), -(-total // _BINS), 1) if total >= 30 else min(most, total // 2) or 1
    times, place, last = [], 1, entries[0].at
    for count in range(width, total + 1, width):
        wanted = entries[0].steps + count
        while entries[place].steps < wanted:
            place += 1
        before, after = entries[place - 1], entries[place]
        share = (wanted - before.steps) / (after.steps - before.steps)
        at = before.at + share * (after.at - before.at)
        times.append((at - last) / width)
        last = at
    return tuple(times), width


class _Ring:
    """One process' file as it was last read."""

    def __init__(self) -> None:
        self.process = 0
        self.seen = 0  # entries that were read
        self.entries: deque[Entry] = deque(maxlen=_KEPT)
        self.bad = False

    def take(self, raw: bytes, again: bytes) -> None:
        """Take what is new of a file's bytes; `again` is its head, read after them."""
        magic, version, slots, process, made = _HEAD.unpack_from(raw)
        _, _, _, _, later = _HEAD.unpack_from(again)
        if magic == bytes(8):
            return  # it has just been made
        if magic != _MAGIC or version != 1 or not 2 <= slots <= _MOST_RING or not self.seen <= made <= later:
            self.bad = True
            return
        if len(raw) < _HEAD.size + slots * _ENTRY.size:
            self.bad = True
            return
        self.process = process
        # What was being written over while it was read: the oldest
        for number in range(max(self.seen, later - slots + 1, made - slots + 1), made):
            steps, samples, at = _ENTRY.unpack_from(raw, _HEAD.size + number % slots * _ENTRY.size)
            entry = Entry(at / 1e9, steps, samples)
            last = self.entries[-1] if self.entries else None
            if not math.isfinite(samples) or (
                last is not None and (entry.steps <= last.steps or entry.at < last.at)
            ):
                self.bad = True
                return
            self.entries.append(entry)
        self.seen = made


class StepCounters:
    """The counters in a folder, of this user's processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rings: dict[str, _Ring] = {}

    @property
    def processes(self) -> frozenset[int]:
        """The processes that count steps, by the numbers that they know of themselves."""
        return frozenset(ring.process for ring in self._rings.values() if ring.entries)

    @property
    def steps(self) -> int:
        """Steps that were counted so far, by all processes together."""
        return sum(ring.entries[-1].steps for ring in self._rings.values() if ring.entries)

    @property
    def latest(self) -> float | None:
        """When the newest step was counted, on the monotonic clock."""
        return max((ring.entries[-1].at for ring in self._rings.values() if ring.entries), default=None)

    def look(self) -> None:
        """Read what is new. A file that cannot be read, or that is no counter, is passed over."""
        try:
            with os.scandir(self._folder) as found:
                names = [entry.name for entry in found if entry.name.endswith(".steps")]
        except OSError:
            return
        for name in sorted(names)[:_MOST_FILES]:
            ring = self._rings.setdefault(name, _Ring())
            if not ring.bad:
                self._read(name, ring)

    def _read(self, name: str, ring: _Ring) -> None:
        try:
            descriptor = os.open(self._folder / name, _FLAGS)
        except OSError:
            return
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                ring.bad = True
                return
            raw = os.pread(descriptor, _HEAD.size + _MOST_RING * _ENTRY.size, 0)
            again = os.pread(descriptor, _HEAD.size, 0)
            if len(raw) >= _HEAD.size and len(again) == _HEAD.size:
                ring.take(raw, again)
        except OSError:
            ring.bad = True
        finally:
            os.close(descriptor)

    def speed(self, begin: float, end: float = math.inf) -> Speed | None:
        """The throughput of all processes together between two times, in steps a second; None while one has too few.

        A process that counted less than a tenth of another's steps in that time does not count: it does something else.
        """
        speeds = []
        for entries in self._within(begin, end):
            times, width = evenly(entries)
            found = measure(times)
            if found is None:
                return None
            steps = found.steps * width
            speeds.append(Speed(found.rate, found.error, steps, found.cut * width))
        return together(speeds)

    def counted(self, begin: float, end: float = math.inf) -> int:
        """The fewest steps that a process counted between two times, of those that counted any."""
        return min((counted(part) for part in self._within(begin, end)), default=0)

    def _within(self, begin: float, end: float) -> list[Sequence[Entry]]:
        parts: list[Sequence[Entry]] = []
        for ring in self._rings.values():
            entries = list(ring.entries)
            times = [entry.at for entry in entries]
            part = entries[bisect_left(times, begin) : bisect_left(times, end)]
            if len(part) >= 2:
                parts.append(part)
        most = max((counted(part) for part in parts), default=0)
        return [part for part in parts if counted(part) >= _SHARE * most]


def counted(entries: Sequence[Entry]) -> int:
    """Steps from the first of these entries to the last."""
    return entries[-1].steps - entries[0].steps


def together(speeds: Sequence[Speed]) -> Speed | None:
    """The sum. Ranks that wait for each other err together: their errors are added, not their squares."""
    if not speeds:
        return None
    return Speed(
        sum(one.rate for one in speeds),
        sum(one.error for one in speeds),
        sum(one.steps for one in speeds),
        sum(one.cut for one in speeds),
    )
