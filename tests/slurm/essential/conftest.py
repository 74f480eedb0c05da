"""One small cluster with everything of gsub on it, and the jobs that the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from tests.slurm.essential.jobs import EssentialJobs


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """3 nodes x 4 GPUs in enforce, with hooks, agents, gsubd and gsub-act."""
    os.umask(0o022)
    name = f"t{os.getpid()}-ess{request.param}"
    spec = ClusterSpec(name, 3, 4, request.param, policy="enforce", deadline=1.0, short_delays=True)
    try:
        yield Cluster.up(spec)
    finally:
        Cluster.down(name)


@pytest.fixture(scope="package")
def jobs(cluster: Cluster) -> EssentialJobs:
    """The jobs, submitted; each test waits for what it is about."""
    found = EssentialJobs(cluster)
    found.submit()
    return found
