"""Inputs that failed once, by the row of the list that names them.

A test of such an input carries its rows,

    @pytest.mark.case("A2", "S1")

``make cases`` runs them all, ``make cases CASE=A2`` those of one row, and ends with what came of each row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest


def rows_of(item: pytest.Item) -> list[str]:
    """List the rows that a test belongs to."""
    return [str(row) for marker in item.iter_markers("case") for row in marker.args]


def order_of(row: str) -> list[tuple[int, str]]:
    """Return a key that sorts rows as people count.

    >>> sorted(["A10", "A2", "users 3", "B1"], key=order_of)
    ['A2', 'A10', 'B1', 'users 3']
    """
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", row)]


class CaseReport:
    """A plugin that selects the tests of one row, and counts what came of the tests of each row.

    Args:
        asked: the row whose tests run; "all": those of every row.
    """

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self.rows: dict[str, list[str]] = {}
        self.outcomes: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [
            item for item in items if (rows := rows_of(item)) and (self.asked == "all" or self.asked in rows)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
        self.rows = {item.nodeid: rows_of(item) for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.outcomes.get(report.nodeid) != "failed" and (report.when == "call" or not report.passed):
            self.outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("cases")
        for line in self.describe():
            terminalreporter.line(line)

    def describe(self) -> Sequence[str]:
        """List each row with the number of its tests by outcome."""
        counts: dict[str, Counter[str]] = {}
        for test, outcome in self.outcomes.items():
            for row in self.rows.get(test, []):
                counts.setdefault(row, Counter())[outcome] += 1
        return [
            f"{row}: {', '.join(f'{counts[row][outcome]} {outcome}' for outcome in sorted(counts[row]))}"
            for row in sorted(counts, key=order_of)
        ]
