"""Files that readers find whole, as they were or as they are now, whatever ends the writer."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["put"]


def put(path: Path, data: bytes, mode: int = 0o600, *, sync: bool = False, beside: str | None = None) -> None:
    """Put a file in its place, by way of one beside it that nobody can foresee. Raises OSError and leaves nothing.

    Parameters
    ----------
    sync: it is on disk before it is in its place.
    beside: the name of that other file, where one process alone writes and nobody else may write into the folder: a
    writer that was killed leaves one then, which the next one replaces, and not one each time.
    """
    fresh = path.with_name(beside or f".{path.name}.{os.urandom(8).hex()}")
    if beside is not None:
        fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
