"""What stops gsubd from starting, told in three lines; and text made fit for a log."""

from __future__ import annotations

__all__ = ["StartError", "one_line"]


class StartError(Exception):
    """gsubd cannot start. The message is three lines: what, why, what to do."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__(f"{one_line(what)}\n  why: {one_line(why)}\n  try: {one_line(fix)}")


def one_line(text: str, width: int = 500) -> str:
    r"""Text of others on one line of a log, without anything that steers a terminal.

    >>> one_line("a\x1b[31mb\nc")
    'a?[31mb c'
    """
    line = "".join(char if char.isprintable() else " " if char in "\n\t" else "?" for char in text.strip())
    return line if len(line) <= width else line[: width - 1] + "…"
