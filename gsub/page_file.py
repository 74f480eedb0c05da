"""A page that is written into a file: there when it is whole, for its owner's eyes, and never over another file."""

from __future__ import annotations

import os
from pathlib import Path

from gsub.errors import USAGE, UserError

__all__ = ["put", "refuse"]


def refuse(file: Path, what: str) -> None:
    """Refuse a file that is there already, before the work; `what` the page is of ("audit"). Raises UserError."""
    if os.path.lexists(file):
        raise UserError(
            f"{file} is there already; nothing was written",
            fix=f"name a file that is not there yet, like {what}-$(date +%F).html",
            exit_code=USAGE,
        )


def put(file: Path, text: str, what: str) -> None:
    """Write the page. Raises UserError, and then nothing is there."""
    from profiler.whole_file import put as put_whole

    refuse(file, what)
    try:
        put_whole(file, text.encode(errors="replace"))
    except OSError as error:
        raise UserError(
            f"{file} cannot be written; nothing is left of it",
            why=error.strerror or str(error),
            fix="make room there, or name a file on another disk",
        ) from error
