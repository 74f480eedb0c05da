"""`gsub admin selftest` on a real cluster: well where all is well, and the right words where something is broken."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster, ClusterSpec, agents, gsubd
from slurm_plugins.install.selftest.bounds import MOST_JOBS
from slurm_plugins.install.selftest.table import SCENARIOS
from tests.waiting import wait_until

pytestmark = pytest.mark.root

DELAY = 20
"""Seconds that Slurm holds a requeued job here, instead of two minutes: that of short delays."""
DEADLINE = 0.3
INERT = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A job_submit.lua that has never heard of gsub."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """2 nodes x 2 GPUs with agents."""
    os.umask(0o022)
    name = f"t{os.getpid()}-self{request.param}"
    try:
        yield Cluster.up(ClusterSpec(name, 2, 2, request.param, deadline=DEADLINE, short_delays=True))
    finally:
        Cluster.down(name)


@contextmanager
def rewritten(path: Path, pattern: str, instead: str) -> Iterator[None]:
    """A file with another text for a while."""
    before = path.read_text()
    after, count = re.subn(pattern, instead, before)
    assert count, f"{pattern} is not in {path}"
    path.write_text(after)
    try:
        yield
    finally:
        path.write_text(before)


def idle(cluster: Cluster) -> bool:
    return set(cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%t"]).stdout.split()) == {"idle"}


@dataclass(frozen=True)
class Said:
    """What a run came to: each scenario's part of the result file."""

    code: int
    out: str
    err: str
    file: dict[str, Any]

    def of(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.file["scenarios"] if one["name"] == name)
        return found

    @property
    def levels(self) -> dict[str, str]:
        return {one["name"]: one["outcome"] for one in self.file["scenarios"]}


def selftest(cluster: Cluster, *only: str, user: str | None = None, wait: int = 40, **more: str) -> Said:
    """Run it as root for user1, or as an ordinary user."""
    words = ["gsub", "admin", "selftest", "--partition=gpu", "--json", "--yes", f"--wait={wait}"]
    words += [] if user else ["--user=user1"]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
    words += [f"--only={name}" for name in only]
    done = cluster.run(words, user=user, timeout=400)
    return Said(done.returncode, done.stdout, done.stderr, json.loads(done.stdout or "{}"))


def too_slow(said: Said) -> set[str]:
    """What could not be told since this machine is so busy that no submission was through in 3 s."""
    return {
        one["name"] for one in said.file["scenarios"] if "this machine is too slow to tell" in one["seen"]
    }


def queued(cluster: Cluster) -> list[str]:
    return cluster.run(["squeue", "-h", "-n", "gsub-selftest", "-o", "%i %T"]).stdout.splitlines()


@contextmanager
def without(cluster: Cluster, daemon: str) -> Iterator[None]:
    """The cluster while a daemon is away."""
    cluster.stop(daemon)
    try:
        yield
    finally:
        cluster.start(daemon)


def names(cluster: Cluster) -> set[str]:
    """What the result file must not hold of this site."""
    conf = cluster.run(["scontrol", "show", "config"]).stdout
    host = re.findall(r"(?m)^SlurmctldHost\[0\]\s*= ([^\s(]+)", conf)
    return {
        *cluster.spec.node_names, *cluster.users, *host, cluster.spec.name, "user1", "lab", "gpu", "debug",
        "leaf1", "127.0.0.1", str(cluster.paths.root), "/home", "Development cluster",
    }  # fmt: skip


# --- well -----------------------------------------------------------------------------------------------------------


