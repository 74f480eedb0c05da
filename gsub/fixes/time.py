"""The time was up: ask for twice as much, as far as the partition gives it. How long it needs, nobody knows."""

from __future__ import annotations

from typing import Final

from gsub.fixes.values import Case, Fix, Fixer
from gsub.render import duration
from gsub.resubmission.change import Change

__all__ = ["FIXER", "limit"]

_WORTH: Final = 1.2
"""Less than this many times the time it had is no mend."""


def limit(seconds: int) -> str:
    """A limit as sbatch takes it.

    >>> limit(5400), limit(2 * 86400 + 60)
    ('1:30:00', '2-00:01:00')
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}" if days else f"{hours}:{minute:02}:{second:02}"


def _fix(case: Case) -> Fix | None:
    had = case.time_limit
    if not had or (case.row is not None and case.row.state == "planned"):
        return None  # it goes on from a checkpoint: the same time will do
    wanted = 2 * had
    if case.most_time is not None:
        wanted = min(wanted, case.most_time)
    if wanted < had * _WORTH:
        return None
    change = Change("time", limit(wanted), case.asks("time") or "", "the time was up")
    most = " (the most that its partition gives)" if wanted == case.most_time else ""
    times = "more" if most else "twice as much"
    return Fix(
        f"Ask for {duration(wanted)}{most}.",
        f"It had {duration(had)}, and how long it needs is not known: this is {times}.",
        options=(change,),
    )


FIXER: Final = Fixer(frozenset({"time_limit"}), _fix)
