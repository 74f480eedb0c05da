"""A folder that a command writes its tables into: what goes wrong there, as a user is told it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["filling"]


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Tell the errors of `profiler.report.folder.whole`: nothing is there then. Raises UserError."""
    from profiler.report.folder import FolderError

    try:
        yield
    except FolderError:
        raise UserError(
            f"{folder} is there already; nothing was written",
            fix="name a folder that is not there yet, or an empty one",
            exit_code=USAGE,
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written; nothing is left of it",
            why=error.strerror or str(error),
            fix="make room there, or name a folder on another disk",
        ) from error
