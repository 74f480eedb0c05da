"""Throughput over CPUs as a person reads it: a bar for each count that was measured, and where the knee is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gsub.sparkline import ASCII
from profiler.curves import Point, pooled

__all__ = ["Row", "plot", "rows"]

_PARTS: Final = " ▏▎▍▌▋▊▉"
_FULL: Final = "█"
_LEAST: Final = 8
_MOST: Final = 60
"""Signs of the longest bar."""


@dataclass(frozen=True, slots=True)
class Row:
    """A count of CPUs for each GPU, steps in a second, their standard error (None: not measured, of the curve)."""

    cpus: float
    rate: float
    error: float | None


def rows(
    points: Sequence[Point], gpus: int = 1, knee: int | None = None, at_knee: float | None = None
) -> list[Row]:
    """What was measured, each count once, ascending; and the knee, where no point stands on it, as the curve has it.

    >>> [(row.cpus, row.rate) for row in rows([Point(8, 4.0, 0.1), Point(2, 1.0, 0.1)], 2, knee=3, at_knee=3.0)]
    [(1.0, 1.0), (3, 3.0), (4.0, 4.0)]
    """
    found = [Row(one.cpus, one.rate, one.error) for one in pooled(points, gpus)]
    if knee is not None and at_knee is not None and all(row.cpus != knee for row in found):
        found.append(Row(knee, at_knee, None))
    return sorted(found, key=lambda row: row.cpus)


def plot(
    found: Sequence[Row],
    width: int,
    signs: str,
    *,
    knee: int | None = None,
    gpus: int = 1,
    unit: str = "steps/s",
) -> list[str]:
    """Lines of at most `width` signs, the head first; ASCII where `signs` (`gsub.sparkline.ramp`) are.

    >>> print("\\n".join(plot([Row(1, 1.0, 0.01), Row(4, 4.0, 0.1)], 44, ASCII, knee=4)))
    CPUs    steps/s
       1  1 +- 0.01  ####
       4  4 +- 0.1   ############### <- the knee
    """
    if not found:
        return []
    head = "CPUs" if gpus == 1 else "CPUs/GPU"
    counts = [f"{row.cpus:g}" for row in found]
    rates = [_rate(row) for row in found]
    first, second = max(map(len, [head, *counts])), max(map(len, [unit, *rates]))
    mark = " <- the knee"
    room = min(max(width - first - second - 4 - len(mark), _LEAST), _MOST)
    top = max(row.rate for row in found)
    lines = [f"{head:>{first}}  {unit:>{second}}".rstrip()]
    for row, count, rate in zip(found, counts, rates, strict=True):
        said = mark if row.cpus == knee else ""
        lines.append(f"{count:>{first}}  {rate:<{second}}  {_bar(row.rate / top, room, signs)}{said}")
    return lines


def _rate(row: Row) -> str:
    if row.error is None:
        return f"~{row.rate:.3g}"
    return f"{row.rate:.3g} +- {row.error:.1g}"


def _bar(share: float, room: int, signs: str) -> str:
    eighths = max(round(share * room * 8), 1)
    if signs == ASCII:
        return "#" * max(round(eighths / 8), 1)
    whole, part = divmod(eighths, 8)
    return _FULL * whole + (_PARTS[part] if part else "")
