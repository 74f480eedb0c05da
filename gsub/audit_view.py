"""An audit on a terminal: tables of figures, each with what it rests on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from profiler.report.cells import UNITS, cell, head
from profiler.wording import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

    from profiler.report.figures import Table
    from profiler.report.files import About

__all__ = ["show"]

_ROWS: Final = 20
"""Most rows of a table that are shown; files have them all."""
_WIDE: Final = 240
"""Columns where nobody looks: nothing is cut off in a pipe."""


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
        yield cell(UNITS.get(unit, "") if column == "value" else column, value)


def _date(at: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
