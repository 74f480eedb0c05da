"""When the checks that run in children are due: each at its own interval, those of one interval together.

The first runs come soon after the start, at a moment that differs from node to node, and intervals vary by a tenth:
a thousand nodes must not ask one file server at the same second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from prolog_epilog.health.plan import Planned

__all__ = ["Schedule"]

_SOON = 10.0  # seconds within which the first runs come


class Schedule:
    """Times are seconds of the monotonic clock. `share` gives a number from 0 to 1 each time."""

    def __init__(
        self, checks: Sequence[Planned], now: float, share: Callable[[], float] = random.random
    ) -> None:
        self._share = share
        self._groups: dict[int, list[Planned]] = {}
        for check in checks:
            self._groups.setdefault(check.every or 0, []).append(check)
        self._due = {every: now + min(_SOON, every) * share() for every in self._groups}

    def due(self, now: float) -> tuple[Planned, ...]:
        """Those to be run now; they are then due again one interval later."""
        found: list[Planned] = []
        for every, checks in self._groups.items():
            if self._due[every] <= now:
                found.extend(checks)
                self._due[every] = now + every * (0.9 + 0.2 * self._share())
        return tuple(found)

    def next_due(self) -> float | None:
        """When to look again; None: there is nothing to run."""
        return min(self._due.values(), default=None)

    def hasten(self, now: float) -> None:
        """All are due now."""
        self._due = dict.fromkeys(self._due, now)
