"""Lines over an axis of time: distributions, and what is in use. Inline SVG as of `profiler.report.plots`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import Final

from markupsafe import Markup

from profiler.report import svg
from profiler.report.svg import NARROW, SPANS, Caption, Plot

__all__ = ["STYLES", "Line", "distribution", "over_time"]

STYLES: Final = tuple(f"s{colour}{kind}" for kind in ("", " dash", " dot") for colour in (1, 2, 4, 3))
"""Styles of lines that can be told from each other, also without colours: whole, dashed, dotted."""
_LEFT: Final = 52.0
_ABOVE: Final = 12.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its style, its name, and its points in ascending x; one whose y is nan is a gap."""

    style: str
    name: str
    points: Sequence[tuple[float, float]]


def distribution(caption: Caption, lines: Sequence[Line], axis: str) -> Plot:
    """Shares of 0 to 100 % that lie below a time in seconds, on a logarithmic scale from a second on."""
    known = [x for line in lines for x, _ in line.points]
    last = next((at for at, _ in SPANS[1:] if at >= max(known, default=1.0)), SPANS[-1][0])
    first = max(
        (at for at, _ in SPANS[:-1] if at <= min(known, default=1.0) and at < last), default=SPANS[0][0]
    )

    def across(at: float) -> float:
        return log10(max(min(at, last), first) / first) / log10(last / first)

    ticks = [(at, name) for at, name in SPANS if first <= at <= last]
    return _drawn(
        caption,
        lines,
        scale=(25.0, 100.0, " %"),
        across=across,
        ticks=lambda narrow: ticks[:: 2 if narrow else 1],
        axis=axis,
    )


def over_time(
    caption: Caption, lines: Sequence[Line], ticks: Sequence[tuple[float, str]], axis: str, top: float = 0.0
) -> Plot:
    """Amounts over time; `ticks` are moments and what they are called, `top` what the scale holds at least."""
    moments = [x for line in lines for x, _ in line.points]
    first, last = min(moments, default=0.0), max(moments, default=1.0)
    step, most = svg.ticks(max((y for line in lines for _, y in line.points if isfinite(y)), default=0.0))
    if top > 0:
        step, most = svg.ticks(max(top, 1.0))

    def across(at: float) -> float:
        return (at - first) / max(last - first, 1e-9)

    inside = [one for one in ticks if first <= one[0] <= last]

    def shown(narrow: bool) -> Sequence[tuple[float, str]]:
        return inside[:: 1 + len(inside) // (3 if narrow else 7)]

    return _drawn(caption, lines, scale=(step, most, ""), across=across, ticks=shown, axis=axis)


def _drawn(
    caption: Caption,
    lines: Sequence[Line],
    *,
    scale: tuple[float, float, str],
    across: Callable[[float], float],
    ticks: Callable[[bool], Iterable[tuple[float, str]]],
    axis: str,
) -> Plot:
    step, top, unit = scale

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        height = 180.0 if narrow else 240.0

        def x(at: float) -> float:
            return _LEFT + (width - _LEFT - 22) * across(at)

        def y(value: float) -> float:
            return _ABOVE + height * (1 - min(value, top) / top)

        made = svg.levels(step, top, y, left=_LEFT, right=width - 22, unit=unit)
        for at, name in ticks(narrow):
            made.append(svg.tag("line", x1=x(at), x2=x(at), y1=y(0), y2=y(0) + 5, class_="rule"))
            made.append(svg.text(x(at), y(0) + 18, name, anchor="middle"))
        for line in lines:
            piece: list[tuple[float, float]] = []
            marks = [svg.title(line.name)]
            for at, value in line.points:
                if isfinite(value):
                    piece.append((x(at), y(value)))
                    continue
                marks += svg.run(piece, line.style)
                piece = []
            marks += svg.run(piece, line.style)
            made.append(svg.group(marks))
        made.append(svg.text((_LEFT + width) / 2, y(0) + 38, axis, anchor="middle", class_="axis"))
        return _ABOVE + height + 46, made

    return svg.plot(caption, draw, tuple((line.style, line.name) for line in lines))
