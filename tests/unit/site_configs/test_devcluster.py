"""The development cluster: its files, its life, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from site_configs.devcluster import (
    Cluster,
    ClusterSpec,
    DevClusterError,
    config,
    gsubd,
    layouts,
    supervisor,
)
from site_configs.devcluster.machine import alive, locked, open_to_all
from site_configs.devcluster.nvml import EmulatedGpus
from site_configs.devcluster.spec import RELEASES, Paths, state_home
from site_configs.site import load_site
from tests.paths import REPOSITORY
from tests.waiting import wait_until

DEVCLUSTER = [sys.executable, "-m", "site_configs.devcluster"]
WHO = config.Identity("host1", "slurm", "root")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "Dev"}, "'Dev': want a lower-case letter"),
        ({"name": ""}, "want a lower-case letter"),
        ({"name": "../x"}, "want a lower-case letter"),
        ({"name": "a" * 25}, "up to 23 letters"),
        ({"nodes": 0}, "0 nodes: want 1 to 64"),
        ({"nodes": 65}, "65 nodes: want 1 to 64"),
        ({"gpus": 0}, "0 GPUs a node: want 1 to 16"),
        ({"gpus": 17}, "17 GPUs a node"),
        ({"slurm": "sid"}, "'sid': want one of host, trixie, forky"),
        ({"policy": "force"}, "'force': want one of observe, advise, enforce"),
        ({"nodes": 2, "layouts": ("plain", "odd")}, "'odd': want one of plain, reversed, gaps, mig"),
        ({"nodes": 1, "layouts": ("plain", "plain")}, "2 GPU layouts for 1 nodes"),
        ({"nodes": 1, "gpus": 2, "layouts": ("mig",)}, "the layout mig wants 3 or more"),
        ({"deadline": 0.0}, "0.0 s: want more than 0"),
        ({"deadline": 2.0}, "2.0 s: want more than 0, and at most 1 s"),
    ],
)
def test_a_wrong_specification_says_what_is_wanted(wrong, says):
    with pytest.raises(DevClusterError, match=re.escape(says)):
        ClusterSpec(**wrong)


@pytest.mark.parametrize(
    ("nodes", "leaves"),
    [
        (1, {"leaf1": ("n1",)}),
        (2, {"leaf1": ("n1",), "leaf2": ("n2",)}),
        (5, {"leaf1": ("n1", "n2", "n3"), "leaf2": ("n4", "n5")}),
        (8, {"leaf1": ("n1", "n2", "n3", "n4"), "leaf2": ("n5", "n6", "n7", "n8")}),
    ],
)
def test_nodes_are_spread_over_two_leaves(nodes, leaves):
    assert ClusterSpec(nodes=nodes).leaves == leaves


def test_specification_survives_its_file():
    spec = ClusterSpec("x", 3, 4, "trixie", "advise", False, layouts=("plain", "mig"))
    assert ClusterSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(("accounting", "gsub"), [(True, True), (False, True), (True, False)])
def test_slurm_conf_declares_what_was_asked(accounting, gsub):
    spec = ClusterSpec(nodes=8, gpus=4, accounting=accounting, gsub=gsub)
    text = config.slurm_conf(spec, Paths(Path("/s")), config.Ports(20000), WHO)
    lines = text.splitlines()
    assert ("JobSubmitPlugins=lua" in lines) is gsub
    nodes = [line for line in lines if line.startswith("NodeName=")]
    assert len(nodes) == 2
    assert "NodeName=n[1-4] " in nodes[0]
    assert "Port=[20005-20008] " in nodes[0]
    assert "Feature=a100,leaf1" in nodes[0]
    assert "Port=[20009-20012] " in nodes[1]
    assert all("Gres=gpu:4 " in line for line in nodes)
    assert ("AccountingStorageType=accounting_storage/slurmdbd" in lines) is accounting
    tiers = {
        line.split()[0]: int(line.partition("PriorityTier=")[2].split()[0])
        for line in lines
        if line.startswith("Part")
    }
    assert tiers["PartitionName=urgent"] > tiers["PartitionName=gpu"] == tiers["PartitionName=debug"]
    assert "PreemptMode=REQUEUE" in lines


@pytest.mark.parametrize("policy", ["observe", "advise", "enforce"])
def test_the_site_file_is_a_valid_one_and_agrees_with_slurm(tmp_path, policy):
    paths = Paths(tmp_path)
    paths.etc.mkdir()
    spec = ClusterSpec(nodes=4, gpus=2, policy=policy)
    (paths.etc / "topology.conf").write_text(config.topology_conf(spec))
    paths.site.write_text(config.site_toml(spec, paths, config.Ports(20000)))
    site = load_site(paths.site)
    assert site.policy.mode == policy
    assert list(site.partitions) == ["gpu", "debug", "urgent"]
    assert {p.gpus_per_node for p in site.partitions.values()} == {2}
    assert site.service.socket == str(paths.decision_socket)
    assert site.service.url == "http://127.0.0.1:20004"
    assert site.service.user == "gsub"
    assert site.slurm.munge_socket == str(paths.munge_socket)
    assert site.store.url == f"sqlite:///{tmp_path}/spool/gsub/store.db"


def test_job_submit_lua_is_the_shipped_one_with_the_clusters_paths():
    text = gsubd.job_submit_lua(Paths(Path("/s")))
    assert '"/s/libexec/gsub/gsub.lua"' in text
    assert 'socket = "/s/run/gsub/decision.sock"' in text
    assert "/usr/libexec" not in text
    # Nothing else is ours: line by line what a sysadmin would copy.
    shipped = (
        (REPOSITORY / "slurm_plugins/lua/job_submit.lua")
        .read_text()
        .replace("/usr/libexec/gsub", "/s/libexec/gsub")
    )
    assert {*text.splitlines()} - {*shipped.splitlines()} == {
        'if gsub_ok then gsub_shim.setup({ socket = "/s/run/gsub/decision.sock" }) end'
    }
    assert ", deadline = 0.5 })" in gsubd.job_submit_lua(Paths(Path("/s")), 0.5)


def test_one_node_and_one_gpu_need_no_brackets():
    spec = ClusterSpec(nodes=1, gpus=1)
    assert "[" not in config.gres_conf(spec, Paths(Path("/s")))
    assert config.topology_conf(spec) == "SwitchName=leaf1 Nodes=n1\nSwitchName=spine Switches=leaf1\n"


def test_gpus_are_laid_out_as_asked():
    """One line a kind of node; a device file for all that gres.conf names, nvidia0 of a cut GPU too."""
    spec = ClusterSpec(nodes=5, gpus=4, layouts=("plain", "plain", "reversed", "gaps", "mig"))
    paths = Paths(Path("/s"))
    assert config.gres_conf(spec, paths).splitlines() == [
        "NodeName=n[1-2] Name=gpu File=/s/dev/nvidia[0-3]",
        "NodeName=n3 Name=gpu File=/s/dev/nvidia[0-3]",
        "NodeName=n4 Name=gpu File=/s/dev/nvidia[1,3-5]",
        "NodeName=n5 Name=gpu Type=a100 File=/s/dev/nvidia[1-2]",
        "NodeName=n5 Name=gpu Type=3g.40gb MultipleFiles="
        "/s/dev/nvidia0,/s/dev/nvidia-caps/nvidia-cap66,/s/dev/nvidia-caps/nvidia-cap67",
        "NodeName=n5 Name=gpu Type=1g.10gb MultipleFiles="
        "/s/dev/nvidia0,/s/dev/nvidia-caps/nvidia-cap75,/s/dev/nvidia-caps/nvidia-cap76",
    ]
    named = set(re.findall(r"nvidia-caps/nvidia-cap\d+", config.gres_conf(spec, paths)))
    names = layouts.device_files(spec.layouts, 4)
    assert {*names} == named | {f"nvidia{i}" for i in range(6)}
    text = config.slurm_conf(spec, paths, config.Ports(20000), WHO)
    nodes = {line.split()[0]: line for line in text.splitlines() if line.startswith("NodeName=")}
    assert [*nodes] == ["NodeName=n[1-2]", "NodeName=n3", "NodeName=n4", "NodeName=n5"]
    assert " Gres=gpu:4 " in nodes["NodeName=n4"]
    assert " Gres=gpu:a100:2,gpu:3g.40gb:1,gpu:1g.10gb:1 " in nodes["NodeName=n5"]


def test_nvml_shows_the_layouts(tmp_path):
    gpus = EmulatedGpus(tmp_path)
    spec = ClusterSpec("c", 3, 4, layouts=("reversed", "gaps", "mig"))
    for node in spec.node_names:
        layouts.emulate(gpus, node, spec.layout(node), spec.gpus, spec.name)
    assert gpus.nodes() == {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3, 4, 5), "n3": (0, 1, 2)}
    assert [gpus.state("n1", i)["pci"] for i in (0, 3)] == ["00000000:04:00.0", "00000000:01:00.0"]
    assert gpus.state("n3", 0)["mig_mode"] == 1


def test_ports_do_not_overlap():
    spec = ClusterSpec(nodes=8)
    ports = config.Ports(21000)
    taken = [
        ports.slurmctld,
        ports.slurmdbd,
        ports.mariadb,
        ports.gsubd,
        ports.api,
        *(ports.slurmd(i) for i in range(1, 9)),
    ]
    assert sorted(taken) == list(range(21000, 21000 + config.Ports.count(spec)))


def test_supervisor_ends_what_its_daemons_left_behind(tmp_path):
    """A grandchild that made itself a session of its own and lost its parent is still ended."""
    where = tmp_path / "sock"
    keeper = subprocess.Popen(
        [sys.executable, "-m", "site_configs.devcluster.supervisor", str(where)], cwd=REPOSITORY
    )
    wait_until(where.is_socket, 20, "the supervisor")
    note = tmp_path / "pid"
    stray = f"setsid sh -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000' & exit 0"
    started = supervisor.ask(
        where,
        op="start",
        name="d",
        argv=["/bin/sh", "-c", stray],
        env={"PATH": "/usr/bin:/bin"},
        log=str(tmp_path / "log"),
    )
    wait_until(note.exists, 20, "the grandchild")
    pid = int(note.read_text())
    wait_until(lambda: not alive(started["pid"]), 20, "the end of the daemon")
    assert alive(pid)
    supervisor.ask(where, op="shutdown")
    assert keeper.wait(timeout=20) == 0
    assert not alive(pid)


def test_supervisor_answers_nonsense_and_goes_on(tmp_path):
    where = tmp_path / "sock"
    keeper = subprocess.Popen(
        [sys.executable, "-m", "site_configs.devcluster.supervisor", str(where)], cwd=REPOSITORY
    )
    try:
        wait_until(where.is_socket, 20, "the supervisor")
        assert where.stat().st_mode & 0o777 == 0o600
        for command in (
            {"op": "dance"},
            {"op": "start"},
            {"op": "start", "name": "x", "argv": ["/none"], "env": {}, "log": "/none/x"},
        ):
            with pytest.raises(RuntimeError, match="supervisor: "):
                supervisor.ask(where, **command)
        assert supervisor.ask(where, op="list")["running"] == {}
    finally:
        keeper.terminate()
        assert keeper.wait(timeout=20) == 0
    assert not where.exists()


def test_a_cluster_that_is_not_up_is_said_to_be_so():
    done = subprocess.run(
        [*DEVCLUSTER, "run", "--name", "none-such", "--", "true"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (
        1,
        "devcluster: no development cluster 'none-such' is up: start it with `up --name none-such`\n",
    )
    done = subprocess.run(
        [*DEVCLUSTER, "status", "--name", "none-such", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"name": "none-such", "up": False}


@pytest.fixture
def state(monkeypatch):
    """A state home of this test's own that all users may enter."""
    with tempfile.TemporaryDirectory(prefix="gsub-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("GSUB_DEVCLUSTER_HOME", folder)
        yield Path(folder)


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "precious/sub", "/etc"])
def test_down_takes_no_path_for_a_name(state, name):
    (state / "precious/sub").mkdir(parents=True)
    done = subprocess.run([*DEVCLUSTER, "down", "--name", name], capture_output=True, text=True)
    assert (done.returncode, "want a lower-case letter" in done.stderr) == (1, True)
    assert (state / "precious/sub").is_dir()


