"""The development cluster: its files, its life, and that nothing of it stays."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from site_configs.devcluster import (
    Cluster,
    ClusterSpec,
    DevClusterError,
    demo,
    gsubd,
    supervisor,
)
from site_configs.devcluster.machine import alive, processes_with
from slurm_plugins.client.requeue_delay import requeue_delay
from tests.paths import REPOSITORY
from tests.unit.site_configs.test_devcluster import DEVCLUSTER, state
from tests.waiting import wait_until

__all__ = ["state"]  # a fixture


@pytest.mark.all_releases
def test_nodes_gpus_switches_and_partitions(cluster):
    nodes = cluster.run(["scontrol", "-o", "show", "node"], check=True).stdout.splitlines()
    assert len(nodes) == 8
    assert all(
        "Gres=gpu:8 " in node and "CPUTot=64 " in node and "RealMemory=512000 " in node for node in nodes
    )
    topology = cluster.run(["scontrol", "show", "topology"], check=True).stdout
    assert all(f"SwitchName={name} " in topology for name in ("leaf1", "leaf2", "spine"))
    partitions = cluster.run(["sinfo", "-h", "-o", "%P"], check=True).stdout.split()
    assert {*partitions} == {"gpu*", "debug", "urgent"}


@pytest.mark.all_releases
def test_release_is_the_one_asked_for(cluster):
    majors = {"trixie": "24.11", "forky": "26.05"}
    assert cluster.version.startswith(majors.get(cluster.release, ""))
    assert cluster.run(["slurmctld", "-V"]).stdout.split()[-1] == cluster.version


@pytest.mark.all_releases
def test_short_delays_are_in_force_and_known_to_gsub(cluster):
    text = cluster.run(["scontrol", "show", "config"], check=True).stdout
    config = dict(re.findall(r"(?m)^(\w+)\s*= (.*?)\s*$", text))
    assert config["KillWait"] == "2 sec"
    assert "bf_interval=1,sched_interval=2," in config["SchedulerParameters"]
    major, minor = map(int, cluster.version.split(".")[:2])
    delay = requeue_delay((major, minor), config["SchedulerParameters"], config["AuthInfo"])
    assert delay == (20.0, 20.0)


def test_gsubd_decides_about_a_job_as_a_user_of_its_own(clean, user):
    owner = (Path("/proc") / str(clean.daemons()["gsubd"])).stat().st_uid
    assert owner == clean.daemon_user("gsub").uid
    assert (owner in (0, clean.daemon_user("slurm").uid)) is (os.geteuid() != 0)

    def asked(name: str) -> bool:
        done = clean.run(["sbatch", "-G1", "-J", name, "--output=/dev/null", "--wrap=:"], user=user)
        assert done.returncode == 0, done.stderr
        return any(record.get("asked", {}).get("name") == name for record in clean.decisions())

    wait_until(lambda: asked("first"))
    clean.restart("gsubd")
    wait_until(lambda: asked("second"))


def test_a_site_file_is_taken_while_gsubd_runs(cluster):
    before = cluster.paths.site.read_text()
    reads = 'gsub_site_file_reads_total{result="%s"}'
    try:
        taken, failed = (gsubd.metric(cluster.ports, reads % word) or 0 for word in ("ok", "failed"))
        cluster.write_site(before + "# again\n")
        assert gsubd.metric(cluster.ports, reads % "ok") == taken + 1
        cluster.write_site("no site")
        assert gsubd.metric(cluster.ports, reads % "failed") == failed + 1
    finally:
        cluster.write_site(before)
    assert gsubd.metric(cluster.ports, "gsub_site_file_ok") == 1


@pytest.mark.all_releases
def test_a_job_gets_its_gpus_and_is_accounted(clean, user):
    script = "#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $(id -un)'\n"
    home = clean.home(user)
    options = [
        "--wait",
        "--parsable",
        "-N2",
        "--ntasks-per-node=1",
        "--gpus-per-node=2",
        f"--output={home}/gpus.out",
    ]
    done = clean.run(["sbatch", *options], user=user, input=script)
    assert done.returncode == 0, done.stderr
    ranks = sorted(line.split() for line in (home / "gpus.out").read_text().splitlines())
    name = user or pwd.getpwuid(os.geteuid()).pw_name
    assert [rank[1:] for rank in ranks] == [["0,1", name]] * 2
    assert len({rank[0] for rank in ranks}) == 2
    job = done.stdout.strip()

    def accounted() -> bool:
        said = clean.run(["sacct", "-nXP", "-j", job, "-o", "State,AllocTRES"], user=user).stdout
        return said.startswith("COMPLETED|") and "gres/gpu=4" in said

    wait_until(accounted)


@pytest.mark.all_releases
def test_the_urgent_partition_preempts(clean, user):
    home = str(clean.home(user))
    low = _submit(clean, user, "-N8", "--exclusive", "--requeue", f"--output={home}/low.out")
    wait_until(lambda: _state(clean, low) == "RUNNING")
    high = _submit(clean, user, "-N1", "-purgent", f"--output={home}/high.out")
    wait_until(lambda: _state(clean, high) == "RUNNING", seconds=40)
    assert _state(clean, low) != "RUNNING"


def test_up_again_changes_nothing_and_other_settings_are_refused(cluster):
    before = cluster.daemons()
    again = Cluster.up(cluster.spec)
    assert again.daemons() == before
    with pytest.raises(DevClusterError, match=r"is up with other settings \(nodes=8\)"):
        Cluster.up(replace(cluster.spec, nodes=7))


def _our_mounts() -> list[str]:
    """What is mounted in a cluster's or a chroot's folder; other tests mount things of their own meanwhile."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if "gsub-devcluster" in line]


