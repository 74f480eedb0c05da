r"""What stands in the way of reading a log, taken out: encodings, colours, NULs, terminals' hard wraps.

>>> cleaned(b"\xff\xfeo\0k\0", encoding_of(b"\xff\xfe"))
b'ok'
>>> cleaned(b"\x1b[1;31mError\x1b[0m: \x1b]0;title\x07x\r\n", "")
b'Error: x\n'
"""

from __future__ import annotations

import codecs
import functools
import re
from collections import Counter
from typing import Final

import re2

__all__ = ["cleaned", "encoding_of", "unwrapped"]

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# ECMA-48: CSI with its parameters, OSC and other strings up to their end, two-byte escapes.
_ESCAPES: Final = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|[\]PX^_][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)?|[ -/]{0,4}[0-~])?"
)
_BACKSPACES: Final = re.compile(rb"[^\n\r\x08]?\x08")
_QUOTES: Final = (
    ("‘".encode(), b"'"),
    ("’".encode(), b"'"),
    ("“".encode(), b'"'),
    ("”".encode(), b'"'),
)
_RETURNS: Final = 16
"""Carriage returns before a line feed that are taken for its part."""
_NARROWEST: Final = 60
_WIDEST: Final = 400
_FEWEST: Final = 4
_LONGEST: Final = 1 << 14
_SAMPLE: Final = 1 << 18
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0" * 10)


@functools.cache
def _quote() -> re2._Regexp:
    """The end of one: RE2 is many times faster than `in` to see that a log of bars has none."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    return re2.compile(rb"\x80[\x98\x99\x9c\x9d]", options)


def encoding_of(head: bytes) -> str:
    """The encoding that the first bytes tell of, "" for one in which ASCII is ASCII."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[:4096]
    if len(sample) >= 8 and sample.count(b"\0") * 5 >= len(sample) * 2:
        # mostly ASCII in two bytes each: the NULs are all on one side (on both: a hole, `cleaned`)
        even, odd = sample[::2], sample[1::2]
        if odd.count(b"\0") * 10 >= len(odd) * 9 and even.count(b"\0") * 10 <= len(even):
            return "utf-16-le"
        if even.count(b"\0") * 10 >= len(even) * 9 and odd.count(b"\0") * 10 <= len(odd):
            return "utf-16-be"
    return ""


def cleaned(data: bytes, encoding: str) -> bytes:
    r"""A log's bytes as UTF-8 (or bytes unknown), lines ending in ``\n`` or ``\r``, nothing in them that steers."""
    if encoding not in ("", "utf-8"):
        data = data.decode(encoding, errors="replace").encode(errors="replace")
    if data.startswith(codecs.BOM_UTF8):
        data = data[len(codecs.BOM_UTF8) :]
    elif encoding.startswith("utf-") and data.startswith("\ufeff".encode()):
        data = data[3:]
    if b"\0" in data:  # a hole: the file was truncated while it was written to
        data = data.replace(b"\0", b"")
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    if b"\x08" in data:
        data = _BACKSPACES.sub(b"", data)
    if b"\r" in data:
        for _ in range(_RETURNS):  # not by a pattern: bars are all returns, and a log may be nothing else
            before = len(data)
            data = data.replace(b"\r\n", b"\n")
            if len(data) == before:
                break
    if not data.isascii() and _quote().search(data):
        for quote, plain in _QUOTES:
            data = data.replace(quote, plain)
    return data


def _width(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode(errors="replace"))


def _shape(line: bytes) -> bytes:
    """How a line begins, its digits aside."""
    return line[:5].translate(_DIGITS)


def _wrap_of(sample: bytes) -> tuple[int, frozenset[bytes]] | None:
    """The width at which a terminal wrapped these lines, and how lines begin that are none of its making."""
    lines = sample.split(b"\n")[:-1]
    widths = [_width(line) for line in lines]
    widest = max(widths, default=0)
    full = [at for at, width in enumerate(widths[:-1]) if width == widest]
    if not _NARROWEST <= widest <= _WIDEST or not _FEWEST <= len(full) <= 0.6 * len(lines):
        return None
    fresh = Counter(_shape(lines[at + 1]) for at in range(len(lines) - 1) if widths[at] < widest)
    if fresh.total() < _FEWEST:
        return None
    # a log whose longest lines just are of one length goes on with lines that begin as others do
    cut = [at for at in full if _shape(lines[at + 1]) not in fresh]
    within = [at for at in cut if lines[at][-1:].isalnum() and lines[at + 1][:1].isalnum()]
    if len(cut) < 0.5 * len(full) or len(within) < max(2, 0.25 * len(cut)):
        return None
    return widest, frozenset(fresh)


def unwrapped(data: bytes) -> tuple[bytes, list[int]]:
    r"""The buffer with the lines whole that a terminal has wrapped, and the positions in it where breaks were.

    A terminal (or `script`, `tmux`, a copied screen) breaks lines at one width, mostly within words; nothing says so.
    Taken for wrapped is a log of which no line is longer than that width, several are just as long, and most of
    these go on with what begins unlike any other line.
    """
    wrap = _wrap_of(
        data[-_SAMPLE:] if len(data) <= _SAMPLE else data[data.find(b"\n", len(data) - _SAMPLE) + 1 :]
    )
    if wrap is None:
        return data, []
    width, fresh = wrap
    pieces: list[bytes] = []
    joins: list[int] = []
    at = length = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        pieces.append(line)
        at += len(line)
        length += len(line)
        if length < _LONGEST and _width(line) == width and _shape(lines[number + 1]) not in fresh:
            joins.append(at)
        else:
            pieces.append(b"\n")
            at += 1
            length = 0
    pieces.append(lines[-1])
    return b"".join(pieces), joins
