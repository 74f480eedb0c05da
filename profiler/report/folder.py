"""A folder of files that is written whole or not at all, and texts that no spreadsheet computes. Imports no pandas."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["FolderError", "as_text", "whole"]

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet compute a cell instead of showing it."""


class FolderError(Exception):
    """A folder that is there already, and not empty."""


def as_text(value: str) -> str:
    """The text, behind an apostrophe where a spreadsheet would take it for a formula.

    >>> as_text("=1+1"), as_text("train")
    ("'=1+1", 'train')
    """
    return "'" + value if value.startswith(_FORMULA) else value


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, that takes its place when all is in it; for its owner's eyes only.

    Raises OSError and FolderError, and leaves nothing then.
    """
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise FolderError(f"{folder} is there already")
    folder = folder.absolute()  # "." has no name
    fresh = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}")
    fresh.mkdir(mode=0o700)
    try:
        yield fresh
        fresh.replace(folder)  # an empty folder may be there
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
