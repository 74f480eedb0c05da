"""A bad node on a real Slurm: what root saw of it keeps another user's job off, until an operator clears it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from profiler.answers import Taken
from profiler.bad_nodes import DAY
from profiler.munge import Munge
from profiler.records import NodeEvent, new_id
from profiler.sealed import Service
from site_configs.devcluster import Cluster, ClusterSpec
from tests.unit.profiler.nodes.world import XID
from tests.waiting import wait_until

pytestmark = pytest.mark.root

PATIENCE = 180.0
BAD = "n7"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Twelve nodes in enforce mode: a tenth of them is one."""
    name = f"t{os.getpid()}-bad{request.param}"
    os.umask(0o022)
    try:
        spec = ClusterSpec(
            name, 12, 2, request.param, "enforce", accounting=False, deadline=1.0, agents=False
        )
        yield Cluster.up(replace(spec, short_delays=True))
    finally:
        Cluster.down(name)


def service(cluster: Cluster) -> Service:
    trusted = {0, cluster.daemon_user("gsub").uid}
    return Service(
        f"http://127.0.0.1:{cluster.ports.api}", Munge(str(cluster.paths.munge_socket)), trusted, 30.0
    )


def admin(cluster: Cluster, *words: str, user: str | None = None) -> Any:
    return cluster.run(["gsub", "admin", "nodes", *words], user=user)


def submitted(cluster: Cluster, user: str, *options: str) -> dict[str, str]:
    """What Slurm shows of a job that a user has just submitted."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "--gpus-per-node=2", *options, "--wrap", "hostname"]
    done = cluster.run(argv, user=user, cwd=cluster.home(user))
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    shown = cluster.run(["scontrol", "-o", "show", "job", job], check=True).stdout
    return dict(re.findall(r"(\w+)=(\S*)", shown))


def tell_of_xids(cluster: Cluster) -> None:
    """The node's agent tells of a GPU that fell off the bus, on three days."""
    now = time.time()
    events = [
        NodeEvent(new_id(), cluster.spec.name, BAD, now - ago * DAY - 60, "xid", "error", XID)
        for ago in range(3)
    ]
    batch = {"v": 1, "node": BAD, "cluster": cluster.spec.name, "records": events}
    answer = service(cluster).ask("POST", "/v1/records", msgspec.json.encode(batch))
    assert answer.status == 200, answer.body
    assert len(msgspec.json.decode(answer.body, type=Taken).accepted) == 3


def test_another_users_job_keeps_off_a_bad_node(cluster: Cluster) -> None:
    user = cluster.users[0]
    partitions = cluster.paths.gsub_state / "partitions.json"
    wait_until(
        lambda: partitions.exists() and json.loads(partitions.read_text()).get("gpu"),
        PATIENCE,
        "gsubd's word on partitions",
    )
    assert submitted(cluster, user, "-N1").get("ExcNodeList") == "(null)"
    tell_of_xids(cluster)
    # it is weighed every few minutes, and when a node is cleared
    wait_until(
        lambda: admin(cluster, "clear", "n12", "--why", "new").returncode == 0,
        PATIENCE,
        "a node to be cleared",
    )
    told = json.loads(admin(cluster, "--json").stdout)
    here = [one for one in told["nodes"] if one["node"] == BAD and one["partition"] == "gpu"]
    assert [(one["reason"], one["by"], one["avoided"]) for one in here] == [("gpu_hardware", "root", True)], (
        told
    )
    wait_until(
        lambda: submitted(cluster, user, "-N1").get("ExcNodeList") == BAD, PATIENCE, "a job that keeps off"
    )
    # all nodes but one can hold it: it runs on these
    wide = submitted(cluster, user, "-N11")
    assert wide["ExcNodeList"] == BAD
    # the job that needs them all, and the user who names it, have it
    assert submitted(cluster, user, "-N12")["ExcNodeList"] == "(null)"
    assert submitted(cluster, user, "-N1", f"--nodelist={BAD}")["ExcNodeList"] == "(null)"
    # why, for the user: no word of whose jobs failed there
    words = ["gsub", "explain", "-N1", "--gpus-per-node=2", "--wrap=hostname"]
    explained = cluster.run(words, user=user, cwd=cluster.home(user)).stdout
    assert f"{BAD}: a GPU or its links are broken (gpu_hardware)" in explained
    brief = json.loads(admin(cluster, "--json", user=user).stdout)
    assert {(one["node"], one["by"], one["root"]) for one in brief["nodes"]} == {(BAD, "", None)}
    assert admin(cluster, "clear", BAD, "--why", "mine", user=user).returncode == 1
    # an operator has looked after it
    assert admin(cluster, "clear", BAD, "--why", "GPU replaced").returncode == 0
    wait_until(
        lambda: submitted(cluster, user, "-N1")["ExcNodeList"] == "(null)",
        PATIENCE,
        "a job that does not keep off",
    )
    cluster.clean()
