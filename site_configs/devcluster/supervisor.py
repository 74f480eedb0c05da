"""The process that holds a cluster's daemons, so that none outlives it.

It is a subreaper (prctl(2)): whatever a daemon, a job or a job's stray grandchild forks stays its descendant, and at
the end the whole tree is ended. Commands come as JSON lines on a Unix socket that only its owner can open.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PR_SET_CHILD_SUBREAPER: Final = 36
GRACE_S: Final = 8.0


@dataclass(slots=True)
class Daemons:
    """The running daemons by name. Dead children of any origin are reaped by `reap`."""

    running: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> int:
        """Start one in the foreground of its own session; its output is appended to `log`. Returns its pid."""
        self.reap()
        if name in self.running:
            return self.running[name]
        # The folder of logs belongs to a daemon's user, and we may be root: follow no link that lies there.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o644), "ab") as out:
            child = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
            )
        child.returncode = 0  # ours to reap, not Popen's
        self.running[name] = child.pid
        return child.pid

    def reap(self) -> None:
        """Collect every dead child, adopted ones too."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.running = {name: other for name, other in self.running.items() if other != pid}

    def stop(self, name: str, sig: int = signal.SIGTERM) -> bool:
        """Stop one, by force after the grace; whether it ran."""
        self.reap()
        pid = self.running.get(name)
        if pid is None:
            return False
        _signal((pid,), sig)
        if not self._gone((pid,), GRACE_S):
            _signal((pid,), signal.SIGKILL)
            self._gone((pid,), GRACE_S)
        return True

    def end(self) -> None:
        """Stop all daemons, last started first, then whatever they left."""
        for name in reversed(list(self.running)):
            self.stop(name)
        for sig, grace in ((signal.SIGTERM, 1.0), (signal.SIGKILL, GRACE_S)):
            rest = descendants(os.getpid())
            _signal(rest, sig)
            if self._gone(rest, grace) and not descendants(os.getpid()):
                return

    def _gone(self, pids: Iterable[int], grace: float) -> bool:
        deadline = time.monotonic() + grace
        left = set(pids)
        while left:
            self.reap()
            left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
            if left and time.monotonic() > deadline:
                return False
            if left:
                time.sleep(0.02)
        return True


def descendants(*of: int) -> tuple[int, ...]:
    """All live processes below those in `of`, from one look at /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # the command may hold spaces and brackets: the fields begin after the last ')'
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found: list[int] = []
    layer = {*of}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return tuple(found)


def _signal(pids: Iterable[int], sig: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            continue


def serve(path: Path) -> None:
    """Take commands until `shutdown`, SIGTERM or SIGINT; then end everything."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    daemons = Daemons()
    stop = False

    def ask_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, ask_stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        old = os.umask(0o177)
        listener.bind(str(path))
        os.umask(old)
        listener.listen(8)
        selector.register(listener, selectors.EVENT_READ)
        while not stop:
            daemons.reap()
            if not selector.select(timeout=0.5):
                continue
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(5)
                try:
                    if _answer(daemons, peer):
                        stop = True  # never `stop |=`: a signal may set it meanwhile
                except (OSError, ValueError, LookupError, TypeError) as error:
                    _send(peer, {"error": f"{type(error).__name__}: {error}"})
        daemons.end()
        path.unlink(missing_ok=True)


def _answer(daemons: Daemons, peer: socket.socket) -> bool:
    """Carry out one command; True when it is the last."""
    with peer.makefile("r") as lines:
        command = json.loads(lines.readline())
    match command["op"]:
        case "start":
            pid = daemons.start(command["name"], command["argv"], command["env"], command["log"])
            _send(peer, {"pid": pid})
        case "stop":
            _send(peer, {"stopped": daemons.stop(command["name"])})
        case "list":
            daemons.reap()
            _send(peer, {"running": daemons.running, "supervisor": os.getpid()})
        case "shutdown":
            _send(peer, {"supervisor": os.getpid()})
            return True
        case other:
            _send(peer, {"error": f"unknown command {other!r}"})
    return False


def _send(peer: socket.socket, answer: dict[str, Any]) -> None:
    try:
        peer.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        # the asker is gone; what it asked for has been done all the same
        return


def ask(path: Path, timeout_s: float = 60.0, **command: Any) -> dict[str, Any]:  # noqa: ANN401
    """Send one command to the supervisor at `path`.

    Raises
    ------
    ConnectionError, FileNotFoundError: no supervisor there.
    RuntimeError: it could not do what was asked.
    """
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(timeout_s)
        peer.connect(str(path))
        peer.sendall(json.dumps(command).encode() + b"\n")
        with peer.makefile("r") as lines:
            answer: dict[str, Any] = json.loads(lines.readline() or "{}")
    if "error" in answer:
        raise RuntimeError(f"supervisor: {answer['error']}")
    return answer


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
