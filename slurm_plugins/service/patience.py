"""Limit of the time for reading the queue: it grows with what answers take, since a slow answer is better than none."""

from __future__ import annotations

from typing import Final

__all__ = ["COMMAND_SECONDS", "MOST", "QueuePatience"]

COMMAND_SECONDS: Final = 20.0
"""Seconds for one command of Slurm; they give up on a silent controller after 10 s or so."""
MOST: Final = 300.0
_TIMES: Final = 5.0
"""A queue grows and slurmctld is busy at times: so often what the last answer took."""


class QueuePatience:
    """Seconds that reading the queue may take, of one reader.

    >>> patience = QueuePatience()
    >>> patience.note_late()
    >>> patience.limit
    40.0
    >>> patience.note_answer(30.0)
    >>> patience.limit
    150.0
    """

    def __init__(self) -> None:
        self.limit = COMMAND_SECONDS
        self.took: float | None = None
        """Seconds that the last answer took; None before the first one."""

    def note_answer(self, seconds: float, *, whole: bool = True) -> None:
        """Note what an answer took; one that was not of the ``whole`` queue only raises the limit."""
        self.took = seconds
        self.limit = min(MOST, max(COMMAND_SECONDS if whole else self.limit, _TIMES * seconds))

    def note_late(self) -> None:
        """Note that there was no answer within the limit."""
        self.limit = min(MOST, 2 * self.limit)
