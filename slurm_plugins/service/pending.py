"""Decisions that wait for their jobs, over polls and restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slurm_plugins.service.counts import Counts
from slurm_plugins.service.joins import LOST_AFTER, Joined, join
from slurm_plugins.service.submitted import Pending
from slurm_plugins.service.wire import Report

__all__ = ["PendingJoins"]

_MOST: Final = 50_000
"""Decisions that may wait; of more, the oldest are given up."""
_FORGET: Final = 2 * LOST_AFTER
"""Seconds after which a job's submission can belong to no decision that still waits."""

_USERS: Final = 1000
"""Users by whom jobs are asked for; of more, Slurm is asked for all jobs: a word of its command line has 128 KiB."""

_TURN: Final = 50
"""Joins entered before questions have their turn."""

Put = Callable[[Callable[[], bytes]], None]


class PendingJoins:
    """What waits, what was found. `put` writes a record (`Journal.put`)."""

    def __init__(self, put: Put, counts: Counts) -> None:
        self._put = put
        self._counts = counts
        self._waiting: dict[str, Pending] = {}
        self._taken: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def restore(self, records: Iterable[Mapping[str, Any]], now: float) -> None:
        """Take up what an earlier gsubd left: decisions of the last minutes that have no record after them."""
        for record in records:
            decision = str(record.get("decision"))
            if record.get("kind") != "decision":
                self._waiting.pop(decision, None)
                submitted, job = record.get("submitted"), record.get("job")
                if isinstance(job, int) and isinstance(submitted, int | float):
                    self._taken[job] = float(submitted)
                continue
            one = Pending.of_record(record)
            if one is not None and one.at > now - LOST_AFTER and waits(record):
                self._waiting[one.id] = one
        self._prune(now)

    def add(self, one: Pending) -> None:
        """A decision was made whose job will come."""
        self._waiting[one.id] = one
        if len(self._waiting) > _MOST:
            del self._waiting[next(iter(self._waiting))]
            self._counts.unjoined.add("overflow")

    async def wanted(self) -> tuple[float | None, tuple[int, ...] | None]:
        """Since when jobs must be looked at (None: not at all), and of which users (None: of all)."""
        return await asyncio.to_thread(_wanted, list(self._waiting.values()))

    async def take(self, report: Report, default_partition: str) -> None:
        """Join what waits to the jobs of a report. One without jobs changes nothing, but time goes on.

        Thousands may wait after a burst of submissions: they are compared in a thread, and what was found is entered
        a few at a time, so that questions are answered in between.
        """
        now = time.time()
        waiting = list(self._waiting.values())
        if report.jobs is None:
            await self._give_up([one for one in waiting if one.at + _FORGET < now], "dropped")
            return
        outcome = await asyncio.to_thread(
            join,
            [one for one in waiting if one.at <= report.jobs_at],
            {job.id: job for job in report.jobs},
            looked=report.jobs_at,
            taken=self._taken,
            default_partition=default_partition,
        )
        for number, found in enumerate(outcome.joined):
            self._waiting.pop(found.decision, None)
            self._taken[found.job.id] = found.job.submitted
            self._counts.joined.add(found.by)
            self._put(_line_of(found, now))
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
        self._taken |= dict.fromkeys(outcome.spoilt, now)
        await self._give_up(outcome.ambiguous, "ambiguous")
        await self._give_up(outcome.lost, "dropped")
        self._prune(now)

    async def _give_up(self, ones: Iterable[Pending], why: str) -> None:
        for number, one in enumerate(ones):
            self._waiting.pop(one.id, None)
            self._counts.unjoined.add(why)
            self._put(_without_job(one, why, time.time()))
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)

    def _prune(self, now: float) -> None:
        self._taken = {job: at for job, at in self._taken.items() if at > now - _FORGET}


def _wanted(waiting: Sequence[Pending]) -> tuple[float | None, tuple[int, ...] | None]:
    if not waiting:
        return None, None
    # By uid, which every decision has: the shim leaves the user's name out
    uids = sorted({one.uid for one in waiting})
    return min(one.at for one in waiting) - 2, tuple(uids) if len(uids) <= _USERS else None


def waits(record: Mapping[str, Any]) -> bool:
    """Whether a job is to be expected after a decision: not when it was refused."""
    return not (record.get("reject") and record.get("mode") == "enforce" and not record.get("opted_out"))


def _line_of(found: Joined, now: float) -> Callable[[], bytes]:
    return lambda: msgspec.json.encode(
        {
            "v": 1,
            "kind": "job",
            "at": round(now, 3),
            "decision": found.decision,
            "job": found.job.id,
            "array": found.job.array,
            "het_offset": found.job.het_offset,
            "submitted": found.job.submitted,
            "by": found.by,
        }
    )


def _without_job(one: Pending, why: str, now: float) -> Callable[[], bytes]:
    return lambda: msgspec.json.encode({"v": 1, "kind": why, "at": round(now, 3), "decision": one.id})
