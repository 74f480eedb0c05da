"""Values on the command lines of the daemons: read, or refused with what they must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["seconds"]


def seconds(low: float, high: float) -> Callable[[str], float]:
    """A type for argparse: a number of seconds from `low` to `high`.

    >>> seconds(5, 3600)("30")
    30.0
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"want {low:g} to {high:g} seconds, not {text!r}")
        return value

    return read
