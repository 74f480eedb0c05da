"""What stops gsubd from starting, told in three lines."""

from __future__ import annotations

from profiler.logs import one_line

__all__ = ["StartError"]


class StartError(Exception):
    """gsubd cannot start. The message is three lines: what, why, what to do."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__(f"{one_line(what)}\n  why: {one_line(why)}\n  try: {one_line(fix)}")
