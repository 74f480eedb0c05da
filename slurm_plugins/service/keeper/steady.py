"""A clock that is never set back: what is due by it stays due, whatever happens to the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """Seconds since the epoch. It follows the machine's clock forwards, and goes on by itself while that is behind."""

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._base = wall() - steady()

    def now(self) -> float:
        """The time."""
        self._base = max(self._base, self._wall() - self._steady())
        return self._base + self._steady()
