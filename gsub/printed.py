"""Lines for a person or a pipe: what each is says its colour, on a terminal alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gsub.term import console, is_terminal

__all__ = ["STYLES", "Line", "show"]

STYLES: Final = {"head": "bold", "idle": "yellow", "note": "dim"}
"""How each kind of line looks."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and what it is: "", "head", "idle" (a GPU that was never used) or "note"."""

    text: str
    kind: str = ""


def show(view: Iterable[Line]) -> None:
    """Print the lines; their texts are harmless already."""
    if not is_terminal(sys.stdout):
        print("\n".join(line.text for line in view))
        return
    screen = console()
    for line in view:
        screen.print(line.text, markup=False, style=STYLES.get(line.kind, ""))
