"""The releases of Slurm that a run's tests use."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from site_configs.devcluster.spec import RELEASES
from tests.paths import REPOSITORY


@dataclass(frozen=True)
class ReleasePlan:
    """Which releases a test runs on.

    A test marked ``all_releases`` runs on each. Any other runs on one, by its id and the number of commits: each
    commit moves it to the next release, and a failure can be repeated.

    Args:
        available: releases that this machine can run and that were asked for.
        commits: number of commits of the checkout; None where each test runs on each release.
    """

    available: tuple[str, ...]
    commits: int | None

    def choose(self, test: str, *, everywhere: bool) -> Sequence[str]:
        """Return the releases of one test.

        Args:
            test: node id without parameters; of tests with a cluster of their own, the directory or module of that.
            everywhere: whether it is marked ``all_releases``.
        """
        if everywhere or self.commits is None:
            return self.available
        return [self.available[(zlib.crc32(test.encode()) + self.commits) % len(self.available)]]

    def describe(self) -> str:
        """Return one line for the head of a run."""
        names = ", ".join(self.available)
        if self.commits is None:
            return f"Slurm: each test on {names}"
        return (
            f"Slurm: tests marked all_releases on {names}; each other one on release "
            f"(crc32(test id) + {self.commits} commits) % {len(self.available)}"
        )


def plan_releases(asked: str | None) -> ReleasePlan:
    """Plan a run's releases.

    Args:
        asked: releases given by a person, separated by commas; None: all that can run here, each test on one of them.

    Raises:
        ValueError: a release is unknown.
    """
    if asked:
        releases = tuple(asked.split(","))
        if unknown := set(releases) - set(RELEASES):
            raise ValueError(f"no release {', '.join(sorted(unknown))}; there are {', '.join(RELEASES)}")
        return ReleasePlan(releases, None)
    if "CI" in os.environ or can_make_chroots():
        return ReleasePlan(RELEASES, count_commits())
    return ReleasePlan(("host",), None)


def can_make_chroots() -> bool:
    """Check whether this machine lets us make and enter chroots: being root is not enough in many containers."""
    if os.geteuid() != 0:
        return False
    entered = subprocess.run(["unshare", "--mount", "--propagation", "private", "true"], capture_output=True)
    return entered.returncode == 0


def count_commits() -> int:
    """Count the commits of the checkout; 0 outside a repository."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True
    )
    return int(counted.stdout) if counted.returncode == 0 else 0
