"""What a package is built of: no release of a dependency that nobody has tried."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from tests.paths import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TOOLS = {"dev", "test"}
_AS_SLURM = {"pyslurm"}
"""Those that equal Slurm's release."""


@pytest.mark.case("A10")
def test_each_dependency_has_an_upper_bound() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    stated = [
        *project["dependencies"],
        *(one for name in extras if name not in _TOOLS for one in extras[name]),
    ]
    wanted = [one for one in map(Requirement, stated) if one.name not in _AS_SLURM]
    assert len(wanted) > 15
    free = [str(one) for one in wanted if not any(each.operator in ("<", "==") for each in one.specifier)]
    assert not free