@pytest.mark.all_releases
def test_all_is_as_promised_in_observe(cluster, tmp_path):
    said = selftest(cluster)
    wrong = {one["name"]: one["seen"] for one in said.file["scenarios"] if one["outcome"] == "failed"}
    assert (said.code, wrong) == (0, {})
    skipped = {one["name"]: one["seen"] for one in said.file["scenarios"] if one["outcome"] == "skipped"}
    assert "--stop-service" in skipped.pop("dead-service")
    assert set(skipped) <= too_slow(said)
    assert said.levels.keys() == {one.name for one in SCENARIOS}
    assert said.of("requeue")["facts"]["requeue_delay_seconds"] == DELAY
    assert said.of("usage")["facts"]["gpus_measured"] == 1
    assert queued(cluster) == []
    assert said.file["jobs_made"] <= MOST_JOBS
    # nobody who reads the file learns whose cluster it is
    assert len(said.file["doctor"]) > 20
    for line in said.out.splitlines():
        for name in names(cluster):
            assert not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line), line
    assert said.file["slurm"] == cluster.version


def test_enforce_shows_its_change_on_the_job(cluster):
    with in_mode(cluster, "enforce"), ThreadPoolExecutor() as side_by_side:
        # the one without root asks nothing of gsubd while the other has it stand still
        other = side_by_side.submit(selftest, cluster, "hooks", "hung-service", "authorisation", user="user2")
        said = selftest(cluster, "decision", "opt-out", "limits", "hung-service")
        mine = other.result()
    wrong = {name for name, level in said.levels.items() if level != "ok"}
    assert (said.code, wrong - too_slow(said)) == (0, set()), said.file
    assert said.file["mode"] == "enforce"
    # which field shows it differs by release: NumNodes, TresPerNode
    assert said.of("decision")["facts"]["changed_fields"] > len(["AdminComment"])
    # an ordinary user is shown what needs no root
    assert mine.levels == {
        "hooks": "ok", "hung-service": "skipped", "authorisation": "skipped", "cleanup": "ok", "nodes": "ok",
    }  # fmt: skip
    assert mine.code == 0


@contextmanager
def in_mode(cluster: Cluster, mode: str) -> Iterator[None]:
    before = cluster.paths.site.read_text()
    cluster.write_site(before.replace('mode = "observe"', f'mode = "{mode}"'))
    try:
        yield
    finally:
        cluster.write_site(before)


def test_a_full_cluster_skips(cluster):
    held = cluster.run(
        ["sbatch", "--parsable", "-N2", "--exclusive", "--output=/dev/null", "--wrap=sleep 300"]
    )
    assert held.returncode == 0, held.stderr
    try:
        said = selftest(cluster, "decision", "usage", "two-nodes", wait=3)
        assert said.code == 0
        assert said.levels["decision"] == "ok"
        assert (said.levels["usage"], said.levels["two-nodes"]) == ("skipped", "skipped")
        assert "no start within 3 s" in said.of("usage")["seen"]
    finally:
        cluster.run(["scancel", held.stdout.strip()])
        wait_until(lambda: idle(cluster))


# --- broken ---------------------------------------------------------------------------------------------------------


def test_without_gsubd_nothing_is_decided(cluster):
    with without(cluster, "gsubd"), ThreadPoolExecutor() as side_by_side:
        other = side_by_side.submit(selftest, cluster, "hung-service", wait=1)
        said = selftest(cluster, "decision", "exit-code", user="user1", record="5")
        root = other.result()
    assert said.code == 1
    assert (said.levels["decision"], said.levels["exit-code"]) == ("failed", "failed")
    assert "without a decision" in said.of("decision")["seen"]
    assert "does not answer" in said.of("exit-code")["seen"]
    assert root.levels["hung-service"] == "skipped"
    wait_until(lambda: gsubd.keeps(cluster.ports))


def test_without_shim_and_agents_nothing_is_decided_and_nothing_recorded(cluster):
    script = cluster.paths.etc / "job_submit.lua"
    before = script.read_text()
    write_lua(script, INERT)
    for node in cluster.spec.node_names:
        cluster.stop(f"{agents.PREFIX}{node}")
    try:
        said = selftest(cluster, "decision", "cpu-only", "opt-out", "exit-code", record="5")
    finally:
        write_lua(script, before)
        for node in cluster.spec.node_names:
            cluster.start(f"{agents.PREFIX}{node}")
    assert said.code == 1
    assert said.levels == {
        "decision": "failed", "cpu-only": "ok", "opt-out": "ok", "exit-code": "failed", "cleanup": "ok", "nodes": "ok",
    }  # fmt: skip
    assert "without a decision" in said.of("decision")["seen"]
    assert "there is no record of it" in said.of("exit-code")["seen"]
    assert selftest(cluster, "decision").code == 0


