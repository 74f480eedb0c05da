"""Fixtures: one development cluster a release, brought up once and shared by all tests that need Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES

KEEP = "GSUB_TEST_KEEP_CLUSTER"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slurm",
        default="host",
        help=f"releases to run the cluster tests on, comma-separated: {','.join(RELEASES)} (default: host)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        releases = metafunc.config.getoption("--slurm").split(",")
        unknown = set(releases) - set(RELEASES)
        if unknown:
            raise pytest.UsageError(f"--slurm: no release {', '.join(sorted(unknown))}")
        metafunc.parametrize("cluster", releases, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A real Slurm with 8 nodes x 8 emulated GPUs; its name is its own, so a cluster in use is left alone."""
    os.umask(0o022)
    release = request.param
    found = Cluster.up(ClusterSpec(name=f"test-{release}", slurm=release))
    yield found
    if not os.environ.get(KEEP):
        Cluster.down(found.spec.name)


@pytest.fixture
def user(cluster: Cluster) -> str | None:
    """An ordinary user of the cluster; None where there is one user only."""
    return cluster.users[0] if cluster.users else None


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with an empty queue, before and after."""
    cluster.clean()
    yield cluster
    cluster.clean()
