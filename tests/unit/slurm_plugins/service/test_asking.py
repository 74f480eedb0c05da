"""The decision socket: what a peer is answered, and what hostile ones cannot do."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
import tempfile
from pathlib import Path

import pytest

from slurm_plugins.decide.request import MAX_BYTES
from slurm_plugins.service import asking
from tests.unit.slurm_plugins.service.serving import Serving, question, serving


def test_a_question_is_answered_as_the_wire_says(service: Serving) -> None:
    answer = service.peer().ask()
    assert answer.pop("decision").startswith("d-")
    assert answer == {"v": 1, "id": 1, "mode": "observe", "edits": {}, "env": {}, "say": [], "reject": None}


def test_one_connection_takes_question_after_question_and_each_gets_its_own_id(service: Serving) -> None:
    peer = service.peer()
    decisions = {peer.ask()["decision"] for _ in range(200)}
    assert len(decisions) == 200


def test_many_connections_come_and_go(service: Serving) -> None:
    peers = [service.peer() for _ in range(60)]
    for peer in peers[::2]:
        peer.close()
    assert all(peer.ask()["mode"] == "observe" for peer in peers[1::2])
    for peer in peers:
        peer.close()
    service.wait(lambda: not service.daemon._connections.open)


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"\x00\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b'{"v":1}',
        b'{"v":2,"id":9,"uid":0,"job":{}}',
        b'{"v":1,"id":0,"uid":0,"job":{}}',
        b'{"v":1,"id":9007199254740992,"uid":0,"job":{}}',
        b'{"v":1,"id":1.5,"uid":0,"job":{}}',
        b'{"v":1,"id":1,"uid":-1,"job":{}}',
        b'{"v":1,"id":1,"uid":0,"job":[]}',
        b'{"v":1,"id":1,"uid":0,"job":{"min_nodes":"2"}}',
        b'{"v":1,"id":1,"uid":0,"job":{"name":"\\ud800"}}',
        b'{"v":1,"id":1,"uid":0,"job":{"name":"' + b"x" * 5000 + b'"}}',
        b"[" * 100_000,
        b'{"a":' * 20_000,
    ],
    ids=lambda line: line[:40].decode("latin-1").encode("unicode_escape").decode() if line else "",
)
def test_what_is_no_question_gets_an_error_and_the_connection_stays(service: Serving, line: bytes) -> None:
    peer = service.peer()
    peer.send(line + b"\n")
    answer = peer.read()
    assert answer["v"] == 1 and answer["error"] and "decision" not in answer
    assert peer.ask()["mode"] == "observe"
    assert service.metric("gsub_malformed_total") == 1


def test_an_error_answer_names_the_question_where_it_can_be_seen(service: Serving) -> None:
    peer = service.peer()
    peer.send(b'{"v":1,"id":17,"uid":"root","job":{}}\n')
    assert peer.read()["id"] == 17
    peer.send(b'{"v":1,"id":99999999999999999999,"uid":0,"job":{}}\n')
    assert peer.read()["id"] == 0


def test_an_error_says_nothing_that_the_peer_wrote(service: Serving) -> None:
    peer = service.peer()
    peer.send(b'{"v":1,"id":1,"uid":0,"job":{"account":7,"name":"hunter2"}}\n')
    assert "hunter2" not in peer.read()["error"]


def test_empty_lines_are_nothing(service: Serving) -> None:
    peer = service.peer()
    peer.send(b"\n \r\n\n" + question(id=3))
    assert peer.read()["id"] == 3


def test_a_question_in_pieces_and_several_in_one_are_the_same(service: Serving) -> None:
    peer = service.peer()
    for byte in question(id=4):
        peer.send(bytes([byte]))
    assert peer.read()["id"] == 4
    peer.send(b"".join(question(id=number) for number in range(1, 101)))
    assert [peer.read()["id"] for _ in range(100)] == list(range(1, 101))


def test_a_line_at_the_limit_is_read_and_one_beyond_it_ends_the_connection(service: Serving) -> None:
    peer = service.peer()
    line = question(id=5)
    peer.send(line[:-1] + b" " * (MAX_BYTES - len(line) + 1) + b"\n")
    assert peer.read()["id"] == 5
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.send(b" " * (2 * MAX_BYTES))
    assert peer.ended()
    assert service.metric('gsub_connections_closed_total{why="oversized"}') == 1
    assert service.peer().ask()["mode"] == "observe"


def test_who_does_not_read_is_not_served_further_and_holds_up_nobody(service: Serving) -> None:
    deaf = service.peer()
    deaf.socket.setblocking(False)
    connections = service.daemon._connections.open
    sent = 0
    line = question(id=6)
    while not any(one._blocked for one in tuple(connections)):
        try:
            sent += deaf.socket.send(line[sent % len(line) :])
        except BlockingIOError:
            select.select([], [deaf.socket], [], 0.01)  # a limit, as the daemon may have stopped reading
        assert sent < 64 << 20  # far more than all buffers between the two hold
    assert all(service.peer().ask()["mode"] == "observe" for _ in range(20))
    assert all(len(one._buffer) <= 2 * MAX_BYTES for one in connections)
    deaf.socket.setblocking(True)  # when it reads again, it is served again
    assert deaf.read()["id"] == 6


def test_half_a_question_is_not_waited_for_without_end(
    service: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_STALLED", 0.2)
    silent, slow = service.peer(), service.peer()
    silent.send(b"".join(question(id=number) for number in range(1, 101)))
    assert [silent.read()["id"] for _ in range(100)] == list(range(1, 101))
    slow.send(b'{"v":1,')
    assert slow.ended()
    assert silent.ask()["mode"] == "observe"  # silence between questions has no limit
    assert service.metric('gsub_connections_closed_total{why="stalled"}') == 1


def test_there_is_an_end_to_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_CONNECTIONS", 3)
    with serving(tmp_path) as service:
        peers = [service.peer() for _ in range(3)]
        assert all(peer.ask()["mode"] == "observe" for peer in peers)
        assert service.peer().ended()
        peers[0].close()
        service.wait(lambda: len(service.daemon._connections.open) == 2)
        assert service.peer().ask()["mode"] == "observe"


def test_a_peer_that_hangs_up_in_the_middle_is_forgotten(service: Serving) -> None:
    peer = service.peer()
    peer.send(question() * 50 + b'{"half')
    # RST-like: what was sent is thrown away at the other end
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    service.wait(lambda: not service.daemon._connections.open)
    assert service.peer().ask()["mode"] == "observe"


def test_who_stops_asking_still_gets_the_answers(service: Serving) -> None:
    peer = service.peer()
    peer.send(b"".join(question(id=number) for number in range(1, 40)))
    peer.socket.shutdown(socket.SHUT_WR)
    assert [peer.read()["id"] for _ in range(1, 40)] == list(range(1, 40))
    assert peer.ended()


def test_the_socket_is_for_its_group_only(service: Serving) -> None:
    found = service.path.stat()
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o660
    assert found.st_uid == os.geteuid()


@pytest.mark.root
def test_the_kernel_says_who_asks() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,  # pytest's folders are closed to other users
        serving(Path(folder), allowed=frozenset({4242})) as service,
    ):
        Path(folder).chmod(0o755)
        service.path.chmod(0o666)  # what a careless admin might do must not be enough
        assert _asked_as(4243, service.path) is False
        assert service.metric('gsub_connections_closed_total{why="uid"}') == 1
        assert _asked_as(4242, service.path) is True
        service.call(service.daemon.peers.learn_slurm_user, 4243)
        assert _asked_as(4243, service.path) is True


def _asked_as(uid: int, path: Path) -> bool:
    """Whether a process of that user gets an answer."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(uid)
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.settimeout(30)
            peer.connect(str(path))
            try:
                peer.sendall(question())
                code = 0 if b"decision" in peer.recv(65536) else 1
            except (BrokenPipeError, ConnectionResetError):
                code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0
