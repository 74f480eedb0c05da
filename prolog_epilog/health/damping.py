"""When a check's results become a state: after they have said so more than once, and never to and fro.

A state rises to what the last two results reach at least, and falls to what the last three exceed at most; so one
odd result changes nothing. A check that changes its mind too often is held at "warning" until it is calm. A certain
finding (a GPU that fell off the bus) counts at once. Pure: a condition and a finding give the next condition.
"""

from __future__ import annotations

from typing import Final

import msgspec

from prolog_epilog.health.finding import LEVELS, Finding, State

__all__ = ["Condition", "Rules", "after"]


class Rules(msgspec.Struct, frozen=True):
    """How many results in a row change a state, and how many changes in `window` seconds are too many."""

    rise: int = 2
    fall: int = 3
    flips: int = 6
    window: float = 3600.0


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One subject of a check over time; it begins as well.

    `level` counts in LEVELS; `recent` are the last results; `silent` and `absent` count the last runs without an
    answer, and those that did not speak of this subject. `changes` are the times of the last changes, in seconds of
    the monotonic clock. `draining`: new jobs are kept off for it, with `reason`. `earlier_boot`: nobody has looked
    since the node booted.
    """

    level: int = 0
    recent: tuple[int, ...] = ()
    silent: int = 0
    absent: int = 0
    changes: tuple[float, ...] = ()
    flapping: bool = False
    detail: str = ""
    gpu: str = ""
    draining: bool = False
    reason: str = ""
    earlier_boot: bool = False

    @property
    def shown(self) -> State:
        """The state that counts."""
        return "warning" if self.flapping else self.underlying

    @property
    def underlying(self) -> State:
        """The state without regard to flapping."""
        return "unknown" if self.silent >= RULES.rise else LEVELS[self.level]

    @property
    def said(self) -> str:
        """The detail that goes with the state."""
        if not self.flapping:
            return self.detail
        changes = f"flapping: {len(self.changes)} changes within {RULES.window / 60:g} min"
        return f"{changes}; now {self.underlying}" + (f": {self.detail}" if self.detail else "")


RULES: Final = Rules()


def after(condition: Condition, finding: Finding, at: float) -> Condition:
    """The condition after one more result at time `at` (monotonic seconds)."""
    if finding.state == "unknown":
        next_one = msgspec.structs.replace(
            condition, silent=condition.silent + 1, absent=0, detail=finding.detail, earlier_boot=False
        )
    else:
        level = LEVELS.index(finding.state)
        recent = (*condition.recent, level)[-RULES.fall :]
        next_one = msgspec.structs.replace(
            condition,
            level=_level(condition.level, recent, finding.certain),
            recent=recent,
            silent=0,
            absent=0,
            detail=finding.detail,
            gpu=finding.gpu or condition.gpu,
            earlier_boot=False,
        )
    return _calmed(condition, next_one, finding, at)


def _level(level: int, recent: tuple[int, ...], certain: bool) -> int:
    if certain and recent[-1] > level:
        return recent[-1]
    if len(recent) >= RULES.rise and min(recent[-RULES.rise :]) > level:
        return min(recent[-RULES.rise :])
    if len(recent) >= RULES.fall and max(recent) < level:
        return max(recent)
    return level


def _calmed(before: Condition, now: Condition, finding: Finding, at: float) -> Condition:
    """Count the change, if it is one, and hold or release a condition that flaps."""
    if finding.certain and finding.state == "error":
        return msgspec.structs.replace(now, changes=(), flapping=False)
    # Times later than now are of a clock that began anew.
    changes = tuple(time for time in now.changes if at - RULES.window < time <= at)
    if now.underlying != before.underlying:
        changes = (*changes, at)
    flapping = len(changes) > (RULES.flips // 2 if before.flapping else RULES.flips)
    return msgspec.structs.replace(now, changes=changes, flapping=flapping)
