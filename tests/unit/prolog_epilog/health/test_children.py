"""Checks that block, crash or lie cost their own answer only: real processes, real FIFOs, programs deaf to SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.health import children as module
from prolog_epilog.health.children import Children
from prolog_epilog.health.finding import Finding, Limits
from prolog_epilog.health.tasks import Task

LONG = 60.0  # seconds after which a test gives up

PLUGINS = """
import os, sys, time
from prolog_epilog.health.finding import Finding, HealthCheck

class Well(HealthCheck):
    def check(self):
        print("chatter on standard output")
        return Finding("ok", "all is well")

class Several(HealthCheck):
    def check(self):
        yield Finding("ok", subject="a")
        yield Finding("error", "b is \\x1b[31mbroken\\n", subject="b")

class Blocks(HealthCheck):
    def check(self):
        open(os.environ["TEST_FIFO"]).read()  # nobody ever opens its other end

class Raises(HealthCheck):
    def check(self):
        raise RuntimeError("no licence\\x1b[31m")

class Leaves(HealthCheck):
    def check(self):
        sys.exit(0)

class Dies(HealthCheck):
    def check(self):
        os.kill(os.getpid(), 9)

class Endless(HealthCheck):
    def check(self):
        while True:
            yield Finding("ok", subject=str(time.monotonic_ns()))

class Lies(HealthCheck):
    def check(self):
        return [{"state": "ok"}]

class OddState(HealthCheck):
    def check(self):
        return Finding("splendid")

class Abstract(HealthCheck):
    pass

