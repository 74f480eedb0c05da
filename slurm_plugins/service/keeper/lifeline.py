"""What ties a child to its parent: it ends when the parent does, whatever ended that, and tells that it is well.

The parent holds the other end of standard input and reads standard output: one line a beat.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["BEAT", "Heart", "watch_parent"]

BEAT: Final = 2.0
"""Seconds from one beat to the next."""
_LAST: Final = 5.0
"""Seconds that ending in order may take once the parent is gone."""


def watch_parent(descriptor: int, ended: Callable[[], object]) -> None:
    """Call `ended` from a thread when the parent has closed its end of the pipe; a little later end at all costs."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(descriptor, 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: we are ending already
            ended()
        threading.Event().wait(_LAST)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


class Heart:
    """Writes a line for each beat, from the event loop: one that hangs beats no more, and is started anew.

    `well` says whether all else is alive too.
    """

    def __init__(self, descriptor: int, well: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._well = well
        os.set_blocking(descriptor, False)

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            if self._well():
                self.say("beat")
            await asyncio.sleep(BEAT)

    def say(self, line: str) -> None:
        """One line. A parent that does not read is no reason to stop."""
        with suppress(OSError):
            os.write(self._descriptor, line.encode() + b"\n")
