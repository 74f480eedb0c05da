"""The checks of files, mounts and the clock, with good and bad input: this machine's own, and made ones."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.health import clock, mounts, node_checks
from prolog_epilog.health.clock import KernelClock, kernel_clock
from prolog_epilog.health.finding import Finding, Limits
from prolog_epilog.health.mounts import mounted, probed
from prolog_epilog.health.table import CHECKS
from prolog_epilog.health.tasks import Task

FULL = Limits(warn=0, fail=1e12)  # any value reaches the warning


def task(name: str, *paths: object, limits: Limits | None = None, **values: Any) -> Task:
    row = CHECKS[name]
    own = Limits(row.warn, row.fail, row.below)
    return Task(name, limits=limits or own, paths=tuple(map(str, paths)), **values)


def run(name: str, *paths: object, limits: Limits | None = None) -> list[Finding]:
    return list(node_checks.NODE_CHECKS[name](task(name, *paths, limits=limits)))


def test_each_row_of_the_table_without_gpus_has_its_function():
    assert set(node_checks.NODE_CHECKS) == {name for name, row in CHECKS.items() if row.gpu is None}


@pytest.mark.parametrize("name", ["disk_space", "inodes", "read_only", "slurmd_spool"])
def test_a_file_system_is_told_once_and_a_missing_folder_not_at_all(name, tmp_path):
    (tmp_path / "a").mkdir()
    found = run(name, tmp_path, tmp_path / "a", tmp_path / "missing")
    assert [finding.subject for finding in found] == [str(tmp_path)]
    assert found[0].state in ("ok", "warning", "error") and str(tmp_path) in found[0].detail


@pytest.mark.parametrize(
    ("name", "values", "state", "detail"),
    [
        ("disk_space", {"f_bavail": 50}, "ok", "50 % full"),
        ("disk_space", {"f_bavail": 10, "f_bfree": 10}, "warning", "90 % full"),
        (
            "disk_space",
            {"f_bavail": 0, "f_bfree": 5},
            "error",
            "100 % full",
        ),  # root's reserve is nobody else's
        ("inodes", {"f_ffree": 50}, "ok", "50 % of its inodes"),
        ("inodes", {"f_ffree": 3}, "error", "97 % of its inodes"),
        ("read_only", {"f_flag": 0}, "ok", "for writing"),
        ("read_only", {"f_flag": os.ST_RDONLY}, "error", "read-only"),
        ("slurmd_spool", {"f_frsize": 1 << 22}, "warning", "200 MiB free"),
        ("slurmd_spool", {"f_frsize": 1 << 20}, "error", "50 MiB free"),
        ("slurmd_spool", {"f_frsize": 1 << 23}, "ok", "400 MiB free"),
    ],
)
def test_states_of_file_systems(monkeypatch, tmp_path, name, values, state, detail):
    class Stat:
        f_blocks, f_bfree, f_bavail, f_frsize, f_flag, f_files, f_ffree = 100, 50, 50, 1 << 20, 0, 100, 50

    stat = Stat()
    for key, value in values.items():
        setattr(stat, key, value)
    monkeypatch.setattr(os, "statvfs", lambda _: stat)
    (found,) = run(name, tmp_path)
    assert (found.state, detail in found.detail) == (state, True), found


@pytest.mark.parametrize("name", ["disk_space", "inodes"])
def test_file_systems_that_have_no_such_number_are_passed_over(monkeypatch, tmp_path, name):
    class Stat:
        f_blocks = f_bfree = f_bavail = f_files = f_ffree = f_flag = 0
        f_frsize = 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Stat())
    assert run(name, tmp_path) == []


@pytest.mark.parametrize("name", ["disk_space", "inodes"])
def test_an_image_that_cannot_be_written_is_meant_to_be_full(monkeypatch, tmp_path, name):
    class Stat:
        f_blocks = f_files = 100
        f_bfree = f_bavail = f_ffree = 0
        f_frsize, f_flag = 4096, os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: Stat())
    assert run(name, tmp_path) == []


@pytest.mark.parametrize(
    ("counts", "state"),
    [(["0 0"], "ok"), (["0 5", "0 2"], "ok"), (["0 600", "0 400"], "warning"), (["0 0", "1 0"], "error")],
)
def test_memory_errors_are_added_up_over_the_controllers(tmp_path, counts, state):
    for number, pair in enumerate(counts):
        folder = tmp_path / f"mc{number}"
        folder.mkdir()
        for name, value in zip(("ue_count", "ce_count"), pair.split(), strict=True):
            (folder / name).write_text(value + "\n")
    (found,) = node_checks.memory_errors(task("memory_errors"), tmp_path)
    assert (found.state, found.certain) == (state, state == "error")


def test_without_edac_nothing_is_said_of_memory(tmp_path):
    assert list(node_checks.memory_errors(task("memory_errors"), tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ((True, 0.0001, 0.002), "ok"),
        ((True, -0.7, 0.002), "warning"),
        ((True, 0.0, 3.0), "warning"),
        ((False, 0.0, 0.0), "warning"),
    ],
)
def test_the_clock(monkeypatch, values, state):
    monkeypatch.setattr(clock, "kernel_clock", lambda: KernelClock(*values))
    (found,) = run("clock_offset")
    assert found.state == state


def test_the_kernels_own_clock_is_read():
    """Against what glibc's own reading says, where the tool is there: adjtimex(2) fills the same structure."""
    found = kernel_clock()
    assert abs(found.offset) <= 0.5 and found.estimated_error >= 0


