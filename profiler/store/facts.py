"""What Slurm says of an attempt at a job, and which attempts it must still be asked about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiler.records import JobRef

__all__ = ["JobFacts", "Seen", "Wanted", "fitting"]

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
    """The attempt that these facts are of; None when no one fits, for a wrong one is worse than none.

    By the number of restarts, where Slurm tells it; else by time: a node sees a job after Slurm started it (a prolog
    may wait for a node to boot), and before it ended. Of several the first one after the start.
    """
    if facts.restarts is not None:
        return next((one for one in attempts if one.restarts == facts.restarts), None)
    if facts.started is None:
        return None
    after, before = facts.started - _SLACK, (facts.ended or float("inf")) + _SLACK
    fit = [one for one in attempts if after <= one.seen <= before]
    return min(fit, key=lambda one: (abs(one.seen - (facts.started or 0.0)), one.restarts), default=None)
