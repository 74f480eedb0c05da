"""What may reach a terminal: text of others made harmless, and whether there is a terminal at all."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

# Escape sequences go as a whole, so that no "[31m" stays behind: CSI, OSC (to BEL or ST), and two-byte ones.
_SEQUENCES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?")
# C0 without tab and newline, DEL, C1; and the characters that reorder a line (Trojan source).
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
)


def harmless(text: str) -> str:
    r"""Text of others (job names, output, messages) without anything that steers a terminal.

    >>> harmless("a\x1b[31mb\x1b]0;title\x07c\rd")
    'abc?d'
    """
    return _CONTROLS.sub("?", _SEQUENCES.sub("", text))


def one_line(text: str) -> str:
    """Harmless text on one line."""
    return " ".join(harmless(text).split())


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a person reads the stream; a stream that was closed has no reader."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or error: colours only on a terminal and without NO_COLOR.

    A job's name is shown as it is: ":x:" is no picture.
    """
    from rich.console import Console

    return Console(file=sys.stderr if stderr else sys.stdout, highlight=False, emoji=False, soft_wrap=True)


def give_up_stdout() -> None:
    """Spare the user Python's complaint at exit about what could not be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class Spinner:
    """A sign of life on the terminal for what takes longer than a second; nothing in a pipe."""

    def __init__(self, *, allowed: bool = True) -> None:
        self._allowed = allowed and is_terminal(sys.stderr)
        self._status: Status | None = None

    def show(self, text: str) -> None:
        """Show it, or change its text."""
        if not self._allowed:
            return
        from rich.markup import escape

        if self._status is not None:
            self._status.update(escape(text))
            return
        screen = console(stderr=True)
        status = screen.status(escape(text))
        try:
            status.start()
        except BaseException:
            # ^C in the middle: half a spinner of rich's can't be stopped, but has hidden the cursor already
            screen.show_cursor(True)
            raise
        self._status = status

    def hide(self) -> None:
        """Take it away, before anything else is written."""
        status, self._status = self._status, None
        if status is not None:
            try:
                status.stop()
            finally:
                status.console.show_cursor(True)


@contextmanager
def counting(what: str, step: int) -> Iterator[Callable[[int], None]]:
    """A sign of life while something is counted: "20,000 decisions read", after each `step` more of them."""
    spinner = Spinner()
    shown = 0

    def progress(count: int) -> None:
        nonlocal shown
        if count - shown >= step:
            shown = count
            spinner.show(f"{count:,} {what}")

    try:
        yield progress
    finally:
        spinner.hide()
