r"""Bytes of a log as lines that count, without making a list of them: a log may be 16 MB of one line or of a million.

`LogText` keeps one cleaned buffer, in which every line ends in ``\n``: colours and titles are taken out, UTF-16 and
byte order marks are UTF-8, lines that a terminal has wrapped are whole again. A carriage return ends a line too, so
each state of a progress bar stands by itself, but only ``\n`` counts for the line numbers, which are those that an
editor shows. Who wrote a line, and when, is read from its prefix when it is asked for (`prefix`).

>>> text = LogText.of("a.log", b"1: ok\n10%\r20%\n\x1b[31m[rank1]: 2026-08-14 06:19:18 bad\x1b[0m\n")
>>> line = text.line(3)
>>> line.number, line.rank, line.text
(3, 1, '2026-08-14 06:19:18 bad')
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prolog_epilog.failures import clean
from prolog_epilog.failures.prefix import origin, time_of

__all__ = ["MAX_LINE", "Line", "LogText", "decoded"]

MAX_LINE: Final = 8192
"""Bytes of a line that are looked at; of longer ones the beginning."""
_BLOCK: Final = 1 << 13
_KEPT: Final = 4096


def decoded(data: bytes) -> str:
    """UTF-8, else Latin-1: some text, whatever the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data.decode(errors="replace")
        return data.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Line:
    r"""A line of a log: as it is (`raw`), and without the prefixes of launchers (`text`).

    `index` counts from 0 what ``\n`` and ``\r`` end; `number` from 1 what ``\n`` ends (None behind a part of the log
    that was not read), `from_end` from 1 backwards (None before such a part). `rank`, `node` and `time` (seconds since
    1970, of a clock whose zone is not known unless said) are None, "" and None where the line does not say.
    """

    index: int
    number: int | None
    from_end: int | None
    raw: str
    text: str
    rank: int | None
    node: str
    time: float | None


