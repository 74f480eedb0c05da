"""Processes of ours: none takes its modules from where users write."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurm_plugins.service.child import python
from tests.paths import REPOSITORY

PATIENCE = 60.0


@pytest.mark.case("A10")
def test_a_child_takes_no_module_from_a_hostile_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "json", "profiler", "slurm_plugins"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'made')!r}, 'w').close()\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run((*python("slurm_plugins.service"), "--help"), capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0 and not (tmp_path / "made").exists()


@pytest.mark.case("A10")
def test_every_module_is_run_isolated() -> None:
    """Neither the working directory nor PYTHONPATH may give a process of ours its modules."""
    started = re.compile(r"sys\.executable,\s*(?:\"-[A-Z]\",\s*)*\"-m\"")
    for folder in ("slurm_plugins", "profiler", "prolog_epilog", "gsub", "site_configs/packaging"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            for found in started.findall(file.read_text()):
                assert '"-I"' in found, file
