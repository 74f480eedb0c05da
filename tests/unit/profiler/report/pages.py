"""Pages of audits to be looked at: of a made-up history in which names are what users may make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd

from profiler.report.figures import BY, Table, audit
from profiler.report.files import About
from profiler.report.frames import jobs
from profiler.report.html import page
from tests.unit.profiler.report.history import CLUSTER, SINCE, UNTIL, fill
from tests.unit.profiler.store.empty import empty_store

ABOUT = About('lab<b>"&\u202e', SINCE, UNTIL)
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked=2">',
    "</style><svg onload=window.hacked=3>",
    "{{ 7 * 7 }}{% raw %}",
    "https://tracker.example/a.png",
    "مستخدم التجربة",
    "evil\u202egnp.exe\u2066",
    "🦊🚀 naïve ユーザー",
    "x" * 300,
    "two words " * 30,
    "line\nbreak\x1b[31m\x00",
    "=cmd|' /C calc'!A0",
)


def history(folder: Path, attempts: int = 3000) -> pd.DataFrame:
    """A year of a site; the users, accounts and reasons that matter most have names to suffer for."""
    store = empty_store(f"sqlite:///{folder / 'store.db'}")
    fill(store, attempts)
    frame: pd.DataFrame = jobs(store, cluster=CLUSTER, since=SINCE, until=UNTIL)
    store.close()
    for column in ("user", "account", "reason", "gpu_type", "partition"):
        first = frame.groupby(column, observed=True).gpu_hours.sum().nlargest(len(HOSTILE)).index
        frame[column] = frame[column].cat.rename_categories(dict(zip(first, HOSTILE, strict=False)))
    return frame


def crowd(frame: pd.DataFrame, users: int) -> pd.DataFrame:
    """The same attempts, many times, by so many users of long names."""
    whole = pd.concat([frame] * (1 + 2 * users // len(frame)), ignore_index=True)
    names = [f"user-{n:06d}-" + "n" * 40 for n in range(users)]
    codes = np.arange(len(whole)) % users
    whole["user"] = pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype=object))
    return whole


def made(
    frame: pd.DataFrame, split: Sequence[str] = tuple(BY), until: float = UNTIL
) -> tuple[str, dict[str, Table]]:
    """The page, and the tables that it is made of."""
    tables = audit(frame, since=SINCE, until=until, split=split)
    return page(replace(ABOUT, until=until), tables), {table.name: table for table in tables}


@dataclass
class Cell:
    """A cell as it is in the page."""

    tag: str
    value: str | None
    text: str = ""
    isolated: bool = False


@dataclass
class Reader(HTMLParser):
    """What is in a page, by a parser that knows nothing of how it was made."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, dict[str, list[list[Cell]]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Of style, script and title."""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._table = ""
        self._part = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        self._open.append(tag)
        if tag == "table":
            self._table = str(named["id"]).removesuffix("-table")
            self.tables[self._table] = {"thead": [], "tbody": [], "tfoot": []}
        elif tag in ("thead", "tbody", "tfoot"):
            self._part = tag
        elif tag == "tr":
            self.tables[self._table][self._part].append([])
        elif tag in ("td", "th"):
            self._row().append(Cell(tag, named.get("data-value")))
        elif tag == "bdi" and self._table:
            self._row()[-1].isolated = True

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self._table and {"td", "th"} & set(self._open):
            self._row()[-1].text += data
        elif self._open:
            self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + data

    def _row(self) -> list[Cell]:
        return self.tables[self._table][self._part][-1]


def read(text: str) -> Reader:
    """The page, taken apart."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader
