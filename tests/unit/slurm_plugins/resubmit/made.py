"""Attempts, failures and pasts for tests: what is not said is the plain case, which is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from profiler.resubmissions import Resubmission
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past, Switches

NODES = tuple(f"n{number}" for number in range(1, 21))
ENFORCE = Switches("enforce")
NOW = 1_795_000_000.0


def attempt(**given: Any) -> Attempt:
    """Job 12 of one node of twenty, at its first attempt, which failed after a minute."""
    plain = Attempt(
        "lab",
        12,
        0,
        "12",
        1000,
        "FAILED",
        nodes=("n1",),
        partition_nodes=NODES,
        runtime_s=60.0,
        ended=NOW - 5,
        batch=True,
        requeue=True,
        memory=Memory(32768, "node", most_mib=512_000),
    )
    return replace(plain, **given)


def failure(reason: str = "nccl_error", confidence: float = 0.9, **given: Any) -> Failure:
    """Plain in the log."""
    return replace(Failure(reason, confidence, "explicit", "user"), **given)


def row(action: str = "other_node", **given: Any) -> Resubmission:
    """What followed an earlier attempt: done, unless said otherwise."""
    made = {
        "cluster": "lab",
        "job_id": 12,
        "restarts": 0,
        "reason": "nccl_error",
        "action": action,
        "at": NOW,
    }
    return Resubmission(**{**made, "state": "done", "why": "x", "nth": 1, "budget": 3, **given})


def earlier(
    reason: str = "nccl_error",
    action: str | None = "other_node",
    nodes: Sequence[str] = ("n1",),
    runtime_s: float | None = 60.0,
    *,
    of: Resubmission | None = None,
    **given: Any,
) -> Earlier:
    """An attempt before; `action` is of the row that followed, None where nothing of ours did."""
    followed = of or (row(action) if action else None)
    return Earlier(failure(reason, **given), tuple(nodes), followed, runtime_s)


def planned(
    one: Attempt | None = None,
    why: Failure | None = None,
    before: Sequence[Earlier] = (),
    *,
    switches: Switches = ENFORCE,
    policy: Resubmit | None = None,
    chance: float = 1.0,
) -> Resubmission:
    """`plan` with the plain case for what is left out."""
    return plan(
        one or attempt(),
        why or failure(),
        Past(tuple(before)),
        switches,
        policy or Resubmit(),
        now=NOW,
        random=lambda: chance,
    )