def test_a_folder_that_is_no_clusters_is_neither_removed_nor_used(state):
    (state / "precious/sub").mkdir(parents=True)
    with pytest.raises(DevClusterError, match="not the folder of a development cluster"):
        Cluster.down("precious")
    with pytest.raises(DevClusterError, match="holds other things"):
        Cluster.up(ClusterSpec(name="precious"))
    assert Cluster.names() == ()
    assert (state / "precious/sub").is_dir()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"spec', '{"spec": {"a": 1}, "binds": null, "rootfs": "/", "port": 1}']
)
def test_a_damaged_cluster_is_told_and_can_be_removed(state, text):
    (state / "x").mkdir()
    (state / "x/cluster.json").write_text(text)
    done = subprocess.run([*DEVCLUSTER, "status", "--name", "x"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert Cluster.down("x")
    assert list(state.iterdir()) == []  # nor a lock


@pytest.mark.parametrize(
    "options", [["--nodes", "0"], ["--name", "BAD"], ["--gpus", "99"], ["--slurm", "sid"]]
)
def test_wrong_usage_exits_2(options):
    assert subprocess.run([*DEVCLUSTER, "up", *options], capture_output=True).returncode == 2


def test_an_unfit_state_folder_is_refused_in_words(state, monkeypatch):
    monkeypatch.setenv("GSUB_DEVCLUSTER_HOME", f"{state}/a b")
    with pytest.raises(DevClusterError, match="no way to write such a path"):
        Cluster.up(ClusterSpec(name="x"))
    if os.geteuid() == 0:
        (state / "private").mkdir(mode=0o700)
        monkeypatch.setenv("GSUB_DEVCLUSTER_HOME", f"{state}/private/home")
        with pytest.raises(DevClusterError, match="cannot enter a folder above it"):
            Cluster.up(ClusterSpec(name="x"))


@pytest.mark.root
def test_a_full_disk_is_told_in_a_line(state):
    up = f"{sys.executable} -m site_configs.devcluster up --name x --nodes 1 --no-accounting"
    script = f"mount -t tmpfs -o size=600k,mode=755 none {state} && {up}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) < 6


def test_the_state_folder_is_known_by_its_real_path(state, monkeypatch):
    (state / "real").mkdir()
    (state / "link").symlink_to("real")
    monkeypatch.setenv("GSUB_DEVCLUSTER_HOME", f"{state}/link")
    assert state_home() == state / "real"
    monkeypatch.setenv("GSUB_DEVCLUSTER_HOME", "")
    assert state_home() != Path.cwd()


def test_a_lock_that_was_removed_locks_again(tmp_path):
    lock = tmp_path / "lock"
    with locked(lock, remove=True):
        assert lock.exists()
    assert not lock.exists()
    with locked(lock):
        waiting = threading.Event()
        seen = []

        def second() -> None:
            with locked(lock, waiting=waiting.set):
                seen.append(lock.stat().st_ino)

        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        lock.unlink()  # as `down` does, before it lets go
    thread.join(10)
    assert seen == [lock.stat().st_ino]


@pytest.mark.slow
@pytest.mark.needs("slurm-host")
def test_any_umask_will_do_and_daemons_that_ended_are_started_again(state):
    line = [*DEVCLUSTER, "up", "--name", "x", "--nodes", "1", "--gpus", "1", "--no-accounting"]
    env = {**os.environ, "PATH": "/usr/bin:/bin", "LANG": "C"}
    try:
        done = subprocess.run(line, capture_output=True, text=True, umask=0o077, env=env)
        assert done.returncode == 0, done.stderr
        daemons = Cluster.find("x").daemons()
        for name in ("munged", "slurmd-n1", "gsubd", "noded-n1"):
            os.kill(daemons[name], 9)
        wait_until(
            lambda: set(Cluster.find("x").daemons()) == {"slurmctld"}, 20, "the end of the other daemons"
        )
        done = subprocess.run(line, capture_output=True, text=True, env=env)
        assert "starting munged again" in done.stderr
        after = Cluster.find("x").daemons()
        assert set(after) == set(daemons)
        assert after["slurmctld"] == daemons["slurmctld"]
        cluster = Cluster.find("x")
        said = cluster.run(
            ["srun", "--immediate=30", "true"], user=cluster.users[0] if cluster.users else None
        )
        assert said.returncode == 0, said.stderr
    finally:
        Cluster.down("x")


@pytest.mark.root
@pytest.mark.needs("slurm-host")
def test_single_user_mode(tmp_path_factory):
    """Without root there is one user, and the same cluster otherwise."""
    if not (open_to_all(REPOSITORY) and open_to_all(Path(sys.executable))):
        pytest.skip("user1 cannot reach this checkout or its Python")
    try:
        pwd.getpwnam("user1")
    except KeyError:
        subprocess.run(["useradd", "--create-home", "user1"], check=True)
    line = " && ".join(
        [
            f"cd {REPOSITORY}",
            f"trap '{sys.executable} -m site_configs.devcluster down --name solo' EXIT",
            f"{sys.executable} -m site_configs.devcluster up --name solo --nodes 2 --gpus 2",
            f"{sys.executable} -m site_configs.devcluster run --name solo -- srun -N2 --gpus-per-node=1 "
            "sh -c 'echo gpu $CUDA_VISIBLE_DEVICES of $SLURMD_NODENAME as $(id -un)'",
        ]
    )
    done = subprocess.run(
        ["su", "user1", "-s", "/bin/bash", "-c", line], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu 0 of n1 as user1" in done.stdout
    assert "gpu 0 of n2 as user1" in done.stdout
    assert "cluster 'solo' is down" in done.stdout


def test_every_release_is_named_in_the_help():
    said = subprocess.run([*DEVCLUSTER, "up", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(release in said for release in RELEASES)
