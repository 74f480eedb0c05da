from __future__ import annotations

import os
import secrets
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.munge import Munge
from profiler.sealed import Answer, Service, ServiceError, answer_digest, believed, request_digest
from tests.requirements import require
from tests.unit.prolog_epilog.agent.munged import munged
from tests.unit.prolog_epilog.agent.sealing import Asked, Reply, sealing

ME = os.geteuid()


@pytest.fixture(scope="module")
def munge():
    with munged() as running:
        yield Munge(running.socket)


@pytest.fixture
def server(munge):
    with sealing(munge) as running:
        yield running


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (request_digest("GET", "/a", b""), request_digest("POST", "/a", b"")),
        (request_digest("GET", "/a", b"b"), request_digest("GET", "/ab", b"")),
        (request_digest("GET", "/a?u=1", b""), request_digest("GET", "/a?u=2", b"")),
        (request_digest("GET", "/a", b""), request_digest("GET", "/a", b"\0")),
        (answer_digest("c", 200, b""), answer_digest("c", 201, b"")),
        (answer_digest("c", 200, b"x"), answer_digest("d", 200, b"x")),
        (answer_digest("c", 200, b"x"), answer_digest("c", 200, b"y")),
        (answer_digest("c2", 0, b"x"), answer_digest("c", 20, b"x")),
        (answer_digest("GET", 200, b"x"), request_digest("GET", "200", b"x")),
    ],
)
def test_what_differs_has_another_digest(one, other):
    assert one != other
    assert len(one) == len(other) == 32


_PARTS = st.tuples(st.text(max_size=6), st.text(max_size=6), st.binary(max_size=6))


@given(_PARTS, _PARTS)
def test_two_requests_have_one_digest_only_if_they_are_one(one, other):
    same = (one[0].upper(), *one[1:]) == (other[0].upper(), *other[1:])
    assert (request_digest(*one) == request_digest(*other)) == same


def test_digests_stay_what_they_are():
    """A node and a service of different releases speak with each other: these never change."""
    assert request_digest("POST", "/v1/records", b"{}").hex() == (
        "6454111342e342d9d870ebbc74ab04548b0f348e8ddb1962f4d13d030e257490"
    )
    assert answer_digest("MUNGE:AAAA:", 200, b"{}").hex() == (
        "0c79c76970598a8d6cac065fd0e50d91f2f00b018548d284b9a3aa3e9ba598af"
    )


