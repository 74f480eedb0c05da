"""What a user is told of a smoke run, before and after the submission; and the same for `--json`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gsub.term import one_line

if TYPE_CHECKING:
    from gsub.smoke.prepare import Ready
    from gsub.smoke.submission import Smoked

__all__ = ["before", "facts", "not_submitted", "submitted"]


def before(ready: Ready) -> list[str]:
    """The lines ahead of the submission: the price, or why there is no run.

    >>> from gsub.smoke.prepare import Ready
    >>> before(Ready("race", asked=True, why="it asks for no GPU"))
    ['smoke: no run for this job: it asks for no GPU']
    """
    from profiler.wording import span

    if ready.passed is not None:
        ago = span(max(time.time() - ready.passed.at, 0.0))
        return [
            f"smoke: this script passed {ago} ago (job {ready.passed.job}) with these arguments, files and environment;"
            " not tried again (--smoke=only does)"
        ]
    if ready.order is None:
        return [f"smoke: no run for this job: {one_line(ready.why)}"] if ready.asked else []
    return [ready.price, *([f"smoke: {one_line(ready.note)}"] if ready.note else [])]


def submitted(ready: Ready, smoked: Smoked, real: int | None) -> list[str]:
    """What is going on, and where its result will be."""
    what = {
        "race": f"job {real} queues meanwhile and is held if that fails",
        "gate": f"job {real} waits for it, and is held if that fails",
        "only": "no other job was submitted",
    }[ready.way]
    return [
        f"smoke: job {smoked.job_id} tries it; {what}",
        f"smoke: its result: {one_line(smoked.output)}",
    ]


def not_submitted(ready: Ready, why: str) -> list[str]:
    """Slurm refused the smoke job; the real job is not affected."""
    return [f"smoke: not submitted, the job goes ahead without: {one_line(why)}"]


def facts(ready: Ready, smoked: Smoked | None, why: str) -> dict[str, object]:
    """For `--json`: `job_id` of the smoke job, None where there is none and `why` says so."""
    plan = ready.order.plan if ready.order is not None else None
    return {
        "job_id": smoked.job_id if smoked is not None else None,
        "way": ready.way,
        "seconds": plan.seconds if plan is not None else None,
        "gpus": plan.gpus if plan is not None else None,
        "output": one_line(smoked.output) if smoked is not None else None,
        "passed": ready.passed.job if ready.passed is not None else None,
        "told": [one_line(line) for line in before(ready)],
        "why": one_line(why or ready.why) or None,
    }
