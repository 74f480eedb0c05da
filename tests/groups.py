"""Groups of tests that one worker runs, and their order.

A group is a file, or the tests of a directory on a cluster of one release. pytest-xdist hands out whole groups; the
longest first, so that none is left alone at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from site_configs.devcluster.spec import RELEASES
from tests.paths import REPOSITORY

DURATIONS: Final = REPOSITORY / "tests/data/durations.json"
"""Seconds of each group in an earlier run. Only the order depends on it; a group that it lacks runs first."""
SHARING: Final = frozenset(
    f"tests/slurm{name}"
    for name in ("", "/client", "/devcluster", "/learn", "/preflight", "/shim", "/smoke", "/train")
)
"""Directories with few tests on the shared cluster: one group, so that a release's cluster is started once for all."""
SPREAD: Final = ("tests/packages/test_on_bare.py", "tests/packages/test_under_systemd.py")
"""Files of long tests that share nothing: each test is a group. One worker would have half an hour with all of them."""
_RELEASE: Final = re.compile(rf"[\[-]({'|'.join(RELEASES)})[\]-]")


def group_of(test: str) -> str:
    """Name the group of a test: its file; of a test on a cluster its directory, or those of SHARING, and the release.

    A test of SPREAD is a group by itself.

    Args:
        test: node id, whose parameters name the release.

    >>> group_of("tests/unit/profiler/test_usage.py::test_means[1-2]")
    'tests/unit/profiler/test_usage.py'
    >>> group_of("tests/slurm/act/test_on_slurm.py::test_hold[trixie-urgent]")
    'tests/slurm/act-trixie'
    """
    path = test.split("::", 1)[0]
    if path in SPREAD:
        return test
    release = _RELEASE.search(test) if path.startswith("tests/slurm/") else None
    if not release:
        return path
    directory = path.rpartition("/")[0]
    return f"{'tests/slurm/shared' if directory in SHARING else directory}-{release[1]}"


def order_groups(items: Sequence[pytest.Item], durations: Mapping[str, float]) -> list[pytest.Item]:
    """Order tests by group, the longest group first; within a group their order stays."""
    members: dict[str, list[pytest.Item]] = {}
    for item in items:
        members.setdefault(group_of(item.nodeid), []).append(item)
    first = sorted(members, key=lambda group: (-durations.get(group, float("inf")), group))
    return [item for group in first for item in members[group]]


def read_durations() -> dict[str, float]:
    """Read the seconds of each group; none where the file is missing."""
    try:
        found: dict[str, float] = json.loads(DURATIONS.read_text())
    except FileNotFoundError:
        return {}
    return found


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """The scheduler of pytest-xdist that keeps each of our groups on one worker, in the order of the collection.

    Its own groups, by the marker xdist_group, have no effect where pytest's items have no ``_nodeid`` (9.2).
    """

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class DurationRecorder:
    """A plugin that adds up the seconds of each group, and writes them when the run ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = group_of(report.nodeid)
        self.seconds[group] = self.seconds.get(group, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        merged = read_durations() | {group: round(total, 1) for group, total in self.seconds.items()}
        DURATIONS.write_text(json.dumps(dict(sorted(merged.items())), indent=0) + "\n")
