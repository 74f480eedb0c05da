"""The wheel has what a host needs and nothing else, and what is left out of the packages is imported by nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from site_configs.devcluster.pythonenv import PACKAGES
from site_configs.packaging.targets import TARGETS
from site_configs.packaging.tree import UNITS
from site_configs.packaging.wheels import build_ours
from slurm_plugins.install.layout import HOOKS, SHIM
from tests.packages.conftest import EPOCH, build
from tests.paths import REPOSITORY

pytestmark = pytest.mark.needs("package-index")

OF_THIS_PYTHON = [name for name, target in TARGETS.items() if target.python == sys.version_info[:2]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_ours(REPOSITORY, tmp_path_factory.mktemp("wheel"), EPOCH)


def test_it_has_hooks_shim_and_units_and_neither_tests_nor_documents(wheel):
    with zipfile.ZipFile(wheel.path) as archive:
        names = set(archive.namelist())
        hooks = {name: archive.read(f"prolog_epilog/{name}") for name in HOOKS.values()}
    units = {name for units in UNITS.values() for name in units}
    assert {f"slurm_plugins/lua/{name}" for name in SHIM} <= names
    assert {f"site_configs/systemd/{name}" for name in units} <= names
    of_the_wheel = re.compile(r"gsub-[\d.]+\.(?:dist-info/|data/scripts/gsub$)")
    assert {name.split("/")[0] for name in names if not of_the_wheel.match(name)} == set(PACKAGES)
    assert {f"profiler/report/page/page.{kind}" for kind in ("html", "css", "js")} <= names
    for name, content in hooks.items():
        assert content == (REPOSITORY / "prolog_epilog" / name).read_bytes()


# What nodes, hooks, login hosts and services run needs none of it.
WITH_EXTRAS = (
    "profiler/report",
    "slurm_plugins/replay",
    "gsub/replay_page.py",  # what `gsub admin replay --html` imports, when it comes to that
    "slurm_plugins/tuner/opt.py",
    "profiler/speed.py",
)


def test_what_the_packages_leave_out_is_imported_by_reports_and_yardsticks_alone():
    imported: dict[str, Path] = {}
    extras = {REPOSITORY / name for name in WITH_EXTRAS}
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            if extras & {path, *path.parents}:
                continue
            for node in ast.walk(ast.parse(path.read_bytes())):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                imported |= {name.split(".")[0]: path for name in names if name}
    left_out = ("jinja2", "markupsafe", "numpy", "pandas", "pyarrow", "scipy")
    assert {name: imported[name] for name in left_out if name in imported} == {}


@pytest.mark.skipif(not OF_THIS_PYTHON, reason="no target has this Python")
def test_it_installs_without_an_index_from_a_folder_of_wheels(tmp_path):
    folder = tmp_path / "wheels"
    made = build(folder, OF_THIS_PYTHON[0], "--wheels")
    assert {path.parent for path in made} == {folder}
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", folder]
    subprocess.run(
        [*pip, "gsub[service]"], check=True, env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
    )
    for command in ("gsub", "gsubd", "gsub-noded"):
        done = subprocess.run([tmp_path / "venv/bin" / command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
