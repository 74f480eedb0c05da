"""A site's own program as a check, in the manner of NHC: exit code 0 is well, 1 a warning, any other an error.

Its first line of output says why. It is run without a shell, in a plain environment, and what it prints is bounded
and cleaned. It runs in the process group of the child that calls this, which ends the whole group afterwards. As it
runs as root, it is left alone where others could put something else in its place.
"""

from __future__ import annotations

import os
import re
import selectors
import stat
import subprocess
import time
from pathlib import Path
from typing import Final

from prolog_epilog.health.finding import Finding, State, cleaned
from prolog_epilog.health.tasks import Task

__all__ = ["ENVIRONMENT", "find_weakness", "run"]

ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/"}
"""All that the program gets, and GSUB_NODE and GSUB_CHECK."""

_MOST_OUTPUT: Final = 4096
_READS_SCRIPTS: Final = re.compile(
    r"(?:ba|da|z|k|tc|c)?sh|python[0-9.]*|perl[0-9.]*|ruby[0-9.]*|env|timeout|nice"
)
_STATES: Final[dict[int, State]] = {0: "ok", 1: "warning"}


def run(task: Task) -> Finding:
    """Run the task's program. Its state is "unknown" when it cannot be started or takes too long."""
    for path in _programs(task.command):
        if why := find_weakness(path):
            return Finding("unknown", cleaned(f"not run, as it runs as root and {why}"))
    environment = {**ENVIRONMENT, "GSUB_NODE": task.node, "GSUB_CHECK": task.name}
    try:
        process = subprocess.Popen(
            task.command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        return Finding("unknown", cleaned(f"cannot start {task.command[0]}: {error.strerror or error}"))
    output, code = _output(process, time.monotonic() + task.deadline)
    if code is None:
        process.kill()
        return Finding("unknown", f"did not end within {task.deadline:g} s")
    lines = output.decode("utf-8", "replace").splitlines()
    ending = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    detail = next((text for text in map(cleaned, lines) if text), "" if code == 0 else ending)
    return Finding(_STATES.get(code, "error"), detail)


def find_weakness(path: Path) -> str:
    """Why others than root, and whom we run as, could change what lies at `path`; empty where they cannot, or nothing
    is there.

    The path as it is written counts, and where its links lead. A folder with the sticky bit protects what is not
    theirs.
    """
    whole = Path(os.path.normpath(path.absolute()))
    real = Path(os.path.realpath(path))
    for place in dict.fromkeys((whole, *whole.parents, real, *real.parents)):
        try:
            found = place.lstat()
        except OSError:
            continue  # nothing is there to be run
        if found.st_uid not in {0, os.geteuid()}:
            return f"{place} belongs to uid {found.st_uid}"
        if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {place}"
        if found.st_mode & stat.S_IWGRP and found.st_gid != 0:
            return f"the group {found.st_gid} may write to {place}"
    return ""


def _programs(command: tuple[str, ...]) -> list[Path]:
    """The program, and the scripts that it reads where it is one that does."""
    found = [Path(command[0])]
    if _READS_SCRIPTS.fullmatch(found[0].name):
        found += [Path(word) for word in command[1:] if word.startswith("/") and Path(word).is_file()]
    return found


def _output(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, int | None]:
    """The start of what it prints, and its exit code: None when it does not end in time.

    A program that it left behind may hold the output open: its own end counts, not that of its output.
    """
    assert process.stdout is not None  # noqa: S101 - for the types
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        try:
            ended = os.pidfd_open(process.pid)
            selector.register(ended, selectors.EVENT_READ)
        except OSError:  # Linux before 5.3
            ended = -1
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            selector.select(left if ended >= 0 else min(left, 0.1))
            kept, more = _read(pipe, kept)
            if not more and pipe in selector.get_map():
                selector.unregister(pipe)
        if ended >= 0:
            os.close(ended)
    return _read(pipe, kept)[0], process.returncode


def _read(pipe: int, kept: bytes) -> tuple[bytes, bool]:
    """All that is there now, of which the start is kept; and whether more may come."""
    while True:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return kept, True
        if not data:
            return kept, False
        kept = (kept + data)[:_MOST_OUTPUT]
