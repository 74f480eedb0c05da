"""A plugin of pytest that makes each test the context of the lines that it runs, in its children too.

tests/coverage_report.py loads it and sets the variables: coverage.py starts in each Python process that sees
COVERAGE_PROCESS_START, and takes COVERAGE_CONTEXT as the context (pyproject.toml).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from coverage import Coverage

CONTEXT: Final = "COVERAGE_CONTEXT"
SECONDS: Final = "COVERAGE_SECONDS"
"""Variable that names a file for the seconds of each test."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test while it runs."""
    test = item.nodeid
    measuring = Coverage.current()
    started = time.perf_counter()
    os.environ[CONTEXT] = test
    if measuring:
        measuring.switch_context(test)
    try:
        return (yield)
    finally:
        del os.environ[CONTEXT]
        if measuring:
            measuring.switch_context("")
        if SECONDS in os.environ:
            with Path(os.environ[SECONDS]).open("a") as file:
                file.write(f"{test}\t{time.perf_counter() - started:.3f}\n")
