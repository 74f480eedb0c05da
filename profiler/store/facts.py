"""What Slurm says of an attempt at a job, and which attempts it must still be asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiler.records import JobRef

__all__ = ["JobFacts", "Seen", "Wanted", "fitted", "fitting"]

_SLACK = 60.0
"""Seconds by which the clocks of a node and of the controller may differ, and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """An attempt at a job as scontrol or sacct has it. None, or "", is "Slurm does not say".

    `restarts` is None where Slurm does not tell which attempt it speaks of: the start time tells it. `state` is
    Slurm's word ("COMPLETED", "OUT_OF_MEMORY"), `signal` that of the batch script, `time_limit` in seconds, `nodes` a
    hostlist. `final`: it will not change any more; Slurm is not asked again.
    """

    cluster: str
    job_id: int
    restarts: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    name: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: str | None = None
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    submitted: float | None = None
    eligible: float | None = None
    started: float | None = None
    ended: float | None = None
    time_limit: float | None = None
    nodes: str = ""
    cpus: int | None = None
    gpus: int | None = None
    memory_asked_bytes: int | None = None
    work_dir: str = ""
    stdout: str = ""
    stderr: str = ""
    comment: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """An attempt that Slurm must be asked about. `started` and `ended` are by the nodes' clocks, where they told."""

    job: JobRef
    started: float | None = None
    ended: float | None = None
    asked: int = 0
    """How often it was asked for before, in vain."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt in the store; `seen` is when a node first saw it."""

    pk: int
    restarts: int
    seen: float


def fitting(facts: JobFacts, attempts: Iterable[Seen]) -> Seen | None:
    """The attempt that these facts are of; None when no one fits."""
    return next((one for _, one in fitted([facts], attempts)), None)


def fitted(facts: Sequence[JobFacts], attempts: Iterable[Seen]) -> list[tuple[JobFacts, Seen]]:
    """Facts of one job, each with the attempt that it is of; others are left out: a wrong one is worse.

    By the number of restarts, where Slurm tells it; else by time: a node sees a job after Slurm started it (a prolog
    may wait for a node to boot), and before it ended. The nearest find each other, and each is found once: of two
    attempts within a minute one may be known to Slurm alone, when its node died before it could tell.

    slurmdbd 22.05 never hears of the start of one that ends within a second or two [seen]: there its end tells. Without
    a node it was never started.
    """
    attempts = list(attempts)
    found = [(one, seen) for one in facts for seen in attempts if one.restarts == seen.restarts]
    taken = {seen.pk for _, seen in found}
    untold = [
        one
        for one in facts
        if one.restarts is None and (one.started is not None or (one.ended is not None and one.nodes))
    ]
    near: list[tuple[tuple[float, float, int], int, Seen]] = []
    for place, one in enumerate(untold):
        started = one.started if one.started is not None else one.ended or 0.0
        after, before = started - _SLACK, (one.ended or float("inf")) + _SLACK
        near += [
            ((abs(seen.seen - started), started, seen.restarts), place, seen)
            for seen in attempts
            if after <= seen.seen <= before
        ]
    used: set[int] = set()
    for _, place, seen in sorted(near, key=lambda pair: (pair[0], pair[1])):
        if place not in used and seen.pk not in taken:
            used.add(place)
            taken.add(seen.pk)
            found.append((untold[place], seen))
    return found
