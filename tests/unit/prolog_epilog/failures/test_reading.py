"""A log is read at its ends, whatever happens to it meanwhile; what is no log is never touched."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prolog_epilog.failures.reading import Unseen, read_log
from prolog_epilog.failures.text import LogText

MB = 1 << 20


def seen(path: Path | str, **more) -> LogText:
    text = read_log(path, **more)
    assert isinstance(text, LogText), text
    return text


def unseen(path: Path | str, **more) -> str:
    text = read_log(path, **more)
    assert isinstance(text, Unseen), text
    assert str(text) == f"{path} {text.why}"
    return text.why


def test_a_short_log_is_read_whole(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo\n")
    text = seen(log)
    assert (text.name, text.data, text.unseen) == (str(log), b"one\ntwo\n", ())
    assert text.base == log.stat().st_mtime
    log.write_bytes(b"")
    assert seen(log).data == b""


@pytest.mark.parametrize("size", [29, 30, 31, 40, 1000])
def test_a_long_log_is_read_at_its_ends(tmp_path, size):
    log = tmp_path / "a.log"
    data = (b"123456789\n" * 100)[-size:]
    log.write_bytes(data)
    text = seen(log, head=10, tail=20)
    if size <= 30:
        assert (text.data, text.unseen) == (data, ())
    else:
        assert text.data.endswith(data[-20:])
        assert text.data.startswith(data[:10].rstrip(b"\n"))
        assert len(text.data) <= 10 + 20 + 1 + 3
        (said,) = text.unseen
        assert said.startswith(f"{log}: ")
        assert "were not read" in said
        assert text.line(len(text) - 1).from_end == 1
        assert text.line(len(text) - 1).number is None


def test_a_tail_of_utf_16_begins_with_a_whole_character(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes("start\nError: größer\n".encode("utf-16") * 7)
    for tail in range(40, 48):
        assert "Error: größer" in [line.text for line in seen(log, head=14, tail=tail).lines()]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)
        listener.bind(path.name)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "is not there"),
        (lambda path: path.mkdir(), "is a directory"),
        (fifo, "is a named pipe"),
        (bound, "is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (lambda path: path.symlink_to("nowhere"), "is not there"),
        (lambda path: path.symlink_to(path), "in a circle"),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\0rest"), "is compressed (gzip)"),
        (lambda path: path.write_bytes(b"\x28\xb5\x2f\xfdrest"), "is compressed (zstd)"),
    ],
)
def test_what_is_no_log(tmp_path, monkeypatch, make: Callable[[Path], object], why):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    make(path)
    assert why in unseen(path)


def test_paths_that_cannot_be():
    assert "no possible name" in unseen("a\0b")
    assert "too long" in unseen("/" + "x" * 5000)
    assert "no directory" in unseen("/dev/null/x")


def test_a_pipe_is_not_waited_for_nor_emptied(tmp_path):
    """Nobody notices that it was looked at: a writer that waits for a reader goes on waiting."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    opened = threading.Event()

    def write() -> None:
        with path.open("wb"):
            opened.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert "named pipe" in unseen(path)
    assert not opened.is_set()
    with path.open("rb"):
        writer.join(10)
    assert opened.is_set()


def test_links_are_followed_only_if_they_may_be(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    (tmp_path / "link").symlink_to(log)
    assert seen(tmp_path / "link").data == b"one\n"
    assert "symbolic link" in unseen(tmp_path / "link", follow_links=False)
    assert seen(log, follow_links=False).data == b"one\n"


@pytest.mark.root
def test_what_the_user_may_not_read(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"secret\n")
    log.chmod(0o600)
    tmp_path.chmod(0o755)
    done = os.fork()
    if done == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            os.chdir("/")
            found = read_log(log)
            code = 0 if isinstance(found, Unseen) and found.why in ("may not be read", "is not there") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(done, 0)[1]) == 0


@pytest.fixture
def during(monkeypatch):
    """Has something happen to the file after its first chunk was read."""

    def arrange(what: Callable[[], object]) -> None:
        real = os.pread
        done: list[object] = []

        def pread(descriptor: int, count: int, at: int) -> bytes:
            chunk = real(descriptor, count, at)
            if not done:
                done.append(what())
            return chunk

        monkeypatch.setattr(os, "pread", pread)

    return arrange


def test_a_log_that_grows_is_read_up_to_where_it_was(tmp_path, during):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    during(lambda: log.open("ab").write(b"two\n"))
    text = seen(log)
    assert text.data == b"one\n"
    assert "still written to" in text.unseen[0]


def test_a_log_that_shrinks(tmp_path, during):
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 3 * MB)
    during(lambda: os.truncate(log, 5))
    text = seen(log)
    assert text.data == b"x" * MB
    assert "was cut from 3.0 MB to 5 bytes" in text.unseen[0]


def test_a_log_that_is_replaced(tmp_path, during):
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(b"mine\n")
    other.write_bytes(b"yours\n")
    during(lambda: other.rename(log))
    text = seen(log)
    assert text.data == b"mine\n"
    assert "replaced" in text.unseen[0]


def test_a_log_that_vanishes(tmp_path, during):
    log = tmp_path / "a.log"
    log.write_bytes(b"mine\n")
    during(log.unlink)
    text = seen(log)
    assert text.data == b"mine\n"
    assert "removed" in text.unseen[0]


def test_what_lies_at_the_path_is_swapped_between_look_and_read(tmp_path, monkeypatch):
    """What was looked at is what is read: no other file, and no pipe, slips in."""
    log = tmp_path / "a.log"
    log.write_bytes(b"mine\n")
    real = os.open

    def swap(path, flags, *more):
        descriptor = real(path, flags, *more)
        if flags & os.O_PATH:
            log.unlink()
            os.mkfifo(log)
        return descriptor

    monkeypatch.setattr(os, "open", swap)
    text = seen(log)
    assert text.data == b"mine\n"
    assert "replaced" in text.unseen[0]


def test_a_read_that_fails_in_the_middle(tmp_path, monkeypatch):
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 3 * MB)
    real = os.pread

    def pread(descriptor: int, count: int, at: int) -> bytes:
        if at >= MB:
            raise OSError(5, "Input/output error")
        return real(descriptor, count, at)

    monkeypatch.setattr(os, "pread", pread)
    text = seen(log)
    assert len(text.data) == MB
    assert "input/output error, after 1.0 MB of 3.0 MB" in text.unseen[0]
    monkeypatch.setattr(os, "pread", lambda *_: pread(0, 0, MB))
    assert "input/output error" in unseen(log)


def test_a_deadline(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 5 * MB)
    ticks = iter(range(100))
    text = seen(log, seconds=2.5, clock=lambda: float(next(ticks)))
    assert len(text.data) == 2 * MB
    assert "took too long" in text.unseen[0]


def test_no_descriptor_is_left_open(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    before = sorted(Path("/proc/self/fd").iterdir())
    for path in (log, tmp_path, tmp_path / "none", Path("/dev/null")):
        read_log(path)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_memory_and_time_do_not_grow_with_the_log(tmp_path):
    """1 TB of holes costs what 16 MB cost."""
    log = tmp_path / "a.log"
    with log.open("wb") as stream:
        stream.truncate(1 << 40)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nError: the end\n")
    text = seen(log)
    assert text.line(len(text) - 1).text == "Error: the end"
    assert len(text.data) < 17 * MB
