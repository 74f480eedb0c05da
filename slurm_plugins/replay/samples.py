"""What the cluster looked like over time: means of some thousand stretches, however long the replay.

Each row has the mean from its begin to the next row's, so sums over rows are those over all events. A stretch ends at
an event, and before a pause: what was short and what came after it do not run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.values import SAMPLED

__all__ = ["Samples"]

_ROWS: Final = 2000


class Samples:
    """`note` is told, at each event, what there was since the one before.

    >>> samples = Samples([0.0, 4000.0], gpus=8, top=8)
    >>> samples.note(1000.0, (8, 8.0, 100.0), 0, 0)
    >>> samples.note(4000.0, (0, 0.0, 0.0), 0, 8)
    >>> samples.rows[:, :2].tolist()
    [[0.0, 8.0], [1000.0, 0.0], [4000.0, 0.0]]
    """

    def __init__(self, arrivals: Sequence[float], *, gpus: int, top: int) -> None:
        """`gpus`: of the cluster; `top`: of the largest node."""
        self.since = arrivals[0] if len(arrivals) else 0.0
        self._last = arrivals[-1] if len(arrivals) else 0.0
        self._step = max((self._last - self.since) / _ROWS, 1.0)
        self._gpus, self._top = gpus, top
        self._begin = self.since
        self._sums = [0.0] * (SAMPLED - 1)
        self._rows: list[list[float]] = []
        self._until_last = 0

    def note(self, now: float, held: tuple[float, float, float], waiting: int, block: float) -> None:
        """From the last event to this one: GPUs, CPUs and memory held, jobs that waited, the largest free block."""
        seconds = now - self.since
        if seconds <= 0:
            return
        if seconds >= self._step and self.since > self._begin:
            self._close()
        gpus, cpus, memory = held
        free = self._gpus - gpus
        could = min(free, self._top)
        sums = self._sums
        sums[0] += gpus * seconds
        sums[1] += cpus * seconds
        sums[2] += memory * seconds
        sums[3] += waiting * seconds
        if waiting:
            sums[4] += free * seconds
        if block < could:
            sums[5] += (1 - block / could) * seconds
        self.since = now
        if now - self._begin >= self._step or now == self._last:
            self._close()

    def _close(self) -> None:
        """The stretch ends with the last event."""
        length = self.since - self._begin
        self._rows.append([self._begin, *(value / length for value in self._sums)])
        self._begin = self.since
        self._sums = [0.0] * (SAMPLED - 1)
        if self.since == self._last:
            self._until_last = len(self._rows)
        if len(self._rows) > 3 * _ROWS:
            self._thin()

    def _thin(self) -> None:
        """Every two rows become one, but for the last arrival: means up to it are asked for."""
        ends = [row[0] for row in self._rows[1:]] + [self._begin]
        whole: list[list[float]] = []
        cut = self._until_last or len(self._rows)
        for first, after in ((0, cut), (cut, len(self._rows))):
            for at in range(first, after, 2):
                pair = range(at, min(at + 2, after))
                lengths = [ends[i] - self._rows[i][0] for i in pair]
                means = (
                    sum(length * self._rows[i][column] for length, i in zip(lengths, pair, strict=True))
                    / sum(lengths)
                    for column in range(1, SAMPLED)
                )
                whole.append([self._rows[at][0], *means])
            if first == 0:
                self._until_last = len(whole) if self._until_last else 0
        self._rows = whole
        self._step *= 2

    @property
    def rows(self) -> NDArray[np.float64]:
        """As in `Replayed.samples`: the last row begins where nothing was noted any more."""
        if self.since > self._begin:
            self._close()
        if not self._rows:
            return np.zeros((0, SAMPLED))
        return np.array([*self._rows, [self._begin] + [0.0] * (SAMPLED - 1)], np.float64)
