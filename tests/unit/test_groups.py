"""Groups of tests: one worker runs a whole group, and the longest group comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.groups import group_of
from tests.paths import REPOSITORY

CONFTEST = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
import pytest
from tests.conftest import pytest_xdist_make_scheduler

@pytest.fixture(autouse=True)
def noted(request, worker_id):
    with open("ran", "a") as file:
        file.write(f"{{request.node.nodeid}} {{worker_id}}\\n")
"""
MODULE = """
import pytest

@pytest.mark.parametrize("release", ["host", "trixie"])
@pytest.mark.parametrize("number", range(3))
def test_one(release, number):
    pass
"""


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/unit/a/test_b.py::test_c[host-1]", "tests/unit/a/test_b.py"),
        ("tests/slurm/act/test_b.py::test_c[host]", "tests/slurm/act-host"),
        ("tests/slurm/act/test_b.py::TestA::test_c[1-forky-x]", "tests/slurm/act-forky"),
        ("tests/slurm/test_docs.py::test_c[why.md-trixie]", "tests/slurm/shared-trixie"),
        ("tests/slurm/shim/test_b.py::test_c[trixie]", "tests/slurm/shared-trixie"),
        ("tests/slurm/act/test_b.py::test_without_a_cluster", "tests/slurm/act/test_b.py"),
        ("gsub/argv.py::gsub.argv.split", "gsub/argv.py"),
        ("tests/packages/test_build.py::test_c", "tests/packages/test_build.py"),
        ("tests/packages/test_on_bare.py::test_c[trixie]", "tests/packages/test_on_bare.py::test_c[trixie]"),
    ],
)
def test_a_group_is_a_file_or_a_directory_on_a_release(test: str, group: str) -> None:
    assert group_of(test) == group


@pytest.mark.slow
def test_a_group_stays_on_one_worker(tmp_path: Path) -> None:
    for name in ("slurm/act/test_a", "slurm/act/test_b", "slurm/cli/test_c", "unit/test_d", "unit/test_e"):
        file = tmp_path / f"tests/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MODULE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    argv = [sys.executable, "-m", "pytest", "-n2", "-q", "-c", "/dev/null", f"--rootdir={tmp_path}", "tests"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    workers: dict[str, set[str]] = {}
    for line in (tmp_path / "ran").read_text().splitlines():
        test, worker = line.rsplit(" ", 1)
        workers.setdefault(group_of(test), set()).add(worker)
    assert {group for group, names in workers.items() if len(names) > 1} == set()
    assert {"tests/slurm/act-host", "tests/slurm/cli-trixie", "tests/unit/test_d.py"} <= set(workers)
    assert len(set.union(*workers.values())) == 2, "both workers work"
