"""One cluster a release that enforces, with everything of gsub on it, and all jobs of the scenarios."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.actions.rig import Stage, stage


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """8 nodes x 2 GPUs in enforce; the partition "debug" in observe."""
    with stage(f"t{os.getpid()}-again{request.param}", request.param) as made:
        yield made.cluster


@pytest.fixture(scope="session")
def played(cluster: Cluster) -> Iterator[Stage]:
    """All jobs of the scenarios, submitted, and done to them what has to be done."""
    found = Stage(cluster)
    try:
        found.play()
        yield found
    finally:
        found.tidy()
