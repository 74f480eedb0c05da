"""The memory of passes: what has passed a smoke run is not tried again for a day.

One small file for each, STATE/passes/KEY, the user's own; its time is when it passed. `gsub.smoke.footing` makes keys.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from profiler.whole_file import put

__all__ = ["DAY", "MOST", "Pass", "known", "remember"]

DAY: Final = 86400.0
"""Seconds for which a pass counts."""
MOST: Final = 500
"""The most passes that are kept."""
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Pass:
    """A smoke run that passed: its job, when that was (seconds since the epoch), and how long it ran (seconds)."""

    job: int
    at: float
    seconds: float


class _Kept(msgspec.Struct, frozen=True):
    job: int
    at: float
    seconds: float
    v: int = 1


def known(state: Path, key: str, now: float | None = None) -> Pass | None:
    """The pass of that key of the last day; None without. Never raises."""
    if not _KEY.fullmatch(key):
        return None
    try:
        with (_folder(state) / key).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            kept = msgspec.json.decode(file.read(_BYTES), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None
    now = time.time() if now is None else now
    # a time to come is of a clock that was set back: no pass
    return Pass(kept.job, kept.at, kept.seconds) if 0 <= now - kept.at <= DAY else None


def remember(state: Path, key: str, job: int, seconds: float, now: float | None = None) -> None:
    """Keep a pass, and forget those that are too old or too many. Never raises: it is only a memory."""
    if not _KEY.fullmatch(key):
        return
    with suppress(OSError):
        folder = _folder(state)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = _Kept(job, time.time() if now is None else now, seconds)
        put(folder / key, msgspec.json.encode(kept))
        _prune(folder)


def _folder(state: Path) -> Path:
    return state / "passes"


def _prune(folder: Path) -> None:
    found: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    found.sort(reverse=True)
    old = time.time() - 2 * DAY  # a day more than counts: the clock of the file server is another
    for number, (at, path) in enumerate(found):
        if number >= MOST or at < old:
            path.unlink(missing_ok=True)
