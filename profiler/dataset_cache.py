"""Throughput over memory, without measuring it: what a cache of part of a data set saves (Synergy, section 3.1). Pure.

A cache that keeps what it has (MinIO) hits the same share of the data in every epoch, so an epoch with a cache of
`cache` bytes reads `cache` from memory and the rest from the disk::

    epoch(cache) = max(epoch with all in memory, cache / memory bandwidth + (data set - cache) / disk bandwidth)

Linux's page cache is none such: data that does not fit and is read in a new order each epoch hits about as often, but
data that is read in the same order may not hit at all. What this gives is therefore the most that memory is good for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Dataset", "memory_curve", "memory_knee"]

_PARTS: Final = 10  # the artifact's grid: from none to all of the data set, in tenths


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is read in each epoch: bytes, seconds that an epoch takes with all of it in memory, and bandwidths in bytes
    a second. Raises ValueError for what is not above zero.
    """

    size: int
    epoch: float
    disk: float
    memory: float = 10e9

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for value in (self.size, self.epoch, self.disk, self.memory)):
            raise ValueError(f"no data set: {self!r}")

    def seconds(self, cache: float) -> float:
        """How long an epoch takes with a cache of so many bytes.

        >>> data = Dataset(size=100, epoch=20.0, disk=2.0, memory=100.0)
        >>> data.seconds(0), data.seconds(50), data.seconds(100)
        (50.0, 25.5, 20.0)
        """
        held = min(max(cache, 0.0), self.size)
        return max(self.epoch, held / self.memory + (self.size - held) / self.disk)


def memory_curve(data: Dataset, working_set: int, gpus: int = 1) -> tuple[tuple[int, float], ...]:
    """(bytes for each GPU, throughput over that with all in memory), ascending: the working set and a cache beside it.

    The working set is what the job's processes hold themselves: the peak of its memory less the page cache.

    >>> memory_curve(Dataset(100, 20.0, 2.0, 100.0), working_set=40)[0::5]
    ((40, 0.4), (90, 0.7843137254901961), (140, 1.0))
    """
    points = []
    for part in range(_PARTS + 1):
        cache = data.size * part / _PARTS
        points.append((math.ceil((working_set + cache) / gpus), data.epoch / data.seconds(cache)))
    return tuple(dict(points).items())


def memory_knee(data: Dataset, working_set: int, gpus: int = 1, tolerance: float = 0.01) -> int:
    """The least memory for each GPU, in bytes, that gives the best throughput but for `tolerance`; exact.

    >>> memory_knee(Dataset(100, 20.0, 2.0, 100.0), working_set=40, tolerance=0.0)
    102
    >>> memory_knee(Dataset(100, 60.0, 2.0, 100.0), working_set=40)
    40
    """
    allowed = data.epoch / (1 - tolerance)
    if data.seconds(0) <= allowed:
        return math.ceil(working_set / gpus)
    if data.memory <= data.disk:
        return math.ceil((working_set + data.size) / gpus)
    cache = (data.size / data.disk - allowed) / (1 / data.disk - 1 / data.memory)
    return math.ceil((working_set + min(cache, data.size)) / gpus)
