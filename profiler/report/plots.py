"""Plots of an audit as inline SVG, made by hand from the rows of its tables. Pure.

Marks have classes and no colours: the page's style sheet gives them, by day and by night. Each plot is drawn twice,
wide and narrow, since text that is scaled down to a phone cannot be read; the style sheet shows one of them. What is
not known has no mark: a line has a gap there, a bar says "n/a", or "–" where that is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil, floor, isfinite, log10
from typing import Final

from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

from profiler.wording import NOT_KNOWN

__all__ = ["Bar", "Caption", "Plot", "Range", "Series", "bars", "course", "groups", "ranges"]

WIDE: Final = 760
NARROW: Final = 340
_SIGN: Final = 8.0
"""A sign's width at the size of labels, about."""
_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SPANS: Final = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36000.0, "10 h"),
    (86400.0, "1 d"), (864000.0, "10 d"), (8640000.0, "100 d"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caption:
    """What a plot is called: a name within the page, a title, and what it shows in words."""

    key: str
    title: str
    told: str


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


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, drawn for wide and for narrow pages; `legend` has a style and a name for each colour or sign."""

    wide: Markup
    narrow: Markup
    legend: tuple[tuple[str, str], ...] = ()


def bars(caption: Caption, rows: Sequence[Bar]) -> Plot:
    """Lying bars, each with its label and its value."""
    most = max((row.value for row in rows if isfinite(row.value)), default=0.0) or 1.0

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        left = 0.0 if narrow else min(230.0, _SIGN * max(cell_len(row.label) for row in rows) + 14)
        step = 40.0 if narrow else 30.0
        room = width - left - _SIGN * max(len(row.text) for row in rows) - 12
        made = []
        tall = 14.0 if narrow else 20.0
        for place, row in enumerate(rows):
            top = place * step + (18 if narrow else 4)
            middle = top + tall / 2 + 4.5
            x, y, anchor = (0.0, top - 6, "start") if narrow else (left - 12, middle, "end")
            label = _cut(row.label, (width if narrow else x) / _SIGN)
            marks = [_title(f"{row.label}: {row.text}"), _text(x, y, label, anchor=anchor)]
            length = 0.0
            if isfinite(row.value):
                length = max(room * row.value / most, 1.5 if row.value > 0 else 0.0)
                marks.append(_tag("rect", x=left, y=top, width=length, height=tall, rx=2, class_=row.style))
            marks.append(_text(left + length + 7, middle, row.text, class_="value"))
            made.append(_group(marks))
        return len(rows) * step + 4, made

    return _plot(caption, draw)


def groups(caption: Caption, labels: Sequence[str], series: Sequence[Series], axis: str) -> Plot:
    """Standing bars of per cent: one of each series beside each other, for each label."""
    most = max((value for one in series for value in one.values if isfinite(value)), default=0.0)
    step, top = _ticks(most)

    def draw(width: int) -> tuple[float, list[Markup]]:
        height, left, above = (190.0 if width == NARROW else 220.0), 46.0, 12.0
        each = (width - left) / len(labels)
        wide = min(each * 0.76 / len(series), 34.0)

        def y(value: float) -> float:
            return above + height * (1 - value / top)

        made = _levels(step, top, y, left=left, right=width)
        for place, label in enumerate(labels):
            begin = left + each * place + (each - wide * len(series)) / 2
            for n, one in enumerate(series):
                value, x = one.values[place], begin + wide * n
                if not isfinite(value):
                    lost = NOT_KNOWN if wide > 3 * _SIGN else "–"
                    made.append(_text(x + wide / 2, y(0) - 4, lost, anchor="middle", class_="none"))
                    continue
                marks = [_title(f"{label}, {one.name}: {value:.1f} %")]
                marks.append(
                    _tag(
                        "rect",
                        x=x + 0.5,
                        y=y(value),
                        width=wide - 1,
                        height=y(0) - y(value),
                        class_=one.style,
                    )
                )
                made.append(_group(marks))
            made.append(_text(left + each * (place + 0.5), y(0) + 17, label, anchor="middle"))
        made.append(_text((left + width) / 2, y(0) + 37, axis, anchor="middle", class_="axis"))
        return above + height + 44, made

    return _plot(caption, draw, tuple((one.style, one.name) for one in series))


def course(caption: Caption, begins: Sequence[float], until: float, line: Series, columns: Series) -> Plot:
    """Per cent over time as a line above, an amount as columns below; `begins` are the starts of each part.

    A part of which the line's value is not known is a gap, and a mark on the ground says so.
    """
    edges = [*begins, until]
    _, top = _ticks(max((value for value in columns.values if isfinite(value)), default=0.0))

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, above, high, between, low = 46.0, 12.0, 170.0, 34.0, 80.0
        span = max(edges[-1] - edges[0], 1.0)

        def x(at: float) -> float:
            return left + (width - left - 6) * (at - edges[0]) / span

        def upper(value: float) -> float:
            return above + high * (1 - value / 100)

        def lower(value: float) -> float:
            return above + high + between + low * (1 - value / top)

        made = _levels(25, 100, upper, left=left, right=width) + _levels(
            top, top, lower, left=left, right=width, unit=""
        )
        made.append(_text(left, above + high + between - 10, columns.name, class_="axis"))
        run: list[tuple[float, float]] = []
        for begin, end, value in zip(edges, edges[1:], [*line.values, float("nan")], strict=False):
            if isfinite(value):
                run.append((x((begin + end) / 2), upper(value)))
                continue
            made += _run(run, line.style)
            run = []
            gap = {"x": x(begin), "width": x(end) - x(begin), "y": upper(0) - 5, "height": 5}
            made.append(_group([_title(f"{_day(begin)}: {NOT_KNOWN}"), _tag("rect", class_="gap", **gap)]))
        made += _run(run, line.style)
        for begin, end, value, use in zip(edges, edges[1:], columns.values, line.values, strict=False):
            if not isfinite(value):
                continue
            use_told = f"{use:.0f} %" if isfinite(use) else NOT_KNOWN
            marks = [_title(f"{_day(begin)}: {value:,.1f} {columns.name}, {use_told}")]
            across = max(x(end) - x(begin) - 1, 0.8)
            tall = lower(0) - lower(value)
            box = {"x": x(begin) + 0.5, "y": lower(value), "width": across, "height": tall}
            marks.append(_tag("rect", class_=columns.style, **box))
            made.append(_group(marks))
        count = min(3 if width == NARROW else 6, len(begins))
        for n in range(count):
            begin = begins[n * len(begins) // count]
            made.append(_tag("line", x1=x(begin), x2=x(begin), y1=lower(0), y2=lower(0) + 5, class_="rule"))
            made.append(_text(x(begin), lower(0) + 18, _day(begin)))
        return lower(0) + 26, made

    return _plot(caption, draw, ((line.style, line.name), (columns.style, columns.name)))


def ranges(caption: Caption, rows: Sequence[Range], names: Sequence[str]) -> Plot:
    """Three quantiles of seconds a row, on a logarithmic scale; less than a second is drawn as one."""
    known = [one for row in rows for one in (row.low, row.high) if isfinite(one)]
    first = max((at for at, _ in _SPANS if at <= min(known, default=1.0)), default=1.0)
    last = min(
        (at for at, _ in _SPANS if at >= max(known, default=1.0) and at > first), default=_SPANS[-1][0]
    )

    def draw(width: int) -> tuple[float, list[Markup]]:
        narrow = width == NARROW
        left = 22.0 if narrow else min(230.0, _SIGN * max(cell_len(row.label) for row in rows) + 22)
        step = 44.0 if narrow else 30.0
        bottom = len(rows) * step + 8

        def x(value: float) -> float:
            at = log10(max(min(value, last), first) / first) / log10(last / first)
            return left + (width - left - 26) * at

        ticks = [(at, name) for at, name in _SPANS if first <= at <= last]
        ticks = ticks[:: 1 + len(ticks) // 6] if narrow else ticks
        made = [_tag("line", x1=x(at), x2=x(at), y1=0, y2=bottom, class_="rule") for at, _ in ticks]
        made += [_text(x(at), bottom + 16, name, anchor="middle") for at, name in ticks]
        for place, row in enumerate(rows):
            y = place * step + (30 if narrow else 18)
            at, above, anchor = (0.0, y - 14, "start") if narrow else (left - 18, y + 5, "end")
            label = _cut(row.label, (width if narrow else at) / _SIGN)
            marks = [_title(f"{row.label}: {row.text}"), _text(at, above, label, anchor=anchor)]
            if isfinite(row.low):
                low, middle, high = x(row.low), x(row.middle), x(row.high)
                marks.append(_tag("line", x1=low, x2=high, y1=y, y2=y, class_="reach"))
                marks.append(_tag("line", x1=high, x2=high, y1=y - 7, y2=y + 7, class_="q3"))
                marks.append(_tag("path", d=f"M{middle:.1f} {y - 6}l6 6l-6 6l-6 -6z", class_="q2"))
                marks.append(_tag("circle", cx=low, cy=y, r=5.5, class_="q1"))
            else:
                marks.append(_text(left, y + 5, NOT_KNOWN, class_="none"))
            made.append(_group(marks))
        return bottom + 24, made

    return _plot(caption, draw, tuple(zip(("q1", "q2", "q3"), names, strict=True)))


# --- pieces ---------------------------------------------------------------------------------------------------------


def _plot(
    caption: Caption,
    draw: Callable[[int], tuple[float, list[Markup]]],
    legend: tuple[tuple[str, str], ...] = (),
) -> Plot:
    made = []
    for width, name in ((WIDE, "wide"), (NARROW, "narrow")):
        height, marks = draw(width)
        of = f"{caption.key}-{name}"
        inside = [
            Markup('<title id="{}-t">{}</title>').format(of, caption.title),
            Markup('<desc id="{}-d">{}</desc>').format(of, caption.told),
            *marks,
        ]
        made.append(
            _tag(
                "svg", *inside, viewBox=f"0 0 {width} {ceil(height)}", role="img", class_=name,
                aria_labelledby=f"{of}-t", aria_describedby=f"{of}-d",
            )
        )  # fmt: skip
    return Plot(made[0], made[1], legend)


def _tag(name: str, *inside: Markup, **attributes: float | str) -> Markup:
    """An element; `class_` is class, `text_anchor` text-anchor; numbers to a tenth."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"),
            value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0"),
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, Markup("").join(inside))


