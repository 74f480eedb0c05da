"""A decision service that misbehaves: a table of ways, each given a question and a connection."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Self

EDITS = {"min_nodes": 2, "max_nodes": 2, "features": "leaf1|leaf2"}
ENV = {"SLURM_NTASKS": "16", "GSUB_DECISION": "d-0123456789abcdef"}

Way = Callable[[socket.socket, dict[str, Any], threading.Event], bool]
"""Answers a question in its way; says whether the connection stays. The event is set when the service ends."""


def answer(question: Mapping[str, Any], **changes: Any) -> bytes:
    """A right answer in enforce mode, with `changes`; a value of `...` leaves the key out."""
    body: dict[str, Any] = {
        "v": 1,
        "id": question["id"],
        "decision": "d-0123456789abcdef",
        "mode": "enforce",
        "edits": EDITS,
        "env": ENV if question["batch"] else {},
        "say": ["gsub: 2 nodes x 8 GPUs: the fewest that hold 16"],
        "reject": None,
        **changes,
    }
    return json.dumps({k: v for k, v in body.items() if v is not ...}).encode() + b"\n"


def says(**changes: Any) -> Way:
    """Answer rightly but for `changes`."""

    def way(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
        connection.sendall(answer(question, **changes))
        return True

    return way


def sends(data: bytes, *, stays: bool = True) -> Way:
    """Send these bytes, whatever the question; then stay connected or not."""

    def way(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
        connection.sendall(data)
        return stays

    return way


def hangs(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    ending.wait()
    return False


def drips(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    """A right answer, a byte at a time, which takes longer than anybody waits."""
    for byte in answer(question, say=["x" * 300] * 8):
        connection.sendall(bytes([byte]))
        if ending.wait(0.02):
            break
    return False


def once(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    """The right answer, then no more on this connection."""
    connection.sendall(answer(question))
    return False


def in_pieces(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    """A right answer in three sends."""
    line = answer(question)
    for piece in (line[:1], line[1:50], line[50:]):
        connection.sendall(piece)
    return True


def half_a_line(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    connection.sendall(answer(question)[:40])
    return False


def behind_stale_ones(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    """The right answer behind a hundred to questions that nobody asked, with changes of their own."""
    stale = b"".join(answer({**question, "id": 10_000 + n}, edits={"min_nodes": 7}) for n in range(100))
    connection.sendall(stale + answer(question))
    return True


def infinite(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    connection.sendall(answer(question, edits={"num_tasks": math.inf}).replace(b"Infinity", b"1e999"))
    return True


def closes(connection: socket.socket, question: dict[str, Any], ending: threading.Event) -> bool:
    return False


RIGHT: Mapping[str, Way] = {
    "at once": says(),
    "in pieces": in_pieces,
    "behind stale ones": behind_stale_ones,
}

# Each: the job is accepted unchanged, and counts towards the breaker.
BROKEN: Mapping[str, Way] = {
    "hangs": hangs,
    "drips": drips,
    "closes without a word": closes,
    "half a line, then closes": half_a_line,
    "not JSON": sends(b"\x00\xff{]garbage\n"),
    "a list": sends(b"[1]\n"),
    "null": sends(b"null\n"),
    "an empty line": sends(b"\n"),
    "a number": sends(b"1e999\n"),
    "too deep": sends(b"[" * 60_000 + b"\n"),
    "too long": sends(b'{"v":1,"id":1,"say":["' + b"x" * 300_000 + b'"]}\n'),
    "endless": sends(b"y" * 4_000_000, stays=False),
    "another id": says(id=999_999),
    "another version": says(v=2),
    "id as text": says(id="1"),
    "Infinity": says(edits={"num_tasks": math.inf}),
    "NaN": says(edits={"num_tasks": math.nan}),
}

# Each: an answer to the question that the shim does not carry out. The service is there, so the breaker stays closed.
REFUSED: Mapping[str, Way] = {
    "number above its range": says(edits={"min_nodes": 65_001}),
    "number below its range": says(edits={"min_nodes": 0}),
    "negative": says(edits={"num_tasks": -1}),
    "no whole number": says(edits={"num_tasks": 1.5}),
    "NO_VAL": says(edits={"num_tasks": 0xFFFFFFFE}),
    "infinite": infinite,
    "number as text": says(edits={"min_nodes": "2"}),
    "text as number": says(edits={"features": 2}),
    "true": says(edits={"min_nodes": True}),
    "null edit": says(edits={"min_nodes": None}),
    "list edit": says(edits={"features": ["a"]}),
    "empty text": says(edits={"features": ""}),
    "long text": says(edits={"features": "x" * 1001}),
    "newline in a text": says(edits={"features": "a\nb"}),
    "other characters": says(edits={"exc_nodes": "n1; rm -rf"}),
    "unknown field": says(edits={"priority": 1}),
    "field nobody may change": says(edits={"script": "#!/bin/sh"}),
    "pn_min_memory": says(edits={"pn_min_memory": 4000}),
    "time limit": says(edits={"time_limit": 10}),
    "one bad among good": says(edits={**EDITS, "wckey": "x"}),
    "both kinds of memory": says(edits={"min_mem_per_cpu": 100, "min_mem_per_node": 100}),
    "edits as list": says(edits=[1]),
    "edits missing": says(edits=...),
    "edits null": says(edits=None),
    "unknown variable": says(env={"LD_PRELOAD": "/tmp/x.so"}),
    "variable with a newline": says(env={"SLURM_NTASKS": "1\n2"}),
    "variable too long": says(env={"SLURM_NTASKS": "1" * 1025}),
    "variable as number": says(env={"SLURM_NTASKS": 4}),
    "env missing": says(env=...),
    "env as list": says(env=["SLURM_NTASKS"]),
    "unknown mode": says(mode="force"),
    "mode as number": says(mode=1),
    "mode missing": says(mode=...),
    "escape in a message": says(say=["\x1b[31mred"]),
    "newline in a message": says(say=["a\nb"]),
    "C1 control in a message": says(say=["a\u009bb"]),
    "message too long": says(say=["x" * 401]),
    "too many messages": says(say=["x"] * 9),
    "message as number": says(say=[1]),
    "messages as text": says(say="x"),
    "reject as number": says(reject=1),
    "reject as list": says(reject=["no"]),
    "reject empty": says(reject=""),
    "reject too long": says(reject="1\n2\n3\n4"),
    "reject with an escape": says(reject="\x1b[2J"),
}


class Service:
    """A Unix socket at `path` that answers in the way of `way`, which may be changed at any time."""

    def __init__(self, path: Path, *, backlog: int = 16) -> None:
        self.path = path
        self.way: Way = says()
        self.questions: list[dict[str, Any]] = []
        self.connections = 0
        self._backlog = backlog
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._ending = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(self.path))
        self.path.chmod(0o660)
        self._listener.listen(self._backlog)
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """End, with every connection, and remove the socket."""
        self._ending.set()
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=60)
        for end in [self._listener, *self._open]:
            end.close()
        self._threads, self._open = [], []
        self.path.unlink(missing_ok=True)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._spawn(self._serve, connection, self._ending)

    def _serve(self, connection: socket.socket, ending: threading.Event) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            for line in lines:
                question = json.loads(line)
                self.questions.append(question)
                if not self.way(connection, question, ending):
                    break
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
