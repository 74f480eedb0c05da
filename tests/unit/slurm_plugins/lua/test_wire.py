"""The socket: what the kernel may say to the shim, and whom it trusts."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.slurm_plugins.lua.lua import Outcome, Shim
from tests.unit.slurm_plugins.lua.servers import EDITS, Service, answer, hangs

JOB = {"tres_per_job": "gres:gpu:16"}
LARGE = b"\xff" * 42_000
"""A script that makes a question of 250 kB: more than a socket holds that nobody reads."""
PATIENCE_S = 60


def is_unchanged(outcome: Outcome) -> bool:
    return (outcome.rc, outcome.raised, outcome.job, outcome.writes, outcome.said) == (0, None, JOB, [], [])


@contextmanager
def serving(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Accept one connection on a socket that the shim trusts, and serve it in a thread."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        path.chmod(0o660)
        listener.listen(1)
        listener.settimeout(PATIENCE_S)

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def read_question(connection: socket.socket) -> dict[str, object]:
    with connection.makefile("rb") as lines:
        question: dict[str, object] = json.loads(lines.readline())
        return question


def measure_capacity() -> int:
    """Measure how much of a large question a socket takes at once that nobody reads."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        one.setblocking(False)
        return one.send(b"x" * 1_000_000)


def wait_until_full(connection: socket.socket) -> None:
    """Wait until the other side cannot send any more."""
    capacity, waiting = measure_capacity(), array("i", [0])
    deadline = time.monotonic() + PATIENCE_S
    while waiting[0] < capacity:
        assert time.monotonic() < deadline
        fcntl.ioctl(connection, termios.FIONREAD, waiting)


def test_a_question_larger_than_the_socket_arrives_whole(shim: Shim, tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        wait_until_full(connection)
        connection.sendall(answer(read_question(connection)))

    shim.setup(socket=str(tmp_path / "decision.sock"), deadline=1)
    with serving(tmp_path / "decision.sock", serve):
        done = shim.submit(JOB, script=LARGE)
    assert done.job == {**JOB, **EDITS}


def test_a_service_that_does_not_read_costs_a_deadline(shim: Shim, tmp_path: Path) -> None:
    submitted = threading.Event()

    def serve(connection: socket.socket) -> None:
        submitted.wait(PATIENCE_S)

    shim.setup(socket=str(tmp_path / "decision.sock"))
    with serving(tmp_path / "decision.sock", serve):
        done = shim.submit(JOB, script=LARGE)
        submitted.set()
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: no answer in time"]


def test_a_deadline_that_is_over_at_once(shim: Shim, service: Service) -> None:
    service.way = hangs
    shim.setup(socket=str(service.path), deadline=1e-9)
    done = shim.submit(JOB)
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: no answer in time"]


def test_a_deadline_ends_a_service_that_never_comes_to_an_end(shim: Shim, service: Service) -> None:
    sent = threading.Event()

    def goes_on(connection: socket.socket, question: dict[str, object], ending: threading.Event) -> bool:
        connection.sendall(answer(question) + b"x" * 40_000)
        sent.set()
        return not ending.wait()

    service.way = goes_on
    shim.setup(socket=str(service.path), deadline=1)
    assert shim.submit(JOB).writes
    assert sent.wait(PATIENCE_S)
    shim.setup(deadline=1e-9)
    done = shim.submit(JOB)
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: no answer in time"]


def test_a_service_that_goes_while_a_question_is_sent(shim: Shim, tmp_path: Path) -> None:
    shim.setup(socket=str(tmp_path / "decision.sock"), deadline=1)
    with serving(tmp_path / "decision.sock", wait_until_full):
        done = shim.submit(JOB, script=LARGE)
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: the service closed the connection"]


def test_a_service_that_goes_with_a_question_unread(shim: Shim, tmp_path: Path) -> None:
    shim.setup(socket=str(tmp_path / "decision.sock"), deadline=1)
    with serving(
        tmp_path / "decision.sock", lambda connection: [connection.recv(1, socket.MSG_PEEK)].clear()
    ):
        done = shim.submit(JOB)
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: the service closed the connection"]


@pytest.mark.parametrize(
    ("other", "why"),
    [(False, "Socket operation on non-socket"), (True, "send: Transport endpoint is not connected")],
    ids=["a file", "another socket"],
)
def test_a_descriptor_that_a_site_replaced(shim: Shim, service: Service, other: bool, why: str) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    assert shim.submit(JOB).writes
    [fd] = [
        int(each.name)
        for each in Path(f"/proc/{shim.process.pid}/fd").iterdir()
        if str(each.readlink()).startswith("socket:")
    ]
    shim.order("replace", fd=fd, socket=other)
    done = shim.submit(JOB)
    assert is_unchanged(done)
    assert done.log == [f"debug: gsub: {why}"]
    assert shim.submit(JOB).writes  # over a new connection
    assert service.connections == 2


def test_a_slurmctld_without_a_free_descriptor(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    process = shim.process.pid
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    used = max(int(each.name) for each in Path(f"/proc/{process}/fd").iterdir()) + 1
    resource.prlimit(process, resource.RLIMIT_NOFILE, (used, before[1]))
    done = shim.submit(JOB)
    assert is_unchanged(done)
    assert done.log == ["debug: gsub: Too many open files"]
    resource.prlimit(process, resource.RLIMIT_NOFILE, before)
    assert shim.submit(JOB).writes


STRANGER = 65533


@pytest.mark.root
@pytest.mark.parametrize(
    ("users", "trusted"),
    [
        (f"root:x:0:0::/root:/bin/sh\ngsub:x:{STRANGER}:7::/:/bin/false\n", True),
        (f"gsub:x:{STRANGER}0:7::/:/bin/false\n", False),
        (f"gsubx:x:{STRANGER}:7::/:/bin/false\nxgsub:x:{STRANGER}:7::/:/bin/false\n", False),
        ("", False),
        (None, False),
    ],
    ids=["gsub", "another id", "other names", "nobody", "no list"],
)
def test_the_user_gsub_is_trusted(
    shim: Shim, service: Service, tmp_path: Path, users: str | None, trusted: bool
) -> None:
    path = tmp_path / "passwd"
    if users is not None:
        path.write_text(users)
    shim.order("users", path=str(path))
    os.chown(service.path, STRANGER, STRANGER)
    shim.setup(socket=str(service.path), deadline=1)
    done = shim.submit(JOB)
    assert bool(done.writes) is trusted
    assert trusted or f"belongs to uid {STRANGER}, which is not gsub's" in done.log[0]
