"""On a real Slurm with emulated GPUs: the idle job is told of and ended, and no other is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from profiler.store import open_store
from profiler.store.use import in_use
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.nvml.gpus import EmulatedGpus
from slurm_plugins.act.journal import NAME
from tests.unit.slurm_plugins.keeper.mailserver import MailServer, mail_server
from tests.waiting import wait_until

PATIENCE = 120.0
ALERTS = """
[receipt]
mail_server = "%s"
mail_domain = "example.org"
[alerts]
mail = true
cancel = true
[alerts.rules.idle_from_start]
when = "idle_from_start_s >= 8s"
do = "cancel"
grace = "5 s"
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """4 nodes x 1 GPU in enforce, with agents and gsub-act."""
    os.umask(0o022)
    name = f"t{os.getpid()}-use{request.param}"
    try:
        yield Cluster.up(ClusterSpec(name, 4, 1, request.param, "enforce", deadline=1.0, short_delays=True))
    finally:
        Cluster.down(name)


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as found:
        yield found


@pytest.mark.root
@pytest.mark.slurm
def test_the_idle_job_ends_and_no_other(cluster: Cluster, server: MailServer) -> None:
    user = cluster.users[0]

    def shown(job: str) -> str:
        done = cluster.run(["squeue", "-h", "--states=all", "-o", "%T", f"--jobs={job}"])
        return str(done.stdout).strip()

    def submit(node: str) -> str:
        line = [
            "sbatch",
            "--parsable",
            "--gpus=1",
            f"--nodelist={node}",
            "--output=/dev/null",
            "--wrap=sleep 600",
        ]
        done = cluster.run(line, user=user)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def reported() -> set[str]:
        store = open_store(f"sqlite:///{cluster.paths.gsub_state}/store.db", read_only=True)
        try:
            return {str(one.job.job_id) for one in in_use(store, cluster.spec.name)
                    if any(gpu.samples for node in one.nodes for gpu in node.gpus)}  # fmt: skip
        finally:
            store.close()

    cluster.write_site(cluster.paths.site.read_text() + ALERTS % server.address)
    EmulatedGpus(cluster.paths.gpus).set("n2", 0, utilization=90)
    forgotten, _ = submit("n3"), submit("n2")
    interactive = cluster.popen(["srun", "--gpus=1", "--nodelist=n4", "sleep", "600"], user=user)
    try:
        wait_until(lambda: forgotten in reported(), PATIENCE, "what is told of a job")
        cluster.stop("noded-n3")  # what is known of that job grows old from here on
        idle = submit("n1")
        wait_until(lambda: shown(idle) not in ("", "PENDING", "RUNNING"), PATIENCE, "the end of the idle job")
        assert shown(idle) in ("CANCELLED", "COMPLETING")
        rows = cluster.run(["squeue", "-h", "--states=RUNNING", "-o", "%N"]).stdout.split()
        assert sorted(rows) == ["n2", "n3", "n4"]
    finally:
        interactive.terminate()
        interactive.wait(30)
    told = [str(message["Subject"]) for _, message in server.took]
    assert f"[{cluster.spec.name}] job {idle}: idle from start" in told
    assert {address for address, _ in server.took} == {f"{user}@example.org"}
    lines = [json.loads(line) for line in (cluster.paths.act_state / NAME).read_text().splitlines()]
    asked = [line for line in lines if line["event"] == "asked"]
    assert [(line["verb"], line["job"]) for line in asked] == [("cancel", idle)]
    assert asked[0]["by"].startswith("alert-") and asked[0]["why"].startswith(
        "idle_from_start: idle_from_start_s"
    )
