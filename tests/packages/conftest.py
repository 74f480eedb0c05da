"""The packages, built once a run for all tests of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gsub import __version__
from site_configs.devcluster.machine import locked
from site_configs.devcluster.pythonenv import PACKAGES
from tests.paths import REPOSITORY
from tests.requirements import require

EPOCH = 1700000000
NEXT = "99.0.0"


def build(out: Path, *arguments: str, umask: int = 0o022) -> list[Path]:
    """Build packages as docs/packages.md says; their paths."""
    require("package-index")
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

    All are of one copy of the sources, which may change while tests run. Workers that run tests side by side share the
    folder, and what is in it: one builds, the others wait for it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.source = self._copy("source", __version__)

    def __getitem__(self, target: str) -> dict[str, Path]:
        return self._get(target, self.source)

    def later(self, target: str) -> dict[str, Path]:
        """The same sources as the version NEXT."""
        return self._get(target, self._copy("later", NEXT))

    def _get(self, target: str, source: Path) -> dict[str, Path]:
        name = f"{target}-{source.name}"
        done = self.folder / f"{name}.done"
        with locked(self.folder / f"{name}.lock"):
            if not done.exists():
                paths = build(self.folder / name, target, "--source", str(source))
                done.write_text("\n".join(map(str, paths)))
        made = map(Path, done.read_text().splitlines())
        return {path.name.partition("_")[0]: path for path in made}

    def _copy(self, name: str, version: str) -> Path:
        source = self.folder / name
        with locked(self.folder / f"{name}.lock"):
            if source.exists():
                return source
            origin, copy = REPOSITORY if name == "source" else self.source, self.folder / f"{name}.new"
            for package in PACKAGES:
                shutil.copytree(
                    origin / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
                )
            for document in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(origin / document, copy)
            stated = copy / "gsub/__init__.py"
            stated.write_text(stated.read_text().replace(__version__, version))
            copy.rename(source)
        return source


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    own = tmp_path_factory.getbasetemp()
    return Built((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "packages")
