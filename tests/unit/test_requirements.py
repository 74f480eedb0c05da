"""Tests that need what a machine lacks: left out by name with one line, or failed where CI is set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import requirements
from tests.requirements import REQUIREMENTS, MissingError, Requirement, RequirementGate, find_problem

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from tests.requirements import require

@pytest.fixture
def engine():
    require("warp")

@pytest.mark.needs("warp")
def test_marked(): pass

@pytest.mark.needs("air", "warp")
@pytest.mark.parametrize("n", [1, 2])
def test_second_of_two(n): pass

def test_fixture(engine): pass

@pytest.mark.needs("air")
def test_air(): pass

@pytest.mark.skip(reason="needs rest: none is left")
def test_other(): pass
"""
SENTENCE = "needs warp: there is no engine; apt-get install engine"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """Tests that need air, which there is, and warp, which there is not; each is checked once."""

    def check_warp() -> None:
        checked.append("warp")
        raise MissingError("there is no engine")

    checked: list[str] = []
    table = {
        "warp": Requirement(check_warp, "apt-get install engine"),
        "air": Requirement(lambda: checked.append("air"), "open a window"),
    }
    monkeypatch.setattr(requirements, "REQUIREMENTS", table)
    monkeypatch.delenv("CI", raising=False)
    find_problem.cache_clear()
    pytester.makeini("[pytest]\nmarkers = needs(*names): as in the project\n")
    pytester.makepyfile(TESTS)
    yield pytester
    find_problem.cache_clear()
    assert sorted(checked) == ["air", "warp"]


def run(suite: pytest.Pytester) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "no:randomly", plugins=[RequirementGate()])


def test_what_is_missing_leaves_its_tests_out_with_one_line(suite: pytest.Pytester) -> None:
    result = run(suite)
    result.assert_outcomes(passed=1, skipped=5)
    assert [line for line in result.outlines if line.startswith("left out")] == [
        f"left out: 4 tests {SENTENCE.replace('needs', 'need')}"
    ]


def test_what_is_missing_fails_its_tests_where_ci_is_set(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(suite)
    # Before a test runs nothing fails but its setup: pytest calls that an error.
    result.assert_outcomes(passed=1, skipped=1, errors=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*{SENTENCE}"])


@pytest.mark.slow
def test_every_hint_is_one_line() -> None:
    for name, requirement in REQUIREMENTS.items():
        assert requirement.hint and "\n" not in requirement.hint, name
        assert " " not in name
