"""Children under bounds, and files read without being led astray."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from stat import S_ISREG
from typing import Final

__all__ = ["Child", "child", "read_file", "shell_environment"]

_SECONDS: Final = 1.9
_MEMORY: Final = 4 << 30
_CPU: Final = 5
_AFTERWARDS: Final = 0.2
_MOST_OUTPUT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Child:
    """What a child said, so far; `code` is None where it did not end in time (`late`) or could not be started."""

    code: int | None
    out: str = ""
    err: str = ""
    late: bool = False


def child(
    argv: Sequence[str],
    *,
    given: bytes = b"",
    environ: Mapping[str, str],
    folder: str = "/",
    seconds: float = _SECONDS,
) -> Child:
    """Run a program with bounds on time, CPU and memory; nothing of it is left that can be ended."""
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return Child(None)
    try:
        for limit, value in (
            (resource.RLIMIT_AS, _MEMORY),
            (resource.RLIMIT_CPU, _CPU),
            (resource.RLIMIT_CORE, 0),
        ):
            _limit(process.pid, limit, value)
        out, err = process.communicate(given, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return Child(None, _text(late.output or b""), _text(late.stderr or b""), late=True)
    except OSError:
        return Child(None)
    finally:
        if process.returncode is None:
            _end(process)
    return Child(process.returncode, _text(out), _text(err))


def _limit(pid: int, limit: int, value: int) -> None:
    try:
        _, hard = resource.prlimit(pid, limit)
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, limit, (lower, hard))
    except (OSError, ValueError):
        return  # it has ended already


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_AFTERWARDS)  # one that waits for a dead file system does not even end when it is killed
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _text(data: bytes) -> str:
    return data[:_MOST_OUTPUT].decode(errors="replace")


def read_file(path: str, most: int = 1 << 20) -> bytes:
    """The first bytes of a regular file. Raises OSError; of a FIFO or a device it reads nothing.

    Opened without waiting: a FIFO that nobody writes into must not hold up a submission.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(22, "not a regular file", path)
        parts = []
        left = most
        while left > 0 and (part := os.read(descriptor, min(left, 65536))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def shell_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a shell that is to read and not to run: no start-up file, no functions of the user's."""
    return {"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": "/"}
