"""The report of `make cases`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.paths import REPOSITORY

TESTS = """
import pytest

@pytest.mark.case("A2", "S1")
@pytest.mark.parametrize("number", [1, 2])
def test_two_rows(number):
    assert number == 1

@pytest.mark.case("A10")
def test_in_its_fixture(request):
    pytest.skip("not here")

@pytest.mark.case("T1")
def test_another():
    pass

def test_of_no_row():
    assert False
"""
CONFTEST = """
from tests.cases import CaseReport

def pytest_addoption(parser):
    parser.addoption("--case")

def pytest_configure(config):
    config.addinivalue_line("markers", "case(*rows): a row")
    config.pluginmanager.register(CaseReport(config.getoption("--case")))
"""


def report(path: Path, case: str) -> tuple[list[str], str]:
    (path / "test_some.py").write_text(TESTS)
    (path / "conftest.py").write_text(CONFTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--rootdir={path}", f"--case={case}", str(path)],
        capture_output=True,
        text=True,
        cwd=path,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith(("A", "S1", "T1"))], lines[-1]


def test_each_row_is_counted_by_outcome(tmp_path: Path) -> None:
    rows, last = report(tmp_path, "all")
    assert rows == ["A2: 1 failed, 1 passed", "A10: 1 skipped", "S1: 1 failed, 1 passed", "T1: 1 passed"]
    assert "1 deselected" in last


def test_one_row_alone(tmp_path: Path) -> None:
    rows, last = report(tmp_path, "T1")
    assert rows == ["T1: 1 passed"]
    assert "4 deselected" in last