def write_lua(script: Path, text: str) -> None:
    """slurmctld takes it when its mtime, in whole seconds, is later than that of the one it has."""
    last = int(max(time.time(), script.stat().st_mtime))
    wait_until(lambda: int(time.time()) > last)
    script.write_text(text)
    os.utime(script, (last + 1, last + 1))


def test_a_gsubd_of_another_mode_than_the_site_file_is_found(cluster):
    """The file says observe, and gsubd, which was not told, goes on in enforce."""
    before = cluster.paths.site.read_text()
    enforcing = cluster.paths.etc / "site-enforce.toml"
    enforcing.write_text(before.replace('mode = "observe"', 'mode = "enforce"'))
    cluster.write_site(enforcing.read_text())
    pid = cluster.daemons()["gsubd"]
    try:
        env = {"GSUB_SITE": str(cluster.paths.etc / "site-observe.toml")}
        Path(env["GSUB_SITE"]).write_text(before)
        words = [
            "gsub",
            "admin",
            "selftest",
            "--partition=gpu",
            "--json",
            "--yes",
            "--user=user1",
            "--only=decision",
        ]
        done = cluster.run(words, env=env, timeout=120)
    finally:
        cluster.write_site(before)
    assert cluster.daemons()["gsubd"] == pid
    (seen,) = (one for one in json.loads(done.stdout)["scenarios"] if one["name"] == "decision")
    assert (done.returncode, seen["outcome"]) == (1, "failed")
    # 26.05 shows the number of nodes of a pending job alike before and after
    field = "TresPerNode" if cluster.spec.slurm == "forky" else "NumNodes"
    assert "the site is in observe" in seen["seen"] and field in seen["seen"]


def test_a_store_that_cannot_be_written_leaves_no_record(cluster):
    store = cluster.paths.gsub_state / "store.db"
    status = store.stat()
    cluster.stop("gsubd")
    os.chown(store, 0, 0)
    store.chmod(0o444)
    try:
        cluster.start("gsubd")
        said = selftest(cluster, "exit-code", record="5")
    finally:
        cluster.stop("gsubd")
        os.chown(store, status.st_uid, status.st_gid)
        store.chmod(status.st_mode & 0o777)
        cluster.start("gsubd")
        wait_until(lambda: gsubd.keeps(cluster.ports))
    assert said.code == 1
    # the keeper answers, and takes nothing: what nodes tell waits there
    assert "there is no record of it" in said.of("exit-code")["seen"], said.of("exit-code")


def test_without_hooks_the_record_is_found_wanting(cluster):
    with rewritten(cluster.paths.slurm_conf, r"(?m)^(Prolog|Epilog)=.*\n", ""):
        cluster.run(["scontrol", "reconfigure"], check=True)
        said = selftest(cluster, "hooks", record="5")
    cluster.run(["scontrol", "reconfigure"], check=True)
    assert said.code == 1
    assert said.levels["hooks"] == "failed"
    assert re.search(r"the epilog did not tell|there is no record", said.of("hooks")["seen"])


SYSTEMCTL = """\
#!/bin/sh
[ "$1" = is-active ] && exit 0
echo "$1 $2" > {folder}/asked
until [ -e {folder}/done ]; do sleep 0.05; done
rm {folder}/done
"""


