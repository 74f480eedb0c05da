"""docs/by-hand.md, typed as written on a machine of the test's own: it installs the record, and takes it out again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.machine import locked
from site_configs.devcluster.spec import state_home
from tests.paths import REPOSITORY
from tests.releases import can_make_chroots
from tests.slurm.record.machine import NODE, Machine, commands
from tests.waiting import wait_until

GUIDE = REPOSITORY / "docs/by-hand.md"
TYPED = commands(GUIDE)
INSTALL = ("A user", "The controller's host", "Every node", "Slurm")
CHAIN = "A site that has a prolog already"
CHECK = "Does it work?"
REMOVE = "Taking it out"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A Slurm that has never heard of gsub. One at a time: the service's ports are those of the guide."""
    name = f"t{os.getpid()}-guide"
    with locked(state_home() / ".guide.lock"):
        try:
            yield Machine(Cluster.up(ClusterSpec(name, 1, 2, "trixie", gsub=False, short_delays=True)))
        finally:
            Cluster.down(name)


def test_all_that_is_typed_is_under_a_heading_that_is_tried():
    assert TYPED.keys() == {*INSTALL, CHAIN, CHECK, REMOVE}


def run(machine: Machine) -> str:
    """A job; its id."""
    line = ["sbatch", "--parsable", "--wait", "--output=/dev/null", "--gpus=1", "--wrap", "exit 7"]
    return machine.cluster.run(line).stdout.strip()


def shown(machine: Machine, job: str) -> str:
    """What `gsub usage` tells of it, once it has ended for the record too."""

    def look() -> str | None:
        done = machine.run(f"gsub usage {job}")
        return done.stdout if "FAILED" in done.stdout else None

    return wait_until(look, message=f"a record of job {job}")


def state(machine: Machine) -> str:
    return machine.cluster.run(["sinfo", "-h", "-n", NODE, "-o", "%t %E"]).stdout.split("\n")[0]


def of_gsub(machine: Machine) -> list[Path]:
    """All on the machine that is named after gsub."""
    return sorted(
        path
        for place in ("opt", "usr", "etc", "run", "var/spool")
        for path in (machine.root / place).rglob("*gsub*")
    )


@pytest.mark.root
@pytest.mark.skipif(not can_make_chroots(), reason="no chroot can be made here")
def test_the_steps_typed_as_written(machine):
    # a killed `gsub admin` may have left its lock in what all machines begin from, and nothing else
    before = of_gsub(machine)
    assert all(path.match("run/gsub-admin-*.lock") for path in before)
    for heading in INSTALL:
        for line in TYPED[heading]:
            machine.type(line)
    first = run(machine)
    assert NODE in shown(machine, first)
    for line in TYPED[CHECK]:
        machine.type(line)

    # A prolog of the site's own, kept
    etc = machine.cluster.paths.etc
    conf = machine.cluster.paths.slurm_conf
    (etc / "site-prolog").write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >> {etc}/seen\n")
    (etc / "site-prolog").chmod(0o755)
    without = conf.read_text()
    for line in TYPED[CHAIN]:
        machine.type(line)
    second = run(machine)
    assert NODE in shown(machine, second)
    assert (etc / "seen").read_text().split() == [second]
    conf.write_text(without)
    machine.cluster.run(["scontrol", "reconfigure"], check=True)

    for line in TYPED[REMOVE]:
        machine.type(line)
    third = run(machine)
    assert third
    assert state(machine).startswith("idle")
    assert "libexec/gsub" not in conf.read_text()
    assert of_gsub(machine) == before
