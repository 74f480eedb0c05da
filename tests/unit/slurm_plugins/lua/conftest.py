"""Fixtures: the shim under each Lua, and a decision service to misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import require
from tests.unit.slurm_plugins.lua.lua import VERSIONS, Shim, running
from tests.unit.slurm_plugins.lua.servers import Service


@pytest.fixture(scope="session", params=VERSIONS)
def lua(request: pytest.FixtureRequest) -> str:
    """A version of Lua that works here."""
    version: str = request.param
    require(f"lua{version}")
    return version


@pytest.fixture
def shim(lua: str) -> Iterator[Shim]:
    with running(lua) as shim:
        yield shim


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A decision service that misbehaves as told, on a socket that the shim trusts."""
    with Service(tmp_path / "decision.sock") as service:
        yield service
