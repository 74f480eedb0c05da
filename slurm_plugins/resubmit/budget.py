"""How often a job was tried again already, what of that counts, and how long it waits.

The budget is for what brings nothing: an attempt that made progress starts it anew, and what Slurm itself did to the
job (`actions.FREE`) is not charged. Nothing starts `budget_most` anew, which is for the job's whole life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from profiler.resubmissions import Resubmission
from site_configs.resubmit_table import LONGEST_BACKOFF
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Past

__all__ = ["LONG", "Spent", "is_ours", "made_progress", "spent", "wait"]

LONG: Final = 3600.0
"""Seconds that an attempt must have run for its length to count as progress."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What was tried before: `total` in the job's life, the others since it last made progress.

    `charged` counts against the budget, `once` were of the action of that name, `waited` are those that waited first.
    `recent` are the attempts since then, the one at hand not among them.
    """

    total: int = 0
    charged: int = 0
    once: int = 0
    waited: int = 0
    recent: tuple[Earlier, ...] = ()


def is_ours(row: Resubmission | None) -> bool:
    """Whether the attempt after it is our doing: asked for, or requeued before something else went wrong."""
    return row is not None and (row.state != "stopped" or row.step in ("update", "release"))


def made_progress(
    failure: Failure, runtime_s: float | None, before: Sequence[tuple[Failure, float | None]]
) -> bool:
    """Whether an attempt got farther than those before it.

    It saved a checkpoint that none of them had. Or it ran for an hour, did not end by the evidence of one of them, and
    its log shows work done or it ran twice as long as each of them. A log that shows that no work was done denies it.
    """
    if failure.checkpoint and all(failure.checkpoint != other.checkpoint for other, _ in before):
        return True
    if runtime_s is None or runtime_s < LONG or failure.progressed is False:
        return False
    if failure.fingerprint and any(failure.fingerprint == other.fingerprint for other, _ in before):
        return False
    return failure.progressed is True or all(
        seconds is not None and runtime_s >= 2 * seconds for _, seconds in before
    )


def spent(attempt: Attempt, failure: Failure, past: Past) -> Spent:
    """What of the budget is used up when an attempt has failed."""
    before: list[tuple[Failure, float | None]] = []
    total = charged = once = waited = since = 0
    for at, earlier in enumerate(past.attempts):
        if made_progress(earlier.failure, earlier.runtime_s, before):
            charged = once = waited = 0
            since = at
        before.append((earlier.failure, earlier.runtime_s))
        row = earlier.resubmission
        if row is None or not is_ours(row):
            continue
        total += 1
        charged += row.charged
        once += row.action == "once"
        waited += row.delay_s > 0
    if made_progress(failure, attempt.runtime_s, before):
        return Spent(total)
    return Spent(total, charged, once, waited, past.attempts[since:])


def wait(waited: int, policy: Resubmit, random: Callable[[], float]) -> float:
    """Seconds to wait after `waited` waits before: doubled each time, and between half of it and all of it.

    The chance spreads jobs that failed together: a file server that comes back is not asked by all of them at once.

    >>> [wait(waited, Resubmit(), lambda: 1.0) for waited in (0, 1, 2, 10)]
    [60.0, 120.0, 240.0, 3600.0]
    """
    longest = min(policy.backoff_most, LONGEST_BACKOFF)
    whole = min(policy.backoff * 2.0 ** min(waited, 16), float(longest))
    return whole * (0.5 + 0.5 * min(max(random(), 0.0), 1.0))
