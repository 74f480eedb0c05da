"""What the stages said of the last few jobs, for one that is asked about again.

A sweep submits one script hundreds of times. What the script is called with does not come here, so that all its jobs
put one question, in which only the number differs; and stages are pure (`Stage.decide`): while cluster, site and
knowledge are what they were, their answer is the same. Walking through them is most of the time that slurmctld waits
for gsubd: between two submissions the code and data of five stages leave the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import Stage

__all__ = ["MOST", "Recent"]

T = TypeVar("T")
MOST: Final = 64
"""Questions that are kept; with the longest texts that a question may hold these are some 10 MB."""

_NOT_OF_THE_JOB: Final = frozenset({"v", "id", "shim"})
_of_the_job: Final = attrgetter(*(n for n in Request.__struct_fields__ if n not in _NOT_OF_THE_JOB | {"env"}))


class Recent(Generic[T]):
    """Answers by question, those of one context and one sequence of stages; the oldest goes first."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._stages: Sequence[Stage] | None = None
        self._kept: dict[Hashable, T] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(
        self,
        request: Request,
        context: Context,
        stages: Sequence[Stage],
        work: Callable[[], T],
        *,
        sure: Callable[[T], bool] = lambda found: True,
    ) -> T:
        """What `work` gives for such a request, or gave before. What is not `sure` is given and not kept."""
        if context is not self._context or stages is not self._stages:
            self._context, self._stages = context, stages
            self._kept.clear()
        key = _of_the_job(request), frozenset(request.env.items())
        found = self._kept.get(key)
        if found is None:
            found = work()
            if sure(found):
                if len(self._kept) >= MOST:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found