def _group(marks: Iterable[Markup]) -> Markup:
    return _tag("g", *marks)


def _title(text: str) -> Markup:
    return _tag("title", escape(text))


def _text(x: float, y: float, text: str, *, anchor: str = "start", class_: str = "label") -> Markup:
    return _tag("text", escape(text), x=x, y=y, text_anchor=anchor, class_=class_)


def _cut(text: str, most: float) -> str:
    """As much of a label as there is room for; signs of East Asia and pictures take two places."""
    return text if cell_len(text) <= most else set_cell_size(text, int(most) - 1).rstrip() + "…"


def _levels(
    step: float, top: float, y: Callable[[float], float], *, left: float, right: float, unit: str = " %"
) -> list[Markup]:
    """Lines across with their values, from 0 to the top."""
    made = []
    for n in range(round(top / step) + 1):
        value = n * step
        made.append(_tag("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="rule"))
        made.append(_text(left - 5, y(value) + 4, f"{value:,.4g}{unit}", anchor="end"))
    return made


def _ticks(most: float) -> tuple[float, float]:
    """A step of levels, and the highest one: four or five of them hold the most."""
    if most <= 0:
        return 1.0, 1.0
    rough = most / 4
    power = 10 ** floor(log10(rough))
    step = next(nice * power for nice in _NICE if nice * power >= rough * 0.999)
    return step, step * ceil(most / step * 0.999)


def _run(points: Sequence[tuple[float, float]], style: str) -> list[Markup]:
    """A line through points; one alone is a dot."""
    if not points:
        return []
    if len(points) == 1:
        return [_tag("circle", cx=points[0][0], cy=points[0][1], r=2.5, class_=style)]
    return [_tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=f"line {style}")]


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")
