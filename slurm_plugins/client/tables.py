"""Slurm's text tables into rows of strings, whatever users wrote into them.

Job names and comments may hold every character that a format could use as a separator, newlines included. So
`squeue -O` and `sacct --parsable` are given a separator that is drawn anew for each call: nobody can have put it
into a name beforehand. `scontrol -o` has no separators; it is read only for nodes and partitions, whose free text
(written by administrators) stands at known places, and never for jobs.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from .errors import SlurmFormatError

__all__ = [
    "Reading",
    "RowSplitter",
    "Separator",
    "Unread",
    "dropped_fields",
    "read_rows",
    "rows",
    "scontrol_records",
]

Row = dict[str, str]
_Value = TypeVar("_Value")


class Unread:
    """Rows that could not be read and were left out: how many of each kind, and why one of them.

    ``kinds`` counts by what a row is of: "job", "attempt", "node", "partition". ``example`` quotes what a user may
    have written: mask it before it is logged.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.example = ""

    def add(self, kind: str, name: str, why: Exception) -> None:
        """Count a row; the first of all is the example."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if not self.example:
            what, piece = (why.what, why.line) if isinstance(why, SlurmFormatError) else (repr(why), "")
            text = f"{kind} {name[:80]}: {what}" + (f", not {piece[:200]!r}" if piece else "")
            self.example = text.encode("utf-8", "replace").decode()


def read_rows(
    kind: str, found: Iterable[Row], key: str, read: Callable[[Row], _Value], unread: Unread
) -> list[_Value]:
    """Make values of rows, each by itself; a row that cannot be read is counted in ``unread`` and left out.

    ``key`` is the column that names a row. Raises SlurmFormatError where there are rows and none can be read: that
    is no answer.
    """
    reading = Reading(kind, key, read, unread)
    reading.take(found)
    return reading.values()


class Reading(Generic[_Value]):
    """Values made of rows that come some at a time; see `read_rows`."""

    def __init__(self, kind: str, key: str, read: Callable[[Row], _Value], unread: Unread) -> None:
        self._kind = kind
        self._key = key
        self._read = read
        self._unread = unread
        self._values: list[_Value] = []
        self._fault: SlurmFormatError | None = None

    def take(self, found: Iterable[Row]) -> None:
        """Read these rows too."""
        for row in found:
            try:
                self._values.append(self._read(row))
            except (SlurmFormatError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                self._unread.add(self._kind, row.get(self._key, "?"), error)
                if not isinstance(error, SlurmFormatError):
                    error = SlurmFormatError(repr(error), repr(row))
                self._fault = error

    def values(self) -> list[_Value]:
        """Return those of all rows. Raises SlurmFormatError where there were rows and none could be read."""
        if self._fault is not None and not self._values:
            raise self._fault
        return self._values


class Separator:
    """A separator for one call: a control character and 48 random bits, in 9 bytes.

    It stands behind each value of each job, and is most of what squeue prints where it is longer. A queue of 70,000
    jobs whose comments are nothing but guesses (600 MB of them) holds it once in four million calls.

    It starts with a byte that is no digit and no dot: `squeue -O Field:.20x` reads those as alignment and width. That
    byte stands nowhere else in it: the end of a name and the start of a separator never make up another one.
    """

    def __init__(self) -> None:
        self.text = f"\x1f{base64.urlsafe_b64encode(os.urandom(6)).decode()}"

    def long_format(self, fields: Sequence[str]) -> str:
        """Argument of ``squeue -O``: each field at its full width, followed by the separator."""
        return ",".join(f"{field}:{self.text}" for field in fields)

    def short_format(self, fields: Sequence[str]) -> str:
        """Argument of ``squeue -o``."""
        return "".join(field + self.text for field in fields)


def rows(output: str, separator: Separator, columns: Sequence[str]) -> Iterator[Row]:
    """Split output in which each field, the last one too, is followed by the separator and each record by a newline.

    Raises SlurmFormatError when the fields do not come out even.
    """
    splitter = RowSplitter(separator, columns)
    yield from splitter.split(output)
    splitter.end()


class RowSplitter:
    """Splits output that comes piece by piece, and keeps of it what no row was made of yet; see `rows`."""

    def __init__(self, separator: Separator, columns: Sequence[str]) -> None:
        self._separator = separator.text
        self._columns = tuple(columns)
        self._begun: list[str] = []
        self._rest = ""

    def split(self, piece: str) -> Iterator[Row]:
        """Yield the rows that end in this piece."""
        *parts, self._rest = (self._rest + piece).split(self._separator)
        width = len(self._columns)
        parts = self._begun + parts
        whole = len(parts) - len(parts) % width
        self._begun = parts[whole:]
        for begin in range(0, whole, width):
            record = parts[begin : begin + width]
            # the newline that ended the record before
            record[0] = record[0].lstrip("\n")
            yield dict(zip(self._columns, record, strict=True))

    def end(self) -> None:
        """Raise SlurmFormatError when the fields do not come out even."""
        if self._begun or self._rest.strip():
            over = len(self._begun)
            raise SlurmFormatError(
                f"{over} fields beyond a multiple of {len(self._columns)}",
                (self._rest or "".join(self._begun))[:200],
            )


_DROPPED = re.compile(r"Invalid job format specification: (\S+)")


def dropped_fields(stderr: str) -> frozenset[str]:
    """Fields that this squeue does not know: it says so, leaves them out and goes on."""
    return frozenset(_DROPPED.findall(stderr))


_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=")


def scontrol_records(output: str, first: str, free_text: Sequence[str]) -> Iterator[Row]:
    """Records of ``scontrol -o show node|partition``: each begins a line with ``first=``.

    ``free_text`` are the keys of free text, in the order in which they stand at the record's end. They are cut off
    first: the last `` Extra=`` starts the extra, the last `` Comment=`` before that the comment... so that a text
    can only ever damage a text, never a fact. (A reason that holds `` Comment=`` on a node without comment is read
    as a reason and a comment.)

    Raises SlurmFormatError where there is text and no record.
    """
    head, *pieces = re.split(rf"(?m)^(?={first}=)", output)
    if head.strip() and not pieces:
        raise SlurmFormatError(f"no {first}=", head)
    for piece in pieces:
        texts, facts = _cut_texts(piece.strip(), free_text)
        found = list(_KEY.finditer(facts))
        ends = [match.start() for match in found[1:]] + [len(facts)]
        row: Row = {}
        for match, end in zip(found, ends, strict=True):
            row.setdefault(match[1], facts[match.end() : end].strip())
        yield {**row, **texts}


def _cut_texts(record: str, keys: Sequence[str]) -> tuple[Mapping[str, str], str]:
    texts: Row = {}
    # The facts end where the first free text starts, so facts are read before any of them.
    begins = [position for key in keys if (position := record.find(f" {key}=")) >= 0]
    if not begins:
        return texts, record
    facts, tail = record[: min(begins)], record[min(begins) :]
    for key in reversed(keys):
        position = tail.rfind(f" {key}=")
        if position >= 0:
            texts[key] = tail[position + len(key) + 2 :].strip()
            tail = tail[:position]
    return texts, facts
