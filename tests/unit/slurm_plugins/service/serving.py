"""A gsubd in this process, on real sockets, and peers that ask it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from site_configs.site import Site
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.limits.records import Associations
from slurm_plugins.service.daemon import Daemon, Options
from slurm_plugins.service.look import Slurm, look
from slurm_plugins.service.site_watch import SiteFile
from slurm_plugins.service.slurm_config import SlurmConfig
from slurm_plugins.service.wire import Question, Report, decode_report, encode_report
from tests.unit.slurm_plugins.client.fake import FakeClient

PATIENCE = 60.0
"""Seconds to wait for what must come: a loaded machine is no failure."""

SITE = 'cluster = "test"\n[policy]\nmode = "{mode}"\n'


def no_limits(_: str) -> Associations:
    """A slurmdbd without associations."""
    return Associations()


class FakeLookout:
    """Looks at a Slurm in memory; what is seen crosses the wire as it does in earnest."""

    def __init__(self, client: FakeClient | None = None) -> None:
        self.client = client or FakeClient()
        self.slurm_uid: int | None = None
        self.looks = 0

    async def close(self) -> None:
        pass

    async def look(self, question: Question) -> Report:
        config = SlurmConfig(SlurmFacts(release=(22, 5)), slurm_uid=self.slurm_uid)
        report = look(Slurm(self.client, lambda: config, no_limits), Site(cluster="test"), question)
        self.looks += 1
        return decode_report(encode_report(report))


class Peer:
    """One connection to the decision socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path))
        self._rest = b""
        self._id = 0

    def ask(self, **fields: Any) -> dict[str, Any]:
        """One question and its answer."""
        self._id += 1
        self.send(question(id=self._id, **fields))
        answer = self.read()
        assert answer["id"] == self._id
        return answer

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> dict[str, Any]:
        """The next line. Raises EOFError when the connection ends before it does."""
        while b"\n" not in self._rest:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def ended(self) -> bool:
        """Wait for the end of the connection; False when an answer comes instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


def question(**fields: Any) -> bytes:
    """A line as the shim sends it, for a job with GPUs unless `fields` say otherwise."""
    job = {"name": "train", "tres_per_node": "gres:gpu:8", "work_dir": "/home/user1", **fields.pop("job", {})}
    return json.dumps({"v": 1, "id": 1, "uid": 1000, "job": job, "env": {}} | fields).encode() + b"\n"


class Serving:
    """A daemon that runs in a thread of its own."""

    def __init__(self, folder: Path, *, mode: str = "observe", **options: Any) -> None:
        self.site = folder / "site.toml"
        if not self.site.exists():
            self.site.write_text(SITE.format(mode=mode))
        # a socket's path has 107 bytes, and that of pytest has the user's name
        self.path = folder / "run" / "d.sock"
        self.path.parent.mkdir(exist_ok=True)
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.lookout = options.pop("lookout", None) or FakeLookout()
        self.stages = options.pop("stages", None)
        self.options = Options(self.path, self.state, listen=("127.0.0.1", 0), **options)
        self.loop = asyncio.new_event_loop()
        self.daemon: Daemon

    def start(self) -> None:
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.result(PATIENCE)

    def _run(self, ready: Future[None]) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]  # signals are the main thread's
        try:
            self.loop.run_until_complete(self._serve(ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
        finally:
            self.loop.close()

    async def _serve(self, ready: Future[None]) -> None:
        self.daemon = Daemon(
            self.options, SiteFile(self.site), stages=self.stages, lookout=self.lookout, env={}
        )
        running = self.loop.create_task(self.daemon.run())
        started = self.loop.create_task(self._until(self._answers))
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            started.cancel()
            await running
        ready.set_result(None)
        await running

    def _answers(self) -> bool:
        return self.path.is_socket() and self.daemon.polling.answered is not None

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await asyncio.sleep(0.01)

    def wait(self, true: Callable[[], bool]) -> None:
        """Wait in the daemon's own loop until something holds."""
        self.do(self._until(true))

    def do(self, work: Awaitable[None]) -> None:
        """Run something in the daemon's loop."""

        async def run() -> None:
            await work

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call something in the daemon's loop, and wait for it."""

        async def run() -> None:
            function(*args)

        self.do(run())

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.daemon.stop)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()

    def peer(self) -> Peer:
        return Peer(self.path)

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What is in the journal now."""
        lines = (self.state / "decisions.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if kind in (None, record["kind"])]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP answer."""
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return reply(connection)

    @property
    def address(self) -> tuple[str, int]:
        return self.daemon.address

    def metric(self, name: str) -> float:
        """A sample of /metrics by its name and labels, 0 where there is none."""
        samples = dict(line.rsplit(" ", 1) for line in self.get("/metrics")[1].splitlines() if line[0] != "#")
        return float(samples.get(name, 0))


def reply(connection: socket.socket) -> tuple[int, str]:
    """Read an HTTP answer to its end."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Serving]:
    """A daemon for as long as the block runs."""
    service = Serving(folder, **options)
    service.start()
    try:
        yield service
    finally:
        service.stop()
