"""Figures of the whole cluster for a dashboard: what GPUs do now, what waits, and what attempts came to.

Nothing is asked for when somebody reads the metrics. What GPUs do is reckoned as records come in, what waits is of the
last look at Slurm, and what ended is read from the store once a minute. No label names a user, a job or a node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from profiler.answers import Sign
from profiler.records import GpuUse, JobUsage, Record
from profiler.store.ended import NEVER_USED, ended
from profiler.store.errors import StoreError
from profiler.store.report import FAILED, OUTCOMES
from prolog_epilog.failures.taxonomy import REASONS
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.queue import Queue
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing

__all__ = ["FRESH", "SETTLED", "Tallying"]

_log = logging.getLogger("gsubd.keeper")

_EVERY: Final = 60.0
FRESH: Final = 300.0
"""Seconds for which a node's last word counts as what is now; it speaks every minute."""
SETTLED: Final = 300.0
"""Seconds after its end from which on an attempt counts: Slurm's word and the verdict come in between."""
_LONGEST: Final = 86400.0
"""Seconds that are made up for at most, where the store was away."""
_MOST: Final = 100_000
"""Attempts on a node that are remembered."""

_T = TypeVar("_T")
_Key = tuple[str, int, int]


class _Use:
    """An attempt on a node: what its GPUs did up to the last word, and between that and the one before, in per cent."""

    __slots__ = ("at", "now", "serial", "sums")

    def __init__(self, usage: JobUsage, before: _Use | None) -> None:
        self.at = usage.at
        self.serial = usage.serial
        self.sums = {
            _name(use): (use.seconds, use.seconds * (use.utilisation_mean or 0.0)) for use in _seen(usage)
        }
        earlier = {} if before is None else before.sums
        self.now = [self._between(earlier.get(name, (0.0, 0.0)), last) for name, last in self.sums.items()]

    @staticmethod
    def _between(first: tuple[float, float], last: tuple[float, float]) -> float:
        seconds = last[0] - first[0]
        if seconds <= 0:  # nothing new was seen: the mean of all
            return last[1] / last[0]
        return min(100.0, max(0.0, (last[1] - first[1]) / seconds))


class Tallying:
    """Keeps the figures; `run` ends only by being cancelled.

    `queue` is what waited at the last look at Slurm, `heard` each node's last word (`Collector.heard`).
    """

    def __init__(
        self,
        cluster: str,
        storing: Storing,
        counts: Counts,
        *,
        queue: Callable[[], Queue | None],
        heard: Mapping[str, Sign],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._storing = storing
        self._queue = queue
        self._heard = heard
        self._now = now
        self._until = now() - SETTLED
        self._uses: dict[_Key, _Use] = {}
        registry = counts.registry
        self._attempts = registry.counter(
            "gsub_attempts_total", "Attempts that ended, by outcome.", ["outcome"]
        )
        self._hours = registry.counter(
            "gsub_gpu_hours_total", "GPU-hours of attempts that ended, by outcome.", ["outcome"]
        )
        self._failures = registry.counter(
            "gsub_failures_total", "Attempts that failed, by reason.", ["reason"]
        )
        self._wasted = registry.counter(
            "gsub_wasted_gpu_hours_total",
            "GPU-hours of attempts that failed, by reason, and of GPUs that the others never used.",
            ["reason"],
        )
        # From 0 on: of a counter that is there with its first count, Prometheus sees no increase
        for outcome in OUTCOMES.keys() - {"running"}:
            self._attempts.add(outcome, by=0)
            self._hours.add(outcome, by=0)
        for reason in (*REASONS, NEVER_USED):
            self._wasted.add(reason, by=0)
            if reason != NEVER_USED:
                self._failures.add(reason, by=0)
        registry.gauge(
            "gsub_gpu_utilisation_percent", "Mean utilisation of the GPUs that jobs hold, lately.", self._mean
        )
        registry.gauge("gsub_gpus_seen", "GPUs on which that rests.", lambda: len(self._lately()))
        registry.gauge(
            "gsub_gpus_held_idle",
            "Those of them that did nothing between their node's last two words.",
            lambda: sum(percent <= 0 for percent in self._lately()),
        )
        registry.gauge("gsub_jobs_running", "Jobs that run.", lambda: self._of_queue(lambda one: one.running))
        registry.gauges(
            "gsub_jobs_pending",
            "Jobs that wait, by cause.",
            "cause",
            lambda: self._of_queue(lambda one: one.pending),
        )
        registry.gauges(
            "gsub_gpus_pending",
            "GPUs that those jobs ask for.",
            "cause",
            lambda: self._of_queue(lambda one: one.pending_gpus),
        )
        registry.gauges(
            "gsub_agents", "Nodes that spoke since the keeper's start, by how lately.", "state", self._agents
        )

    def took(self, records: Iterable[Record]) -> None:
        """Records are in the store. Called by the thread that writes."""
        for record in records:
            if isinstance(record, JobUsage):
                key = (record.node, record.job.job_id, record.job.restarts)
                before = self._uses.get(key)
                if record.final:
                    self._uses.pop(key, None)
                elif (before is None and len(self._uses) < _MOST) or (
                    before and before.serial < record.serial
                ):
                    self._uses[key] = _Use(record, before)

    async def run(self) -> None:
        """Count what has ended, wait, again."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self.once()
            except (StoreError, RefusedError):
                pass  # said by `Storing`; the next time counts it
            except Exception:
                # our bug: it must not end the counting for good
                _log.exception("a fault while counting what has ended")

    async def once(self) -> None:
        """Count what has ended since the last time. Raises StoreError, RefusedError."""
        for key, use in list(self._uses.items()):
            if not self._is_fresh(use.at):
                self._uses.pop(key, None)
        until = self._now() - SETTLED
        since, store = max(self._until, until - _LONGEST), self._storing.store
        if until <= since:  # the clock was set back
            return
        rows = await self._storing.read(lambda: ended(store, self._cluster, since, until))
        self._until = until
        for row in rows:
            self._attempts.add(row.outcome, by=row.attempts)
            self._hours.add(row.outcome, by=row.gpu_hours)
            reason, hours = row.wasted
            self._wasted.add(reason, by=hours)
            if row.outcome in FAILED:
                self._failures.add(row.reason, by=row.attempts)

    def _is_fresh(self, at: float) -> bool:
        return abs(self._now() - at) <= FRESH

    def _lately(self) -> list[float]:
        """What each GPU does that a node told of lately, in per cent."""
        return [percent for use in list(self._uses.values()) if self._is_fresh(use.at) for percent in use.now]

    def _mean(self) -> float | None:
        lately = self._lately()
        return sum(lately) / len(lately) if lately else None

    def _of_queue(self, figure: Callable[[Queue], _T]) -> _T | None:
        queue = self._queue()
        return None if queue is None else figure(queue)

    def _agents(self) -> Mapping[str, float]:
        signs = [self._is_fresh(sign.at) for sign in list(self._heard.values())]
        return {"fresh": sum(signs), "silent": len(signs) - sum(signs)}


def _seen(usage: JobUsage) -> Iterable[GpuUse]:
    return (use for use in usage.gpus if use.utilisation_mean is not None and use.seconds > 0)


def _name(use: GpuUse) -> str:
    return use.gpu.uuid or f"{use.gpu.minor}"