def test_gsubds_unit_is_stopped_and_started_where_the_site_allows_it(cluster):
    """There is no systemd here: a systemctl stands in that has gsubd really stopped, and really started."""
    folder = cluster.paths.root / "systemctl"
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(SYSTEMCTL.format(folder=folder))
    program.chmod(0o755)
    asked, done = folder / "asked", folder / "done"
    words = ["gsub", "admin", "selftest", "--partition=gpu", "--json", "--yes", "--user=user1"]
    env = {"PATH": f"{folder}:{cluster.env['PATH']}"}
    process = cluster.popen(
        [*words, "--only=dead-service", "--stop-service"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for verb in ("stop", "start"):
        wait_until(lambda: asked.exists() and asked.read_text().endswith("\n"), 60)
        assert asked.read_text() == f"{verb} gsubd.service\n"
        asked.unlink()
        (cluster.stop if verb == "stop" else cluster.start)("gsubd")
        done.touch()
    out, err = process.communicate(timeout=120)
    (seen,) = (one for one in json.loads(out)["scenarios"] if one["name"] == "dead-service")
    assert (process.returncode, seen["outcome"]) == (0, "ok"), (seen, err)
    assert seen["facts"]["decided_again_after_seconds"] >= 0
    wait_until(lambda: gsubd.keeps(cluster.ports))


# --- ended in the middle --------------------------------------------------------------------------------------------


def hears_sigint() -> None:
    """Who starts tests in a shell's background has them ignore SIGINT, and so would the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_an_end_in_the_middle_leaves_no_job(cluster, number):
    words = ["gsub", "admin", "selftest", "--partition=gpu", "--yes", "--user=user1"]
    wait_until(lambda: not queued(cluster))  # else what was there before would be taken for its first job
    process = cluster.popen(
        [*words, "--only=cancelled", "--only=decision"], start_new_session=True, preexec_fn=hears_sigint
    )
    wait_until(lambda: queued(cluster))
    os.killpg(process.pid, number)
    assert process.wait(60) == 130
    assert queued(cluster) == [] or all(line.endswith("COMPLETING") for line in queued(cluster))


def test_after_a_kill_the_next_run_tells_what_is_left_and_leaves_it(cluster):
    words = ["gsub", "admin", "selftest", "--partition=gpu", "--yes", "--user=user1", "--only=cancelled"]
    process = cluster.popen(words, start_new_session=True)
    wait_until(lambda: any("RUNNING" in line for line in queued(cluster)))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    said = selftest(cluster, "cpu-only")
    assert said.file["jobs_of_an_earlier_run"] == 1
    assert "1 jobs of an earlier selftest" in said.err
    assert len(queued(cluster)) == 1
    limit = cluster.run(["squeue", "-h", "-n", "gsub-selftest", "-o", "%l"]).stdout.strip()
    assert limit == "1:00"
    cluster.run(["scancel", "--name=gsub-selftest", "--user=user1"])


# --- what cannot be run ---------------------------------------------------------------------------------------------


def test_what_cannot_be_run_is_told_before_any_job(cluster, tmp_path):
    there = cluster.home("user1") / "there.json"
    cluster.run(["touch", str(there)], user="user1", check=True)
    for words, told in (
        (["--partition=gpu"], "name an ordinary user"),
        (["--partition=gpu", "--user=root"], "root is no ordinary user"),
        (["--partition=gpu", "--user=nosuchuser"], "there is no user nosuchuser"),
        (["--partition=nowhere", "--user=user1"], "there is no partition nowhere"),
        (["--partition=gpu", "--user=user1", "--account=nowhere"], "Slurm takes no job of user1"),
        (["--partition=gpu", "--user=user1", f"--output={there}"], "is there already"),
        (["--partition=gpu", "--user=user1", "--output=/proc/x.json"], "cannot be written"),
        (["--partition=gpu", "--user=user1", "--only=all"], "there is no scenario"),
        (["--user=user1"], "no partition is named"),
    ):
        done = cluster.run(["gsub", "admin", "selftest", "--yes", *words])
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert told in done.stderr, (words, done.stderr)
        assert len(done.stderr.splitlines()) <= 3
    unasked = cluster.run(["gsub", "admin", "selftest", "--partition=gpu", "--user=user1"])
    assert unasked.returncode == 2 and "--yes" in unasked.stderr
    assert queued(cluster) == []
