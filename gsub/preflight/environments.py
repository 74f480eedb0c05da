"""Where conda's environments are, as conda itself looks for them, without running it."""

# ruff: noqa: PTH110, PTH112, PTH118, PTH119, PTH120 - paths as scripts have them

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gsub.preflight.children import read_file
from gsub.preflight.values import Submission

__all__ = ["conda_prefix"]

_ENVS_DIRS: Final = re.compile(r"^(?:envs_dirs|envs_path)\s*:", re.MULTILINE)


def conda_prefix(name: str, variables: Mapping[str, str], submission: Submission) -> str | None:
    """The folder of an environment; "" when there is certainly none of that name, None when nobody knows.

    Searched are the folders of conda (docs.conda.io, "Specifying environment directories"): CONDA_ENVS_PATH, `envs` of
    the installation, ~/.conda/envs, and those that ~/.conda/environments.txt remembers.
    """
    if "/" in name:
        path = name if name.startswith("/") else os.path.join(submission.folder, name)
        return path if _is_environment(path) else "" if not os.path.lexists(path) else None
    base = _base(variables)
    if name in ("base", "root"):
        return base
    for folder in _folders(base, variables, submission):
        path = os.path.join(folder, name)
        if _is_environment(path):
            return path
    for line in _lines(os.path.join(submission.home, ".conda/environments.txt")):
        if os.path.basename(line) == name and _is_environment(line):
            return line
    settings = [
        os.path.join(submission.home, ".condarc"),
        os.path.join(base or "/", ".condarc"),
        "/etc/conda/.condarc",
    ]
    if base is None or any(_ENVS_DIRS.search("\n".join(_lines(path))) for path in settings):
        return None
    return ""


def _base(variables: Mapping[str, str]) -> str | None:
    if variables.get("CONDA_BASE"):  # from a line `source BASE/etc/profile.d/conda.sh`
        return variables["CONDA_BASE"]
    program = variables.get("CONDA_EXE", "")
    return os.path.dirname(os.path.dirname(program)) if program.endswith("/bin/conda") else None


def _folders(base: str | None, variables: Mapping[str, str], submission: Submission) -> Iterator[str]:
    yield from (
        one
        for one in variables.get("CONDA_ENVS_PATH", variables.get("CONDA_ENVS_DIRS", "")).split(":")
        if one
    )
    if base:
        yield os.path.join(base, "envs")
    yield os.path.join(submission.home, ".conda/envs")


def _is_environment(path: str) -> bool:
    return os.path.isdir(os.path.join(path, "conda-meta")) or os.path.exists(os.path.join(path, "bin/python"))


def _lines(path: str) -> list[str]:
    try:
        return read_file(path).decode(errors="replace").splitlines()
    except OSError:
        return []
