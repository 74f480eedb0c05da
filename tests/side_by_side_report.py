"""A pytest plugin: one JSON line for each thing that happens, so that the runner knows where a part is and what failed.

    python -m pytest -p tests.side_by_side_report --report-to FILE [--only FILE] ...

Lines: ``{"collected": 120}``, ``{"start": ID}``, ``{"test": ID, "outcome": "passed", "why": ""}``, for a file that
cannot be collected ``{"broken": PATH, "why": ...}``, and at last ``{"through": 12}``: the process should end now, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

_PR_SET_PDEATHSIG = 1  # prctl(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report-to", help="append what happens to this file, as JSON lines")
    parser.addoption(
        "--only", help="run only the tests whose node ids are the lines (JSON strings) of this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if to := config.getoption("--report-to"):
        # A runner killed outright takes its parts along: as ^C would, so that they take their clusters down.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        config.pluginmanager.register(_Report(Path(to)), "side-by-side")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("--only")
    if not only:
        return
    asked = {json.loads(line) for line in Path(only).read_text().splitlines()}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in asked])
    items[:] = [item for item in items if item.nodeid in asked]


_write = os.write
"""As it is before any test replaces it: a test's report is written before its replacements are taken back."""


class _Report:
    """Writes the lines. Each is one write, so that whoever reads meanwhile sees whole ones."""

    def __init__(self, to: Path) -> None:
        self._fd = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _say(self, **what: str | int) -> None:
        _write(self._fd, json.dumps(what).encode() + b"\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say(broken=report.nodeid, why=reason(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._say(collected=len(session.items))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._say(through=session.testscollected)

    def pytest_runtest_logstart(self, nodeid: str, location: Sequence[object]) -> None:
        self._say(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        elif report.when != "call":
            if report.passed:
                return
            outcome = "error" if report.failed else "skipped"
        self._say(test=report.nodeid, outcome=outcome, why=reason(report) if report.failed else "")


def reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """What went wrong, in one line: what the exception says, else the last line of the report."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (
        crash.message if crash else report.longreprtext.strip().rpartition("\n")[2].removeprefix("E").strip()
    ).splitlines()
    return lines[0][:300] if lines else ""
