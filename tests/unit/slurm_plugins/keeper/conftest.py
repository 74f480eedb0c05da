"""Fixtures: the keeper's application over a store of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.postgres import postgres
from tests.unit.slurm_plugins.keeper.door import Door, new_store

__all__ = ["postgres"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Over SQLite."""
    store = new_store(tmp_path)
    door = Door(store)
    yield door
    door.close()
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    """Over SQLite and PostgreSQL."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres").database())
    store = empty_store(url)
    door = Door(store)
    yield door
    door.close()
    store.close()
