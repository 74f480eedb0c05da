"""What torchrun and its kin write of the workers that failed: its table, and the error files of its workers.

The table is `ChildFailedError.format_msg` of `torch/distributed/elastic/multiprocessing/errors/__init__.py`, the file
`ErrorHandler.record_exception` of `error_handler.py` beside it ($TORCHELASTIC_ERROR_FILE, JSON).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from prolog_epilog.failures.text import Line, LogText

__all__ = ["ChildFailure", "ErrorFile", "error_file", "failures", "table"]

_MAX_BYTES: Final = 4 << 20
_LOOK: Final = b"error_file:"
_BACK, _ON = 40, 24
_MANY: Final = 256
_FIELD: Final = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*:\s?(?P<value>.*)$")
_RANK: Final = re.compile(r"(\d+)(?: \(local_rank: (\d+)\))?")
_EXIT: Final = re.compile(r"(-?\d+)(?: \(pid: (\d+)\))?")
_SIGNAL: Final = re.compile(r"Signal (\d+) \(")


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """A row of the table: a worker that ended badly. `root` is the one that the launcher saw fail first."""

    line: Line
    root: bool = False
    time: str = ""
    host: str = ""
    rank: int | None = None
    local_rank: int | None = None
    exitcode: int | None = None
    pid: int | None = None
    signal: int = 0
    error_file: str = ""


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """A worker's error file: the exception in a line, its traceback, the time in seconds since 1970."""

    message: str
    callstack: str = ""
    at: float | None = None


class _Inner(msgspec.Struct):
    message: str = ""
    extraInfo: dict[str, str | int | float] = {}  # noqa: N815 - torch's name; msgspec copies it


class _Outer(msgspec.Struct):
    message: _Inner | str


def error_file(data: bytes) -> ErrorFile | None:
    """What a worker's error file says, None if this is none.

    >>> error_file(b'{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1700000000"}}}')
    ErrorFile(message='ValueError: x', callstack='', at=1700000000.0)
    """
    if len(data) > _MAX_BYTES or not data.lstrip()[:12].startswith(b'{"message"'):
        return None
    try:
        inner = msgspec.json.decode(data, type=_Outer).message
    except (msgspec.MsgspecError, UnicodeDecodeError):  # the latter for bytes in a text that are no UTF-8
        return None
    if isinstance(inner, str):
        return ErrorFile(inner)
    stamp = inner.extraInfo.get("timestamp")
    try:
        at = float(stamp) if stamp is not None else None
    except ValueError:
        at = None
    if at is not None and not 0 <= at < 4e9:
        at = None
    return ErrorFile(inner.message, str(inner.extraInfo.get("py_callstack", "")), at)


def failures(text: LogText) -> tuple[ChildFailure, ...]:
    """The rows of the tables in a log, as they stand."""
    return table(_near(text))


def table(lines: Iterable[Line]) -> tuple[ChildFailure, ...]:
    """The rows of the tables in these lines. Lines of others in between are passed over."""
    rows: list[ChildFailure] = []
    fields: dict[str, str] = {}
    at: Line | None = None
    root = False
    for line in lines:
        body = line.text.strip()
        if body.startswith("Root Cause (first observed failure)"):
            root = True
        elif body == "Failures:":
            root = False
        found = _FIELD.match(line.text)
        if found is None:
            continue
        fields[found["key"]] = found["value"].strip()
        if found["key"] == "exitcode":
            at = line
        if found["key"] == "traceback":
            if at is not None and len(rows) < _MANY:
                rows.append(_row(at, root, fields))
            fields, at = {}, None
    if at is not None:
        rows.append(_row(at, root, fields))
    return tuple(rows)


def _row(line: Line, root: bool, fields: dict[str, str]) -> ChildFailure:
    rank = _RANK.match(fields.get("rank", ""))
    code = _EXIT.match(fields.get("exitcode", ""))
    signal = _SIGNAL.match(fields.get("traceback", ""))
    exitcode = int(code[1]) if code else None
    file = fields.get("error_file", "")
    return ChildFailure(
        line,
        root,
        fields.get("time", ""),
        fields.get("host", "")[:128],
        int(rank[1]) if rank else None,
        int(rank[2]) if rank and rank[2] else None,
        exitcode,
        int(code[2]) if code and code[2] else None,
        int(signal[1]) if signal else (-exitcode if exitcode is not None and exitcode < 0 else 0),
        "" if file == "<N/A>" else file,
    )


def _near(text: LogText) -> Iterator[Line]:
    position, end, seen = 0, 0, 0
    while seen < _MANY and (position := text.data.find(_LOOK, position)) >= 0:
        index = text.index_at(position)
        for near in range(max(end, index - _BACK), min(len(text), index + _ON)):
            yield text.line(near)
        end = max(end, index + _ON)
        position += len(_LOOK)
        seen += 1
