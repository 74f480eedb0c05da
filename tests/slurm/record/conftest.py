"""One cluster a release with agents on its nodes, whose GPUs are laid out in four ways."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from tests.slurm.record.recorded import Recorded


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """5 nodes x 4 GPUs: n1 and n2 plain, n3 reversed, n4 with gaps, n5 with MIG instances."""
    os.umask(0o022)
    release = request.param
    name = f"t{os.getpid()}-rec{release}"
    spec = ClusterSpec(
        name,
        5,
        4,
        release,
        deadline=1.0,
        layouts=("plain", "plain", "reversed", "gaps", "mig"),
        short_delays=True,
    )
    try:
        yield Cluster.up(spec)
    finally:
        Cluster.down(name)


@pytest.fixture(scope="package")
def record(cluster: Cluster) -> Recorded:
    """Jobs and what is known of them."""
    found = Recorded(cluster)
    found.wait_for("the service", found.jobs)  # gsubd decides before its keeper has a store
    return found
