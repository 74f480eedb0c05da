"""A replay as one HTML file: its tables, with plots of the same numbers. Nothing in it is fetched from anywhere.

The look, the script and the Content-Security-Policy are the audit's (`profiler.report.layout`). It stands on this
floor, for it tells of replays (`slurm_plugins`) with what makes reports (`profiler.report`): the former may not import
the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Final

import numpy as np

from gsub.replay_view import NAME, Compared, Shown, head, sections, zone
from profiler.report.cells import cell
from profiler.report.layout import Cell, Column, Section, rendered
from profiler.report.lines import STYLES, Line, distribution, over_time
from profiler.report.plots import Range, ranges
from profiler.report.svg import Caption, Plot
from profiler.wording import NOT_KNOWN, plain, span
from slurm_plugins.replay.figures import Course, Sized, course
from slurm_plugins.replay.values import Floats

__all__ = ["page", "ticks"]

_PERCENTS: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_PARTS: Final = 240
"""Parts of the time that a line over it is made of."""
_ROWS: Final = 24
_STEPS: Final = (
    600,
    1800,
    3600,
    7200,
    21600,
    43200,
    86400,
    2 * 86400,
    7 * 86400,
    14 * 86400,
    28 * 86400,
    91 * 86400,
)


def page(it: Compared) -> str:
    """The whole page."""
    plain_ones = {one.name: one for one in sections(it)}
    waits = plain_ones.pop("waits")
    summary = plain_ones.pop("side_by_side")
    made = [
        summary,
        *_distributions(it),
        replace(waits, plot=_ranges(it)),
        *plain_ones.values(),
        *_over_time(it),
    ]
    return rendered(
        "replay.html",
        trace=plain(it.trace.name, NAME),
        lines=list(head(it)),
        cards=[_card(one) for one in it.columns],
        sections=made,
    )


def _card(one: Shown) -> Mapping[str, object]:
    jct, wait = one.figures.jct, one.figures.wait
    return {
        "name": plain(one.name, NAME),
        "text": cell("_s", jct.mean) if isfinite(jct.mean) else NOT_KNOWN,
        "more": f"from arrival to end in the mean; waited {_told(wait.mean)}, the 99th of a hundred {_told(wait.p99)}",
        "jobs": jct.jobs,
    }


def _told(seconds: float) -> str:
    return span(seconds) if isfinite(seconds) else NOT_KNOWN


def _lines(it: Compared) -> list[tuple[str, Shown]]:
    """Each column with a style of its own, as far as there are styles."""
    return [(STYLES[place % len(STYLES)], one) for place, one in enumerate(it.columns)]


# --- distributions --------------------------------------------------------------------------------------------------


def _distributions(it: Compared) -> list[Section]:
    arrival = it.trace["arrival"]
    ends = [one.replayed.ended - arrival for one in it.columns]
    delays = [np.maximum(one.replayed.started - arrival, 0.0) for one in it.columns]
    return [
        _distribution(it, "jct", "Job completion times", ends),
        _distribution(it, "delays", "Queueing delays", delays),
    ]


def _distribution(it: Compared, name: str, title: str, values: Sequence[Floats]) -> Section:
    """A line for each column, and the quantiles that it goes through."""
    lines, rows = [], []
    for (style, one), some in zip(_lines(it), values, strict=True):
        known = some[np.isfinite(some)]
        cells = [Cell(NOT_KNOWN, "") for _ in _PERCENTS]
        if len(known):
            shares = np.arange(101)
            at = np.quantile(known, shares / 100)
            lines.append(
                Line(style, plain(one.name, NAME), list(zip(at.tolist(), shares.tolist(), strict=True)))
            )
            cells = [Cell(cell("_s", at[percent]), f"{at[percent]:.12g}") for percent in _PERCENTS]
        rows.append(
            [Cell(plain(one.name, NAME), None, key=True), *cells, Cell(f"{len(known):,}", str(len(known)))]
        )
    told = f"How many of 100 jobs had a time of at most so much, a line for each of {len(lines)} policies."
    heads = [Column("policy", number=False), *(Column(f"p{percent}", number=True) for percent in _PERCENTS)]
    return Section(
        name,
        title,
        "",
        "How many of 100 jobs had at most so much. Less than a second is drawn as one.",
        len(it.trace),
        0,
        distribution(Caption(name, title, told), lines, "on a logarithmic scale") if lines else None,
        [*heads, Column("jobs", number=True)],
        rows,
        0,
        (),
    )


def _ranges(it: Compared) -> Plot | None:
    """Delays of each size under each policy: the median, and the worst of 20 and of 100."""
    rows = []
    sizes = list(dict.fromkeys(size.size for one in it.columns for size in one.figures.by_size))
    for size in sizes:
        for one in it.columns:
            for sized in one.figures.by_size:
                if sized.size == size and sized.wait.jobs:
                    rows.append(_range(size, one, sized))
    told = "Delays in the queue by GPUs and policy: the median, the 95th and the 99th of a hundred jobs."
    if not rows:
        return None
    return ranges(Caption("waits-plot", "Queueing delay by size", told), rows, ("p50", "p95", "p99"))


def _range(size: str, one: Shown, sized: Sized) -> Range:
    wait = sized.wait
    text = f"{_told(wait.p50)}, {_told(wait.p95)}, {_told(wait.p99)}"
    gpus = "no GPU" if size == "0" else "1 GPU" if size == "1" else f"{size} GPUs"
    return Range(f"{gpus}, {plain(one.name, NAME)}", wait.p50, wait.p95, wait.p99, text)


# --- over time ------------------------------------------------------------------------------------------------------


def _over_time(it: Compared) -> list[Section]:
    """GPUs in use, and jobs that wait, from the first arrival until a little after the last."""
    first, last = float(it.trace["arrival"].min()), float(it.trace["arrival"].max())
    until = last + 0.05 * (last - first)
    if last <= first:
        ends = [one.replayed.ended[np.isfinite(one.replayed.ended)] for one in it.columns]
        until = max((float(some.max()) for some in ends if len(some)), default=first + 1.0)
    edges = np.linspace(first, max(until, first + 1.0), _PARTS + 1)
    over = [course(it.trace, one.replayed) for one in it.columns]
    gpus, waiting = [(one, one.gpus) for one in over], [(one, one.waiting) for one in over]
    return [
        _course(it, "use", "GPUs in use over time", edges=edges, columns=gpus, top=it.cluster.gpus),
        _course(it, "queue", "Jobs in the queue over time", edges=edges, columns=waiting),
    ]


def _course(
    it: Compared,
    name: str,
    title: str,
    *,
    edges: Floats,
    columns: Sequence[tuple[Course, Floats]],
    top: float = 0.0,
) -> Section:
    means = [of.means(edges, values) for of, values in columns]
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    lines = [
        Line(style, plain(one.name, NAME), list(zip(middles, some.tolist(), strict=True)))
        for (style, one), some in zip(_lines(it), means, strict=True)
    ]
    part = _PARTS // _ROWS
    rows = [
        [
            Cell(_moment(it.trace.zero, float(edges[at])), f"{edges[at]:.12g}", key=True),
            *(_amount(float(some[at : at + part].mean())) for some in means),
        ]
        for at in range(0, _PARTS, part)
    ]
    zero = it.trace.zero
    named = f" ({zone(zero + float(edges[0]), zero + float(edges[-1]))})" if zero else ""
    told = f"{title}, a line for each of {len(lines)} policies."
    return Section(
        name,
        title,
        "",
        f"Means over parts of the time, {_PARTS} in the plot and {_ROWS} in the table. After the last arrival the "
        "cluster only runs empty: most of that is left out.",
        len(it.trace),
        0,
        over_time(Caption(name, title, told), lines, ticks(it.trace.zero, edges), f"time{named}", top),
        [
            Column(f"from{named}", number=True),
            *(Column(plain(one.name, NAME), number=True) for one in it.columns),
        ],
        rows,
        0,
        (),
    )


def _amount(value: float) -> Cell:
    return Cell(f"{value:,.1f}", f"{value:.12g}") if isfinite(value) else Cell(NOT_KNOWN, "")


def _moment(zero: float, at: float) -> str:
    if zero:
        return datetime.fromtimestamp(zero + at).strftime("%Y-%m-%d %H:%M")
    return span(at)


def ticks(zero: float, edges: Floats) -> list[tuple[float, str]]:
    """Round moments: local days by their dates where the trace has a place in time."""
    first, last = float(edges[0]), float(edges[-1])
    step = next((one for one in _STEPS if (last - first) / one <= 8), 365 * 86400)
    if not zero:
        return [(at, span(at)) for at in _round(first, last, step)]
    way = "%m-%d" if step >= 86400 else "%m-%d %H:%M"
    # A day begins when the clock on the wall says so: clocks may be changed between two ticks
    clock = _round(_on_the_wall(zero + first), _on_the_wall(zero + last), step)
    moments = dict.fromkeys((datetime(1970, 1, 1) + timedelta(seconds=at)).timestamp() for at in clock)
    return [(at - zero, datetime.fromtimestamp(at).strftime(way)) for at in moments]


def _round(first: float, last: float, step: float) -> list[float]:
    return [float(at) for at in np.arange(np.ceil(first / step) * step, last, step)]


def _on_the_wall(at: float) -> float:
    """What the local clock shows, as seconds since it showed 1970."""
    offset = datetime.fromtimestamp(at).astimezone().utcoffset() or timedelta()
    return at + offset.total_seconds()
