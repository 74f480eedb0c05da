"""Plots of an audit as inline SVG, made by hand from the rows of its tables. Pure.

Marks have classes and no colours: the page's style sheet gives them, by day and by night. Each plot is drawn twice,
wide and narrow, since text that is scaled down to a phone cannot be read; the style sheet shows one of them. What is
not known has no mark: a line has a gap there, a bar says "n/a", or "–" where that is too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10

from markupsafe import Markup
from rich.cells import cell_len

from profiler.report import svg
from profiler.report.svg import NARROW, SIGN, SPANS, Caption, Plot
from profiler.wording import NOT_KNOWN

__all__ = ["Bar", "Caption", "Plot", "Range", "Series", "bars", "course", "groups", "ranges", "stacks"]


@dataclass(frozen=True, slots=True)
class Series:
    """What has a colour: its style (`s1`...), its name, and its values, NaN where not known."""

    style: str
    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `bars`: `text` is its value as people read it."""

    label: str
    value: float
    text: str
    style: str = "s1"


@dataclass(frozen=True, slots=True)
class Range:
    """A row of `ranges`: three quantiles in seconds, from low to high, and these as people read them."""

    label: str
    low: float
    middle: float
    high: float
    text: str


def bars(caption: Caption, rows: Sequence[Bar]) -> Plot:
    """Lying bars, each with its label and its value."""
    most = max((row.value for row in rows if isfinite(row.value)), default=0.0) or 1.0

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        left = 0.0 if narrow else min(230.0, SIGN * max(cell_len(row.label) for row in rows) + 14)
        step = 40.0 if narrow else 30.0
        room = width - left - SIGN * max(len(row.text) for row in rows) - 12
        made = []
        tall = 14.0 if narrow else 20.0
        for place, row in enumerate(rows):
            top = place * step + (18 if narrow else 4)
            middle = top + tall / 2 + 4.5
            x, y, anchor = (0.0, top - 6, "start") if narrow else (left - 12, middle, "end")
            label = svg.cut(row.label, (width if narrow else x) / SIGN)
            marks = [svg.title(f"{row.label}: {row.text}"), svg.text(x, y, label, anchor=anchor)]
            length = 0.0
            if isfinite(row.value):
                length = max(room * row.value / most, 1.5 if row.value > 0 else 0.0)
                marks.append(
                    svg.tag("rect", x=left, y=top, width=length, height=tall, rx=2, class_=row.style)
                )
            marks.append(svg.text(left + length + 7, middle, row.text, class_="value"))
            made.append(svg.group(marks))
        return len(rows) * step + 4, made

    return svg.plot(caption, draw)


def groups(caption: Caption, labels: Sequence[str], series: Sequence[Series], axis: str) -> Plot:
    """Standing bars of per cent: one of each series beside each other, for each label."""
    most = max((value for one in series for value in one.values if isfinite(value)), default=0.0)
    step, top = svg.ticks(most)

    def draw(width: int) -> tuple[float, list[Markup]]:
        height, left, above = (190.0 if width == NARROW else 220.0), 46.0, 12.0
        each = (width - left) / len(labels)
        wide = min(each * 0.76 / len(series), 34.0)

        def y(value: float) -> float:
            return above + height * (1 - value / top)

        made = svg.levels(step, top, y, left=left, right=width)
        for place, label in enumerate(labels):
            begin = left + each * place + (each - wide * len(series)) / 2
            for n, one in enumerate(series):
                value, x = one.values[place], begin + wide * n
                if not isfinite(value):
                    lost = NOT_KNOWN if wide > 3 * SIGN else "–"
                    made.append(svg.text(x + wide / 2, y(0) - 4, lost, anchor="middle", class_="none"))
                    continue
                marks = [svg.title(f"{label}, {one.name}: {value:.1f} %")]
                marks.append(
                    svg.tag(
                        "rect",
                        x=x + 0.5,
                        y=y(value),
                        width=wide - 1,
                        height=y(0) - y(value),
                        class_=one.style,
                    )
                )
                made.append(svg.group(marks))
            made.append(svg.text(left + each * (place + 0.5), y(0) + 17, label, anchor="middle"))
        made.append(svg.text((left + width) / 2, y(0) + 37, axis, anchor="middle", class_="axis"))
        return above + height + 44, made

    return svg.plot(caption, draw, tuple((one.style, one.name) for one in series))


def stacks(caption: Caption, labels: Sequence[str], series: Sequence[Series]) -> Plot:
    """A lying bar of 100 per cent for each label, in parts: those of each series, one after the other."""

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        left = 0.0 if narrow else min(230.0, SIGN * max(map(cell_len, labels)) + 14)
        step, tall = (40.0, 16.0) if narrow else (30.0, 20.0)
        room = width - left - 2
        made = []
        for place, label in enumerate(labels):
            top = place * step + (18 if narrow else 4)
            x, y, anchor = (0.0, top - 6, "start") if narrow else (left - 12, top + tall / 2 + 4.5, "end")
            made.append(svg.text(x, y, svg.cut(label, (width if narrow else x) / SIGN), anchor=anchor))
            parts = [(one, one.values[place]) for one in series]
            if not any(isfinite(value) for _, value in parts):
                made.append(svg.text(left + 7, top + tall / 2 + 4.5, NOT_KNOWN, class_="none"))
                continue
            at = left
            for one, value in parts:
                if not value > 0:
                    continue
                long = room * value / 100
                marks = [svg.title(f"{label}, {one.name}: {value:.1f} %")]
                box = {"x": at, "y": top, "width": max(long - 1, 0.4), "height": tall}
                marks.append(svg.tag("rect", class_=one.style, **box))
                if long > 5 * SIGN:
                    marks.append(
                        svg.text(
                            at + long / 2,
                            top + tall / 2 + 4.5,
                            f"{value:.0f} %",
                            anchor="middle",
                            class_="inside",
                        )
                    )
                made.append(svg.group(marks))
                at += long
        return len(labels) * step + 4, made

    return svg.plot(caption, draw, tuple((one.style, one.name) for one in series))


