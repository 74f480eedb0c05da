"""Broken scripts are stopped with the right file and line; scripts that are well are not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.gsub.preflight.conftest import Look
from tests.unit.gsub.preflight.real_life import REAL_LIFE
from tests.unit.gsub.preflight.scripts import BROKEN, GOOD, HEAD, Case


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_broken_script_is_stopped(case: Case, look: Look) -> None:
    verdict = look(case)
    assert not verdict.given_up
    assert [(one.file, one.line) for one in verdict.errors] == [case.at], verdict
    assert case.says in verdict.errors[0].what
    assert verdict.errors[0].do


@pytest.mark.parametrize("case", GOOD + REAL_LIFE, ids=lambda case: case.name)
def test_a_good_script_is_not_stopped(case: Case, look: Look) -> None:
    verdict = look(case)
    assert not verdict.given_up
    assert verdict.errors == ()


def test_there_are_enough_of_both() -> None:
    assert len(BROKEN) >= 16 and len(GOOD) >= 30 and len(REAL_LIFE) >= 30
    for cases in (BROKEN, GOOD + REAL_LIFE):
        assert len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("release", "levels"),
    [("22.05.8", ["error"]), ("23.11.1", ["warning"]), ("24.11.5", []), ("26.05.5", [])],
)
def test_newer_releases_make_the_folder_of_the_output(
    look: Look, home: Path, release: str, levels: list[str]
) -> None:
    sbatch = home / "bin/sbatch"
    before = sbatch.read_text()
    sbatch.write_text(f"#!/bin/sh\necho slurm {release}\n")
    try:
        verdict = look(Case("output", HEAD + "#SBATCH -o logs/%j.out\ntrue\n"))
    finally:
        sbatch.write_text(before)
    assert [one.level for one in verdict.findings] == levels
