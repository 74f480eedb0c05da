"""Retry policies over faults: every job that fails, attempt after attempt, until one ends well or it is given up.

All jobs go through an attempt at once, as columns. gsub's policy is the live plan, through `again`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from profiler.early import TABLE7
from site_configs.site_model import Resubmit
from slurm_plugins.replay.again import Courses, Kind
from slurm_plugins.replay.failing import ALIKE, KINDS, QUEUE_S, SAME, TRIES, VERDICTS, Faults, run_time
from slurm_plugins.replay.values import Floats, Ints, Trace
from slurm_plugins.resubmit.budget import LONG

__all__ = ["RETRIES", "Retry", "Tried", "tried"]

Bools = NDArray[np.bool_]

_GPUS_A_NODE: Final = 8
_MANY: Final = 64
"""More nodes than that are no other matter to the plan, and names to write down."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Which failed attempt is followed by another.

    way: none; blind, everything `times` times, unchanged and at once; counted, everything as often as Table 7 counts
    for its reason; table, gsub's plan with this `policy`; knowing, the right thing at once where there is one.
    """

    name: str
    way: Literal["none", "blind", "counted", "table", "knowing"]
    times: int = 0
    policy: Resubmit = field(default_factory=Resubmit)

    def __post_init__(self) -> None:
        if not 0 <= self.times <= TRIES:
            raise ValueError(f"{self.times} times: 0 to {TRIES}")


RETRIES: Final = {
    one.name: one
    for one in (
        Retry("none", "none"),
        Retry("philly", "counted"),
        Retry("three", "blind", 3),
        Retry("gsub", "table"),
        Retry("knowing", "knowing"),
    )
}


@dataclass(frozen=True)
class Tried:
    """The runs of the jobs that fail, an entry each, ordered by fault and then in time."""

    fault: Ints
    seconds: Floats
    delay: Floats
    passed: Bools
    """The run that ends well: the last of its job."""


@dataclass(slots=True)
class _Now:
    """All faults after an attempt, for a policy to look at: what it has been through is its own to remember."""

    trace: Trace
    faults: Faults
    nth: int
    """Further attempts so far."""
    at: Ints
    """The faults whose jobs failed just now."""
    back: Bools
    """By fault: the last attempt was where the first was."""
    long: Bools
    """By fault: the last attempt ran for long, and twice as long as those before."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """For each of `_Now.at`: tried again or not, after how long, kept off its first place or not, memory."""

    again: Bools
    delay: Floats
    leaves: Bools
    memory: Floats

    @classmethod
    def plain(cls, again: Bools) -> _Answer:
        """At once, as it was."""
        return cls(again, np.zeros(len(again)), np.zeros(len(again), np.bool_), np.ones(len(again)))


_Rule: TypeAlias = Callable[[_Now], _Answer]


def tried(trace: Trace, faults: Faults, retry: Retry) -> Tried:
    """Every job that fails, until an attempt succeeds or the policy gives it up.

    Raises ValueError for faults of another trace.
    """
    if faults.jobs != len(trace):
        raise ValueError(f"faults of {faults.jobs} jobs for a trace of {len(trace)}")
    rule = _RULES[retry.way](retry)
    count = len(faults)
    work = trace["work"][faults.row]
    everyone = np.arange(count)
    found = [(everyone, faults.seconds, np.zeros(count), np.zeros(count, np.bool_))]
    clock = np.zeros(count)
    longest = faults.seconds.copy()
    now = _Now(trace, faults, 0, everyone, np.ones(count, np.bool_), faults.seconds >= LONG)
    while len(now.at) and now.nth < TRIES:
        answer = rule(now)
        at, delay = now.at[answer.again], answer.delay[answer.again]
        leaves, memory = answer.leaves[answer.again], answer.memory[answer.again]
        luck = faults.luck[at, now.nth]
        now.back[at] = (luck[:, 1] < SAME) & ~leaves
        clock[at] += QUEUE_S + delay
        well = _ends_well(now, at, luck[:, 0], clock=clock[at], memory=memory)
        seconds = np.where(well, work[at], faults.seconds[at])
        own = ~well & (faults.cause[at] == KINDS.index("chance"))
        seconds[own] = np.minimum(run_time(faults.reason[at[own]], luck[own, 2]), work[at[own]])
        found.append((at, seconds, delay, well))
        at, seconds = at[~well], seconds[~well]
        clock[at] += seconds
        now.long[at] = (seconds >= LONG) & (seconds >= 2 * longest[at])
        longest[at] = np.maximum(longest[at], seconds)
        now.at, now.nth = at, now.nth + 1
    fault, seconds, delay, passed = (np.concatenate(one) for one in zip(*found, strict=True))
    order = np.argsort(fault, kind="stable")
    return Tried(fault[order], seconds[order], delay[order], passed[order])


def _ends_well(now: _Now, at: Ints, draw: Floats, *, clock: Floats, memory: Floats) -> Bools:
    """`draw`: luck; `clock`: seconds since the first failure; `memory`: over what was asked for first."""
    faults, cause = now.faults, now.faults.cause[at]
    by_kind: Mapping[str, Bools] = {
        "always": np.zeros(len(at), np.bool_),
        "chance": draw < ALIKE,
        "outage": clock > faults.outage_s[at],
        "node": ~now.back[at],
        "memory": memory >= faults.needs[at],
    }
    found: Bools = np.select(
        [cause == number for number in range(len(KINDS))], [by_kind[k] for k in KINDS], False
    )
    return found


def _none(_: Retry) -> _Rule:
    return lambda now: _Answer.plain(np.zeros(len(now.at), np.bool_))


def _blind(retry: Retry) -> _Rule:
    return lambda now: _Answer.plain(np.full(len(now.at), now.nth < retry.times))


def _counted(_: Retry) -> _Rule:
    return lambda now: _Answer.plain(now.faults.patience[now.at] > now.nth)


def _knowing(_: Retry) -> _Rule:
    def rule(now: _Now) -> _Answer:
        able = now.faults.recoverable[now.at] & (now.nth < TRIES)
        outage = now.faults.cause[now.at] == KINDS.index("outage")
        delay = np.where(outage, now.faults.outage_s[now.at], 0.0)
        return _Answer(able, delay, np.ones(len(able), np.bool_), now.faults.most[now.at])

    return rule


@cache
def _courses(policy: Resubmit) -> Courses:
    return Courses(policy)


def _table(retry: Retry) -> _Rule:
    courses = _courses(retry.policy)
    numbers: Ints = np.zeros(0, np.int64)

    def rule(now: _Now) -> _Answer:
        nonlocal numbers
        at = now.at
        if now.nth == 0:
            numbers = np.zeros(len(now.faults), np.int64)
            numbers[at] = _firsts(courses, now)
        else:
            code = numbers[at] * 4 + now.back[at] * 2 + now.long[at]
            seen, where = np.unique(code, return_inverse=True)
            after = [courses.after(one >> 2, back=bool(one & 2), long=bool(one & 1)) for one in seen.tolist()]
            numbers[at] = np.array(after, np.int64)[where]
        seen, where = np.unique(numbers[at], return_inverse=True)
        steps = [courses.step(one) for one in seen.tolist()]
        least = np.array([one.least for one in steps])[where]
        longest = np.array([one.longest for one in steps])[where]
        return _Answer(
            np.array([one.again for one in steps], np.bool_)[where],
            least + (longest - least) * now.faults.luck[at, now.nth, 3],
            np.array([one.leaves for one in steps], np.bool_)[where],
            np.array([one.memory for one in steps])[where],
        )

    return rule


def _firsts(courses: Courses, now: _Now) -> Ints:
    """The number of each job's first failure."""
    faults, at = now.faults, now.at
    gpus = now.trace["gpus"][faults.row[at]]
    names = [row.name for row in TABLE7]
    columns = np.stack(
        [
            faults.verdict[at],
            np.rint(faults.confidence[at] * 100).astype(np.int64),
            gpus,
            faults.cause[at] == KINDS.index("node"),
            faults.reason[at] == names.index("Job preempted"),
            now.long[at],
        ],
        axis=1,
    ).astype(np.int64)
    seen, where = np.unique(columns, axis=0, return_inverse=True)
    numbers = []
    for verdict, confidence, of, node, preempted, long in seen.tolist():
        nodes = min(-(-of // _GPUS_A_NODE), _MANY)
        kind = Kind(
            VERDICTS[verdict],
            confidence / 100,
            nodes,
            max(1.0, _GPUS_A_NODE / of),
            known=bool(node) or nodes == 1,
            preempted=bool(preempted),
        )
        numbers.append(courses.first(kind, long=bool(long)))
    return np.array(numbers, np.int64)[where.reshape(-1)]


_RULES: Final[Mapping[str, Callable[[Retry], _Rule]]] = {
    "none": _none,
    "blind": _blind,
    "counted": _counted,
    "table": _table,
    "knowing": _knowing,
}
