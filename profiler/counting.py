"""Numbers with their noun, as all messages have them. Light: the command line and decisions use it."""

from __future__ import annotations

__all__ = ["count"]


def count(number: float, noun: str, several: str | None = None) -> str:
    """A number and what it counts; `several` where that is not the noun with an "s".

    >>> count(1, "node"), count(2, "node"), count(0, "GPU"), count(1.0, "CPU"), count(2, "process", "processes")
    ('1 node', '2 nodes', '0 GPUs', '1 CPU', '2 processes')
    """
    return f"{number:g} {noun}" if number == 1 else f"{number:.15g} {several or noun + 's'}"