function = len
"""


@pytest.fixture
def children(tmp_path, monkeypatch) -> Iterator[Children]:
    """With the plugins above importable in the children, and no time allowed for their start beyond what it takes."""
    (tmp_path / "site_checks.py").write_text(PLUGINS)
    (tmp_path / "site_broken.py").write_text("1 / 0")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "_COMMAND", (sys.executable, "-m", "prolog_epilog.health.child"))
    monkeypatch.setenv("TEST_FIFO", str(tmp_path / "fifo"))
    children = Children(max_abandoned=2)
    yield children
    children.close()


def plugin(name: str, value: str = "", deadline: float = 2.0) -> Task:
    return Task(name, "plugin", deadline, value=value or f"site_checks:{name}", alone=True)


def disk(name: str = "disk_space") -> Task:
    return Task(name, limits=Limits(fail=1000), paths=("/",), deadline=30.0)


def answers(children: Children, count: int) -> dict[str, tuple[Finding, ...]]:
    found: dict[str, tuple[Finding, ...]] = {}
    end = time.monotonic() + LONG
    while len(found) < count and time.monotonic() < end:
        found.update({answer.name: answer.findings for answer in children.wait(5.0)})
    assert len(found) == count
    return found


def test_gsubs_own_and_a_sites_answer(children):
    children.start([disk(), disk("inodes"), plugin("Well", deadline=30), plugin("Several", deadline=30)])
    found = answers(children, 4)
    assert [finding.state for finding in found["disk_space"]] == ["ok"]
    assert found["Well"] == (Finding("ok", "all is well"),)
    assert found["Several"] == (Finding("ok", subject="a"), Finding("error", "b is [31mbroken", "b"))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("Raises", "", "failed: RuntimeError: no licence [31m"),
        ("Leaves", "", "failed: SystemExit"),
        ("Dies", "", "ended without an answer"),
        ("Lies", "", "failed: TypeError: want findings, not dict"),
        ("OddState", "", "failed: TypeError: want findings"),
        ("Abstract", "", "failed: TypeError"),
        ("none", "site_checks:Missing", "failed: AttributeError"),
        ("function", "", "want a class derived from"),
        ("broken", "site_broken:Check", "failed: ZeroDivisionError"),
        ("nowhere", "nowhere_at_all:Check", "failed: ModuleNotFoundError"),
    ],
)
def test_a_broken_one_is_unknown_and_told(children, name, value, why):
    children.start([plugin(name, value, deadline=30), disk()])
    found = answers(children, 2)
    (finding,) = found[name]
    assert (finding.state, why in finding.detail) == ("unknown", True), finding
    assert finding.detail.isprintable()
    assert found["disk_space"][0].state == "ok"


def test_what_a_check_answers_is_bounded(children):
    children.start([plugin("Endless", deadline=30)])
    assert len(answers(children, 1)["Endless"]) == 256


@pytest.fixture
def deaf(tmp_path) -> tuple[str, ...]:
    """A program that only SIGKILL ends."""
    path = tmp_path / "deaf"
    path.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1; done\n")
    path.chmod(0o755)
    return (str(path),)


def test_those_that_block_do_not_hold_up_the_others(children, deaf):
    """With deadlines so long that only an answer that waits for nobody can come."""
    program = Task("deaf", "command", 600.0, command=deaf, alone=True)
    children.start([plugin("Blocks", deadline=600.0), program, disk(), plugin("Well", deadline=600.0)])
    assert set(answers(children, 2)) == {"disk_space", "Well"}
    assert children.busy == {"Blocks", "deaf"}


@pytest.mark.slow
def test_those_that_block_are_unknown_after_their_deadlines(children, deaf):
    children.start([plugin("Blocks"), Task("deaf", "command", 2.0, command=deaf, alone=True)])
    assert answers(children, 2) == {
        "Blocks": (Finding("unknown", "did not answer within 2 s"),),
        "deaf": (Finding("unknown", "did not end within 2 s"),),
    }


@pytest.mark.slow
def test_one_that_blocks_among_those_that_run_together_gives_way_to_the_rest(children):
    """As a statvfs on a local disk that has died."""
    blocks = Task("Blocks", "plugin", 2.0, value="site_checks:Blocks")
    children.start([disk(), blocks, disk("inodes")])
    found = answers(children, 3)
    assert found["Blocks"][0].state == "unknown"
    assert (found["disk_space"][0].state, found["inodes"][0].state) == ("ok", "ok")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_with_a_child_goes_what_it_started(children, tmp_path):
    stays = tmp_path / "stays"
    stays.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/pid\nwait\n")
    stays.chmod(0o755)
    children.start([Task("stays", "command", 2.0, command=(str(stays),), alone=True)])
    assert answers(children, 1)["stays"][0].state == "unknown"
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + LONG
    while not gone(pid) and time.monotonic() < end:
        children.wait(0.1)
    assert gone(pid)


@pytest.fixture
def unkillable(monkeypatch) -> Iterator[list[module._Child]]:
    """Children that SIGKILL does not end, as in uninterruptible sleep; they end with the test."""
    spared: list[module._Child] = []
    real = module._kill

    def spare(child: module._Child) -> None:
        child.killed = True
        spared.append(child)

    monkeypatch.setattr(module, "_kill", spare)
    yield spared
    for child in spared:
        real(child)


def wait_for_abandoned(children: Children, count: int) -> None:
    end = time.monotonic() + LONG
    while len(children.abandoned) < count and time.monotonic() < end:
        children.wait(0.2)
    assert len(children.abandoned) == count


@pytest.mark.slow
def test_one_that_cannot_be_killed_is_left_behind_and_not_started_again(children, unkillable, monkeypatch):
    children.start([plugin("Blocks")])
    first = answers(children, 1)["Blocks"]
    wait_for_abandoned(children, 1)
    assert children.abandoned == ("Blocks",)
    launched: list[object] = []
    monkeypatch.setattr(children, "_launch", launched.append)
    children.start([plugin("Blocks")])
    assert answers(children, 1)["Blocks"] == first  # it stands until the child has gone
    assert launched == []


@pytest.mark.slow
def test_only_so_many_are_left_behind(children, unkillable):
    children.start([plugin("one", "site_checks:Blocks"), plugin("two", "site_checks:Blocks")])
    answers(children, 2)
    wait_for_abandoned(children, 2)
    children.start([plugin("Well")])
    (finding,) = answers(children, 1)["Well"]
    assert finding.state == "unknown" and "was not run: 2 earlier runs of checks hang" in finding.detail


@pytest.mark.slow
def test_when_it_has_gone_it_is_run_again(children, tmp_path, unkillable):
    children.start([plugin("Blocks")])
    answers(children, 1)
    wait_for_abandoned(children, 1)
    with (tmp_path / "fifo").open("w"):  # what it waited for
        pass
    end = time.monotonic() + LONG
    while children.abandoned and time.monotonic() < end:
        children.wait(0.1)
    assert children.abandoned == ()
    assert children.busy == frozenset()


@pytest.mark.slow
def test_one_that_still_runs_is_not_started_twice(children):
    children.start([plugin("Blocks", deadline=5.0)])
    children.start([plugin("Blocks", deadline=5.0), disk()])
    assert set(answers(children, 2)) == {"Blocks", "disk_space"}
    assert children.wait(0.0) == ()


def test_waiting_ends_when_woken_from_elsewhere(children):
    begun = time.monotonic()
    children.wake()
    children.wait(LONG)
    assert time.monotonic() - begun < LONG / 2


def test_closing_waits_for_nobody(children, tmp_path):
    children.start([plugin("Blocks", deadline=600.0)])
    begun = time.monotonic()
    children.cancel()
    assert time.monotonic() - begun < 10


def test_no_process_can_be_started(children, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    children.start([disk()])
    (finding,) = answers(children, 1)["disk_space"]
    assert finding == Finding("unknown", "cannot start a process: Resource temporarily unavailable")
