"""What failed of a job, why, and what the table has for it: asked of Slurm and the service as `gsub why` does.

Of an array not every task is looked at: those that ended alike (state and exit code) are weighed by the first few.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from gsub.errors import FAILED, UserError
from gsub.resubmission.facts import attempt_of, failure_of
from gsub.resubmission.original import Original, Part
from gsub.resubmission.proposal import Weighed
from prolog_epilog.failures.taxonomy import NO_SIGNATURE
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Past, Switches

if TYPE_CHECKING:
    from gsub.why_view import Known
    from profiler.resubmissions import Resubmission
    from site_configs.site_model import Resubmit
    from slurm_plugins.client.protocol import SlurmClient

__all__ = ["Looked", "failed_of", "followed", "look", "weigh"]

_EACH: Final = 4
"""Tasks of an array that are looked at of those that ended alike."""
_ALL: Final = 24
"""Tasks of an array that are looked at in all."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A failed part that was looked at: what is known of it, and the tasks that it stands for (its own among them)."""

    part: Part
    known: Known
    tasks: tuple[int, ...] = ()


def failed_of(job: str, parts: Sequence[Part], *, anyway: bool) -> tuple[Part, ...]:
    """The parts that failed; of a job that ended well itself, where it is asked for `anyway`.

    Raises UserError where none has failed.
    """
    ended = [one for one in parts if one.state.ended]
    failed = tuple(one for one in ended if one.state.value != "COMPLETED")
    if failed:
        return failed
    if ended and len(ended) == len(parts):
        if anyway:
            return tuple(ended)
        raise UserError(
            f"job {job} ended well",
            why="there is nothing to try again",
            fix=f"gsub resubmit {job} --anyway",
            exit_code=FAILED,
        )
    waits = all(one.state.value == "PENDING" for one in parts if not one.state.ended)
    raise UserError(
        f"job {job} {'waits' if waits else 'has not ended'}"
        + (", and none of its tasks has failed" if ended else ""),
        why="Slurm has it queued already" if waits else "it may still end well",
        fix=f"gsub why {job}, or gsub cancel {job} first",
        exit_code=FAILED,
    )


def look(
    failed: Sequence[Part], client: SlurmClient, ask: Callable[[str, SlurmClient, datetime], Known]
) -> list[Looked]:
    """Look at the parts that failed, at few of those that ended alike. Raises UserError, SlurmError."""
    now = datetime.now(timezone.utc)
    groups: dict[tuple[object, ...], list[Part]] = {}
    for one in failed:
        groups.setdefault((one.state.value, one.exit.code, one.exit.signal), []).append(one)
    each = max(1, min(_EACH, _ALL // max(1, len(groups))))
    found: list[Looked] = []
    for alike in groups.values():
        seen = [Looked(one, ask(one.shown_id, client, now), _task(one)) for one in alike[:each]]
        rest = tuple(task for one in alike[each:] for task in _task(one))
        found += [*seen[:-1], replace(seen[-1], tasks=seen[-1].tasks + rest)]
    return found


def _task(part: Part) -> tuple[int, ...]:
    return () if part.array_task_id is None else (part.array_task_id,)


def weigh(
    looked: Sequence[Looked], original: Original, client: SlurmClient, policy: Resubmit
) -> list[Weighed]:
    """What the table has for each of them. Its user stands before it: budget, mode and switches do not count.

    What nothing explains may be submitted again, too, unless the site says `never`.
    """
    nodes = client.nodes()
    now = datetime.now(timezone.utc).timestamp()
    stated = dict(policy.actions)
    ours = replace(
        policy,
        budget=max(1, policy.budget),
        budget_most=max(1, policy.budget_most),
        without_gpus=True,
        actions=tuple(sorted({NO_SIGNATURE: "once", **stated}.items())),
    )
    found = []
    for one in looked:
        failure = failure_of(one.known)
        row = None
        if failure is not None and one.part.state.value != "COMPLETED":
            row = plan(
                attempt_of(one.part, one.known, original, nodes),
                failure,
                Past(),
                Switches("enforce"),
                ours,
                now=now,
                random=random.random,
            )
        told = followed(one.known)
        if told is not None and told.stop == "same_evidence":
            row = told  # the service has seen the earlier attempts
        found.append(Weighed(one.part, one.known.finding, row, one.tasks))
    return found


def followed(known: Known) -> Resubmission | None:
    """What the service decided after this attempt; None: nothing, or there is none."""
    return next((one for one in known.again if one.restarts == known.job.restarts), None)