def course(caption: Caption, begins: Sequence[float], until: float, line: Series, columns: Series) -> Plot:
    """Per cent over time as a line above, an amount as columns below; `begins` are the starts of each part.

    A part of which the line's value is not known is a gap, and a mark on the ground says so.
    """
    edges = [*begins, until]
    _, top = svg.ticks(max((value for value in columns.values if isfinite(value)), default=0.0))

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, above, high, between, low = 46.0, 12.0, 170.0, 34.0, 80.0
        span = max(edges[-1] - edges[0], 1.0)

        def x(at: float) -> float:
            return left + (width - left - 6) * (at - edges[0]) / span

        def upper(value: float) -> float:
            return above + high * (1 - value / 100)

        def lower(value: float) -> float:
            return above + high + between + low * (1 - value / top)

        made = svg.levels(25, 100, upper, left=left, right=width) + svg.levels(
            top, top, lower, left=left, right=width, unit=""
        )
        made.append(svg.text(left, above + high + between - 10, columns.name, class_="axis"))
        run: list[tuple[float, float]] = []
        for begin, end, value in zip(edges, edges[1:], [*line.values, float("nan")], strict=False):
            if isfinite(value):
                run.append((x((begin + end) / 2), upper(value)))
                continue
            made += svg.run(run, line.style)
            run = []
            gap = {"x": x(begin), "width": x(end) - x(begin), "y": upper(0) - 5, "height": 5}
            made.append(
                svg.group([svg.title(f"{svg.day(begin)}: {NOT_KNOWN}"), svg.tag("rect", class_="gap", **gap)])
            )
        made += svg.run(run, line.style)
        for begin, end, value, use in zip(edges, edges[1:], columns.values, line.values, strict=False):
            if not isfinite(value):
                continue
            use_told = f"{use:.0f} %" if isfinite(use) else NOT_KNOWN
            marks = [svg.title(f"{svg.day(begin)}: {value:,.1f} {columns.name}, {use_told}")]
            across = max(x(end) - x(begin) - 1, 0.8)
            tall = lower(0) - lower(value)
            box = {"x": x(begin) + 0.5, "y": lower(value), "width": across, "height": tall}
            marks.append(svg.tag("rect", class_=columns.style, **box))
            made.append(svg.group(marks))
        count = min(3 if width == NARROW else 6, len(begins))
        for n in range(count):
            begin = begins[n * len(begins) // count]
            made.append(
                svg.tag("line", x1=x(begin), x2=x(begin), y1=lower(0), y2=lower(0) + 5, class_="rule")
            )
            made.append(svg.text(x(begin), lower(0) + 18, svg.day(begin)))
        return lower(0) + 26, made

    return svg.plot(caption, draw, ((line.style, line.name), (columns.style, columns.name)))


def ranges(caption: Caption, rows: Sequence[Range], names: Sequence[str]) -> Plot:
    """Three quantiles of seconds a row, on a logarithmic scale; less than a second is drawn as one."""
    known = [one for row in rows for one in (row.low, row.high) if isfinite(one)]
    first = max((at for at, _ in SPANS if at <= min(known, default=1.0)), default=1.0)
    last = min((at for at, _ in SPANS if at >= max(known, default=1.0) and at > first), default=SPANS[-1][0])

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        left = 22.0 if narrow else min(230.0, SIGN * max(cell_len(row.label) for row in rows) + 22)
        step = 44.0 if narrow else 30.0
        bottom = len(rows) * step + 8

        def x(value: float) -> float:
            at = log10(max(min(value, last), first) / first) / log10(last / first)
            return left + (width - left - 26) * at

        ticks = [(at, name) for at, name in SPANS if first <= at <= last]
        ticks = ticks[:: 1 + len(ticks) // 6] if narrow else ticks
        made = [svg.tag("line", x1=x(at), x2=x(at), y1=0, y2=bottom, class_="rule") for at, _ in ticks]
        made += [svg.text(x(at), bottom + 16, name, anchor="middle") for at, name in ticks]
        for place, row in enumerate(rows):
            y = place * step + (30 if narrow else 18)
            at, above, anchor = (0.0, y - 14, "start") if narrow else (left - 18, y + 5, "end")
            label = svg.cut(row.label, (width if narrow else at) / SIGN)
            marks = [svg.title(f"{row.label}: {row.text}"), svg.text(at, above, label, anchor=anchor)]
            if isfinite(row.low):
                low, middle, high = x(row.low), x(row.middle), x(row.high)
                marks.append(svg.tag("line", x1=low, x2=high, y1=y, y2=y, class_="reach"))
                marks.append(svg.tag("line", x1=high, x2=high, y1=y - 7, y2=y + 7, class_="q3"))
                marks.append(svg.tag("path", d=f"M{middle:.1f} {y - 6}l6 6l-6 6l-6 -6z", class_="q2"))
                marks.append(svg.tag("circle", cx=low, cy=y, r=5.5, class_="q1"))
            else:
                marks.append(svg.text(left, y + 5, NOT_KNOWN, class_="none"))
            made.append(svg.group(marks))
        return bottom + 24, made

    return svg.plot(caption, draw, tuple(zip(("q1", "q2", "q3"), names, strict=True)))
