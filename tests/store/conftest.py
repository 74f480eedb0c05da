"""Every test of the store runs on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiler.store import Store, open_store
from tests.store.postgres import postgres

__all__ = ["postgres"]


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Addresses of empty stores, on each database."""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        return lambda: str(server.database())
    numbers = iter(range(1000))
    return lambda: f"sqlite:///{tmp_path / f'store{next(numbers)}.db'}"


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty store."""
    store = open_store(url)
    store.migrate()
    yield store
    store.close()
