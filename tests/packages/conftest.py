"""The packages, built once for all tests of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EPOCH = "1700000000"


def build(out: Path, *arguments: str) -> list[Path]:
    """Build packages as docs/packages.md says; their paths."""
    done = subprocess.run(
        [sys.executable, "-m", "site_configs.packaging", *arguments, "--out", str(out)],
        cwd=REPOSITORY,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


class Built:
    """Packages by target, each built at its first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, dict[str, Path]] = {}

    def __getitem__(self, target: str) -> dict[str, Path]:
        if target not in self._made:
            self._made[target] = {
                path.name.partition("_")[0]: path for path in build(self.folder / target, target)
            }
        return self._made[target]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("packages"))
