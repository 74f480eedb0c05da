from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from profiler import munge
from profiler.munge import MAX_PAYLOAD, Credential, Munge, MungeError
from tests.unit.prolog_epilog.agent.munged import munged

pytestmark = pytest.mark.needs("munge")


@pytest.fixture(scope="module")
def socket():
    with munged() as running:
        yield running.socket


@pytest.mark.parametrize("payload", [b"", b"x", b"\0\xff\n", secrets.token_bytes(MAX_PAYLOAD)], ids=len)
def test_what_is_sealed_is_opened_once_with_the_uid_that_sealed_it(socket, payload):
    here = Munge(socket)
    text = here.encode(payload)
    assert here.decode(text) == Credential(payload, os.geteuid(), os.getegid())
    with pytest.raises(MungeError, match="eplayed") as failure:
        here.decode(text)
    assert failure.value.reason == "replayed"


@pytest.mark.root
def test_the_uid_is_the_senders_and_not_what_it_says(socket):
    code = (
        "import os, sys; os.setgroups([]); os.setgid(54321)\n"
        "from profiler.munge import Munge; import encodings.ascii; here = Munge(sys.argv[1]); here.encode(b'')\n"
        "os.setuid(12345); print(here.encode(b'uid=0'))"
    )
    text = subprocess.run(
        [sys.executable, "-c", code, socket],
        cwd=Path(munge.__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    ).stdout.strip()
    assert Munge(socket).decode(text) == Credential(b"uid=0", 12345, 54321)


def _of_another_key() -> str:
    with munged() as other:
        return Munge(other.socket).encode(b"x")


@pytest.mark.parametrize(
    "make",
    [
        lambda good: "",
        lambda good: "MUNGE::",
        lambda good: "Bearer x",
        lambda good: good[:-2] + "A:",
        lambda good: good[:40] + ("A" if good[40] != "A" else "B") + good[41:],
        lambda good: good + "\0",
        lambda good: " " + good,
        lambda good: good + "\n",
        lambda good: good[:20] + "ä" + good[21:],
        lambda good: "MUNGE:" + "A" * 100_000 + ":",
        lambda good: _of_another_key(),
    ],
    ids=["empty", "hollow", "other", "cut", "bent", "nul", "space", "line", "umlaut", "long", "other-key"],
)
def test_what_was_not_sealed_here_is_invalid(socket, make):
    here = Munge(socket)
    good = here.encode(b"x")
    with pytest.raises(MungeError) as failure:
        here.decode(make(good))
    assert failure.value.reason == "invalid"
    assert here.decode(good).payload == b"x"  # and the good one was not used up


def test_too_much_is_refused_before_munged_is_asked():
    with pytest.raises(ValueError, match="4097 bytes"):
        Munge("/nowhere").encode(bytes(MAX_PAYLOAD + 1))


@pytest.mark.parametrize("path", ["/nowhere/munge.socket", "/" + "x" * 200, "/dev/null"])
def test_without_munged_it_is_unavailable(path):
    for call in (lambda: Munge(path).encode(b"x"), lambda: Munge(path).decode("MUNGE:AAAA:")):
        with pytest.raises(MungeError) as failure:
            call()
        assert failure.value.reason == "unavailable"


def test_without_the_library_it_is_unavailable(monkeypatch):
    monkeypatch.setattr(munge, "_LIBRARY", "libmunge-of-nobody.so.2")
    munge._library.cache_clear()
    try:
        with pytest.raises(MungeError, match="libmunge-of-nobody") as failure:
            Munge().encode(b"x")
        assert failure.value.reason == "unavailable"
    finally:
        munge._library.cache_clear()


@pytest.mark.slow
def test_a_munged_that_hangs_is_given_up_and_holds_up_no_other_thread():
    with munged() as running:
        here = Munge(running.socket)
        here.encode(b"x")
        running.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(here.encode, b"x")
            for _ in range(5):  # the interpreter goes on while the library waits
                assert not wait([waiting], timeout=0.1).done
            with pytest.raises(MungeError) as failure:
                waiting.result(timeout=60)
        assert failure.value.reason == "unavailable"
        running.process.send_signal(signal.SIGCONT)
        assert here.decode(here.encode(b"y")).payload == b"y"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        *((number, "unavailable") for number in (1, 5, 6, 7)),
        *((number, "invalid") for number in (2, 8, 9, 14, 18, 99)),
        (15, "expired"),
        (16, "rewound"),
        (17, "replayed"),
    ],
)
def test_every_error_has_one_of_five_reasons(monkeypatch, socket, number, reason):
    library = munge._library()

    class Failing:
        munge_encode = staticmethod(lambda *_: number)

        def __getattr__(self, name: str) -> object:
            return getattr(library, name)

    monkeypatch.setattr(munge, "_library", Failing)
    with pytest.raises(MungeError) as failure:
        Munge(socket).encode(b"x")
    assert failure.value.reason == reason


def test_threads_share_one(socket):
    here = Munge(socket)

    def turn(number: int) -> bool:
        return here.decode(here.encode(b"%d" % number)).payload == b"%d" % number

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(400)))


def test_what_the_library_gives_out_it_gets_back(monkeypatch, socket):
    """Contexts, credentials and payloads; when all is well, and when not."""
    library, free = munge._library(), munge._free()
    held: set[int] = set()

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(library, name)

        def munge_ctx_create(self) -> int:
            context: int = library.munge_ctx_create()
            held.add(context)
            return context

        def munge_ctx_destroy(self, context: int) -> None:
            held.remove(context)
            library.munge_ctx_destroy(context)

        def munge_encode(self, text, *args) -> int:
            error: int = library.munge_encode(text, *args)
            held.update({text._obj.value} - {None})
            return error

        def munge_decode(self, credential, context, payload, *args) -> int:
            error: int = library.munge_decode(credential, context, payload, *args)
            held.update({payload._obj.value} - {None})
            return error

    def counting_free(pointer) -> None:
        held.discard(pointer.value)
        free(pointer)

    monkeypatch.setattr(munge, "_library", Counting)
    monkeypatch.setattr(munge, "_free", lambda: counting_free)
    here = Munge(socket)
    text = here.encode(b"x")
    here.decode(text)
    assert held == set()
    for call in (
        lambda: here.decode(text),  # replayed: libmunge gives out the payload all the same
        lambda: here.decode("MUNGE:AAAA:"),
        lambda: Munge("/nowhere").encode(b"x"),
        lambda: Munge("/nowhere").decode(text),
    ):
        with pytest.raises(MungeError):
            call()
        assert held == set()