class LogText:
    """A log, or its two ends: see the module. Make it by `of`.

    `data` is the cleaned buffer; positions below are positions in it.
    """

    __slots__ = (
        "_at",
        "_crs",
        "_feeds",
        "_gap",
        "_joins",
        "_length",
        "_lines",
        "_raw",
        "_total",
        "base",
        "data",
        "name",
        "unseen",
    )

    def __init__(
        self,
        name: str,
        raw: bytes,
        *,
        joins: list[int],
        gap: int | None,
        base: float,
        unseen: tuple[str, ...],
    ) -> None:
        self.name = name
        self.unseen = unseen
        """Sentences: what of the log was not read."""
        self.base = base
        """Seconds since 1970 of the log's last change (0: not known): the year of dates without one."""
        self._raw = raw
        self.data = raw.replace(b"\r", b"\n") if b"\r" in raw else raw
        self._joins = joins
        self._gap = gap
        self._lines: dict[int, Line] = {}
        self._feeds, self._crs = _counts(self.data, raw)
        self._length = self._feeds[-1] + (not self.data.endswith(b"\n") and bool(self.data))
        self._total = self._feeds_before(self._feeds[-1], len(raw)) + (not raw.endswith(b"\n"))
        # index and position of the line asked for last: mostly the next is asked for next
        self._at = (0, 0)

    @classmethod
    def of(
        cls,
        name: str,
        head: bytes,
        tail: bytes | None = None,
        *,
        base: float = 0.0,
        unseen: tuple[str, ...] = (),
    ) -> LogText:
        """A whole log; or its head and its tail, with something between them that was not read."""
        codec = clean.encoding_of(head)
        first, joins = clean.unwrapped(clean.cleaned(head, codec))
        if tail is None:
            return cls(name, first, joins=joins, gap=None, base=base, unseen=unseen)
        first = first.rstrip(b"\n") + b"\n"
        last, more = clean.unwrapped(clean.cleaned(tail, codec))
        gap = len(first)
        joins += [gap + at for at in more]
        return cls(name, first + last, joins=joins, gap=gap, base=base, unseen=unseen)

    def __len__(self) -> int:
        """The number of lines; what follows the last line feed is one if it is not empty."""
        return self._length

    def __repr__(self) -> str:
        return f"LogText({self.name!r}, {len(self.data)} bytes)"

    def index_at(self, position: int) -> int:
        """The index of the line that holds a position."""
        block = min(position // _BLOCK, len(self._feeds) - 1)
        return self._feeds[block] + self.data.count(b"\n", block * _BLOCK, position)

    def start_of(self, index: int) -> int:
        """Where a line begins. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        known, position = self._at
        if not 0 <= index - known <= 64:
            # the last block before which fewer lines end; it may begin within a line
            block = max(bisect_left(self._feeds, index) - 1, 0)
            known, position = self._feeds[block], block * _BLOCK
        while known < index:
            position = self.data.find(b"\n", position) + 1
            known += 1
        self._at = (index, position)
        return position

    def end_of(self, index: int) -> int:
        """Where the line after it begins, or the end. Raises IndexError."""
        end = self.data.find(b"\n", self.start_of(index))
        return len(self.data) if end < 0 else end + 1

    def bounds_at(self, position: int, reach: int = MAX_LINE) -> tuple[int, int]:
        """The beginning and the end of the line at a position, at most `reach` bytes to each side of it."""
        low = max(0, position - reach)
        start = self.data.rfind(b"\n", low, position)
        end = self.data.find(b"\n", position, position + reach)
        return (low if start < 0 else start + 1), (min(len(self.data), position + reach) if end < 0 else end)

    def number_at(self, position: int) -> int | None:
        """The number of the line at a position, from 1; None behind a part that was not read."""
        return self._numbers(self.index_at(position), position)[0]

    def from_end_at(self, position: int) -> int | None:
        """The number of the line at a position counted from the last one (1); None before a part not read."""
        return self._numbers(self.index_at(position), position)[1]

    def _numbers(self, index: int, position: int) -> tuple[int | None, int | None]:
        """The number of a line and that from the end, of the index and any position in it."""
        before = self._feeds_before(index, position)
        if self._gap is None:
            return before + 1, self._total - before
        return (before + 1, None) if position < self._gap else (None, self._total - before)

    def _feeds_before(self, index: int, position: int) -> int:
        """How many line feeds the file has before a line of ours."""
        if self._crs is not None:
            block = min(position // _BLOCK, len(self._crs) - 1)
            index -= self._crs[block] + self._raw.count(b"\r", block * _BLOCK, position)
        return index + bisect_right(self._joins, position) if self._joins else index

    def line_at(self, position: int) -> Line:
        """The line that holds a position; of one longer than `MAX_LINE` the part around it."""
        index = self.index_at(position)
        start, end = self.bounds_at(position)
        if end - start <= MAX_LINE:
            return self.line(index)
        if start > 0 and self.data[start - 1 : start] != b"\n":
            # what stands before the first space was cut: half a word, or a secret without its name
            start = max(start, self.data.find(b" ", start, position) + 1)
        return self._made(index, start, end)

    def line(self, index: int) -> Line:
        """A line by its index, at most `MAX_LINE` bytes of it. Raises IndexError."""
        known = self._lines.get(index)
        if known is not None:
            return known
        start = self.start_of(index)
        end = self.data.find(b"\n", start, start + MAX_LINE)
        if end < 0:
            end = min(start + MAX_LINE, len(self.data))
        made = self._made(index, start, end)
        if len(self._lines) >= _KEPT:
            self._lines.clear()
        self._lines[index] = made
        return made

    def lines(self, first: int = 0, last: int | None = None) -> Iterator[Line]:
        """Lines from index `first` up to, without, `last`; each made when it is asked for."""
        stop = len(self) if last is None else min(last, len(self))
        for index in range(max(first, 0), stop):
            yield self.line(index)

    def _made(self, index: int, start: int, end: int) -> Line:
        raw = decoded(self.data[start:end])
        who = origin(raw)
        number, from_end = self._numbers(index, start)
        return Line(
            index,
            number,
            from_end,
            raw,
            who.text,
            who.rank,
            who.node,
            time_of(raw, who.text, self.base),
        )


def _counts(data: bytes, raw: bytes) -> tuple[list[int], list[int] | None]:
    """How many lines end before each block of the buffer, and at last in all; so for carriage returns, if any."""
    feeds = [0]
    for at in range(0, len(data), _BLOCK):
        feeds.append(feeds[-1] + data.count(b"\n", at, at + _BLOCK))
    if raw is data:
        return feeds, None
    returns = [0]
    for at in range(0, len(raw), _BLOCK):
        returns.append(returns[-1] + raw.count(b"\r", at, at + _BLOCK))
    return feeds, returns