@pytest.mark.parametrize("base", ["", "/gsub", "/a/b/"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_question_and_its_answer(munge, host, base):
    try:
        with sealing(munge, host, base.rstrip("/")) as server:
            server.reply = lambda asked: (
                418,
                asked.method.encode() + b" " + asked.target.encode() + asked.body,
            )
            service = Service(server.url + ("/" if base.endswith("/") else ""), munge, {ME})
            assert service.ask("GET", "/v1/jobs?user=ada") == Answer(418, b"GET /v1/jobs?user=ada")
            body = secrets.token_bytes(300_000)
            assert service.ask("POST", "/v1/records", body) == Answer(418, b"POST /v1/records" + body)
            assert [asked.by and asked.by.uid for asked in server.asked] == [ME, ME]
    except OSError:
        if host != "::1":
            raise
        pytest.skip("no IPv6 on this machine")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of our own for 127.0.0.1, and its key, in one file."""
    require("openssl")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ["-subj", "/CN=gsub-test", "-addext", "subjectAltName=IP:127.0.0.1"]
    names = ["-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *names],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


def test_over_tls_only_with_a_certificate_that_the_system_trusts(munge, certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with sealing(munge, tls=context) as server:
        server.reply = lambda asked: (200, asked.body)
        with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED") as failure:
            Service(server.url, munge, {ME}).ask("GET", "/")
        assert failure.value.reason == "unreachable"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
        body = secrets.token_bytes(200_000)
        assert Service(server.url, munge, {ME}).ask("POST", "/", body) == Answer(200, body)
        end = threading.Event()

        def late(asked: Asked) -> Reply:
            end.wait(60)
            return 200, b""

        server.reply = late
        began = time.monotonic()
        with pytest.raises(ServiceError) as failure:
            Service(server.url, munge, {ME}, timeout=0.5).ask("GET", "/")
        assert failure.value.reason == "timeout"
        assert time.monotonic() - began < 50
        end.set()


def test_no_proxy_comes_between(munge, server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert Service(server.url, munge, {ME}).ask("GET", "/").status == 200


def test_no_redirect_is_followed(munge, server):
    server.reply = lambda asked: (302, b"")
    assert Service(server.url, munge, {ME}).ask("GET", "/").status == 302
    assert len(server.asked) == 1


def _foreign(credential: str, status: int, body: bytes) -> str:
    with munged() as other:
        return Munge(other.socket).encode(answer_digest(credential, status, body))


@pytest.mark.parametrize(
    ("seal", "why"),
    [
        (lambda munge, *of: "", "no seal"),
        (lambda munge, *of: "MUNGE:AAAA:", "not good"),
        (lambda munge, *of: "x" * 60_000, "not good"),
        (lambda munge, *of: _foreign(*of), "not good"),
        (lambda munge, credential, status, body: credential, "not good|not of this answer"),
        (lambda munge, *of: munge.encode(b""), "not of this answer"),
        (
            lambda munge, credential, status, body: munge.encode(answer_digest("", status, body)),
            "not of this",
        ),
        (
            lambda munge, credential, status, body: munge.encode(answer_digest(credential, 200, body)),
            "not of this",
        ),
        (
            lambda munge, credential, status, body: munge.encode(answer_digest(credential, status, b"")),
            "not of th",
        ),
        (
            lambda munge, credential, status, body: munge.encode(request_digest("GET", "/", body)),
            "not of this",
        ),
    ],
)
def test_an_answer_whose_seal_is_not_the_services_is_no_answer(munge, server, seal, why):
    server.reply = lambda asked: (201, b'{"accepted":["00"]}')
    server.seal = lambda *of: seal(munge, *of)
    with pytest.raises(ServiceError, match=why) as failure:
        Service(server.url, munge, {ME}).ask("GET", "/")
    assert failure.value.reason == "unsealed"
    assert failure.value.status == 201


def test_a_credential_that_is_not_taken_says_where_to_look(munge, server):
    server.reply = lambda asked: (401, b"")
    server.seal = lambda *of: ""
    with pytest.raises(ServiceError, match="keys or the clocks of both hosts"):
        Service(server.url, munge, {ME}).ask("GET", "/")


def test_a_good_seal_is_good_for_one_answer_only(munge, server):
    seals: list[str] = []

    def twice(credential: str, status: int, body: bytes) -> str:
        seals.append(server.sealed(credential, status, body))
        return seals[0]

    server.seal = twice
    service = Service(server.url, munge, {ME})
    service.ask("GET", "/")
    with pytest.raises(ServiceError) as failure:
        service.ask("GET", "/")
    assert failure.value.reason == "unsealed"


def test_a_user_of_the_cluster_cannot_play_the_service(munge, server):
    """A credential over the right digest, by munged, but in the name of somebody else."""
    with pytest.raises(ServiceError, match=f"uid {ME}'s") as failure:
        Service(server.url, munge, {ME + 1}).ask("POST", "/v1/records", b"x")
    assert failure.value.reason == "unsealed"


def test_a_request_is_not_good_for_another(munge, server):
    """What listens in between cannot make another question of one."""
    good = munge.encode(request_digest("GET", "/v1/jobs", b""))

    class Reused:
        decode = staticmethod(munge.decode)
        encode = staticmethod(lambda payload: good)

    with pytest.raises(ServiceError):
        Service(server.url, Reused(), {ME + 1}).ask("GET", "/v1/jobs?user=bob")
    assert server.asked[0].by is None


def test_believed_are_root_and_the_services_user():
    import pwd

    assert believed("root") == {0}
    assert believed("daemon") == {0, pwd.getpwnam("daemon").pw_uid}
    assert believed("nobody-of-this-name") == {0}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "controller:6831",
        "ftp://c",
        "http://",
        "http://u:p@c",
        "http://c:99999",
        "http://c:x",
        "http:///v1",
    ],
)
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="address of a service"):
        Service(url, Munge(), {0})


@pytest.mark.parametrize("target", ["", "v1", "/a b", "/ä", "/a\r\nX: y", "http://other/"])
def test_a_target_that_is_none(target):
    with pytest.raises(ValueError, match="percent-encode"):
        Service("http://127.0.0.1:9", Munge("/nowhere"), {0}).ask("GET", target)


def test_without_munged_nothing_is_sent(server):
    with pytest.raises(ServiceError) as failure:
        Service(server.url, Munge("/nowhere"), {ME}).ask("GET", "/")
    assert failure.value.reason == "munge"
    assert server.asked == []


@pytest.mark.slow
def test_a_munged_that_dies_in_between_is_no_bad_seal(server):
    with munged() as running:
        mine = Munge(running.socket)
        server.munge = mine
        ends = server.sealed

        def sealed_and_gone(*of):
            seal = ends(*of)
            running.process.kill()
            running.process.wait()
            return seal

        server.seal = sealed_and_gone
        with pytest.raises(ServiceError) as failure:
            Service(server.url, mine, {ME}).ask("GET", "/")
    assert failure.value.reason == "munge"


@contextmanager
def _raw(talk):
    """A server that says what `talk(connection)` says."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                with closing(connection):
                    connection.recv(65536)
                    talk(connection)
            except OSError:
                pass  # the client has had enough, which is the point

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread.join(30)


def _drip(head: bytes, drop: bytes):
    def talk(connection) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(0.02)

    return talk


@pytest.mark.parametrize(
    "talk",
    [
        lambda connection: connection.recv(1),  # until the client hangs up
        _drip(b"", b"H"),
        _drip(b"HTTP/1.1 200 OK\r\n", b"X"),
        _drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", b"x"),
        _drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silence", "status", "header", "body", "chunks", "continue"],
)
def test_a_slow_answer_ends_at_the_deadline(munge, talk):
    with _raw(talk) as url:
        began = time.monotonic()
        with pytest.raises(ServiceError) as failure:
            Service(url, munge, {ME}, timeout=1.0).ask("GET", "/")
        assert failure.value.reason in ("timeout", "unreachable")
        assert 0.9 < time.monotonic() - began < 20


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff\xfe\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(500)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "bytes", "ssh", "short", "chunks", "headers", "header"],
)
def test_what_is_not_an_answer_is_one_error(munge, said):
    with _raw(lambda connection: connection.sendall(said)) as url:
        with pytest.raises(ServiceError) as failure:
            Service(url, munge, {ME}).ask("GET", "/")
        assert failure.value.reason == "unreachable"


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 400000\r\n", b"Content-Length: 99999999999\r\n", b"Connection: close\r\n"],
    ids=["length", "lie", "endless"],
)
def test_a_long_answer_is_not_read_to_its_end(munge, head):
    def talk(connection) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        while True:
            connection.sendall(bytes(100_000))

    with _raw(talk) as url:
        with pytest.raises(ServiceError, match="more than 300000") as failure:
            Service(url, munge, {ME}, max_answer=300_000).ask("GET", "/")
        assert failure.value.reason == "too_long"


def test_nobody_there(munge):
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ServiceError, match="refused") as failure:
        Service(f"http://127.0.0.1:{port}", munge, {ME}).ask("GET", "/")
    assert failure.value.reason == "unreachable"
    with pytest.raises(ServiceError) as failure:
        Service("http://no-host.invalid:1", munge, {ME}).ask("GET", "/")
    assert failure.value.reason == "unreachable"