MOUNTINFO = r"""
22 28 0:21 / /proc rw,relatime - proc proc rw
28 1 253:1 / / rw,relatime - ext4 /dev/vda1 rw
40 28 0:45 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
41 28 0:46 / /my\040data rw,relatime shared:2 master:1 - lustre mds@tcp:/data rw
42 28 0:47 / /scratch rw - nfs server:/scratch rw
43 42 0:48 / /scratch rw - tmpfs tmpfs rw
half a line
""".strip()


def test_what_is_mounted():
    assert mounted(MOUNTINFO) == {
        "/proc": "proc", "/": "ext4", "/home": "nfs4", "/my data": "lustre", "/scratch": "tmpfs",
    }  # fmt: skip


def test_what_a_user_mounted_is_left_alone():
    """It may hang or come and go as the user likes, also on top of what the site mounted."""
    lines = r"""
50 28 0:50 / /home/ada rw - nfs4 server:/home/ada rw
51 28 0:51 / /home/ada rw,nosuid - fuse.sshfs ada@far:/ rw,user_id=1000,group_id=0,allow_other
52 28 0:52 / /data rw - fuse.glusterfs store:/,user_id=7 rw,user_id=0,group_id=0,allow_other
53 28 0:53 / /mnt rw - fuse.sshfs far:/ rw,user_id=1000
"""
    assert mounted(lines) == {"/data": "fuse.glusterfs"}


@pytest.fixture
def network(monkeypatch):
    """A machine with MOUNTINFO, whose calls to file systems are given: a path to what its call does."""
    calls: dict[str, Any] = {}

    def ask(paths, seconds):
        def call(path: str) -> None:
            calls.get(path, lambda: None)()

        return probed(paths, seconds, call)

    monkeypatch.setattr(node_checks, "_mounts", lambda: mounted(MOUNTINFO))
    monkeypatch.setattr(mounts, "probed", ask)
    return calls


def stale() -> None:
    raise OSError(116, "Stale file handle")


def test_network_file_systems_that_answer(network):
    found = run("stale_mounts")
    assert [(finding.subject, finding.state) for finding in found] == [("/home", "ok"), ("/my data", "ok")]


def test_a_stale_one_is_named_with_its_type(network):
    network["/home"] = stale
    home, data = run("stale_mounts")
    assert (home.state, home.detail) == ("error", "/home (nfs4) is stale: Stale file handle")
    assert data.state == "ok"


def test_one_that_hangs_is_named_and_the_others_are_answered(network):
    """The call of a thread that is let go only at the end of this test stands for the one that never returns."""
    let_go = threading.Event()
    network["/home"] = let_go.wait
    try:
        home, data = node_checks.stale_mounts(task("stale_mounts", deadline=1.0))
    finally:
        let_go.set()
    assert (home.state, "(nfs4) has not answered for" in home.detail) == ("error", True)
    assert data.state == "ok"


def test_mounts_that_the_site_names_must_be_there(network):
    found = {finding.subject: finding for finding in run("stale_mounts", "/home", "/archive", "/")}
    assert found["/archive"].detail == "/archive is not mounted"
    assert found["/archive"].state == "error"
    assert found["/home"].state == found["/"].state == "ok"
    assert "/my data" not in found


def test_this_machines_mounts_are_read():
    assert "/proc" in node_checks._mounts()
    table = subprocess.run(["cat", "/proc/mounts"], capture_output=True, text=True).stdout
    places = {line.split()[1] for line in table.splitlines()}
    assert {path.replace(" ", "\\040") for path in node_checks._mounts()} <= places
    assert Path("/").is_mount()
