"""Every test of the store runs on both databases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiler.store import Store
from tests.requirements import require
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.postgres import postgres

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
    store = empty_store(url)
    yield store
    store.close()


@pytest.fixture
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Addresses of more empty stores, by the kind of database."""
    numbers = iter(range(1000))

    def url(kind: str) -> str:
        if kind == "postgresql":
            return str(request.getfixturevalue("postgres").database())
        return f"sqlite:///{tmp_path / f'other{next(numbers)}.db'}"

    return url


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    require("mounts")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "gsub-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
