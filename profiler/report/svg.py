"""Pieces of plots as inline SVG: elements, axes, and a plot that is drawn for wide and for narrow pages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil, floor, log10
from typing import Final

from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

__all__ = [
    "NARROW", "SIGN", "SPANS", "WIDE", "Caption", "Plot", "cut", "day", "group", "levels", "plot", "run", "tag", "text",
    "ticks", "title",
]  # fmt: skip

WIDE: Final = 760
NARROW: Final = 340
SIGN: Final = 8.0
"""A sign's width at the size of labels, about."""
_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
SPANS: Final = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36000.0, "10 h"),
    (86400.0, "1 d"), (864000.0, "10 d"), (8640000.0, "100 d"),
)  # fmt: skip
"""Where a logarithmic axis of seconds may have ticks."""


@dataclass(frozen=True, slots=True)
class Caption:
    """What a plot is called: a name within the page, a title, and what it shows in words."""

    key: str
    title: str
    told: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, drawn for wide and for narrow pages; `legend` has a style and a name for each colour or sign."""

    wide: Markup
    narrow: Markup
    legend: tuple[tuple[str, str], ...] = ()


def plot(
    caption: Caption,
    draw: Callable[[int], tuple[float, list[Markup]]],
    legend: tuple[tuple[str, str], ...] = (),
) -> Plot:
    """What `draw` makes of a width: a height, and the marks."""
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
            tag(
                "svg", *inside, viewBox=f"0 0 {width} {ceil(height)}", role="img", class_=name,
                aria_labelledby=f"{of}-t", aria_describedby=f"{of}-d",
            )
        )  # fmt: skip
    return Plot(made[0], made[1], legend)


def tag(name: str, *inside: Markup, **attributes: float | str) -> Markup:
    """An element; `class_` is class, `text_anchor` text-anchor; numbers to a tenth."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"),
            value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0"),
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, Markup("").join(inside))


def group(marks: Iterable[Markup]) -> Markup:
    """What belongs together."""
    return tag("g", *marks)


def title(text: str) -> Markup:
    """What is said of a mark when one points at it."""
    return tag("title", escape(text))


def text(x: float, y: float, text: str, *, anchor: str = "start", class_: str = "label") -> Markup:
    """Text at a place: its beginning, middle or end stands there."""
    return tag("text", escape(text), x=x, y=y, text_anchor=anchor, class_=class_)


def cut(text: str, most: float) -> str:
    """As much of a label as there is room for; signs of East Asia and pictures take two places."""
    return text if cell_len(text) <= most else set_cell_size(text, int(most) - 1).rstrip() + "…"


def levels(
    step: float, top: float, y: Callable[[float], float], *, left: float, right: float, unit: str = " %"
) -> list[Markup]:
    """Lines across with their values, from 0 to the top."""
    made = []
    for n in range(round(top / step) + 1):
        value = n * step
        made.append(tag("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="rule"))
        made.append(text(left - 5, y(value) + 4, f"{value:,.10g}{unit}", anchor="end"))
    return made


def ticks(most: float) -> tuple[float, float]:
    """A step of levels, and the highest one: four or five of them hold the most."""
    if most <= 0:
        return 1.0, 1.0
    rough = most / 4
    power = 10 ** floor(log10(rough))
    step = next(nice * power for nice in _NICE if nice * power >= rough * 0.999)
    return step, step * ceil(most / step * 0.999)


def run(points: Sequence[tuple[float, float]], style: str) -> list[Markup]:
    """A line through points; one alone is a dot."""
    if not points:
        return []
    if len(points) == 1:
        return [tag("circle", cx=points[0][0], cy=points[0][1], r=2.5, class_=style)]
    return [tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=f"line {style}")]


def day(at: float) -> str:
    """The day of a moment, in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")
