"""For how long pending jobs were seen to wait, and for what: looks at the queue, put together. Pure.

    waits = looked(waits, {(7, 0): Seen("priority"), (9, 0): Seen("resources")}, at=now, gap=120)
    shares(waits[7, 0], since=eligible, until=started)  # {"priority": 90.0, "unknown": 12.5}

Time between two looks counts for a cause when both saw it, and the second came soon enough; all other time is
"unknown". So what a keeper did not see, or saw change, is given to no cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

__all__ = ["CAUSES", "UNKNOWN", "Attempt", "Seen", "Wait", "looked", "shares"]

CAUSES: Final = ("priority", "resources", "locality", "limits", "user", "other")
"""What jobs wait for: jobs that come before; GPUs, CPUs, memory; few switches, or GPUs that are free apart; limits of
an account, a QOS; something of their user's (a dependency, a begin time, a hold); anything else.
"""
UNKNOWN: Final = "unknown"
"""The cause of time that is covered by no two looks that saw the same."""
_MOST: Final = 100
"""Stretches that are kept of a wait; of one whose cause changed more often the oldest become unknown."""

Attempt = tuple[int, int]
"""Job id and restarts."""


class Seen(NamedTuple):
    """A pending job at a look: what it waits for; of a task of an array the attempt that stood for all its tasks."""

    cause: str
    array: Attempt | None = None


class Wait(msgspec.Struct, frozen=True):
    """What was seen of one wait.

    `at` is the last look that saw it (seconds since the epoch), `cause` what that saw; `spans` are the stretches in
    which two looks saw the same, as (cause, from, to), in order, those that touch put together.
    """

    at: float
    cause: str
    spans: tuple[tuple[str, float, float], ...] = ()


def looked(
    before: Mapping[Attempt, Wait], pending: Mapping[Attempt, Seen], *, at: float, gap: float
) -> dict[Attempt, Wait]:
    """The waits after a look at `at` that saw `pending`; those that it did not see are dropped: they have ended.

    gap: the longest time between two looks, in seconds, of which something is concluded. After a longer one, or a
    clock set back, what lies between is unknown.
    """
    found = {}
    for key, seen in pending.items():
        last = before.get(key)
        if last is None and seen.array is not None:
            # A task has its own record from when it is to start: until then it waited as part of its array
            last = before.get(seen.array)
        found[key] = Wait(at, seen.cause) if last is None else _longer(last, seen.cause, at, gap)
    return found


def _longer(last: Wait, cause: str, at: float, gap: float) -> Wait:
    spans = last.spans
    if at < last.at:
        # The clock was set back: no second counts twice
        spans = tuple((name, begin, min(end, at)) for name, begin, end in spans if begin < at)
    if cause == last.cause and 0 < at - last.at <= gap:
        if spans and spans[-1][0] == cause and spans[-1][2] == last.at:
            spans = (*spans[:-1], (cause, spans[-1][1], at))
        else:
            spans = (*spans[1 - _MOST :], (cause, last.at, at))
    return Wait(at, cause, spans)


def shares(wait: Wait | None, *, since: float, until: float) -> dict[str, float]:
    """Seconds by cause of a wait from `since` to `until`, which they add up to; without any of it, nothing.

    Of a wait that nobody saw (None: it began and ended between two looks) all is unknown.
    """
    whole = max(until - since, 0.0)
    found: dict[str, float] = {}
    for cause, begin, end in () if wait is None else wait.spans:
        inside = min(end, until) - max(begin, since)
        if inside > 0:
            found[cause] = found.get(cause, 0.0) + inside
    rest = whole - sum(found.values())
    if rest > 1e-6:
        found[UNKNOWN] = rest
    return found
