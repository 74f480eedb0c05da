"""Text files, read whole and within bounds: a FIFO or a mistaken 10 GB path must not hang a submission."""

from __future__ import annotations

import os
import stat

__all__ = ["read_text"]


def read_text(path: str | os.PathLike[str], limit: int) -> str:
    """The text of a regular UTF-8 file of at most `limit` bytes, without a byte order mark.

    Raises OSError when it cannot be read, ValueError (a sentence) when it is something else than such a file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor, so that what is checked is what is read
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {limit >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"not UTF-8 text (line {line})") from None
