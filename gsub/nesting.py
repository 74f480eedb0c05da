"""The next `sbatch` that does not lead back to gsub, where a site calls gsub by that name.

A site may put a script named `sbatch` first on PATH that runs gsub, or a link to it. Starting that one again would
never end. It is left out where its text shows it, and otherwise after one start: each gsub writes into its own process
name which program it starts, and one that finds itself below another hands the words on to the next program on PATH.
The process name, since a variable would reach the job's environment, and an open file not every wrapper.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from gsub.errors import USAGE, UserError

__all__ = ["find_folder", "find_marks", "is_in_place_of_sbatch", "mark_process", "next_program", "runs_gsub"]

_PROGRAM: Final = "sbatch"
_OWN: Final = "gsub"
_FIX: Final = "name the folder of Slurm's own commands in the site file: slurm.bin"
_MARK: Final = re.compile(r"gsub:[0-9a-f]{8}")
_PARENTS: Final = 64
_TEXT: Final = 64 * 1024
_STARTS: Final = re.compile(
    rb"""^[ \t]*(?:exec[ \t]+(?:-a[ \t]+\S+[ \t]+|-\S+[ \t]+)*)?["']?(?:\S*/)?gsub["']?[ \t][^\n#]*\$\{?[@*]"""
    rb"""|^from gsub\.cli import """,
    re.MULTILINE,
)
"""A script that hands its own arguments to gsub; awk's function of that name has none, and comments are none."""


def mark_process(program: str = "") -> None:
    """Write into this process's name that it is gsub, and which `sbatch` it starts. At most 15 bytes fit."""
    own = _comm("self")
    if program and own != _OWN and not _MARK.fullmatch(own):
        return  # a Python program that uses our modules keeps its name
    with suppress(OSError):
        Path("/proc/self/comm").write_text(_mark(program) if program else _OWN, encoding="ascii")


def find_marks() -> tuple[str, ...]:
    """Find the marks of each gsub above this process that is starting `sbatch`, the nearest first."""
    found = []
    pid = os.getppid()
    for _ in range(_PARENTS):
        if pid <= 1:
            break
        if _MARK.fullmatch(comm := _comm(str(pid))):
            found.append(comm)
        pid = _parent(pid)
    return tuple(found)


def find_folder(environ: Mapping[str, str], marks: Sequence[str] = ()) -> str:
    """Find the folder of the first `sbatch` on PATH that does not lead back to gsub; "" where that is the first one.

    `marks`: of those that were started already (`find_marks`). Raises UserError where each of them leads back.
    """
    skipped: list[str] = []
    for folder in os.get_exec_path(environ):
        path = os.path.join(folder, _PROGRAM)  # noqa: PTH118 - text, as PATH has it
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):  # noqa: PTH113
            continue
        if _mark(path) in marks or runs_gsub(path):
            skipped.append(path)
            continue
        mark_process(path)
        return os.path.abspath(folder) if skipped else ""  # noqa: PTH100
    if skipped:
        raise UserError(
            "no sbatch of Slurm found; nothing was submitted",
            why=f"each sbatch on PATH runs gsub again: {', '.join(skipped[:3])}",
            fix=_FIX,
            exit_code=USAGE,
        )
    return ""  # there is none: whoever starts it says so


def is_in_place_of_sbatch(program: str, environ: Mapping[str, str]) -> bool:
    """Check whether gsub has sbatch's name: by the name that it was called by, below itself, or first on PATH.

    A script on PATH that runs gsub by `exec` leaves no other trace of the name that its user typed.
    """
    if os.path.basename(program) == _PROGRAM or find_marks():  # noqa: PTH119
        return True
    first = _which("", environ)
    return first != _PROGRAM and runs_gsub(first)


def next_program(environ: Mapping[str, str], folder: str, marks: Sequence[str]) -> str:
    """Find the path of the `sbatch` to start below another gsub that did all else already.

    `folder`: where the site file says that it lies. Raises UserError where what was started led back here too.
    """
    if len(marks) > 1 or folder:
        started = os.path.join(folder, _PROGRAM) if folder else f"the {_PROGRAM} on PATH"  # noqa: PTH118
        raise UserError(
            f"{started} runs gsub again; nothing was submitted",
            why="gsub starts sbatch, which started gsub, more than once",
            fix=_FIX,
            exit_code=USAGE,
        )
    return _which(find_folder(environ, marks), environ)


def runs_gsub(path: str) -> bool:
    """Check whether a program is a script that hands its arguments to gsub, or gsub itself under another name."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_TEXT)
    except OSError:
        return False
    return text.startswith(b"#!") and _STARTS.search(text) is not None


def _which(folder: str, environ: Mapping[str, str]) -> str:
    import shutil

    return shutil.which(_PROGRAM, path=folder or os.pathsep.join(os.get_exec_path(environ))) or _PROGRAM


def _mark(path: str) -> str:
    # One program under two names is one
    return f"gsub:{crc32(os.fsencode(os.path.realpath(path))):08x}"


def _comm(pid: str) -> str:
    try:
        return Path("/proc", pid, "comm").read_text(encoding="ascii", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        told = Path("/proc", str(pid), "stat").read_bytes()
        return int(told.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
