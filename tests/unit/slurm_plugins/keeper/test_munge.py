"""The whole way with a real munged: other uids, expired clocks, raw sockets."""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from profiler.munge import Credential, Munge
from profiler.sealed import Service, ServiceError
from tests.unit.profiler.store.records import ended, started, usage
from tests.unit.prolog_epilog.agent.munged import Munged, munged
from tests.unit.slurm_plugins.keeper.door import batch
from tests.unit.slurm_plugins.keeper.keeping import PATIENCE, Kept, kept
from tests.unit.slurm_plugins.keeper.test_keeping import deliver

pytestmark = pytest.mark.root  # only root may bring records

NOBODY = 65534


@dataclass(frozen=True)
class As:
    """Has a user's process make the credentials: `profiler.sealed.Seal`."""

    munge: Munge
    uid: int

    def encode(self, payload: bytes) -> str:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(self.uid)
                os.setuid(self.uid)
                os.write(write, self.munge.encode(payload).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    def decode(self, text: str) -> Credential:
        return self.munge.decode(text)


@pytest.fixture(scope="module")
def munge() -> Iterator[Munged]:
    with munged() as one:
        yield one


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, munge: Munged) -> Iterator[Kept]:
    """A keeper with a job of games, who is an operator here, and one of nobody's."""
    games = pwd.getpwnam("games").pw_uid
    with kept(tmp_path_factory.mktemp("keeper"), munge) as one:
        deliver(
            one,
            started(1, uid=games, user="games"),
            ended(1),
            started(2, uid=NOBODY, user="nobody"),
            usage(2),
        )
        yield one


def as_user(one: Kept, uid: int) -> Service:
    host, port = one.keeping.address or ("", 0)
    return Service(f"http://{host}:{port}", As(one.munge, uid), {os.geteuid()}, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.root
def test_a_user_sees_the_users_own_jobs_and_an_operator_all(one: Kept):
    nobody, games = as_user(one, NOBODY), as_user(one, pwd.getpwnam("games").pw_uid)
    assert nobody.ask("GET", "/v1/jobs/2/usage").status == 200
    assert nobody.ask("GET", "/v1/jobs/1/usage").status == 404
    assert [job["job_id"] for job in json.loads(nobody.ask("GET", "/v1/jobs").body)["jobs"]] == [2]
    assert games.ask("GET", "/v1/jobs/2/usage").status == 200
    assert nobody.ask("GET", "/v1/nodes").status == 403 and games.ask("GET", "/v1/nodes").status == 200


@pytest.mark.slow
@pytest.mark.root
def test_a_user_writes_no_records(one: Kept):
    for uid in (NOBODY, pwd.getpwnam("games").pw_uid):
        assert as_user(one, uid).ask("POST", "/v1/records", batch(started(9, uid=uid))).status == 403
    assert one.service().ask("GET", "/v1/jobs/9").status == 404


def test_a_credential_of_another_cluster_is_not_believed(one: Kept):
    with munged() as other:
        host, port = one.keeping.address or ("", 0)
        service = Service(f"http://{host}:{port}", Munge(other.socket), {os.geteuid()}, timeout=PATIENCE)
        with pytest.raises(ServiceError) as raised:
            service.ask("GET", "/v1/jobs")
    assert raised.value.status == 401 and raised.value.reason == "unsealed"


def talk(one: Kept, data: bytes, *, slowly: bool = False) -> bytes:
    """What comes back for these bytes, until the keeper closes."""
    with socket.create_connection(one.keeping.address or ("", 0), PATIENCE) as connection:
        if slowly:
            for byte in data:
                connection.sendall(bytes([byte]))
                time.sleep(0.001)
        else:
            connection.sendall(data)
        got = b""
        while part := connection.recv(1 << 16):
            got += part
        return got


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 40_000, b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 9000, b"400"),
        (b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b"401"),
        (b"POST /v1/records HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
        (b"POST /v1/records HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"GET http://elsewhere/v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n", b"401"),
    ],
)
def test_bytes_on_a_socket(one: Kept, data: bytes, status: bytes):
    assert talk(one, data)[9:12] == status


def test_a_connection_serves_one_request(one: Kept):
    got = talk(one, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 20)
    assert got.count(b"HTTP/1.1 200") == 1 and b"connection: close" in got.lower()


def test_a_slow_client_is_answered_as_any(one: Kept):
    assert talk(one, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", slowly=True)[9:12] == b"200"


@pytest.mark.case("A4")
def test_a_crowd_of_connections_keeps_nobody_out(one: Kept):
    crowd = [socket.create_connection(one.keeping.address or ("", 0), PATIENCE) for _ in range(64)]
    try:
        assert talk(one, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")[9:12] == b"200"
        with suppress(ConnectionResetError):
            assert crowd[0].recv(1) == b""
    finally:
        for connection in crowd:
            connection.close()
