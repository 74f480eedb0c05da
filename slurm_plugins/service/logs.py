"""Lines for standard error: systemd's journal takes them from there."""

from __future__ import annotations

import logging
import os

from slurm_plugins.service.errors import one_line

__all__ = ["log_to_stderr"]


class _OneLine(logging.Formatter):
    """``gsubd: warning: ...``; under systemd with the priority that journald reads (sd-daemon(3))."""

    _PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}  # noqa: RUF012

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever it quotes; a traceback's lines follow."""
        text = one_line(record.getMessage(), 2000)
        word = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        lines = [f"{self._program}: {word}{text}"]
        if record.exc_info:
            lines += [f"  {one_line(line)}" for line in self.formatException(record.exc_info).splitlines()]
        prefix = f"<{self._PRIORITY[record.levelname]}>" if "JOURNAL_STREAM" in os.environ else ""
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
