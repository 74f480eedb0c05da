"""A network file system whose server never answers: a real mount, on which calls really hang."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.health.children import Children
from prolog_epilog.health.finding import Finding
from prolog_epilog.health.tasks import Task
from tests.unit.prolog_epilog.health.test_runner import NO_CHILDREN, Node, node

__all__ = ["node"]

LONG = 60.0
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """FUSE, mounted as sshfs would, with nobody who reads its requests."""
    place = tmp_path / "remote"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"server:/data", bytes(place), b"fuse.sshfs", 0, options) != 0:
        os.close(device)
        pytest.skip(f"cannot mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        os.close(device)  # this ends the calls that hang
        libc.umount2(bytes(place), 2)  # MNT_DETACH


def test_it_is_named_and_other_checks_answer(dead: Path):
    children = Children()
    found: dict[str, tuple[Finding, ...]] = {}
    try:
        children.start(
            [
                Task("stale_mounts", deadline=5.0, alone=True),
                Task("disk_space", deadline=600.0, paths=("/",)),
            ]
        )
        end = time.monotonic() + LONG
        while len(found) < 2 and time.monotonic() < end:
            found.update({answer.name: answer.findings for answer in children.wait(5.0)})
    finally:
        children.close()
    (remote,) = [finding for finding in found["stale_mounts"] if finding.subject == str(dead)]
    assert (remote.state, remote.detail) == ("error", f"{dead} (fuse.sshfs) has not answered for 3 s")
    assert found["disk_space"][0].state == "ok"


def test_a_check_that_runs_into_it_is_given_up_and_the_rest_goes_on(dead: Path):
    """As when a local path turns out to lie on it: the whole child hangs in the call."""
    children = Children()
    found: dict[str, tuple[Finding, ...]] = {}
    try:
        children.start(
            [
                Task("disk_space", deadline=2.0, paths=(str(dead),)),
                Task("inodes", deadline=600.0, paths=("/",)),
            ]
        )
        end = time.monotonic() + LONG
        while len(found) < 2 and time.monotonic() < end:
            found.update({answer.name: answer.findings for answer in children.wait(5.0)})
    finally:
        children.close()
    assert found["disk_space"] == (Finding("unknown", "did not answer within 2 s"),)
    assert [finding.subject for finding in found["inodes"]] == ["/"]


def test_the_node_tells_of_it_and_of_its_return(dead: Path, node: Node):
    own = NO_CHILDREN.replace("[health.checks.stale_mounts]\nenabled = false\n", "")
    node.start(own + "[health.checks.stale_mounts]\nevery = '1s'\ndeadline = '2s'\n")
    event = node.until(name="stale_mounts", state="error")
    assert event.detail.startswith(f"{dead} (fuse.sshfs) has not answered")
    ctypes.CDLL(None).umount2(bytes(dead), 2)
    assert f"{dead} is gone" in node.until(name="stale_mounts", state="ok").detail
