"""What stops gsubd from starting, told in three lines."""

from __future__ import annotations

import errno
from typing import Final

from profiler.logs import one_line

__all__ = ["PASSING", "StartError"]

PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""A disk that is full or has failed is no reason not to start: nobody would start us again when it is well."""


class StartError(Exception):
    """gsubd cannot start. The message is three lines: what, why, what to do.

    `passes`: it may be over without anybody's doing, and is worth another try.
    """

    def __init__(self, what: str, why: str | OSError, fix: str) -> None:
        self.passes = isinstance(why, OSError) and why.errno in PASSING
        if isinstance(why, OSError):
            why = why.strerror or ""
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__(f"{one_line(what)}\n  why: {one_line(why)}\n  try: {one_line(fix)}")
