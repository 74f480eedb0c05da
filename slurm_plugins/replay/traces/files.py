"""What the readers of all kinds share: lines of a file, packed or not, tables with a head, and what is left out."""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from slurm_plugins.replay.values import Cluster, Job, Trace

__all__ = [
    "LARGEST",
    "MOST",
    "Kind",
    "LeftOut",
    "Reading",
    "TraceError",
    "count",
    "lines",
    "number",
    "rows",
    "traced",
]

_GZIP: Final = b"\x1f\x8b"
LONGEST: Final = 1 << 20
"""Signs of a line. No job's record is longer; a file without line ends would else be read into memory whole."""


MOST: Final = 1_000_000
"""GPUs, or nodes, of one job: what is more was never meant."""
LARGEST: Final = 1e12
"""Of any number in a trace, times in seconds among them."""


class TraceError(Exception):
    """A trace, or the description of a cluster, that cannot be used: what is wrong, and the remedy."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class LeftOut(Counter[str]):
    """Why rows are left out -> how many."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A trace as it was read: its jobs, the cluster that it tells of, and what was supposed on the way."""

    trace: Trace
    kind: str
    """What kind of file it was."""
    cluster: Cluster | None = None
    """None where the file tells nothing of nodes."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: how its first line tells, and what reads it."""

    name: str
    told: str
    """What it is, for people."""
    knows: Callable[[str], bool]
    read: Callable[[Path], Reading]


@contextmanager
def lines(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, without their ends; packed by gzip or not, whatever bytes are in it.

    Raises TraceError for a file that cannot be read, in the middle of it too.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        opened: Callable[..., IO[str]] = _unpacked if packed else open
        with opened(path, encoding="utf-8-sig", errors="replace", newline="\n") as found:
            yield _lines(found, path)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(*_unreadable(path, error)) from error


def _unpacked(path: Path, *, encoding: str, errors: str, newline: str) -> IO[str]:
    return gzip.open(path, "rt", encoding=encoding, errors=errors, newline=newline)


def _lines(opened: IO[str], path: Path) -> Iterator[str]:
    while line := opened.readline(LONGEST):
        if len(line) >= LONGEST and not line.endswith("\n"):
            raise TraceError(f"{path}: a line of more than {LONGEST:,} signs", "name a trace, as text")
        yield line.rstrip("\r\n")


def _unreadable(path: Path, error: Exception) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file", "look at its name"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder", "name a file in it"
    if isinstance(error, PermissionError):
        return f"{path} may not be read by you", "ask its owner"
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return f"{path} cannot be read: {error.strerror or error}", ""
    return f"{path} is cut off or damaged: {error}", "make or copy it once more"


def rows(path: Path, wanted: Sequence[str], left: LeftOut) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by the names of its head; one that has not as many fields as that is left out.

    Raises TraceError for a head that lacks one of `wanted`.
    """
    with lines(path) as found:
        head = [name.strip() for name in _fields(next(found, ""))]
        if missing := [name for name in wanted if name not in head]:
            raise TraceError(f"{path}: it has no column {', '.join(missing)}", "name the whole file")
        for line in found:
            row = _fields(line)
            if len(row) == len(head):
                yield dict(zip(head, row, strict=True))
            elif line.strip():
                left["more or fewer fields than the head has"] += 1


def _fields(line: str) -> list[str]:
    """A row is a line: a quote that nobody closed damages its own row, not all that follow."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def count(row: Mapping[str, str], name: str) -> int:
    """A number of things, as far as a cluster may have so many; less than none is the caller's to refuse.

    Raises ValueError.
    """
    value = number(row, name)
    if value > MOST or value != int(value):
        raise ValueError(f"{name}: {row[name]!r}")
    return int(value)


def number(row: Mapping[str, str], name: str) -> float:
    """A finite number of a row. Raises ValueError.

    >>> number({"gpus": "4"}, "gpus")
    4.0
    """
    value = float(row[name])
    if not abs(value) <= LARGEST:
        raise ValueError(f"{name}: {row[name]!r}")
    return value


def traced(path: Path, made: Iterable[Job], left: LeftOut, *, dated: bool = False) -> Trace:
    """The trace of these jobs, from its first arrival on. `dated`: their times are seconds since 1970.

    Raises TraceError where not one job is left, with what became of the rows.
    """
    jobs = list(made)
    if not jobs:
        why = "; ".join(f"{reason} ({count:,})" for reason, count in left.most_common(4))
        raise TraceError(
            f"{path}: no job in it can be replayed", f"its rows: {why}" if why else "it is empty"
        )
    zero = math.floor(min(job.arrival for job in jobs))
    trace = Trace.of(jobs, name_of(path), left, float(zero) if dated else 0.0)
    for name in ("arrival", "began", "deadline"):
        column = trace.columns[name]
        column -= zero
    return trace


def name_of(path: Path) -> str:
    """A trace's name: its file's, without what tells its kind.

    >>> name_of(Path("/tmp/philly_jobs.csv.gz"))
    'philly_jobs'
    """
    name = os.path.basename(path)  # noqa: PTH119 - "" has one too
    for end in (".gz", ".csv", ".psv", ".txt"):
        name = name.removesuffix(end)
    return name or str(path)
