"""What docs/health.md shows works as it is written there: the class, its entry point, the site file's tables."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from prolog_epilog.health import children
from prolog_epilog.health.child import GROUP
from prolog_epilog.health.plan import planned
from site_configs.site import load_site, parse_site
from tests.unit.prolog_epilog.health.test_runner import NO_CHILDREN, Node, node

__all__ = ["node"]

GUIDE = (REPOSITORY / "docs/health.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_tables_for_the_site_file_are_read_and_planned():
    tables = [block for block in blocks("toml") if "[project" not in block]
    assert len(tables) == 3
    site = parse_site('cluster = "c"\n' + "\n".join(tables))
    plan = planned(site, "gpu03", spool="/s", slurmd_spool="/d", points=())
    assert plan.problems == ()
    names = {check.name for check in plan.checks}
    assert {"nhc", "nvlink"} <= names and "clock_offset" not in names


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Iterator[int]:
    """The guide's class, installed as pip would, asking a server of ours; yields that server's port."""
    (source,) = blocks("python")
    declared = tomllib.loads(next(block for block in blocks("toml") if "[project" in block))
    site_packages = tmp_path / "site-packages"
    package = site_packages / "mysite"
    info = site_packages / "mysite-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mysite\nVersion: 1.0\n")
    points = declared["project"]["entry-points"][GROUP]
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}broken = mysite.nowhere:Check\n")
    monkeypatch.syspath_prepend(site_packages)
    # In the place of an installation in this very environment, which others use at the same time
    monkeypatch.setattr(children, "_COMMAND", (sys.executable, "-m", "prolog_epilog.health.child"))
    monkeypatch.setenv("PYTHONPATH", str(site_packages))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert '("licences.example.org", 27000)' in source
        (package / "checks.py").write_text(
            source.replace('("licences.example.org", 27000)', f'("127.0.0.1", {port})')
        )
        yield port


def test_the_class_runs_and_a_broken_neighbour_is_told_and_passed_over(installed, node: Node):
    site = "[health.checks.licence]\nevery = '1s'\n[health.checks.broken]\nevery = '1s'\n"
    runner = node.start(NO_CHILDREN + site)
    broken = node.until(name="broken", state="unknown")
    assert "ModuleNotFoundError" in broken.detail
    assert [event for event in node.events if event.name == "licence"] == []
    assert runner.state().conditions["licence"][""].detail == "the licence server answers"


def test_the_class_tells_a_server_that_is_gone(installed, node: Node):
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    checks = (
        next(Path(path) for path in sys.path if (Path(path) / "mysite/checks.py").exists())
        / "mysite/checks.py"
    )
    checks.write_text(checks.read_text().replace(str(installed), str(free)))
    node.start(NO_CHILDREN + "[health.checks.licence]\nevery = '1s'\n")
    event = node.until(name="licence", state="error")
    assert "the licence server does not answer" in event.detail
    assert event.action == "comment"


def test_the_example_in_the_module_is_a_class_that_can_be_made():
    from prolog_epilog.health import finding

    text = finding.__doc__ or ""
    assert "from prolog_epilog.health.finding import Finding, HealthCheck" in text
    code = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ") or not line)
    scope: dict[str, object] = {}
    exec(compile(code, "finding", "exec"), scope)
    licence = scope["Licence"]
    assert isinstance(licence, type) and issubclass(licence, finding.HealthCheck)
    licence()


def test_the_examples_of_site_files_are_planned_without_a_problem():
    for path in sorted((REPOSITORY / "site_configs/examples").glob("*.toml")):
        assert planned(load_site(path), "n1", spool="/s", slurmd_spool="/d", points=()).problems == (), path
