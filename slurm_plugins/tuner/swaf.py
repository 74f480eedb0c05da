"""Which placement a task gets, and who goes first, so that most finish when they are expected: GENIE's SWAF.

A task is so many iterations of a global batch; a placement is `nodes` x `gpus`, alike on each node. Rates come from
`profiler.speed`; here they are numbers of an `Option` each. Pure.

Source: GENIE (Chen et al., TPDS 2020), equations 9 to 13 and its algorithm "smallest waiting allowance first"; what the
paper leaves open, and the rules that it is compared with, are read as docs/algorithms.md says.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "THETA",
    "Choice",
    "Finished",
    "Free",
    "Option",
    "Rule",
    "Task",
    "choose",
    "cost",
    "expected",
    "options",
    "placements",
    "simulate",
    "swaf",
]

THETA: Final = 0.4
"""What a whole node is worth beside its share of GPUs (equation 10; the paper's figures use 0.4)."""

Urgency = Literal["urgent", "prior", "normal"]
_TIMES_ALONE: Final[Mapping[Urgency, float]] = {"urgent": 0.0, "prior": 1.0, "normal": 2.0}

Placement: TypeAlias = tuple[int, int]
"""Nodes, and GPUs on each."""


class Option(NamedTuple):
    """A placement of a task: seconds that it takes there, samples a second, and these for its cost (equation 11)."""

    placement: Placement
    latency: float
    rate: float
    worth: float


def placements(nodes: int, gpus: int) -> list[Placement]:
    """All symmetric placements of a cluster.

    >>> placements(2, 2)
    [(1, 1), (1, 2), (2, 1), (2, 2)]
    """
    return [(n, g) for n in range(1, nodes + 1) for g in range(1, gpus + 1)]


def cost(placement: Placement, nodes: int, gpus: int, theta: float = THETA) -> float:
    """Equation 10: the share of the cluster's GPUs, and `theta` times that of its nodes.

    >>> round(cost((1, 4), 4, 4), 4)
    0.35
    """
    return placement[0] * placement[1] / (nodes * gpus) + theta * placement[0] / nodes


def options(
    latency: Callable[[Placement], float],
    rate: Callable[[Placement], float],
    nodes: int,
    gpus: int,
    *,
    theta: float = THETA,
) -> tuple[Option, ...]:
    """Every placement of a task on a cluster of `nodes` x `gpus`, the one of most worth first."""
    found = [
        Option(p, latency(p), rate(p), rate(p) / cost(p, nodes, gpus, theta)) for p in placements(nodes, gpus)
    ]
    return tuple(sorted(found, key=lambda one: (-one.worth, one.placement)))


@dataclass(frozen=True, slots=True)
class Task:
    """A task that came at `arrival` (s) and is expected to end by `due` (s)."""

    task: int
    arrival: float
    due: float
    options: tuple[Option, ...]
    """The one of most worth first."""
    urgency: Urgency = "normal"
    asked: Placement = (1, 1)
    """What its user would have asked for: what rules without a model place it on."""


def expected(arrival: float, alone: float, urgency: Urgency) -> float:
    """When a task is expected to end (equation 9); `alone` is its latency on one GPU.

    An urgent one is expected at once, which nothing can meet: it only goes first.
    """
    return arrival + _TIMES_ALONE[urgency] * alone


class Choice(NamedTuple):
    """The placement for a task now, and how many seconds it may wait for it (less than 0: it is late)."""

    option: Option
    allowance: float


def choose(task: Task, now: float) -> Choice:
    """The most worth of what would end in time (12), else the most worth of all; and the waiting allowance (13).

    >>> few, many = Option((1, 1), 100.0, 1.0, 6.0), Option((1, 4), 40.0, 2.5, 5.0)
    >>> task = Task(1, 0.0, 90.0, (few, many))
    >>> choose(task, 0.0)
    Choice(option=Option(placement=(1, 4), latency=40.0, rate=2.5, worth=5.0), allowance=50.0)
    >>> choose(task, 60.0).option.placement
    (1, 1)
    """
    left = task.due - now
    option = next((one for one in task.options if one.latency <= left), task.options[0])
    return Choice(option, left - option.latency)


class Free:
    """The free GPUs of each node."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self.gpus = [gpus] * nodes
        self.each = gpus

    @property
    def total(self) -> int:
        """Free GPUs in all."""
        return sum(self.gpus)

    def fits(self, placement: Placement) -> bool:
        """Whether so many nodes have so many free GPUs."""
        nodes, gpus = placement
        return sum(free >= gpus for free in self.gpus) >= nodes

    def able(self) -> set[Placement]:
        """All symmetric placements that fit now."""
        most = sorted(self.gpus, reverse=True)
        return {(nodes, gpus) for nodes, each in enumerate(most, 1) for gpus in range(1, each + 1)}

    def fullest(self, placement: Placement) -> tuple[int, ...]:
        """The nodes that a placement would take, which have the least left over; fewer where it does not fit."""
        nodes, gpus = placement
        able = sorted((free, node) for node, free in enumerate(self.gpus) if free >= gpus)
        return tuple(node for _, node in able[:nodes])

    def take(self, placement: Placement) -> tuple[int, ...]:
        """On the nodes that have the least left over. Raises ValueError where it does not fit."""
        nodes, gpus = placement
        chosen = self.fullest(placement)
        if len(chosen) < nodes:
            raise ValueError(f"{nodes} x {gpus} GPUs are not free: {self.gpus}")
        for node in chosen:
            self.gpus[node] -= gpus
        return chosen

    def give(self, nodes: Iterable[int], gpus: int) -> None:
        """What `take` took."""
        for node in nodes:
            self.gpus[node] += gpus


@dataclass(slots=True)
class Running:
    """A task on its nodes."""

    task: Task
    placement: Placement
    nodes: tuple[int, ...]
    end: float


@dataclass(slots=True)
class State:
    """What a rule sees: what waits, in order of arrival; what is free; what runs; the time."""

    waiting: list[Task]
    free: Free
    running: Mapping[int, Running]
    now: float = 0.0


Rule: TypeAlias = Callable[[State], "tuple[Task, Placement] | None"]
"""Who starts next, and where; None: nobody now. It is asked again after each start."""


def swaf(state: State) -> tuple[Task, Placement] | None:
    """Smallest waiting allowance first: its head starts when its placement is free, and nobody passes it."""
    if not state.waiting:
        return None
    chosen = [(choose(task, state.now), task) for task in state.waiting]
    (option, _), head = min(chosen, key=lambda one: (one[0].allowance, one[1].task))
    return (head, option.placement) if state.free.fits(option.placement) else None


@dataclass(frozen=True, slots=True)
class Finished:
    """When each task started and ended, and how many GPUs it had."""

    tasks: Sequence[Task]
    started: Mapping[int, float] = field(default_factory=dict)
    ended: Mapping[int, float] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)

    @property
    def in_time(self) -> float:
        """Equation 14: the share that ended when expected, a second of rounding granted."""
        return sum(self.ended[t.task] <= t.due + 1.0 for t in self.tasks) / max(len(self.tasks), 1)

    @property
    def makespan(self) -> float:
        """Seconds from 0 to the last end."""
        return max(self.ended.values(), default=0.0)


def simulate(
    tasks: Iterable[Task],
    nodes: int,
    gpus: int,
    rule: Rule,
    *,
    real: Callable[[Task, Placement], float] | None = None,
) -> Finished:
    """Tasks on a cluster of `nodes` x `gpus` under a rule, which is asked at each arrival and each end.

    `real`: how many seconds a task really takes; without it, as long as its option says. GPUs are a task's own, and
    what runs is not stopped.

    Raises ValueError for a rule that leaves tasks waiting on an empty cluster.
    """
    coming = sorted(tasks, key=lambda one: (one.arrival, one.task))
    running: dict[int, Running] = {}
    state = State([], Free(nodes, gpus), running)
    ends: list[tuple[float, int]] = []
    started: dict[int, float] = {}
    ended: dict[int, float] = {}
    held: dict[int, int] = {}
    at = 0
    while at < len(coming) or ends or state.waiting:
        state.now = min(
            coming[at].arrival if at < len(coming) else math.inf, ends[0][0] if ends else math.inf
        )
        if state.now == math.inf:
            raise ValueError(f"{len(state.waiting)} tasks wait on an empty cluster")
        while ends and ends[0][0] <= state.now:
            end, number = heapq.heappop(ends)
            over = running.pop(number)
            state.free.give(over.nodes, over.placement[1])
            ended[number] = end
        while at < len(coming) and coming[at].arrival <= state.now:
            state.waiting.append(coming[at])
            at += 1
        for task, placement in _starts(rule, state):
            took = real(task, placement) if real else _latency(task, placement)
            running[task.task] = Running(task, placement, state.free.take(placement), state.now + took)
            heapq.heappush(ends, (state.now + took, task.task))
            started[task.task], held[task.task] = state.now, placement[0] * placement[1]
            state.waiting.remove(task)
    return Finished(coming, started, ended, held)


def _starts(rule: Rule, state: State) -> Iterator[tuple[Task, Placement]]:
    while (chosen := rule(state)) is not None:
        yield chosen


def _latency(task: Task, placement: Placement) -> float:
    return next(one.latency for one in task.options if one.placement == placement)
