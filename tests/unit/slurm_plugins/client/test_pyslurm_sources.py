"""Everything that we use of pyslurm is in the newest pyslurm: held against its sources, since it can seldom be
installed.
"""

import pytest

from slurm_plugins.client.pyslurm_sources import ALSO_USED, SOURCES
from tests.requirements import require
from tests.unit.slurm_plugins.client.pyslurm_package import Sources, source_package


@pytest.fixture(scope="module")
def sources() -> Sources:
    require("pyslurm-sources")
    return Sources(source_package())


USED = sorted(
    {source.load for source in SOURCES.values()}
    | {
        f"{source.item}.{attribute}"
        for source in SOURCES.values()
        for attribute, _ in source.attributes.values()
    }
    | set(ALSO_USED)
)


@pytest.mark.parametrize("path", USED)
def test_what_is_used_is_there(sources, path):
    assert sources.has(path), f"pyslurm.{path} is used by gsub, and not in pyslurm's sources"


@pytest.mark.parametrize(
    "path",
    [
        "Job.nothing",
        "Jobs.lod",
        "db.Job.tres_allocated",
        "db.Jobs.dict",
        "Nope.load",
        "RPCErr",
        "db.JobFilter.uid",
    ],
)
def test_what_is_not_there_is_missed(sources, path):
    assert not sources.has(path)
