"""Answers that no gsubd should give, and a server that gives them from gsubd's place, in threads of the test."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Ask = dict[str, Any]
Reply = Callable[[socket.socket, Ask], None]
"""Does its worst to one peer that asked one question; what it raises ends the connection."""


def answer(ask: Ask, **fields: Any) -> bytes:
    """A right answer to `ask` in enforce mode, but for `fields`."""
    said = {
        "v": 1,
        "id": ask["id"],
        "decision": "d-0123456789abcdef",
        "mode": "enforce",
        "edits": {},
        "env": {},
        "say": [],
        "reject": None,
    }
    return json.dumps(said | fields).encode() + b"\n"


def sends(make: Callable[[Ask], bytes]) -> Reply:
    """Sends what `make` makes of a question, at once."""
    return lambda peer, ask: peer.sendall(make(ask))


def says(**fields: Any) -> Reply:
    """A right answer but for these fields."""
    return sends(lambda ask: answer(ask, **fields))


def _drip(peer: socket.socket, ask: Ask) -> None:
    for byte in answer(ask, edits={"min_nodes": 4}):
        peer.sendall(bytes([byte]))
        time.sleep(0.02)


def _half(peer: socket.socket, ask: Ask) -> None:
    peer.sendall(answer(ask, edits={"min_nodes": 4})[:60])
    raise ConnectionError("enough")


def _hangs_up(peer: socket.socket, ask: Ask) -> None:
    raise ConnectionError("enough")


def _endless(peer: socket.socket, ask: Ask) -> None:
    for _ in range(2000):
        peer.sendall(b"[" * 4096)


def _late(peer: socket.socket, ask: Ask) -> None:
    time.sleep(1.5)  # the longest deadline of a shim is 1 s
    peer.sendall(answer(ask, edits={"min_nodes": 4}))


def _mute(peer: socket.socket, ask: Ask) -> None:
    peer.settimeout(30)
    peer.recv(1)  # nothing comes: the shim closes after its deadline


_NOISE = random.Random(7).randbytes(5000).replace(b"\n", b"")
_EDIT = {"min_nodes": 4, "max_nodes": 4}

WICKED: Mapping[str, Reply] = {
    "mute": _mute,
    "late": _late,
    "a byte at a time": _drip,
    "half an answer": _half,
    "hangs up": _hangs_up,
    "an endless line": _endless,
    "noise": sends(lambda ask: _NOISE + b"\n"),
    "an empty line": sends(lambda ask: b"\n"),
    "no object": sends(lambda ask: b'["edits", {"min_nodes": 4}]\n'),
    "deep nesting": sends(lambda ask: b'{"v":1,"id":' + b"[" * 30000 + b"\n"),
    "an error": sends(lambda ask: json.dumps({"v": 1, "id": ask["id"], "error": "no"}).encode() + b"\n"),
    "another question": sends(lambda ask: answer(ask | {"id": ask["id"] + 1}, edits=_EDIT)),
    "no question": sends(lambda ask: answer(ask | {"id": None}, edits=_EDIT)),
    "a hundred old answers": sends(
        lambda ask: b"".join(answer(ask | {"id": ask["id"] - n}, edits=_EDIT) for n in range(100, 0, -1))
    ),
    "another version": says(v=2, edits=_EDIT),
    "an unknown mode": says(mode="force", edits=_EDIT),
    "edits in observe": says(mode="observe", edits=_EDIT, say=[]),
    "edits in advise": says(mode="advise", edits=_EDIT, env={"SLURM_NTASKS": "4"}),
    "a refusal in advise": says(mode="advise", reject="no"),
    "a field that is none": says(edits=_EDIT | {"nonsense": 1}),
    "a field that is not for gsub": says(edits=_EDIT | {"user_id": 0}),
    "a privileged field": says(edits=_EDIT | {"priority": 4_000_000}),
    "the script": says(edits=_EDIT | {"script": "#!/bin/sh\nrm -rf ~\n"}),
    "too small": says(edits={"min_nodes": 0}),
    "too big": says(edits={"min_nodes": 1 << 33}),
    "a fraction": says(edits={"min_nodes": 1.5}),
    "a number as text": says(edits={"min_nodes": "4"}),
    "true": says(edits={"min_nodes": True}),
    "a text as number": says(edits=_EDIT | {"exc_nodes": 7}),
    "a text too long": says(edits=_EDIT | {"exc_nodes": "n" * 5000}),
    "a bad character": says(edits=_EDIT | {"features": "a100\nrm"}),
    "edits that are no table": says(edits=["min_nodes", 4]),
    "a foreign variable": says(edits=_EDIT, env={"LD_PRELOAD": "/tmp/x.so"}),
    "a variable with a newline": says(edits=_EDIT, env={"SLURM_NTASKS": "4\nX=1"}),
    "a variable that is a number": says(edits=_EDIT, env={"SLURM_NTASKS": 4}),
}  # fmt: skip
"""What is sent, by what is wrong with it. Each tempts the shim with edits that would change the job."""


class Server:
    """Listens at `path` until closed; `asked` is every question it got, `reply` what it does about the next."""

    def __init__(self, path: Path, reply: Reply, *, owner: int, group: int, mode: int = 0o660) -> None:
        self.asked: list[Ask] = []
        self.reply = reply
        self._peers: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        os.chown(path, owner, group)
        path.chmod(mode)
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer:
            try:
                with peer.makefile("rb") as lines:
                    for line in lines:
                        self.asked.append(json.loads(line))
                        self.reply(peer, self.asked[-1])
            except OSError:
                return  # the shim had enough, or the test is over

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        for one in (self._listener, *self._peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
            one.close()
