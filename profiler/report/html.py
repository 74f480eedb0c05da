"""An audit as one HTML file: its tables, with plots of the same numbers. Nothing in it is fetched from anywhere.

The page is `page/page.html` (Jinja2, which escapes all that it is given), its look `page/page.css`, sorting and
filtering `page/page.js`; without the script everything is there to be read. A Content-Security-Policy names both by
their digests and allows nothing else: even a name that found its way into the markup could not run or call home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from math import isfinite, nan
from typing import Any, Final

import pandas as pd

from profiler.report.cells import CAUSES, UNITS, cell, head
from profiler.report.figures import UNKNOWN, Table
from profiler.report.files import About
from profiler.report.layout import Cell, Column, Section, rendered
from profiler.report.sections import NAME, amount_of_hours, draw, say
from profiler.wording import NOT_KNOWN, percent, plain

__all__ = ["ROWS", "page"]

ROWS: Final = 500
"""Most rows of a table that are in the page; its last row tells what the others come to."""
_SUMMED: Final = ("gpu_hours_percent", "wasted_hours_percent", "attempts", "unknown")
"""Columns that may be added up over rows, beside all in hours."""
_WITH_ALL: Final = ("utilisation", "waiting", "waiting_by_cause_and_size")
"""Tables whose last row is that of all."""
_FIRST: Final = ("utilisation_over_time", "utilisation_spread", "utilisation")
"""The tables that come first; the others follow in their order."""
_CARDS: Final = (
    ("GPU-hours", "GPU-hours", None),
    ("utilisation", "Mean utilisation", None),
    ("GPU-hours wasted, by both", "GPU-hours wasted", "share wasted, by both"),
    ("GPU-hours of failed attempts", "… by failed attempts", "share of failed attempts"),
    ("GPU-hours of GPUs never used", "… by GPUs never used", "share never used"),
    ("median wait for GPUs", "Median wait for GPUs", None),
    ("jobs", "Jobs", None),
    ("users", "Users", None),
)
"""Figures of the table `totals` that come first, what they are called there, and which one is their share."""


def page(about: About, tables: Sequence[Table]) -> str:
    """The whole page."""
    ordered = sorted(
        tables, key=lambda table: _FIRST.index(table.name) if table.name in _FIRST else len(_FIRST)
    )
    whole = next(table for table in tables if table.name == "totals")
    return rendered(
        "page.html",
        cluster=plain(about.cluster, NAME),
        since=_moment(about.since),
        until=_moment(about.until),
        pseudonyms=about.pseudonyms,
        cards=_cards(whole),
        sections=[_section(table, about) for table in ordered if table is not whole],
        everything=_section(whole, about),
    )


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M")


# --- tables ---------------------------------------------------------------------------------------------------------


def _section(table: Table, about: About) -> Section:
    rows = table.rows
    keys = 2 if table.name == "locality" else 1
    columns = [
        Column(_head(table.name, str(name)), pd.api.types.is_numeric_dtype(rows[name])) for name in rows
    ]
    left = max(0, len(rows) - ROWS)
    whole = [*_cells(rows.tail(1), keys)] if table.name in _WITH_ALL else []
    return Section(
        table.name,
        table.title,
        "" if table.name == "totals" else say(table),
        table.note,
        table.attempts,
        table.unknown,
        draw(table, about),
        columns,
        list(_cells(rows.head(len(rows) - 1 if whole else ROWS), keys)),
        left,
        [_rest(rows.iloc[ROWS:])] if left else whole,
    )


def _head(table: str, column: str) -> str:
    """As on a terminal, but with a word more where there is room for it."""
    more = {
        ("locality", "nodes"): "on how many nodes",
        ("locality", "utilisation_p50_percent"): "median utilisation",
        ("failures", "run_s_percent"): "share of run time",
        ("utilisation_spread", "utilisation"): "utilisation, %",
    }
    return more.get((table, column)) or head(column)


def _cells(rows: pd.DataFrame, keys: int) -> Iterable[list[Cell]]:
    names = [str(name) for name in rows]
    units = rows["unit"].tolist() if "unit" in rows else [None] * len(rows)
    for unit, row in zip(units, rows.itertuples(index=False), strict=True):
        yield [
            _cell(
                UNITS.get(unit, "") if name == "value" and unit is not None else name, value, key=place < keys
            )
            for place, (name, value) in enumerate(zip(names, row, strict=True))
        ]


def _cell(name: str, value: Any, *, key: bool = False) -> Cell:  # noqa: ANN401 - of any column
    if isinstance(value, str) and value != UNKNOWN:
        return Cell(CAUSES.get(value, value) if name == "cause" else plain(value, NAME), None, key)
    if isinstance(value, str) or pd.isna(value):
        return Cell(NOT_KNOWN, "", key)
    number = value.timestamp() if hasattr(value, "timestamp") else float(value)
    return Cell(cell(name, value), f"{number:.12g}", key)


def _rest(rows: pd.DataFrame) -> list[Cell]:
    """How many rows are left out, and what they come to, where that is a sum."""
    made = [Cell(f"{len(rows):,} more", None, key=True)]
    for name in map(str, rows.columns[1:]):
        if name.endswith("_hours") or name in _SUMMED:
            made.append(_cell(name, rows[name].sum(min_count=1)))
        else:
            made.append(Cell("", None))
    return made


def _cards(table: Table) -> list[Mapping[str, object]]:
    rows = table.rows.set_index("figure")
    made: list[Mapping[str, object]] = []
    for name, shown, of in _CARDS:
        row = rows.loc[name]
        value = float(row["value"])
        part = nan if of is None else float(rows.loc[of, "value"])
        share = f"{percent(part)} of {'those known' if row['unknown'] else 'all'}" if isfinite(part) else ""
        unit, text = row["unit"], _cell(UNITS.get(row["unit"], ""), value).text
        if unit == "h" and isfinite(value):
            text = f"{amount_of_hours(value)} h"
        made.append({"name": shown, "text": text, "share": share, **row[["attempts", "unknown"]].to_dict()})
    return made
