"""Connections to the keeper: who holds them open keeps nobody out."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from profiler.sealed import Service, ServiceError
from slurm_plugins.service.keeper import server
from slurm_plugins.service.keeper.server import listening, serve
from tests.unit.slurm_plugins.keeper.door import ADA, Door, new_store
from tests.unit.slurm_plugins.keeper.fakes import FakeKey

PATIENCE = 60.0
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A door behind its server."""

    def __init__(self, door: Door, port: int) -> None:
        self.door, self.port = door, port

    async def connect(self, data: bytes = b"", *, address: str = "127.0.0.1") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def ask(self, *, address: str = "127.0.0.1", root: bool = False) -> bytes:
        """The status of /healthz, b"" when there is none; `root`: from one of root's ports."""
        loop = asyncio.get_running_loop()
        if root:
            return await loop.run_in_executor(None, self._as_root)
        reader, writer = await self.connect(HEALTH, address=address)
        try:
            return (await asyncio.wait_for(reader.read(), PATIENCE))[9:12]
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def _as_root(self) -> bytes:
        for port in range(1023, 600, -1):
            with socket.socket() as sock, suppress(OSError):
                sock.bind(("127.0.0.1", port))
                sock.settimeout(PATIENCE)
                sock.connect(("127.0.0.1", self.port))
                sock.sendall(HEALTH)
                return sock.recv(1 << 16)[9:12]
        raise AssertionError("no port of root's is free")

    async def prove(self, uid: int) -> Connection:
        """A connection with a good credential, whose body never comes."""
        credential = self.door.credential(uid, "POST", "/v1/points", b"{}")
        connection = await self.connect(
            f"POST /v1/points HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            f"authorization: MUNGE {credential}\r\n\r\n".encode()
        )
        while credential not in self.door.key.opened:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        return connection


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    store = new_store(folder)
    door = Door(store)
    sock = listening("127.0.0.1", 0)
    task = asyncio.ensure_future(serve(door.app, sock, door.counts))
    try:
        yield Served(door, sock.getsockname()[1])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        door.close()
        store.close()


@pytest.mark.case("A4")
def test_idle_connections_give_way_and_are_ended_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", 1.0)

    async def attack() -> None:
        async with served(tmp_path) as one:
            idle = [await one.connect(sent) for sent in (b"", b"GET /heal", b"GET / HTTP/1.1\r\nx: ") * 22]
            assert await one.ask() == b"200"
            assert one.door.counts.closed.value("evicted") >= 1
            ends = await asyncio.wait_for(
                asyncio.gather(*(reader.read() for reader, _ in idle), return_exceptions=True), PATIENCE
            )
            assert len(ends) == 66 and one.door.counts.closed.value("slow") > 0

    asyncio.run(attack())


@pytest.mark.case("A4")
def test_all_connections_from_many_addresses_leave_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 20)
    monkeypatch.setattr(server, "_RESERVED", 5)

    async def attack() -> None:
        async with served(tmp_path) as one:
            held = [await one.connect(address=f"127.0.1.{1 + number % 6}") for number in range(30)]
            assert await one.ask() == b"200"
            assert len(held) == 30 and one.door.counts.closed.value("evicted") == 16

    asyncio.run(attack())


@pytest.mark.root
@pytest.mark.case("A4")
def test_roots_ports_have_their_own_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even against users who prove themselves, and of an address that is full."""
    monkeypatch.setattr(server, "_CONNECTIONS", 10)
    monkeypatch.setattr(server, "_RESERVED", 5)
    monkeypatch.setattr(server, "_OF_ONE", 5)

    async def attack() -> None:
        async with served(tmp_path) as one:
            held = [await one.prove(ADA) for _ in range(5)]
            assert await one.ask() == b""
            assert one.door.counts.closed.value("full") == 1
            assert await one.ask(root=True) == b"200"
            for _, writer in held:
                writer.close()

    asyncio.run(attack())


@pytest.mark.root
@pytest.mark.case("A4")
def test_root_comes_from_one_of_its_ports_and_others_from_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, of_root in ((0, True), (ADA, False)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            service = Service(
                f"http://127.0.0.1:{listener.getsockname()[1]}", FakeKey().munge(0), {0}, timeout=0.2
            )
            with suppress(ServiceError):
                service.ask("GET", "/healthz")
            assert (listener.accept()[1][1] < 1024) == of_root
