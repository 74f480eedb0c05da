"""Groups of tests that one worker runs, and their order.

A group is a file, or the tests that share a cluster. pytest-xdist hands out whole groups; the longest first, so that
none is left alone at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tests.paths import REPOSITORY

DURATIONS: Final = REPOSITORY / "tests/data/durations.json"
"""Seconds of each group in an earlier run. Only the order depends on it; a group that it lacks runs first."""


def group_of(item: pytest.Item) -> str:
    """Name the group of a test: its file; for a test on a cluster, the owner of the cluster and the release.

    Tests of the shared cluster are grouped by directory: each worker that has such a group starts one.
    """
    path = item.nodeid.split("::", 1)[0]
    params: Mapping[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if "cluster" not in params:
        return path
    definitions = item._fixtureinfo.name2fixturedefs["cluster"]  # type: ignore[attr-defined]
    owner: str = definitions[-1].baseid
    if owner in ("", "tests"):
        owner = path.rpartition("/")[0]
    return f"{owner}-{params['cluster']}"


def order_groups(items: Sequence[pytest.Item], durations: Mapping[str, float]) -> list[pytest.Item]:
    """Order tests by group, the longest group first; within a group their order stays."""
    members: dict[str, list[pytest.Item]] = {}
    for item in items:
        members.setdefault(group_of(item), []).append(item)
    first = sorted(members, key=lambda group: (-durations.get(group, float("inf")), group))
    return [item for group in first for item in members[group]]


def read_durations() -> dict[str, float]:
    """Read the seconds of each group; none where the file is missing."""
    try:
        found: dict[str, float] = json.loads(DURATIONS.read_text())
    except FileNotFoundError:
        return {}
    return found


class DurationRecorder:
    """A plugin that adds up the seconds of each group, and writes them when the run ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, _, group = report.nodeid.rpartition("@")
        self.seconds[group] = self.seconds.get(group, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        merged = read_durations() | {group: round(total, 1) for group, total in self.seconds.items()}
        DURATIONS.write_text(json.dumps(dict(sorted(merged.items())), indent=0) + "\n")
