"""What a reason asks for: the taxonomy's table, what the site says instead, and a reason that is not sure.

`prolog_epilog.failures.taxonomy` has the defaults, and nothing else does; `[resubmit.actions]` of the site file changes
rows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from profiler.resubmissions import ACTIONS, Action
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.values import Failure

__all__ = ["FREE", "Asked", "action_for", "asked", "is_free"]

FREE: Final = {
    "preempted": frozenset({"PREEMPTED"}),
    "node_failure": frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"}),
}
"""What is not charged to a job's budget, and the states by which Slurm itself says so."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a failure asks for. `reason` is what it counts as; `sure` whether that is the verdict's own reason."""

    reason: str
    action: Action
    sure: bool


def action_for(reason: str, policy: Resubmit) -> Action:
    """The site's action for a reason, else the taxonomy's.

    >>> action_for("gpu_oom", Resubmit()), action_for("gpu_oom", Resubmit(actions=(("gpu_oom", "once"),)))
    ('never', 'once')
    """
    for action in ACTIONS:
        if (reason, action) in policy.actions:
            return action
    if reason == NONE:
        return "never"  # nothing failed
    return REASONS[reason].retry if reason in REASONS else REASONS[NO_SIGNATURE].retry


def asked(failure: Failure, policy: Resubmit) -> Asked:
    """What a failure asks for. A reason that is not sure, or that this release does not know, is `no_signature`.

    >>> asked(Failure("gpu_oom", 0.4, "implicit", "user"), Resubmit())
    Asked(reason='no_signature', action='never', sure=False)
    """
    known = failure.reason in REASONS or failure.reason == NONE
    if known and (failure.confidence >= policy.confidence or failure.reason == NO_SIGNATURE):
        return Asked(failure.reason, action_for(failure.reason, policy), True)
    return Asked(NO_SIGNATURE, action_for(NO_SIGNATURE, policy), False)


def is_free(failure: Failure, state: str) -> bool:
    """Whether it is not charged to the budget: Slurm's own word for it, never what a user could have written.

    >>> is_free(Failure("preempted", 0.95, "decisive", "user"), "FAILED")
    False
    """
    states = FREE.get(failure.reason)
    return states is not None and (failure.source == "root" or state in states)
