"""The session's cluster in another mode for a while, without the plugin for a while, and what gsubd wrote down."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster, config, gsubd
from site_configs.devcluster.spec import Policy
from tests.slurm.cli.test_parity import SCRIPTS, Record, records
from tests.waiting import wait_until

INERT = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A job_submit.lua that does nothing."""


# --- the site's policy ----------------------------------------------------------------------------------------------


def site_text(cluster: Cluster, policy: Policy, more: str = "") -> str:
    """The cluster's site file with that mode; `more` are tables after it."""
    spec = replace(cluster.spec, policy=policy)
    return config.site_toml(spec, cluster.paths, cluster.ports) + more


@contextmanager
def policy(cluster: Cluster, text: str) -> Iterator[None]:
    """The cluster under another site file for a while."""
    before = cluster.paths.site.read_text()
    cluster.write_site(text)
    try:
        yield
    finally:
        cluster.write_site(before)


@pytest.fixture(scope="module")
def enforcing(cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster in enforce mode for the tests of a module."""
    with policy(cluster, site_text(cluster, "enforce")):
        yield cluster


@pytest.fixture
def decisions() -> Callable[[Cluster], list[dict[str, Any]]]:
    """Reads what a cluster's gsubd wrote down, oldest first: `decisions(cluster)`."""
    return lambda cluster: cluster.decisions()


# --- without the plugin ---------------------------------------------------------------------------------------------


def write_job_submit(cluster: Cluster, text: str) -> None:
    """Give slurmctld another job_submit.lua, which it takes at the next submission."""
    script = cluster.paths.etc / "job_submit.lua"
    script.write_text(text)
    touch(script)


def touch(script: Path) -> None:
    """Have slurmctld load its script again at the next submission.

    It does when the script's mtime, in whole seconds, is later than that of the one it has. The clock that stamps
    files may be some milliseconds late, so the time is given.
    """
    last = int(time.time())
    wait_until(lambda: int(time.time()) > last)
    os.utime(script, (last + 1, last + 1))


@contextmanager
def without_plugin(cluster: Cluster) -> Iterator[None]:
    """The cluster as it would be without gsub in its slurmctld."""
    write_job_submit(cluster, INERT)
    try:
        yield
    finally:
        write_job_submit(cluster, gsubd.job_submit_lua(cluster.paths, cluster.spec.deadline))


# --- submitting -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def user(cluster: Cluster) -> str | None:
    """An ordinary user of the cluster; None where there is one user only."""
    return cluster.users[0] if cluster.users else None


@pytest.fixture(scope="module")
def here(cluster: Cluster, user: str | None) -> Path:
    """A folder with the scripts of the command lines."""
    folder = cluster.home(user) / "decisions"
    text = "".join(
        f"cat > {shlex.quote(f'./{name}')} <<'END_OF_SCRIPT'\n{script}END_OF_SCRIPT\n"
        for name, script in SCRIPTS.items()
    )
    cluster.run(["sh", "-ec", f"mkdir -p {folder}; cd {folder}\n{text}"], user=user, check=True)
    return folder


@pytest.fixture(scope="module")
def closed(cluster: Cluster) -> Iterator[Cluster]:
    """Partitions that start nothing: jobs stay as they were submitted."""

    def state(word: str) -> None:
        for name in config.PARTITIONS:
            cluster.run(["scontrol", "update", f"PartitionName={name}", f"State={word}"], check=True)

    state("DOWN")
    yield cluster
    cluster.clean()
    state("UP")


def submit(cluster: Cluster, *words: str, user: str | None, env: dict[str, str] | None = None) -> int:
    """Submit a job that does nothing; its number."""
    line = ["sbatch", "--parsable", "--output=/dev/null", *words, "--wrap=:"]
    done = cluster.run(line, user=user, env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def recorded(cluster: Cluster) -> dict[int, list[Record]]:
    """All jobs' records, ids made relative, without what differs from one submission to the next."""
    return records(cluster)
