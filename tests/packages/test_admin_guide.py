"""docs/admin.md, typed as written on a Debian that is booted: from nothing to observe, and off again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import slurm
from tests.packages.booted import SLURM, BootedHost, booted, idle
from tests.packages.conftest import Built
from tests.packages.test_under_systemd import decides, hooked, pytestmark, recorded, up, waiting
from tests.paths import REPOSITORY

__all__ = ["pytestmark"]

GUIDE = REPOSITORY / "docs/admin.md"
_TYPED = re.compile(r"^(?:controller|node|all)# (.*)$", re.MULTILINE)
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def typed(text: str) -> dict[str, list[str]]:
    """What the guide has typed in its console blocks, by the headings above them."""
    found = {}
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        lines = [line for block in _CONSOLE.findall(section) for line in _TYPED.findall(block)]
        if lines:
            found[heading] = lines
    return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BootedHost]:
    with booted("trixie", tmp_path) as made:
        yield made


def test_the_guide_typed_as_written(host: BootedHost, built: Built):
    sections = typed(GUIDE.read_text())
    before = (host.root / "etc/slurm/slurm.conf").read_bytes()
    host.copy(*built[host.suite].values(), to="/root/packages")
    said = {}
    for heading, lines in sections.items():
        for line in lines:
            said[line] = host.run(f"cd /root/packages && {line}", timeout=240).stdout
            if line != "gsub admin install --yes":
                continue
            idle(host)
            host.wait("gsubd and gsub-noded", lambda: up(host) and decides(host))
            host.wait("the nodes to be heard of", lambda: not waiting(host), 120)
        if heading == "Observe":
            host.wait("slurmd to run the hooks", lambda: hooked(host))
            assert "1 GPU" in recorded(host)
    assert sections.keys() == {
        "Getting it onto the hosts",
        "Looking before changing",
        "Observe",
        "Does it work?",
        "Advise, enforce",
        "Upgrading",
        "Taking it off",
    }
    assert "+JobSubmitPlugins=lua" in said["gsub admin doctor; gsub admin install --plan"]
    assert "nothing to do" in said["gsub admin upgrade --plan"]
    assert (host.root / "etc/slurm/slurm.conf").read_bytes() == before
    host.run(f"systemctl restart {SLURM}")
    idle(host)
    assert slurm.run_job(host)
