"""What follows one failed attempt: the policy's plan, held against what Slurm has of the job by now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from profiler.resubmissions import ENDED, PastAttempt, Resubmission
from profiler.store import Undecided
from site_configs.site_model import Site
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Failure, Switches
from slurm_plugins.service.keeper.again_facts import (
    another,
    attempt_of,
    client_of,
    mode_of,
    overtaken,
    past_of,
)
from slurm_plugins.service.keeper.again_look import Look
from slurm_plugins.service.keeper.carrying_out import PATIENCE, prepared, stopped

__all__ = ["decided", "faulty"]

_MOST_EXCLUDED: Final = 256
_MOST_WRITTEN: Final = 1024
"""Nodes, and letters of a hostlist, that gsub-act takes."""


def decided(
    case: Undecided,
    look: Look,
    past: Sequence[PastAttempt],
    *,
    site: Site,
    opted_out: bool,
    client: object = None,
    dependants: Sequence[int] = (),
    off: bool,
    now: float,
    chance: Callable[[], float],
) -> Resubmission:
    """What follows an attempt: a plan that can be carried out, or why there is none.

    `dependants` are jobs that waited for it before it ended; `opted_out`: its environment had GSUB=off; `client`:
    the program that manages it, as its decision has it; `off`: the switch of gsub-act is set.
    """
    job = look.jobs.get(case.job.job_id)
    attempt = attempt_of(
        case, look, opted_out=opted_out, client=client_of(site, case, job, client), dependants=dependants
    )
    switches = Switches(mode_of(site, case.job, job), site.resubmit.enabled and not off)
    failure = Failure.of(case.finding, case.source)
    row = plan(attempt, failure, past_of(past), switches, site.resubmit, now=now, random=chance)
    row = prepared(row, look.delay_s, quick=look.quick)
    if row.state in ENDED:
        return row
    if job is None or another(case.job, job):
        return stopped(row, "gone", "Slurm has no record of it any more")
    ended = case.job.ended
    if ended is None and job.end is not None and job.state.ended:
        ended = job.end.timestamp()
    if ended is not None and now - ended > PATIENCE:
        return stopped(row, "gone", "gsub was away when it failed, and that is too long ago")
    meanwhile = overtaken(case.job.restarts, job)
    if meanwhile:
        return stopped(row, "moved_on", meanwhile)
    if len(row.exclude) > _MOST_WRITTEN or len(attempt.excluded) + len(row.avoid) > _MOST_EXCLUDED:
        short = msgspec.structs.replace(row, exclude="")
        return stopped(short, "limit", "it excludes so many nodes already that no more can be added")
    return row


def faulty(cluster: str, job_id: int, restarts: int, reason: str, now: float) -> Resubmission:
    """The row of an attempt that gsub itself fails on: it must not keep the others waiting, now and for ever."""
    return Resubmission(
        cluster=cluster,
        job_id=job_id,
        restarts=restarts,
        reason=reason[:128],
        action="never",
        state="stopped",
        stop="unknown",
        at=now,
        why="Nothing is done: a fault in gsub, see gsubd's log.",
        command=f"gsub resubmit {job_id}",
    )
