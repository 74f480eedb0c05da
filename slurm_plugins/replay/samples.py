"""What the cluster looked like, now and then: at most a few thousand rows, however long the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from slurm_plugins.replay.desk import Desk

__all__ = ["Samples"]

_ROWS: Final = 2000


class Samples:
    """At events, as soon as `due`; when there are too many rows, every other goes."""

    def __init__(self, arrivals: Sequence[float]) -> None:
        self._step = max((arrivals[-1] - arrivals[0]) / _ROWS, 1.0) if arrivals else 1.0
        self._rows: list[tuple[float, int, float, float, int, int]] = []
        self.due = arrivals[0] if arrivals else 0.0

    def take(self, desk: Desk) -> None:
        """Note what there is now."""
        room = desk.room
        self._rows.append(
            (
                desk.now,
                room.gpus - room.free_gpus,
                room.held_cpus,
                room.held_memory,
                desk.queued,
                room.largest(),
            )
        )
        if len(self._rows) > 2 * _ROWS:
            del self._rows[1::2]
            self._step *= 2
        self.due = desk.now + self._step

    @property
    def rows(self) -> NDArray[np.float64]:
        """As in `Replayed.samples`."""
        return np.array(self._rows, np.float64).reshape(-1, 6)
