"""What pages share: a table with what it says and its plot, and a file that needs nothing else.

Jinja2 escapes all that a template is given. A Content-Security-Policy in each page names the style sheet and the script
by their digests and allows nothing else. Templates are in `page/`, and what several use is in `page/parts.html`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from profiler.report.svg import Plot

__all__ = ["Cell", "Column", "Section", "rendered"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, and whether it is of numbers."""

    head: str
    number: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: `value` is the number that it is sorted by, None of a text, and empty where nothing is known."""

    text: str
    value: str | None
    key: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A table with what it says and its plot; in its foot the row of all, or the sums of the rows that are left out."""

    name: str
    title: str
    finding: str
    note: str
    attempts: int
    unknown: int
    plot: Plot | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left: int
    foot: Sequence[Sequence[Cell]]


def rendered(template: str, **values: object) -> str:
    """A page: the template with these values, our style sheet and our script."""
    loader = jinja2.PackageLoader("profiler.report", "page")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = (
        # Files of ours, not text of others
        Markup(loader.get_source(environment, f"page.{kind}")[0])  # noqa: S704
        for kind in ("css", "js")
    )
    return environment.get_template(template).render(
        style=style, style_digest=_digest(style), script=script, script_digest=_digest(script), **values
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
