"""Fixtures: one development cluster a release, brought up once and shared by all tests that need Slurm."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import hypothesis
import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.machine import alive
from site_configs.devcluster.spec import RELEASES

_RELEASES: pytest.StashKey[list[str]] = pytest.StashKey()
_NAME = re.compile(r"t(\d+)-(\w+)")


# The same examples in every run, whatever the load: what is new in a run is then what changed, not what was drawn.
# With GSUB_TEST_RANDOM=1 they are drawn anew, to find what was not thought of.
hypothesis.settings.register_profile("steady", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("random" if os.environ.get("GSUB_TEST_RANDOM") else "steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slurm",
        help=f"releases for the cluster tests, comma-separated: {','.join(RELEASES)}; default: all that can run here",
    )


def pytest_configure(config: pytest.Config) -> None:
    asked = config.getoption("--slurm")
    releases = asked.split(",") if asked else [*RELEASES] if "CI" in os.environ or _chroots() else ["host"]
    unknown = set(releases) - set(RELEASES)
    if unknown:
        raise pytest.UsageError(f"--slurm: no release {', '.join(sorted(unknown))}")
    config.stash[_RELEASES] = list(releases)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        releases = metafunc.config.stash[_RELEASES]
        # No scope said: it is then the fixture's own, and a cluster of one module's is down when that module is through
        metafunc.parametrize("cluster", releases, indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = [release for release in RELEASES if release not in config.stash[_RELEASES]]
    if left_out:
        why = "not asked for" if config.getoption("--slurm") else "only root can make their chroots"
        terminalreporter.write_line(f"Slurm releases left out: {', '.join(left_out)} ({why})")


def _chroots() -> bool:
    """Whether this machine lets us make and enter chroots: root alone does not do in many containers."""
    if os.geteuid() != 0:
        return False
    return (
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "true"], capture_output=True
        ).returncode
        == 0
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A real Slurm with 8 nodes x 8 emulated GPUs, this test run's own: several runs may go on side by side."""
    os.umask(0o022)
    for name in Cluster.names():
        left = _NAME.fullmatch(name)
        if left and not alive(int(left[1])):  # of a test run that was killed
            Cluster.down(name)
    release = request.param
    # The shim's own deadline, 50 ms, is kept by an idle machine: here it would leave jobs undecided now and then.
    # Agents have tests of their own, on a cluster of their own: to these they would be so much less of the machine.
    spec = ClusterSpec(name=f"t{os.getpid()}-{release}", slurm=release, deadline=1.0, agents=False)
    found = Cluster.up(spec)
    yield found
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