def test_clusters_stand_side_by_side_and_go_without_a_trace(cluster):
    """Down ends daemons, jobs and what jobs left in the background; no mount ever shows on the machine."""
    mounts = _our_mounts()
    other = Cluster.up(
        ClusterSpec(
            name=f"side-{cluster.release}",
            nodes=2,
            gpus=1,
            slurm=cluster.spec.slurm,
            accounting=False,
            gsub=False,
        )
    )
    try:
        assert set(other.daemons()) == {"munged", "slurmctld", "slurmd-n1", "slurmd-n2"}
        assert set(other.run(["sinfo", "-h", "-N", "-o", "%N"]).stdout.split()) == {"n1", "n2"}
        script = "#!/bin/sh\nsetsid sleep 12345 >/dev/null 2>&1 &\nsrun sleep 12345\n"
        job = other.run(["sbatch", "--parsable", "--output=/dev/null"], input=script).stdout.strip()
        wait_until(lambda: len(_sleepers("12345")) == 2)
        assert _state(other, job) == "RUNNING"
        assert _state(cluster, job) in ("", "COMPLETED", "CANCELLED", "FAILED")
        assert _our_mounts() == mounts
    finally:
        assert Cluster.down(other.spec.name)
    assert not other.paths.root.exists()
    assert _sleepers("12345") == []
    assert list(processes_with(f"GSUB_DEVCLUSTER={other.paths.root}".encode())) == []
    assert _our_mounts() == mounts
    assert not Cluster.down(other.spec.name)
    assert cluster.is_up()


