"""The asker's side of gsub-act's socket: whatever comes back, it is known or it is not known whether it was done."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_plugins.act.ask import Hand, HandError, new

REQUEST = new("hold", "7", cluster="lab", why="a test", by="v-00000000", own_id="r-1")
DONE = {"id": "r-1", "result": "done", "said": "", "v": 1}
Serve = Callable[[socket.socket], None]


@contextmanager
def answering(path: Path, *each: Serve) -> Iterator[None]:
    """Serve one connection after the other."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        def serve() -> None:
            for one in each:
                connection, _ = listener.accept()
                with connection:
                    one(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(60)
        assert not thread.is_alive()


def says(*lines: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        for line in lines:
            reader.readline()
            connection.sendall(line)

    return serve


def line(**changes: object) -> bytes:
    return json.dumps(DONE | changes).encode() + b"\n"


def closes(connection: socket.socket) -> None:
    connection.makefile("rb").readline()


def test_an_answer_in_pieces_is_one_answer(tmp_path: Path) -> None:
    def in_pieces(connection: socket.socket) -> None:
        connection.makefile("rb").readline()
        for byte in line():
            connection.sendall(bytes([byte]))

    with answering(tmp_path / "act.sock", in_pieces), Hand(tmp_path / "act.sock") as hand:
        assert hand.ask(REQUEST).result == "done"


def test_a_connection_that_breaks_is_made_once_more(tmp_path: Path) -> None:
    with answering(tmp_path / "act.sock", closes, says(line(), line())), Hand(tmp_path / "act.sock") as hand:
        assert hand.ask(REQUEST).result == "done"
        assert hand.ask(REQUEST).result == "done"  # over the same


def test_one_that_breaks_twice_is_not_there(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "act.sock", closes, closes),
        Hand(tmp_path / "act.sock") as hand,
        pytest.raises(HandError, match="gsub-act is not there: it closed the connection"),
    ):
        hand.ask(REQUEST)


def test_no_answer_within_its_seconds_and_the_late_one_is_not_taken_for_the_next(tmp_path: Path) -> None:
    gone = threading.Event()

    def late(connection: socket.socket) -> None:
        connection.makefile("rb").readline()
        gone.wait(60)

    with answering(tmp_path / "act.sock", late, says(line(said="second"))):
        with (
            Hand(tmp_path / "act.sock", seconds=0.2) as hand,
            pytest.raises(HandError, match=r"did not answer within 0\.2 s"),
        ):
            hand.ask(REQUEST)
        gone.set()
        with Hand(tmp_path / "act.sock", seconds=60) as hand:
            assert hand.ask(REQUEST).said == "second"


@pytest.mark.parametrize("data", [b"no JSON\n", b"[]\n", b'{"id": 7}\n'])
def test_what_is_no_answer_is_not_believed(tmp_path: Path, data: bytes) -> None:
    with answering(tmp_path / "act.sock", says(data), says(line())), Hand(tmp_path / "act.sock") as hand:
        with pytest.raises(HandError, match="was not understood"):
            hand.ask(REQUEST)
        assert hand.ask(REQUEST).result == "done"  # over a new connection


def test_the_answer_to_another_request_is_not_ours(tmp_path: Path) -> None:
    served = answering(tmp_path / "act.sock", says(line(id="r-2")), says(line(id="")))
    with served, Hand(tmp_path / "act.sock") as hand:
        with pytest.raises(HandError, match="answered another request"):
            hand.ask(REQUEST)
        assert hand.ask(REQUEST).result == "done"  # without an id: our line could not be read
