"""gsubd made to stand still for a moment, so that one sees that nobody waits for it.

A child of our own sends SIGSTOP and, when its time is over or it is told to end, SIGCONT: whatever becomes of us
meanwhile, gsubd goes on. Should the child be killed too, systemd's watchdog starts a new gsubd after 10 s.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_plugins.install.host import Host

__all__ = ["MOST_SECONDS", "HaltError", "LocalHalt", "peer"]

MOST_SECONDS: Final = 3.0
"""Longest that gsubd stands still."""
_UNIT: Final = "gsubd.service"
_WATCH: Final = """\
trap 'kill -CONT "$1"' EXIT
trap 'exit 1' HUP INT TERM
kill -STOP "$1" && echo stopped && sleep "$2"
"""
_START_AGAIN: Final = 'sleep "$1"; exec systemctl start "$2"'
_UNIT_SECONDS: Final = 20
_ANSWER_SECONDS: Final = 5.0


class HaltError(Exception):
    """gsubd cannot be made to stand still here; the message says why."""


@dataclass(slots=True)
class LocalHalt:
    """The gsubd that listens at `path` as the user of number `uid`."""

    path: Path
    uid: int
    host: Host
    _pid: int = 0
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        """Have it stand still for so many seconds, `MOST_SECONDS` at most. Raises HaltError."""
        pid, uid = peer(self.path)
        if uid != self.uid or pid <= 1:
            raise HaltError("what listens at the decision socket is not gsubd under its own user")
        self._pid = pid
        span = f"{min(seconds, MOST_SECONDS):g}"
        child = self._child(["sh", "-c", _WATCH, "sh", str(pid), span], stdout=subprocess.PIPE)
        assert child.stdout is not None  # noqa: S101 - opened as a pipe above
        ready, _, _ = select.select([child.stdout], [], [], _ANSWER_SECONDS)
        if not ready or not child.stdout.readline():
            self.resume()
            raise HaltError("gsubd could not be stopped for a moment (SIGSTOP)")

    def resume(self) -> None:
        """Have it go on now, and end the child."""
        if self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGCONT)
            self._pid = 0
        self._end_children()

    def stop(self) -> None:
        """Stop its unit; a child starts it again after 20 s, whatever becomes of us. Raises HaltError."""
        active = self.host.run(["systemctl", "is-active", _UNIT])
        if not active.ok:
            raise HaltError(f"there is no {_UNIT} that runs under systemd here")
        self._child(["sh", "-c", _START_AGAIN, "sh", str(_UNIT_SECONDS), _UNIT])
        stopped = self.host.run(["systemctl", "stop", _UNIT], timeout=_UNIT_SECONDS)
        if not stopped.ok:
            self.start()
            raise HaltError(f"{_UNIT} could not be stopped")

    def start(self) -> None:
        """Start its unit. Raises HaltError."""
        started = self.host.run(["systemctl", "start", _UNIT], timeout=_UNIT_SECONDS)
        if not started.ok:
            raise HaltError(f"{_UNIT} could not be started again: systemctl start {_UNIT}")
        self._end_children()

    def _child(self, argv: list[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """A child in a session of its own: no ^C reaches it, and it outlives us."""
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._children.append(child)
        return child

    def _end_children(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdout:
                child.stdout.close()
        self._children.clear()


def peer(path: Path) -> tuple[int, int]:
    """Pid and uid of the process that listens at a Unix socket. Raises HaltError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_ANSWER_SECONDS)
        try:
            sock.connect(str(path))
            found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError as error:
            raise HaltError(f"gsubd does not listen on this host: {error.strerror or error}") from error
    pid, uid, _ = struct.unpack("3i", found)
    return pid, uid
