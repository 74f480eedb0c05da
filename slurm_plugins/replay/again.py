"""What gsub answers to a failure, by the live plan (`slurm_plugins.resubmit.plan`), asked once for each course of them.

A course is all that the plan looks at of a job's attempts: what each is said to have failed of, on which nodes, and
whether it ran for long and twice as long as those before. Of these there are some thousand among any number of jobs, so
each is made once, with real rows, and remembered by number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from profiler.resubmissions import Resubmission
from prolog_epilog.failures.taxonomy import NO_SIGNATURE
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.budget import LONG
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past, Switches

__all__ = ["ASKED_MIB", "Courses", "Kind", "Step"]

ASKED_MIB: Final = 32_768
"""Memory that a job asks for on a node; only what it gets over that matters."""
_SHORT: Final = 60.0
_LEAST_NODES: Final = 100
_PLACES: Final = 50
"""Sets of nodes that are kept apart: more than any job has attempts."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A job as the plan sees it. `nodes`: how many it has; `most`: memory that it can get over what it asked for.

    `known`: which of its nodes failed is known. `preempted`: Slurm itself says that it was.
    """

    reason: str
    confidence: float
    nodes: int = 1
    most: float = 1.0
    known: bool = True
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The answer: whether it is tried again, after `least` to `longest` seconds, kept off the first place (`leaves`),
    with so many times the memory of the first attempt."""

    again: bool
    least: float = 0.0
    longest: float = 0.0
    leaves: bool = False
    memory: float = 1.0


@dataclass(frozen=True, slots=True)
class _Course:
    """A failed attempt and those before it. `place`: the number of its set of nodes, of which no two share one."""

    kind: Kind
    past: tuple[Earlier, ...]
    nodes: tuple[str, ...]
    off: tuple[str, ...]
    memory: int
    seconds: float
    longest: float
    """The longest of all attempts so far, in seconds that stand for the real ones."""


class Courses:
    """Answers by number. Place 0 is where the first attempt ran, anything else a place of its own.

    >>> courses = Courses(Resubmit())
    >>> first = courses.first(Kind("cuda_failure", 0.9), long=False)
    >>> courses.step(first).again, courses.step(first).leaves
    (True, True)
    >>> again = courses.after(first, back=False, long=False)
    >>> courses.step(again).again, courses.step(courses.first(Kind("syntax_error", 0.9), long=False)).again
    (True, False)
    """

    def __init__(self, policy: Resubmit) -> None:
        self._policy = policy
        self._courses: list[_Course] = []
        self._steps: list[Step] = []
        self._next: list[Earlier | None] = []
        self._firsts: dict[tuple[Kind, bool], int] = {}
        self._after: dict[tuple[int, bool, bool], int] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def step(self, number: int) -> Step:
        """What is done after it."""
        return self._steps[number]

    def first(self, kind: Kind, *, long: bool) -> int:
        """The number of a job's first failure; `long`: it ran for `budget.LONG` at least."""
        known = self._firsts.get((kind, long))
        if known is None:
            seconds = LONG if long else _SHORT
            nodes = _nodes(0, kind.nodes)
            known = self._add(_Course(kind, (), nodes, (), ASKED_MIB, seconds, seconds))
            self._firsts[kind, long] = known
        return known

    def after(self, number: int, *, back: bool, long: bool) -> int:
        """The number of the next failure, on the first place again (`back`) or elsewhere. `long`: it ran for
        `budget.LONG` at least, and twice as long as each before it.

        Raises ValueError where nothing was tried again.
        """
        known = self._after.get((number, back, long))
        if known is not None:
            return known
        course, earlier = self._courses[number], self._next[number]
        if earlier is None or earlier.resubmission is None:
            raise ValueError(f"course {number} has ended")
        row = earlier.resubmission
        seconds = max(LONG, 2 * course.longest) if long else _SHORT
        made = replace(
            course,
            past=(*course.past, earlier),
            nodes=_nodes(0 if back else len(course.past) + 1, course.kind.nodes),
            off=(*course.off, *row.avoid),
            memory=row.memory_mib or course.memory,
            seconds=seconds,
            longest=max(course.longest, seconds),
        )
        known = self._after[number, back, long] = self._add(made)
        return known

    def _add(self, course: _Course) -> int:
        kind = course.kind
        node = course.nodes[0] if kind.known else ""
        mark = "" if kind.reason == NO_SIGNATURE else kind.reason
        failure = Failure(kind.reason, kind.confidence, "explicit", "user", mark, node)
        attempt = Attempt(
            "replay",
            1,
            len(course.past),
            "1",
            1000,
            "PREEMPTED" if kind.preempted else "FAILED",
            nodes=course.nodes,
            excluded=course.off,
            partition_nodes=tuple(f"n{n}" for n in range(max(_LEAST_NODES, _PLACES * kind.nodes))),
            runtime_s=course.seconds,
            batch=True,
            requeue=True,
            memory=Memory(course.memory, "node", None, int(ASKED_MIB * kind.most)),
        )

        def asked(chance: Callable[[], float]) -> Resubmission:
            return plan(
                attempt, failure, Past(course.past), Switches("enforce"), self._policy, now=0.0, random=chance
            )

        least, row = asked(lambda: 0.0), asked(lambda: 1.0)
        again = row.state == "planned"
        earlier = None
        if again:
            done = msgspec.structs.replace(row, state="done")
            earlier = Earlier(failure, course.nodes, done, course.seconds)
        off = {*course.off, *row.avoid}
        self._courses.append(course)
        self._next.append(earlier)
        self._steps.append(
            Step(
                again,
                least.delay_s,
                row.delay_s,
                not off.isdisjoint(_nodes(0, kind.nodes)[:1]),
                (row.memory_mib or course.memory) / ASKED_MIB,
            )
            if again
            else Step(again=False)
        )
        return len(self._steps) - 1


def _nodes(place: int, count: int) -> tuple[str, ...]:
    return tuple(f"n{place * count + number}" for number in range(count))