def test_a_killed_supervisor_is_swept_up_after(cluster):
    name = f"swept-{cluster.release}"
    other = Cluster.up(
        ClusterSpec(name=name, nodes=1, gpus=1, slurm=cluster.spec.slurm, accounting=False, agents=False)
    )
    daemons = other.daemons()
    keeper = supervisor.ask(other.paths.supervisor_socket, op="list")["supervisor"]
    os.kill(keeper, 9)
    wait_until(lambda: not alive(keeper))
    assert not other.is_up()
    assert alive(daemons["slurmctld"])
    again = Cluster.up(other.spec)  # over the sockets and processes that are left
    assert again.is_up()
    assert not any(alive(pid) for pid in daemons.values())
    daemons = again.daemons()
    os.kill(supervisor.ask(again.paths.supervisor_socket, op="list")["supervisor"], 9)
    wait_until(lambda: not again.is_up())
    assert Cluster.down(name)
    assert not any(alive(pid) for pid in daemons.values())


@pytest.mark.all_releases
@pytest.mark.root
def test_a_stopped_cluster_may_come_back_with_another_release(cluster, state):
    """User ids, state and configuration differ; what users wrote stays."""
    if not cluster.rootfs.is_chroot:
        pytest.skip("needs two releases")
    try:
        for release in ("host", cluster.release, "host"):
            other = Cluster.up(ClusterSpec(name="x", nodes=1, slurm=release))
            assert (other.home() / "kept").exists() is ((state / "kept").exists())
            for path in (other.home() / "kept", state / "kept"):
                path.touch()
            os.kill(supervisor.ask(other.paths.supervisor_socket, op="list")["supervisor"], 9)
    finally:
        Cluster.down("x")


@pytest.mark.root
def test_no_user_is_let_into_the_database(cluster, user):
    socket = cluster.paths.run / "mariadb/socket"
    ways = [f"--socket={socket}"], ["--host=127.0.0.1", f"--port={cluster.ports.mariadb}"]
    for way in ways:
        done = cluster.run(["mariadb", "--no-defaults", "--user=root", *way, "-e", "SELECT 1"], user=user)
        assert done.returncode != 0, way


@pytest.mark.root
def test_the_demo_follows_no_link_of_a_user(cluster, user, tmp_path):
    """Root copies the example into the user's folder, where the user may have put a link to anywhere."""
    (cluster.home(user) / "digits").symlink_to(tmp_path)
    try:
        with pytest.raises((DevClusterError, subprocess.CalledProcessError)):
            demo._example(cluster, user)
        assert list(tmp_path.iterdir()) == []
    finally:
        (cluster.home(user) / "digits").unlink()
    assert (demo._example(cluster, user) / "train.py").owner() == user


@pytest.mark.all_releases
@pytest.mark.root
def test_a_chroot_cluster_gives_no_shell_variables(cluster):
    done = subprocess.run([*DEVCLUSTER, "env", "--name", cluster.spec.name], capture_output=True, text=True)
    if cluster.rootfs.is_chroot:
        assert done.returncode == 1
        assert f"run --name {cluster.spec.name} -- bash" in done.stderr
    else:
        line = f'eval "$({" ".join(DEVCLUSTER)} env --name {cluster.spec.name})"; sinfo -h -o %P'
        inside = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=REPOSITORY)
        assert "gpu*" in inside.stdout, inside.stderr


def test_run_keeps_exit_code_user_and_arguments(cluster, user):
    line = [*DEVCLUSTER, "run", "--name", cluster.spec.name, *(["--user", user] if user else []), "--"]
    done = subprocess.run(
        [*line, "sh", "-c", 'id -un; printf "[%s]" "$@"; exit 7', "sh", "a b", "", "*", "--x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7
    assert done.stdout == f"{user or pwd.getpwuid(os.geteuid()).pw_name}\n[a b][][*][--x]"


def _submit(cluster: Cluster, user: str | None, *options: str) -> str:
    done = cluster.run(["sbatch", "--parsable", *options], user=user, input="#!/bin/sh\nsleep 600\n")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _state(cluster: Cluster, job: str) -> str:
    return cluster.run(["squeue", "-h", "-j", job, "-t", "all", "-o", "%T"]).stdout.strip()


def _sleepers(seconds: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                # srun gives its task the full path of the command
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"sleep") and words[1:2] == [seconds.encode()]:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found
