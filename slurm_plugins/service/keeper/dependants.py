"""Who waited for a job, remembered beyond its end.

Slurm forgets a dependency once it is fulfilled: a job that waited `afterany` or `afternotok` for one that failed has
started before anybody looks, and works with what that one left behind. So what each regular look sees is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["Dependants"]

_KEPT: Final = 1800.0
"""Seconds for which a dependency is remembered after it was last seen."""
_MOST: Final = 200_000


class Dependants:
    """Dependencies as looks at Slurm see them: by the job that is waited for, as a dependency names it ("12", "12_*").

    >>> known = Dependants()
    >>> known.seen({"12": (14, 15)}, now=0.0)
    >>> known.of(["12", "13"]), known.of(["12"])
    ((14, 15), (14, 15))
    >>> known.seen({}, now=4000.0)
    >>> known.of(["12"])
    ()
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, tuple[int, ...]]] = {}

    def seen(self, waiting: Mapping[str, tuple[int, ...]], now: float) -> None:
        """What a look saw at `now`."""
        kept = {name: one for name, one in self._known.items() if 0 <= now - one[0] < _KEPT}
        for name, jobs in waiting.items():
            if name in kept or len(kept) < _MOST:
                kept[name] = (now, jobs)
        self._known = kept

    def of(self, names: Iterable[str]) -> tuple[int, ...]:
        """The jobs that waited for any of these, each once."""
        found = (job for name in names if name in self._known for job in self._known[name][1])
        return tuple(dict.fromkeys(found))
