"""What Slurm's commands are asked for before a job gets more memory, and how often."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugins.act.slurm import Commands, Whom
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.runner import Runner
from slurm_plugins.limits.lookup import Lookup, read_associations
from slurm_plugins.limits.records import QOS_COLUMNS
from tests.paths import DATA
from tests.unit.slurm_plugins.act.fakes import pending

CONFIG = """\
AccountingStorageEnforce = {enforce}
MaxMemPerNode           = {per_node}
SLURM_VERSION           = 26.05.5
"""
PARTITIONS = """\
PartitionName=gpu QoS=part Nodes=n[1-2] State=UP MaxMemPerNode=UNLIMITED
PartitionName=debug QoS=N/A Nodes=n3 State=UP MaxMemPerCPU=4000
"""
NODES = """\
NodeName=n1 CPUTot=8 RealMemory=64000 MemSpecLimit=2000 State=IDLE Partitions=gpu
NodeName=n2 CPUTot=8 RealMemory=32000 State=IDLE Partitions=gpu
NodeName=n3 CPUTot=8 RealMemory=512000 State=IDLE Partitions=debug
"""
LIMITS = "part|mem=30000M||||\nroomy||mem=2G|||1.000000\n"
JOB = pending(7, uid=1001, qos="tight")


class Site:
    """Commands that answer from files, and note what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.say("config", CONFIG.format(enforce="associations,limits,qos", per_node="UNLIMITED"))
        self.say("partition", PARTITIONS)
        self.say("node", NODES)
        self.say("assoc_mgr", (DATA / "act" / "assoc_mgr-26.05.5.txt").read_text())
        self.say("sacctmgr", LIMITS)
        log = f'echo "$(basename $0) $*" >> {folder}/asked\n'
        what = f'for word in "$@"; do [ -f {folder}/$word ] && exec cat {folder}/$word; done; exit 1\n'
        (folder / "bin").mkdir()
        for name, body in (("scontrol", what), ("sacctmgr", f"cat {folder}/sacctmgr\n")):
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{log}{body}")
            (folder / "bin" / name).chmod(0o755)
        self.env = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        self.lookup = Lookup(seconds=60, clock=lambda: self.now)

    def say(self, what: str, text: str) -> None:
        (self.folder / what).write_text(text)

    def fail(self, command: str, message: str) -> None:
        (self.folder / "bin" / command).write_text(
            f"#!/bin/sh\necho failed >> {self.folder}/failures\necho '{message}' >&2\nexit 1\n"
        )

    @property
    def failures(self) -> list[str]:
        return (self.folder / "failures").read_text().splitlines()

    @property
    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_holds_for_a_job_is_asked_in_fixed_commands(site):
    room = site.lookup.room(site.env, JOB)
    assert [p.name for p in room.partitions] == ["gpu"]
    assert (room.biggest, room.per_node, room.per_cpu, room.enforced) == (62000, None, None, True)
    # slurmctld tells of users who have a job in a QOS, slurmdbd of all
    assert room.associations.qos["part"].limits.shared == {"MaxTRESPerUser": {"mem": 30000}}
    assert room.associations.qos["part"].whole and not room.associations.qos["tight"].whole
    assert site.asked == [
        "scontrol show config",
        "scontrol --oneliner --all show partition",
        "scontrol --oneliner --all show node",
        "scontrol --oneliner show assoc_mgr flags=assoc,qos users=user1 qos=part,tight",
        f"sacctmgr --noheader --parsable2 show qos format={','.join(QOS_COLUMNS)}",
    ]


def test_for_decisions_all_is_read(site):
    (site.folder / "bin/sacctmgr").write_text(
        f"#!/bin/sh\ncase $4 in qos) cat {site.folder}/sacctmgr;; *) echo 'lab|user1||part|normal,part';; esac\n"
    )
    told = read_associations(Runner(site.env, timeout=60), "lab1")
    user = told.of_user(1001, "lab", "gpu")
    assert user is not None and user.default_qos == "part"
    assert told.qos["roomy"].limits.shared == {"MaxTRESPerAccount": {"mem": 2048}}


def test_only_what_changes_is_asked_again(site):
    debug = replace(JOB, partition="debug")
    site.lookup.room(site.env, debug)
    assert len(site.asked) == 5
    site.lookup.room(site.env, debug)
    assert len(site.asked) == 6 and "assoc_mgr" in site.asked[-1]
    site.now += 61
    site.lookup.room(site.env, debug)
    assert len(site.asked) == 11
    site.lookup.room(site.env | {"SLURM_CONF": "/elsewhere"}, debug)
    assert len(site.asked) == 16


@pytest.mark.parametrize("enforce", ["none", "associations", "associations,nosteps"])
def test_where_accounting_enforces_no_limits_it_is_not_asked(site, enforce):
    site.say("config", CONFIG.format(enforce=enforce, per_node="48000"))
    room = site.lookup.room(site.env, JOB)
    assert (room.enforced, room.per_node, room.associations) == (False, 48000, None)
    assert len(site.asked) == 3


def test_what_was_not_understood_is_told_as_that(site):
    site.say("assoc_mgr", "ClusterName=c Account=lab UserName=user1 Partition=\n")
    room = site.lookup.room(site.env, JOB)
    assert room.associations is None and "not understood" in room.missing


def test_a_qos_that_slurmdbd_does_not_know_stays_unknown(site):
    site.say("sacctmgr", "")
    room = site.lookup.room(site.env, JOB)
    assert not room.associations.qos["part"].whole


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("scontrol", "scontrol: error: Unable to contact slurm controller (connect failure)"),
        ("sacctmgr", "sacctmgr: error: Sending PersistInit msg: Connection refused"),
    ],
)
def test_a_silent_daemon_is_no_answer(site, command, message):
    site.fail(command, message)
    with pytest.raises(SlurmUnreachable):
        site.lookup.room(site.env, JOB)


@pytest.mark.parametrize(
    "job", [replace(JOB, user="a,b"), replace(JOB, user=""), replace(JOB, qos="a=b"), replace(JOB, uid=None)]
)
def test_a_name_that_would_ask_for_something_else_is_not_asked(site, job):
    assert site.lookup.room(site.env, job).associations is None
    assert not any("assoc_mgr" in line for line in site.asked)


def test_the_version_of_the_commands_is_asked_once(tmp_path):
    (tmp_path / "squeue").write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n[ "$1" = --version ] && echo "slurm-wlm 22.05.8"\nexit 0\n'
    )
    (tmp_path / "squeue").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    slurm = Commands(lambda: env, Whom(890, "gsub-act"))
    for _ in range(3):
        assert slurm.jobs(["7", "8"]) == ()
    assert [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == [
        "--version", "--noheader", "--noheader", "--noheader"
    ]  # fmt: skip


def test_a_slurmdbd_that_was_silent_is_not_waited_for_by_each(site):
    site.fail("sacctmgr", "sacctmgr: error: Sending PersistInit msg: Connection refused")
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="slurmdbd"):
            site.lookup.room(site.env, JOB)
    assert len(site.failures) == 1
    site.now += 31
    with pytest.raises(SlurmUnreachable):
        site.lookup.room(site.env, JOB)
    assert len(site.failures) == 2
