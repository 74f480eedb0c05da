"""Numbers with their noun, as all messages have them. Light: the command line and decisions use it."""

from __future__ import annotations

__all__ = ["count"]


def count(number: float, noun: str, several: str | None = None) -> str:
    """A number and what it counts; `several` where that is not the noun with an "s".

    >>> count(1, "node"), count(2, "node"), count(0, "GPU"), count(1.0, "CPU"), count(1 / 3, "CPU")
    ('1 node', '2 nodes', '0 GPUs', '1 CPU', '0.333333 CPUs')
    >>> count(2, "process", "processes")
    '2 processes'
    """
    shown = f"{number:g}" if isinstance(number, float) else number
    return f"{shown} {noun if number == 1 else several or noun + 's'}"
