"""Hooks and fixtures of all tests: one environment, releases, groups, and a shared cluster for each worker."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.machine import alive
from tests.cases import CaseReport
from tests.environment import reset_environment
from tests.groups import DurationRecorder, GroupScheduling, order_groups, read_durations
from tests.releases import ReleasePlan, plan_releases
from tests.requirements import RequirementGate

_PLAN: pytest.StashKey[ReleasePlan] = pytest.StashKey()
_NAME = re.compile(r"t(\d+)-(\w+)")
SLURM_TIMEOUT_S = 600


# The same examples in every run: what is new in a run is then what changed. `random` looks for what nobody thought of.
hypothesis.settings.register_profile("quick", max_examples=20, derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("full", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slurm", help="run each test of a cluster on these releases: host,trixie,forky")
    parser.addoption("--case", help="run only the tests of this row of the list of cases; all: of every row")
    parser.addoption("--only", help="run only the tests whose ids this JSON file lists")
    parser.addoption(
        "--record-durations", action="store_true", help="write the seconds of each group (with -n)"
    )


def pytest_configure(config: pytest.Config) -> None:
    reset_environment()
    try:
        config.stash[_PLAN] = plan_releases(config.getoption("--slurm"))
    except ValueError as error:
        raise pytest.UsageError(f"--slurm: {error}") from None
    config.pluginmanager.register(RequirementGate(), "gsub-requirements")
    if config.getoption("--case"):
        config.pluginmanager.register(CaseReport(config.getoption("--case")), "gsub-cases")
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(), "gsub-durations")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return config.stash[_PLAN].describe()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        everywhere = metafunc.definition.get_closest_marker("all_releases") is not None
        owner = metafunc._arg2fixturedefs["cluster"][-1].baseid
        # Tests of a directory's or module's own cluster go together: one cluster then serves them all.
        chosen_by = metafunc.definition.nodeid if owner in ("", "tests") else owner
        releases = metafunc.config.stash[_PLAN].choose(chosen_by, everywhere=everywhere)
        # Without a scope it is the fixture's own: a module's cluster is down when that module is through.
        metafunc.parametrize("cluster", releases, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("--only")
    if only:
        asked = set(json.loads(Path(only).read_text()))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in asked])
        items[:] = [item for item in items if item.nodeid in asked]
    for item in items:
        if item.nodeid.startswith("tests/slurm/"):
            item.add_marker(pytest.mark.slurm)
        if item.nodeid.startswith("tests/packages/"):
            item.add_marker(pytest.mark.packages)
        if item.get_closest_marker("slurm") or item.get_closest_marker("packages"):
            item.add_marker(pytest.mark.timeout(SLURM_TIMEOUT_S))
    items[:] = order_groups(items, read_durations())


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A real Slurm with 8 nodes x 8 emulated GPUs, this worker's own: several runs may go on side by side."""
    for name in Cluster.names():
        left = _NAME.fullmatch(name)
        if left and not alive(int(left[1])):  # of a test run that was killed
            Cluster.down(name)
    release = request.param
    # The shim's own deadline, 50 ms, is kept by an idle machine: here it would leave jobs undecided now and then.
    # Agents have tests of their own, on a cluster of their own: to these they would be so much less of the machine.
    spec = ClusterSpec(
        name=f"t{os.getpid()}-{release}", slurm=release, deadline=1.0, agents=False, short_delays=True
    )
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
