"""What is nice to know and may not come: looked up beside the command, for a moment, and given up without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

__all__ = ["BUDGET", "briefly", "is_off"]

BUDGET: Final = 0.3
"""Seconds that a command may last longer for it."""
_OFF: Final = frozenset({"off", "0", "no", "false"})


def is_off(environ: Mapping[str, str], switch: str) -> bool:
    """Whether the user switched it off: `GSUB_...=off`."""
    return environ.get(switch, "").lower() in _OFF


def briefly(look: Callable[[float], list[str]], budget: float = BUDGET) -> list[str]:
    """The lines that `look` finds within `budget` seconds; else none, whatever went wrong.

    `look` is told until when (monotonic) it has time. It runs in a thread that is left alone when the time is up:
    MUNGE, the service, a home directory on a network may hang.
    """
    found: list[str] = []
    until = time.monotonic() + budget

    def run() -> None:
        # whatever it is, the command itself went well
        with suppress(Exception):
            found.extend(look(until))

    with suppress(Exception):
        thread = threading.Thread(target=run, name="briefly", daemon=True)
        thread.start()
        thread.join(max(0.0, until - time.monotonic()))
        if not thread.is_alive():
            return found
    return []
