"""A munged of a test's own: its key, its socket, its end."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.requirements import find_program, require
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Munged:
    """A running munged, as the user of the test."""

    socket: str
    process: subprocess.Popen[bytes]


@contextmanager
def munged(key: bytes | None = None) -> Iterator[Munged]:
    """Start one, and end it. Two with the same key open each other's credentials."""
    require("munge")
    program = find_program("munged")
    assert program is not None
    # Not in pytest's folders: the path of a socket is short, and munged wants every user to reach it.
    with tempfile.TemporaryDirectory(prefix="munge-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        secret = folder / "key"
        secret.touch(0o600)
        secret.write_bytes(key or secrets.token_bytes(64))
        files = [f"--{what}-file={folder / what}" for what in ("key", "pid", "seed", "log")]
        process = subprocess.Popen(
            [program, "--foreground", "--num-threads=2", f"--socket={folder / 'socket'}", *files],
            stderr=(folder / "said").open("wb"),
        )
        try:
            # the file is written once it listens
            wait_until(
                lambda: process.poll() is not None or (folder / "pid").exists(), 30, "munged", pause=0.01
            )
            assert process.poll() is None, (folder / "said").read_text()
            yield Munged(str(folder / "socket"), process)
        finally:
            process.kill()
            process.wait()
