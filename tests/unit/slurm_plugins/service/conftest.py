"""A gsubd of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.slurm_plugins.service.serving import Serving, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as found:
        yield found
