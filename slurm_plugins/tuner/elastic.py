"""How many GPUs each job gets: Tiresias's order, and Elastic Tiresias's two rules of compaction and expansion. Pure.

Jobs come in the order of their queues. Each gets what it asked for while it fits. **R1**: where more than ten wait,
those of the lower queue that run are shrunk to their least. **R2**: while GPUs are free, the next one goes where it
speeds up most: to a job that waits, at its least, or to one that runs.

Source: EDL (Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", TPDS 2021) as vodascheduler reads it; what
differs from the paper's own words is told in docs/algorithms.md. Tiresias: Gu et al., NSDI'19.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "COMPACT_ABOVE",
    "ELASTIC",
    "PROMOTE",
    "THRESHOLD",
    "TIRESIAS",
    "Rules",
    "Wish",
    "allot",
    "compact",
    "expand",
    "granted",
]

COMPACT_ABOVE: Final = 10
"""Jobs that wait before R1 acts."""
THRESHOLD: Final = 3600.0
"""GPU-seconds after which a job falls into the lower queue."""
PROMOTE: Final = 8.0
"""A job that waited so many times as long as it ran rises again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks for. `speedup[p]` is its speed on p GPUs relative to one, from 0 to `most`: it
    never falls, and grows by at most 1 a GPU, or R2 may give a GPU to who gains less than another.

    Raises ValueError unless 1 <= least <= asked <= most and there are as many speeds as counts.
    """

    asked: int
    least: int
    most: int
    speedup: Sequence[float]
    gains: Sequence[float] = field(init=False, repr=False, compare=False)
    """What one GPU more gains on so many, for 0 to `most`; 0 at its most."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.asked <= self.most:
            raise ValueError(f"asked for {self.asked} GPUs within {self.least} to {self.most}")
        if len(self.speedup) != self.most + 1:
            raise ValueError(f"{len(self.speedup)} speeds for 0 to {self.most} GPUs")
        more = (two - one for one, two in zip(self.speedup, self.speedup[1:], strict=False))
        object.__setattr__(self, "gains", (*more, 0.0))

    @property
    def at_first(self) -> float:
        """What a GPU gains when it waits: its speed at its least, for each of these GPUs."""
        return self.speedup[self.least] / self.least


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules act; with neither it is Tiresias itself."""

    compact: bool = True
    expand: bool = True
    compact_above: int = COMPACT_ABOVE


ELASTIC: Final = Rules()
TIRESIAS: Final = Rules(compact=False, expand=False)


def granted(order: Iterable[int], wishes: Mapping[int, Wish], free: int) -> tuple[dict[int, int], int]:
    """In the order of the queues each what it asked for, where it fits; and what is left."""
    given: dict[int, int] = {}
    if free > 0:
        for job in order:
            asked = wishes[job].asked
            if asked <= free:
                given[job] = asked
                free -= asked
                if not free:
                    break
    return given, free


def compact(given: dict[int, int], wishes: Mapping[int, Wish]) -> int:
    """R1: each of these is shrunk to its least, in place; how many GPUs that frees."""
    freed = 0
    for job, gpus in given.items():
        least = min(gpus, wishes[job].least)
        freed += gpus - least
        given[job] = least
    return freed


def expand(given: dict[int, int], waiting: Iterable[int], wishes: Mapping[int, Wish], free: int) -> int:
    """R2: each free GPU goes where it speeds up most, a job that waits gets its least at once; in place.

    `waiting`, like `given`, in the order of the queues, which settles ties; those that wait go first. Returns how many
    are left: none gains from them.
    """
    heap: list[tuple[float, int, int]] = []
    sure = 0
    for place, job in enumerate(waiting):
        if sure >= free:
            break  # no gain is above 1: these will have taken all
        wish = wishes[job]
        if wish.least <= free:
            heap.append((-wish.at_first, place, job))
            sure += wish.least == 1
    if sure < free:
        after = len(wishes)
        heap += [
            (-gain, place, job)
            for place, (job, gpus) in enumerate(given.items(), after)
            if (gain := wishes[job].gains[gpus]) > 0
        ]
    heapq.heapify(heap)
    while free > 0 and heap:
        _, place, job = heap[0]
        wish = wishes[job]
        had = given.get(job, 0)
        gpus = had + 1 if had else wish.least
        gain = 0.0
        if gpus - had <= free:
            free -= gpus - had
            given[job] = gpus
            gain = wish.gains[gpus]
        if gain > 0:
            heapq.heapreplace(heap, (-gain, place, job))
        else:
            heapq.heappop(heap)
    return free


def allot(
    upper: Sequence[int], lower: Sequence[int], wishes: Mapping[int, Wish], gpus: int, rules: Rules = ELASTIC
) -> dict[int, int]:
    """GPUs of each job that is to run, of the two queues, each in its order; `wishes` has one of every job.

    >>> wishes = dict.fromkeys((7, 8), Wish(2, 1, 4, (0.0, 1.0, 1.9, 2.6, 3.2)))
    >>> allot([7], [8], wishes, 6), allot([7], [8], wishes, 3), allot([7], [8], wishes, 3, TIRESIAS)
    ({7: 3, 8: 3}, {7: 2, 8: 1}, {7: 2})
    """
    given, free = granted(upper, wishes, gpus)
    long, free = granted(lower, wishes, free)
    if rules.compact and len(upper) + len(lower) - len(given) - len(long) > rules.compact_above:
        free += compact(long, wishes)
    given |= long
    if free and (rules.expand or rules.compact):
        waiting = [job for queue in (upper, lower) for job in queue if job not in given]
        if rules.expand:
            expand(given, waiting, wishes, free)
        else:
            given |= granted(waiting, wishes, free)[0]
    return given
