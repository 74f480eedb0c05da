"""Accounting's limits of a user, and what a decision may make of a job under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from site_configs.devcluster import Cluster
from site_configs.devcluster.accounting import ACCOUNT
from tests.waiting import wait_until


@pytest.fixture
def limited(enforcing: Cluster, user: str | None) -> Iterator[Callable[[str], None]]:
    """Sets the user's limits of one job for a while; gsubd has read them."""
    if user is None:
        pytest.skip("one user only: root, whom Slurm holds to no limit")

    def limit(words: str) -> None:
        manage = ["sacctmgr", "-i", "modify", "user", user, "where", f"account={ACCOUNT}", "set", words]
        enforcing.run(manage, check=True)
        enforcing.restart("gsubd")

    yield limit
    limit("MaxTRESPerJob=mem=-1")


@pytest.mark.all_releases
@pytest.mark.case("F1")
def test_no_decision_goes_beyond_the_users_limit(
    limited: Callable[[str], None], enforcing: Cluster, user: str | None
) -> None:
    """``-n1 -c2 --gpus=1`` would get a GPU's share of a node's memory, and wait for ever."""

    def runs() -> bool:
        line = ["sbatch", "--parsable", "--output=/dev/null", "-n1", "-c2", "--gpus=1", "--wrap=:"]
        job = enforcing.run([*line, "--comment=gsub:explain"], user=user)
        number = job.stdout.strip()
        done = wait_until(lambda: enforcing.run(["scontrol", "-o", "show", "job", number]).stdout)
        if "MinMemoryNode=40000M" not in done or "the limit MaxTRESPerJob of the user" not in job.stderr:
            enforcing.run(["scancel", number])  # gsubd knows the old limit, or none: the job waits for ever
            return False
        wait_until(lambda: "COMPLETED" in enforcing.run(["scontrol", "-o", "show", "job", number]).stdout)
        return True

    limited("MaxTRESPerJob=mem=40000")
    wait_until(runs)
