"""The rules that SWAF is compared with, and one of ours; each is a `swaf.Rule`.

FIFO, Capacity, Weighted Fair and Tetris have no model: they place a task on what its user asked for. Min-Min and the
Tetrises with a plus choose by GENIE's own model. Sources: Hadoop's schedulers; Tetris (Grandl et al., SIGCOMM'14).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from slurm_plugins.tuner.swaf import Placement, Rule, State, Task, choose, swaf

__all__ = [
    "RULES",
    "capacity",
    "fifo",
    "fifo_by_worth",
    "min_min",
    "most_worth",
    "swaf_plus",
    "swaf_with",
    "tetris",
    "tetris_packing",
    "tetris_with",
    "weighted_fair",
]

_Start = tuple[Task, Placement] | None


def fifo(state: State) -> _Start:
    """In order of arrival, and nobody passes the first."""
    if state.waiting and state.free.fits(state.waiting[0].asked):
        return state.waiting[0], state.waiting[0].asked
    return None


def fifo_by_worth(state: State) -> _Start:
    """In order of arrival, each on its placement of most worth: what placement alone is good for."""
    if state.waiting and state.free.fits(state.waiting[0].options[0].placement):
        return state.waiting[0], state.waiting[0].options[0].placement
    return None


def _by_queue(shares: Mapping[str, float]) -> Rule:
    """The head of the queue that has least of what is its own; when it does not fit, that of the next."""

    def rule(state: State) -> _Start:
        heads: dict[str, Task] = {}
        for task in state.waiting:
            heads.setdefault(task.urgency, task)
        held = dict.fromkeys(shares, 0)
        for one in state.running.values():
            held[one.task.urgency] += one.placement[0] * one.placement[1]
        for task in sorted(heads.values(), key=lambda t: (held[t.urgency] / shares[t.urgency], t.task)):
            if state.free.fits(task.asked):
                return task, task.asked
        return None

    return rule


capacity: Final = _by_queue({"urgent": 0.05, "prior": 0.35, "normal": 0.60})
"""A queue for each urgency with the share of the GPUs that it has of the tasks; what one leaves is lent."""
weighted_fair: Final = _by_queue({"urgent": 3.0, "prior": 2.0, "normal": 1.0})
"""A queue for each urgency, the more urgent with the larger weight."""


def min_min(state: State) -> _Start:
    """The task that would end first of all, on the placement, free now, that ends it first."""
    able = state.free.able()
    best = (math.inf, 0)
    found: _Start = None
    for task in state.waiting if able else ():
        fitting = (o for o in task.options if o.placement in able)
        first = min(fitting, key=lambda o: (o.latency, o.placement), default=None)
        if first is not None and (first.latency, task.task) < best:
            best, found = (first.latency, task.task), (task, first.placement)
    return found


def _alignment(state: State, placement: Placement) -> float:
    """Tetris's: on each node that it would take what it asks for times what is free, as parts of the node."""
    free = state.free
    return sum(placement[1] * free.gpus[node] for node in free.fullest(placement)) / free.each**2


def _best_aligned(placement_of: Callable[[Task], Placement]) -> Rule:
    """Of all that fits where it is to be placed what is best aligned with what is free."""

    def rule(state: State) -> _Start:
        fitting = [(task, placement_of(task)) for task in state.waiting]
        fitting = [one for one in fitting if state.free.fits(one[1])]
        return max(fitting, key=lambda one: (_alignment(state, one[1]), -one[0].task), default=None)

    return rule


tetris: Final = _best_aligned(lambda task: task.asked)
"""Each task on what its user asked for."""
tetris_packing: Final = _best_aligned(lambda task: task.options[0].placement)
"""Each task on its placement of most worth."""


def most_worth(state: State) -> _Start:
    """Of all tasks and placements that fit now the one of most worth: CER alone, without packing."""
    able = state.free.able()
    best = -1.0
    found: _Start = None
    for task in state.waiting if able else ():
        one = next((one for one in task.options if one.placement in able), None)
        if one is not None and one.worth > best:
            best, found = one.worth, (task, one.placement)
    return found


def tetris_with(*, worth: bool) -> Rule:
    """As Tetris weighs packing against another aim: of all tasks and placements that fit now the largest sum of
    alignment and, scaled to be as large on average, rate or worth."""

    def rule(state: State) -> _Start:
        able = state.free.able()
        fitting = [(task, one) for task in state.waiting for one in task.options if one.placement in able]
        if not fitting:
            return None
        aligned = {placement: _alignment(state, placement) for placement in able}
        values = [one.worth if worth else one.rate for _, one in fitting]
        total = sum(values)
        scale = sum(aligned[one.placement] for _, one in fitting) / total if total else 0.0
        scores = [
            aligned[one.placement] + scale * value for (_, one), value in zip(fitting, values, strict=True)
        ]
        task, one = fitting[scores.index(max(scores))]
        return task, one.placement

    return rule


def swaf_with(*, late_last: bool = False, passing: bool = False) -> Rule:
    """SWAF with one or both of our changes.

    `late_last`: who can no longer be in time goes behind all who can, shortest first; SWAF has them go first, the
    latest ahead, and under overload spends itself on those. `passing`: where the placement of the head is not free the
    next is looked at, and each takes the most worth of what is free now and in time; SWAF leaves these GPUs idle.
    """

    def rule(state: State) -> _Start:
        able = state.free.able()
        order: list[tuple[bool, float, int, Task, Placement]] = []
        for task in state.waiting if able else ():
            option, allowance = choose(task, state.now)
            late = late_last and allowance < 0
            if passing and allowance >= 0 and option.placement not in able:
                left = task.due - state.now
                option = next((o for o in task.options if o.latency <= left and o.placement in able), option)
                allowance = left - option.latency
            if not passing or option.placement in able:
                order.append((late, option.latency if late else allowance, task.task, task, option.placement))
        if not order:
            return None
        _, _, _, task, placement = min(order, key=lambda one: one[:3])
        return (task, placement) if placement in able else None

    return rule


swaf_plus: Final = swaf_with(late_last=True, passing=True)
"""Ours: SWAF with both."""

RULES: Final[dict[str, Rule]] = {
    "FIFO": fifo,
    "Capacity": capacity,
    "Min-Min": min_min,
    "Weighted Fair": weighted_fair,
    "Tetris": tetris,
    "Tetris+Perf": tetris_with(worth=False),
    "Tetris+CER": tetris_with(worth=True),
    "Tetris+CER, packing": tetris_packing,
    "CER alone": most_worth,
    "FIFO, CER's placement": fifo_by_worth,
    "SWAF": swaf,
    "SWAF, late last": swaf_with(late_last=True),
    "SWAF, passing": swaf_with(passing=True),
    "SWAF, both (ours)": swaf_plus,
}
