"""What a daemon says on standard error, from where systemd's journal takes it: each on one line, each trouble once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

__all__ = ["AGAIN", "Troubles", "log_to_stderr", "one_line"]

AGAIN: Final = 600.0
"""Seconds until a trouble that goes on is told again, if what is said of it has changed."""
_WIDTH: Final = 2000
_PRIORITY: Final = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


def one_line(text: str, width: int = 500) -> str:
    r"""Text of others on one line of a log, without anything that steers a terminal.

    >>> one_line("a\x1b[31mb\nc")
    'a?[31mb c'
    """
    line = "".join(char if char.isprintable() else " " if char in "\n\t" else "?" for char in text.strip())
    return line if len(line) <= width else line[: width - 1] + "…"


class _OneLine(logging.Formatter):
    """``gsubd: warning: ...``; under systemd with the priority that journald reads (sd-daemon(3))."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever it quotes; a traceback's lines follow."""
        word = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        lines = [f"{self._program}: {word}{one_line(record.getMessage(), _WIDTH)}"]
        if record.exc_info:
            traced = self.formatException(record.exc_info).splitlines()
            lines += [f"  {one_line(line, _WIDTH)}" for line in traced]
        prefix = f"<{_PRIORITY[record.levelname]}>" if "JOURNAL_STREAM" in os.environ else ""
        return "\n".join(prefix + line for line in lines)


def log_to_stderr(program: str, *, verbose: bool) -> None:
    """Have all that is logged written to standard error, under the program's name."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine(program))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("asyncio", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Troubles:
    """Tells `log` of each trouble once when it begins, and once when it is over.

    While it goes on it is told again when its detail has changed, as who mends the first cause must hear of the second;
    but not before `AGAIN` has passed, as a detail may hold a figure that is another each time. `clock` gives seconds.
    """

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[str, tuple[str, float]] = {}

    def say(self, what: str, detail: str) -> None:
        """How it stands with `what`, one of a few sentences; an empty `detail` says that all is well."""
        told = self._told.get(what)
        if not detail:
            if told is not None:
                del self._told[what]
                self._log.info("no longer: %s", what)
            return
        now = self._clock()
        if told is None or (detail != told[0] and now - told[1] >= AGAIN):
            self._told[what] = detail, now
            self._log.warning("%s: %s", what, one_line(detail))
