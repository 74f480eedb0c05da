"""The packages, built once for all tests of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gsub import __version__
from site_configs.devcluster.pythonenv import PACKAGES
from tests.paths import REPOSITORY

EPOCH = 1700000000
NEXT = "99.0.0"


def build(out: Path, *arguments: str, umask: int = 0o022) -> list[Path]:
    """Build packages as docs/packages.md says; their paths."""
    done = subprocess.run(
        [sys.executable, "-m", "site_configs.packaging", *arguments, "--out", str(out)],
        cwd=REPOSITORY,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
        umask=umask,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


class Built:
    """Packages by target, each built at its first use: `built["bookworm"]["gsub"]` is a path.

    All are of one copy of the sources, which may change while tests run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = self._copy("source", __version__)
        self._made: dict[tuple[str, str], dict[str, Path]] = {}

    def __getitem__(self, target: str) -> dict[str, Path]:
        return self._get(target, self.source)

    def later(self, target: str) -> dict[str, Path]:
        """The same sources as the version NEXT."""
        return self._get(target, self._copy("later", NEXT))

    def _get(self, target: str, source: Path) -> dict[str, Path]:
        made_of = (target, source.name)
        if made_of not in self._made:
            paths = build(self.folder / f"{target}-{source.name}", target, "--source", str(source))
            self._made[made_of] = {path.name.partition("_")[0]: path for path in paths}
        return self._made[made_of]

    def _copy(self, name: str, version: str) -> Path:
        source = self.folder / name
        if not source.exists():
            origin = REPOSITORY if name == "source" else self.source
            for package in PACKAGES:
                shutil.copytree(
                    origin / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
                )
            for document in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(origin / document, source)
            stated = source / "gsub/__init__.py"
            stated.write_text(stated.read_text().replace(__version__, version))
        return source


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("packages"))
