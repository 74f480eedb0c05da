"""The daemon on its socket: who connects, what is sent there, and 20,000 lines that are no requests."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import stat
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.act.ask import Hand, HandError, new
from slurm_plugins.act.daemon import Daemon, Options
from slurm_plugins.act.journal import NAME
from slurm_plugins.act.wire import MAX_LINE
from slurm_plugins.service.site_watch import SiteFile
from tests.unit.slurm_plugins.act.fakes import FakeSlurm, pending
from tests.waiting import wait_until

PATIENCE = 60.0
SITE = 'cluster = "lab"\n[policy]\nmode = "enforce"\n[service]\nuser = "root"\n'


class Running:
    """A daemon in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site.toml"
        self.site.write_text(SITE)
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self.path = folder / "act.sock"
        self.slurm = FakeSlurm(pending(), pending(8))
        self.ready: Future[None] = Future()
        self.loop = asyncio.new_event_loop()
        self.loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]  # signals are the main thread's
        self.thread = threading.Thread(target=self._run, args=(folder,), daemon=True)
        self.thread.start()
        self.ready.result(PATIENCE)

    def _run(self, folder: Path) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve(folder))
        self.loop.close()

    async def _serve(self, folder: Path) -> None:
        options = Options(
            self.path, self.state, folder / "act.off", str(os.getegid()), frozenset({os.geteuid()})
        )
        self.daemon = Daemon(options, SiteFile(self.site), lambda _: self.slurm, env={}, clock=time.time)
        running = self.loop.create_task(self.daemon.run())
        await asyncio.to_thread(
            wait_until, lambda: self.path.exists() or running.done(), PATIENCE, "its socket", 0.01
        )
        self.ready.set_result(None)
        await running

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.daemon.stop)
            self.thread.join(PATIENCE)

    def connect(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(PATIENCE)
        found.connect(str(self.path))
        return found

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / NAME).read_text().splitlines()]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.stop()


def test_it_is_asked_and_answers(running):
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o660
    with Hand(running.path) as hand:
        request = new("hold", "7", cluster="lab", why="a test", by="v-00000000")
        assert hand.ask(request).result == "done"
        again = hand.ask(request)
        assert (again.result, again.repeat) == ("done", True)
        assert hand.ask(new("release", "7", cluster="lab", why="a test", by="v-00000000")).result == "done"
    assert [argv[1] for argv in running.slurm.acts] == ["uhold", "release"]


def test_the_asker_says_what_is_not_there(tmp_path):
    with pytest.raises(HandError, match="not there"):
        Hand(tmp_path / "act.sock").ask(new("hold", "7", cluster="lab", why="a test", by="v-00000000"))


def test_at_its_end_it_releases_and_the_socket_goes(running):
    with Hand(running.path) as hand:
        hand.ask(new("hold", "7", cluster="lab", why="a test", by="v-00000000", until=time.time() + 900))
        running.stop()
        assert not running.slurm.known_jobs["7"].held and not running.path.exists()
        with pytest.raises(HandError):
            hand.ask(new("hold", "8", cluster="lab", why="a test", by="v-00000000"))


def test_a_line_that_is_too_long_is_refused_and_the_connection_ends(running):
    connection = running.connect()
    connection.sendall(b"x" * (MAX_LINE * 3) + b"\n")
    answer = json.loads(connection.makefile().readline())
    assert answer["result"] == "refused" and str(MAX_LINE) in answer["said"]
    assert running.lines()[-1]["event"] == "refused"


def test_there_are_sixteen_connections_at_most(running):
    held = [running.connect() for _ in range(16)]
    for connection in held:
        connection.sendall(b"{}\n")
        assert connection.recv(4096)
    late = running.connect()
    assert "too many" in json.loads(late.makefile().readline())["said"]
    for connection in (*held, late):
        connection.close()


@pytest.mark.root
def test_another_user_is_refused_and_journalled(running, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    running.path.chmod(0o666)  # as if somebody had opened it
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            connection = running.connect()
            connection.sendall(b"{}\n")
            os._exit(0 if b"only gsubd" in connection.recv(4096) else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (running.lines()[-1]["event"], running.lines()[-1]["uid"]) == ("refused", 65534)


@pytest.mark.slow
def test_the_site_file_is_taken_while_it_runs(running):
    running.site.write_text(SITE.replace("enforce", "advise"))
    with Hand(running.path) as hand:

        def is_in_advise() -> bool:
            request = new("requeue", "7", cluster="lab", why="a test", by="v-00000000")
            return "in advise" in hand.ask(request).said

        wait_until(is_in_advise, PATIENCE, "the new site file", pause=0.5)
    assert running.slurm.acts == []


def malformed(chance: random.Random) -> bytes:
    """A line that is no request, of one of many kinds; no newline in it."""
    good = json.dumps(
        {
            "v": 1,
            "id": f"fuzz-{chance.random()}",
            "at": time.time(),
            "cluster": "lab",
            "job": "7",
            "verb": "cancel",
            "why": "a test",
            "by": "v-00000000",
        }
    ).encode()
    kind = chance.randrange(6)
    if kind == 0:
        line = chance.randbytes(chance.randrange(200))
    elif kind == 1:
        line = good[: chance.randrange(len(good))]
    elif kind == 2:  # something else in the place of a value
        record = json.loads(good)
        strange: list[Any] = [
            None,
            True,
            -1,
            2**70,
            1e300,
            [],
            {},
            "",
            "\x00",
            "x" * 5000,
            [[[[]]]],
            {"a": {"b": 1}},
            "\ud800",
            "✓",
        ]
        record[chance.choice(list(record))] = chance.choice(strange)
        line = json.dumps(record).encode()
    elif kind == 3:
        line = b"[" * chance.randrange(8000) + b"]" * chance.randrange(8000)
    elif kind == 4:  # bytes changed; which may leave it whole, with a verb that there is not
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        line = bytes(data)
    else:
        line = good[:-1] + b',"' + chance.randbytes(8).hex().encode() + b'":1}'
    return line.replace(b"\n", b" ")


@pytest.mark.slow
def test_20000_malformed_lines_are_answered_each(running):
    chance = random.Random(4711)
    connection = running.connect()
    answers = connection.makefile("rb")
    for _ in range(20_000):
        line = malformed(chance)
        connection.sendall(line + b"\n")
        answer = json.loads(answers.readline())
        assert answer["result"] == "refused" and answer["said"], line
    assert running.slurm.acts == []
    assert (running.state / NAME).stat().st_size < 1 << 20
    with Hand(running.path) as hand:
        assert hand.ask(new("hold", "8", cluster="lab", why="a test", by="v-00000000")).result == "done"
