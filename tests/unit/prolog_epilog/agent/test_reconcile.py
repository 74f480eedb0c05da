"""What the hooks missed is found; and nothing is taken for gone that may be there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.records import JobRef
from prolog_epilog.agent.reconcile import Reconciler, look_up, traces

J7, J8 = JobRef(7), JobRef(8)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def listen(made: list[socket.socket], path: Path) -> None:
    one = socket.socket(socket.AF_UNIX)
    cwd = Path.cwd()
    os.chdir(path.parent)  # a Unix socket's path is short
    try:
        one.bind(path.name)
    finally:
        os.chdir(cwd)
    one.listen()
    made.append(one)


def test_step_daemons_show_by_their_open_sockets(tmp_path: Path, sockets: list[socket.socket]) -> None:
    spool = tmp_path / "d"
    spool.mkdir()
    names = [
        "n1_7.0",
        "n1_7.4294967291",
        "n1_4294952826.0",
        "n1_8.4294967292.3",
        "n12_9.0",
        "xn1_10.0",
        "n1_0.0",
        "n1_11",
        "n1_a.0",
    ]
    for name in names:
        listen(sockets, spool / name)
    listen(sockets, spool / "n1_13.0")
    sockets.pop().close()  # its file stays, as that of a daemon that was killed
    unix = tmp_path / "unix"
    lines = ["Num RefCount Protocol Flags Type St Inode Path", "0: 2 0 0 1 01 9 @/abstract/n1_77.0"]
    lines += [f"0000000000000000: 00000002 0 00010000 0001 01 1 {spool}/{name}" for name in names]
    listen(sockets, spool / "n1_14.0")  # open, but in another cluster's folder
    lines += ["0000000000000000: 00000002 0 00010000 0001 01 1 /elsewhere/d/n1_14.0"]
    unix.write_text("\n".join(lines) + "\n")
    assert traces(spool, "n1", unix) == {7, 8}
    assert traces(spool, "n12", unix) == {9}
    (tmp_path / "link").symlink_to(spool)
    assert traces(tmp_path / "link", "n1", unix) == {7, 8}
    assert traces(tmp_path / "none", "n1", unix) == frozenset()


def test_the_kernels_own_list_is_read(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        path = tmp_path / "n1_7.0"
        if len(str(path)) > 100:
            pytest.skip("too long a path for a Unix socket")
        one.bind(str(path))
        one.listen()
        assert traces(tmp_path, "n1") == {7}
    assert traces(tmp_path, "n1") == frozenset(), "its file is still there, and it is not open"


def test_a_job_that_nobody_told_of_is_missed_after_a_while() -> None:
    reconciler = Reconciler(grace=60)
    assert reconciler.missed([J8], {7, 8}, 100.0) == []
    assert reconciler.missed([J8], {7, 8}, 159.0) == []
    assert reconciler.missed([J8], {7, 8}, 160.0) == [7]
    assert reconciler.missed([J7, J8], {7, 8}, 170.0) == []
    assert reconciler.missed([], {7}, 180.0) == [], "known until now, so it is not late yet"


def test_a_job_is_gone_when_slurm_says_so_twice_and_nothing_shows_here() -> None:
    reconciler, jobs = Reconciler(), {J7: 0.0, J8: 0.0}
    reconciler.hear((J8,), 1000.0, jobs, 100.0)
    assert reconciler.gone(jobs, (), 100.0) == []
    reconciler.hear((J8,), 1000.0, jobs, 110.0)
    assert reconciler.gone(jobs, (), 110.0) == [], "the same look told again is no second one"
    reconciler.hear((J8,), 1030.0, jobs, 130.0)
    assert reconciler.gone(jobs, {7}, 130.0) == [], "its step daemon is here"
    assert reconciler.gone(jobs, (), 130.0) == [J7]


def test_being_named_once_starts_the_count_again() -> None:
    reconciler, jobs = Reconciler(), {J7: 0.0}
    for number, running in enumerate([(J8,), (J7, J8), (J8,)]):
        reconciler.hear(running, 1000.0 + number, jobs, 100.0 + number)
        assert reconciler.gone(jobs, (), 100.0) == []
    reconciler.hear((J8,), 1010.0, jobs, 110.0)
    assert reconciler.gone(jobs, (), 110.0) == [J7]


def test_an_empty_answer_is_no_fact() -> None:
    reconciler, jobs = Reconciler(empty_for=900), {J7: 0.0}
    for number in range(30):
        reconciler.hear((), 1000.0 + 30 * number, jobs, 100.0 + 29 * number)
        assert reconciler.gone(jobs, (), 100.0) == []
    for number in range(2):  # for so long that it is one
        reconciler.hear((), 3000.0 + 30 * number, jobs, 1100.0 + 30 * number)
    assert reconciler.gone(jobs, {7}, 1200.0) == []
    assert reconciler.gone(jobs, (), 1200.0) == [J7]


def test_a_job_younger_than_the_answer_may_be_is_left_alone() -> None:
    reconciler, jobs = Reconciler(grace=60), {J7: 100.0}
    for number in range(3):
        reconciler.hear((J8,), 1000.0 + number, jobs, 110.0 + number)
    assert reconciler.gone(jobs, (), 120.0) == []


def test_the_same_answer_told_again_counts_once() -> None:
    reconciler, jobs = Reconciler(), {J7: 0.0}
    for _ in range(3):
        reconciler.hear((J8,), 1000.0, jobs, 110.0)
    assert reconciler.gone(jobs, (), 120.0) == []


def test_answers_count_after_the_services_clock_was_set_back() -> None:
    reconciler, jobs = Reconciler(), {J7: 0.0}
    reconciler.hear((J7,), 4e9, jobs, 100.0)
    for number in range(2):
        reconciler.hear((J8,), 1000.0 + number, jobs, 110.0)
    assert reconciler.gone(jobs, (), 120.0) == [J7]


def test_a_later_attempt_ends_the_one_before() -> None:
    reconciler, jobs = Reconciler(grace=60), {JobRef(7, 0): 0.0, JobRef(7, 1): 500.0}
    assert reconciler.gone(jobs, {7}, 530.0) == [], "the epilog may be late"
    assert reconciler.gone(jobs, {7}, 560.0) == [JobRef(7, 0)]


def test_a_later_attempt_that_has_ended_does_so_too() -> None:
    known = {JobRef(7, 0): 0.0, JobRef(7, 1): 500.0}
    assert Reconciler(grace=60).gone({JobRef(7, 0): 0.0}, (), 560.0, known) == [JobRef(7, 0)]


def test_the_sockets_of_a_later_attempt_do_not_speak_for_the_one_before() -> None:
    reconciler, jobs = Reconciler(), {JobRef(7, 0): 0.0}
    for number in range(2):
        reconciler.hear((JobRef(7, 1),), 1000.0 + number, jobs, 100.0)
    assert reconciler.gone(jobs, {7}, 100.0) == [JobRef(7, 0)]
    assert reconciler.restarts(7) == 1


def put(
    proc: Path,
    pid: int,
    comm: str,
    parent: int,
    env: dict[str, str],
    *,
    uid: int = 1000,
    runs: str = "",
    title: str = "",
) -> None:
    """A process in a folder like /proc."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} ({comm}) S {parent} 1 1 0\n")
    (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in env.items()))
    (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{uid}\t0\t0\t0\n")
    (folder / "cmdline").write_text(f"{title or comm}\0\0")
    (folder / "exe").symlink_to(f"/usr/sbin/{runs or comm}")


JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_JOB_USER": "ada", "SECRET": "x"}


def test_a_job_is_looked_up_by_what_its_step_daemon_started(tmp_path: Path) -> None:
    put(tmp_path, 10, "slurmstepd", 1, {"SLURM_JOB_ID": "7"}, uid=0)
    put(tmp_path, 11, "bash) S 10 (", 10, {**JOB, "SLURM_RESTART_COUNT": "2", "SLURM_JOB_GPUS": "3"})
    put(tmp_path, 12, "python", 11, {**JOB, "SLURM_RESTART_COUNT": "99"})  # the user's own
    put(tmp_path, 13, "bash", 10, {**JOB, "SLURM_JOB_ID": "8", "SLURMD_NODENAME": "n2"})
    put(tmp_path, 14, "bash", 10, {**JOB, "SLURM_JOB_ID": "9", "SLURM_CLUSTER_NAME": "other"})
    (tmp_path / "self").mkdir()
    found = look_up([7, 8, 9], "lab", "n1", tmp_path)
    assert set(found) == {7} and found[7].job == JobRef(7, 2) and found[7].uid == 1000
    assert found[7].env["SLURM_JOB_GPUS"] == "3" and "SECRET" not in found[7].env


def test_nobody_can_be_looked_up_as_anothers_job(tmp_path: Path) -> None:
    put(tmp_path, 10, "slurmstepd", 1, {}, uid=1001, title="slurmstepd: [7.0]")  # a user's
    put(tmp_path, 11, "bash", 10, JOB, uid=1001)
    put(tmp_path, 20, "slurmstepd", 1, {}, uid=0, runs="sudo", title="slurmstepd: [7.0]")
    put(tmp_path, 21, "bash", 20, JOB, uid=1001)
    put(tmp_path, 30, "slurmstepd", 1, {}, uid=0, title="slurmstepd: [8.batch]")
    put(tmp_path, 31, "bash", 30, {**JOB, "SLURM_RESTART_COUNT": "-5"}, uid=1001)  # exec env SLURM_JOB_ID=7
    found = look_up([7, 8], "lab", "n1", tmp_path)
    assert set(found) == {8} and found[8].job == JobRef(8, 0) and found[8].uid == 1001


def test_looking_up_in_a_real_proc_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert look_up([7], "no-such-cluster", "n1") == {}
        process.communicate(b"\n")
