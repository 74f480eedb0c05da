"""The release of Slurm that sbatch here is of: asked once, whoever wants to know."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gsub.sbatch import PROGRAM

__all__ = ["sbatch_release"]

_SECONDS: Final = 10.0
_Which = tuple[str, int, int, int]

_lock: Final = threading.Lock()  # checks ask beside each other
_told: Final[dict[_Which, tuple[int, int]]] = {}


def sbatch_release(
    environ: Mapping[str, str], folder: str, *, seconds: float = _SECONDS
) -> tuple[int, int] | None:
    """What ``sbatch --version`` tells, (major, minor); None where it tells none in so many seconds.

    Parameters
    ----------
    folder: where Slurm's commands lie; empty for PATH.
    """
    program = _program(environ, folder)
    if program is None:
        return None
    with _lock:
        if program not in _told:
            from gsub.preflight.children import child

            said = child([program[0], "--version"], environ=environ, seconds=seconds)
            found = re.search(r"(\d\d)\.(\d\d)", said.out)
            if said.code != 0 or found is None:
                return None  # who has more time may ask again
            _told[program] = (int(found[1]), int(found[2]))
        return _told[program]


def _program(environ: Mapping[str, str], folder: str) -> _Which | None:
    """Its path, and which file that is."""
    path = shutil.which(PROGRAM, path=folder or environ.get("PATH", ""))
    if path is None:
        return None
    try:
        absolute = Path(path).absolute()
        now = absolute.stat()
    except OSError:
        return None
    return str(absolute), now.st_mtime_ns, now.st_size, now.st_ino
