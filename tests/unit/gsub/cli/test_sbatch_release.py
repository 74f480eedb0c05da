"""The release that sbatch tells: asked once of one program, and never made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gsub.sbatch_release import sbatch_release


class Sbatch:
    """An sbatch that says what it is told to, and counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}

    def says(self, text: str, code: int = 0) -> None:
        path = self.folder / "sbatch"
        path.write_text(f"#!/bin/sh\necho >> {self.folder}/asked\necho '{text}'\nexit {code}\n")
        path.chmod(0o755)

    @property
    def asked(self) -> int:
        return len((self.folder / "asked").read_text())


@pytest.fixture
def sbatch(tmp_path: Path) -> Sbatch:
    return Sbatch(tmp_path)


@pytest.mark.parametrize("text", ["slurm 22.05.8", "slurm 22.05.0-0rc1"])
def test_it_is_asked_once(sbatch: Sbatch, text: str) -> None:
    sbatch.says(text)
    assert sbatch_release(sbatch.env, "") == sbatch_release({}, str(sbatch.folder)) == (22, 5)
    assert sbatch.asked == 1


def test_another_program_is_asked_anew(sbatch: Sbatch) -> None:
    sbatch.says("slurm 22.05.8")
    assert sbatch_release(sbatch.env, "") == (22, 5)
    sbatch.says("slurm 24.11.5 of ours")
    assert sbatch_release(sbatch.env, "") == (24, 11)


@pytest.mark.parametrize(("text", "code"), [("slurm 22.05.8", 1), ("slurm", 0), ("", 0)])
def test_no_answer_is_none_and_is_not_kept(sbatch: Sbatch, text: str, code: int) -> None:
    sbatch.says(text, code)
    assert sbatch_release(sbatch.env, "") is None
    assert sbatch_release(sbatch.env, "") is None
    assert sbatch.asked == 2


def test_without_sbatch_there_is_none(tmp_path: Path) -> None:
    assert sbatch_release({"PATH": str(tmp_path)}, "") is None
    assert sbatch_release({}, str(tmp_path)) is None
