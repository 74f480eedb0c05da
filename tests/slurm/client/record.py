"""Record Slurm's answers anew: ``python -m tests.slurm.client.record [host|trixie|forky ...]``, as root.

Starts a development cluster of each release, lets the same jobs run in it, and writes what every reading command
prints to ``tests/data/slurm/RELEASE/``. `test_recorded` then says what that means. Run it when a release, or a
question of ours, is new.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.runner import run_command
from slurm_plugins.client.states import JobState
from tests.unit.slurm_plugins.client.recording import DATA, Recorder
from tests.waiting import wait_until

USER = "user1"
HOSTILE = "we|ird=n JobId=5 name"
COMMENT = "a | b\nJobState=FAILED JobId=5 é \"q\" 's' = x"
REASON = "bad | fan State=IDLE Gres=gpu:99"

RUNNING = "#!/bin/sh\nsleep 600\n"
# name -> options and script of each job; ids are given in this order, so they are the same in each release.
JOBS: tuple[tuple[str, list[str], str], ...] = (
    (
        HOSTILE,
        [
            f"--comment={COMMENT}",
            "--nodes=2",
            "--gpus-per-node=2",
            "--mem=8G",
            "--time=10",
            "--output=%x-%j.log",
        ],
        RUNNING,
    ),
    (
        "array",
        [
            "--gres=gpu:1",
            "--mem=4G",
            "--cpus-per-task=4",
            "--array=0-4%2",
            "--time=2:00:00",
            "--output=out-%x-%A_%a.log",
        ],
        RUNNING,
    ),
    ("failed", ["--mem=1G", "--requeue"], "#!/bin/sh\nexit 3\n"),
    (
        "waiting",
        [
            "--dependency=afterok:1",
            "--begin=now+1hour",
            "--switches=1@2:00",
            "--exclude=n3,n[7-8]",
            "--exclusive",
            "--nice=50",
            "--time=1-02:00:00",
            "--mem=1G",
        ],
        RUNNING,
    ),
    ("het", ["--mem=1G", ":", "--nodes=2", "--gpus=4", "--mem=1G"], RUNNING),
    (
        "per-gpu",
        [
            "--gpus=3",
            "--cpus-per-gpu=4",
            "--mem-per-gpu=2G",
            "--ntasks=1",
            "--nodes=1",
            "--time=30",
            "--error=err",
        ],
        RUNNING,
    ),
    (
        "held",
        ["--hold", "--partition=urgent", "--time=UNLIMITED", "--ntasks=3", "--mem-per-cpu=100M"],
        RUNNING,
    ),
    ("cancelled", ["--hold", "--mem=1G"], RUNNING),
    ("requeued", ["--requeue", "--mem=1G"], f"#!/bin/sh\ntouch begun\n{RUNNING[10:]}"),
)


def main(asked: list[str]) -> None:
    for release in RELEASES:
        if asked and release not in asked:
            continue
        cluster = Cluster.up(ClusterSpec(name=f"record-{release}", slurm=release, agents=False))
        try:
            record(cluster)
        finally:
            Cluster.down(cluster.spec.name)


def record(cluster: Cluster) -> None:
    home = cluster.home(USER)
    recorder = Recorder(
        lambda argv, *, env, **options: run_command(cluster.argv(argv, user=USER), env=env, **options),
        DATA / cluster.version.rpartition(".")[0],
    )
    client = CommandClient({"HOME": str(home), "USER": USER, "LANG": "C.UTF-8", **cluster.env}, run=recorder)
    with recorder.file("version"):
        client.version()
    ids = {}
    for name, options, script in JOBS:
        submission = client.submit([f"--chdir={home}", f"--job-name={name}", *options], stdin=script)
        assert submission.job_id is not None, submission
        ids[name] = submission.job_id
    wait_until(lambda: (home / "begun").exists())
    _admin(cluster, "update", f"JobId={ids['waiting']}", "AdminComment=jobstats:{a|b}")
    _admin(cluster, "requeuehold", "State=SpecialExit", str(ids["requeued"]))
    client.cancel([ids["cancelled"]])
    _admin(
        cluster,
        "update",
        "NodeName=n8",
        "State=DRAIN",
        f"Reason={REASON}",
        "Comment=hi Reason=x",
        "Extra=a=1 b=2",
    )
    wait_until(lambda: client.job(ids["failed"]).state is JobState.FAILED)
    wait_until(lambda: client.job(ids["requeued"]).state_text == "SPECIAL_EXIT")
    wait_until(lambda: client.job(ids["per-gpu"]).state is JobState.RUNNING)
    wait_until(lambda: all(record.end for record in client.accounting(ids=[ids["failed"], ids["cancelled"]])))
    time.sleep(3)  # slurmdbd hears of the last change late, and says nothing when it has

    with recorder.file("jobs"):
        client.jobs()
    with recorder.file("job"):
        client.job(ids[HOSTILE])
    with recorder.file("nodes"):
        client.nodes()
    with recorder.file("partitions"):
        client.partitions()
    with recorder.file("accounting"):
        client.accounting(ids=range(1, len(JOBS) + 2))
    with recorder.file("history"):
        client.accounting(user=USER)
    with recorder.file("ping"):
        client.ping()
    with recorder.file("test_only"):
        client.test_only(["--nodes=2", f"--chdir={home}"], stdin=RUNNING)
    with recorder.file("empty"), suppress(SlurmError):
        client.jobs(ids=[1, 99999999])
        client.accounting(ids=[99999999])
        client.job(99999999)
    with recorder.file("refused"), suppress(SlurmError):
        client.submit(["--partition=nowhere", f"--chdir={home}"], stdin=RUNNING)
    with recorder.file("cancel"), suppress(SlurmError):
        client.cancel([ids["failed"], 99999999])
    cluster.stop("slurmctld")
    with recorder.file("no_controller"):
        for ask in (
            client.jobs,
            lambda: client.job(1),
            client.nodes,
            client.ping,
            lambda: client.cancel([1]),
        ):
            with suppress(SlurmError):
                ask()
    cluster.stop("slurmdbd")
    with recorder.file("no_database"), suppress(SlurmError):
        client.accounting(ids=[1])
    print(f"{cluster.version}: recorded")


def _admin(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(["scontrol", *arguments], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
