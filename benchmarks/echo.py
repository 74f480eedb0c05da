"""A decision service that decides nothing, and says so at once: what the way there and back costs.

python -m benchmarks.echo SOCKET [GID]
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import sys
from pathlib import Path

_ID = re.compile(rb'"id":(\d+)')
_ANSWER = b'{"v":1,"id":%b,"decision":"d-0","mode":"observe","edits":{},"env":{},"say":[],"reject":null}\n'


def serve(path: Path, gid: int = -1) -> None:
    """Answer until ended. The socket is the caller's, and its group may write to it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    os.chown(path, -1, gid)
    path.chmod(0o660)
    listening.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    waiting: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                selector.register(listening.accept()[0], selectors.EVENT_READ)
                continue
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            try:
                if _answer(peer, waiting):
                    continue
            except (BrokenPipeError, ConnectionResetError):
                pass
            waiting.pop(peer, None)
            selector.unregister(peer)
            peer.close()


def _answer(peer: socket.socket, waiting: dict[socket.socket, bytes]) -> bool:
    """Answer what has come whole. False when the peer has closed."""
    more = peer.recv(1 << 18)
    *lines, waiting[peer] = (waiting.get(peer, b"") + more).split(b"\n")
    for line in lines:
        found = _ID.search(line, 0, 64)
        peer.sendall(_ANSWER % (found[1] if found else b"0"))
    return bool(more)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1)
