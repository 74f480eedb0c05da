"""How doctor names what is many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from site_configs.hostlist import fold

__all__ = ["QUEUE_REMEDY", "SLOW_QUEUE", "some"]

SLOW_QUEUE: Final = 5.0
"""Seconds that reading the queue may take before an administrator should know: a look follows each 30 s."""
QUEUE_REMEDY: Final = (
    "is slurmctld busy (sdiag)? fewer records help: arrays instead of single jobs, a lower MinJobAge"
)
_SHOWN: Final = 200  # characters of a hostlist


def some(names: Iterable[str]) -> str:
    """Nodes as a hostlist that fits on a line, and how many they are.

    >>> some(["n2", "n1", "n3"])
    'n[1-3] (3)'
    """
    all_names = list(names)
    text = fold(all_names)
    if len(text) > _SHOWN:
        text = text[: _SHOWN - 1] + "…"
    return f"{text} ({len(all_names)})" if len(all_names) > 1 else text
