"""An audit on a terminal: tables of figures, each with what it rests on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from profiler.wording import NOT_KNOWN, amount, percent, plain, span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

    from profiler.report.figures import Table
    from profiler.report.files import About

__all__ = ["cell", "show"]

_ROWS: Final = 20
"""Most rows of a table that are shown; files have them all."""
_WIDE: Final = 240
"""Columns where nobody looks: nothing is cut off in a pipe."""
_HEADS: Final = {
    "gpu_hours": "GPU-hours",
    "gpu_hours_percent": "share",
    "attempts_percent": "of attempts",
    "wasted_hours_percent": "share",
    "wasted_percent": "of own",
    "run_s_percent": "share of it",
    "gpus": "GPUs",
    "gpus_1": "1 GPU",
    "gpus_2_4": "2-4",
    "gpus_over_4": "over 4",
    "gpus_mean": "GPUs held",
    "utilisation_p50_percent": "median",
    "over_10_min_percent": "over 10 min",
    "idle_hours": "never used h",
}


def show(about: About, tables: Sequence[Table]) -> None:
    """Print the tables, harmless on a terminal."""
    from rich.text import Text

    from gsub.term import is_terminal

    screen = _console(wide=not is_terminal(sys.stdout))
    zone = time.strftime("%Z", time.localtime(about.until))
    window = f"from {_date(about.since)} to {_date(about.until)} {zone}"
    pseudonyms = ", with pseudonyms" if about.pseudonyms else ""
    screen.print(Text(f"{plain(about.cluster)}: attempts at jobs that ran {window}{pseudonyms}"))
    for table in tables:
        screen.print()
        unknown = f", of which {table.unknown:,} with something not known" if table.unknown else ""
        screen.print(Text.assemble((table.title, "bold"), f"  ({table.attempts:,} attempts{unknown})"))
        if len(table.rows):
            screen.print(_grid(table))
        left = len(table.rows) - _ROWS
        if left > 0:
            screen.print(Text(f"  and {left:,} more: --csv or --json has them", "dim"))
        screen.print(Text(f"  {table.note}", "dim"))


def _console(*, wide: bool) -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=_WIDE if wide else None)


def _grid(table: Table) -> Grid:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    texts = [column for column in table.rows if table.rows[column].dtype.kind == "O"]
    for column in table.rows:
        left = column in texts and column != "value"
        grid.add_column(Text(head(str(column))), justify="left" if left else "right", overflow="fold")
    units = table.rows.get("unit")
    for place, row in enumerate(table.rows.head(_ROWS).itertuples(index=False)):
        unit = "" if units is None else str(units.iloc[place])
        # As text, not as markup: these are names that users gave
        grid.add_row(*(Text(one) for one in _cells(list(table.rows.columns), row, unit)))
    return grid


def _cells(columns: Sequence[str], row: Sequence[Any], unit: str) -> Iterator[str]:
    for column, value in zip(columns, row, strict=True):
        yield cell(
            {"h": "_hours", "%": "_percent", "s": "_s"}.get(unit, "") if column == "value" else column, value
        )


def head(column: str) -> str:
    """A column's name as a person reads it.

    >>> head("wait_s_p50"), head("passed_percent"), head("gpu_hours")
    ('wait p50', 'passed', 'GPU-hours')
    """
    if column in _HEADS:
        return _HEADS[column]
    words = column.removesuffix("_percent").replace("_s_", " ").replace("_hours", " h")
    return words.replace("_", " ")


def cell(column: str, value: Any) -> str:  # noqa: ANN401 - of any column
    """A value as a person reads it, by what its column holds (its name says it).

    >>> cell("gpu_hours", 1234.56), cell("x_percent", 12.3), cell("wait_s_p50", 90), cell("user", "a[b]")
    ('1,234.6', '12 %', '1 min 30 s', 'a[b]')
    """
    if isinstance(value, str):
        return plain(value, 40)
    if value is None or value != value or (isinstance(value, float) and isnan(value)):  # noqa: PLR0124 - NaT too
        return NOT_KNOWN
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d"))
    if column.endswith("_hours"):
        return f"{value:,.1f}" if value >= 0.05 or not value else "<0.1"
    if column.endswith("_percent"):
        return percent(float(value))
    if column.endswith("_s") or "_s_" in column:
        return span(float(value))
    if column.endswith("_mean"):
        return amount(float(value))
    return f"{value:,.0f}"


def _date(at: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
