"""Which values of jobs each reader of many needs: squeue's work and ours grow with each of them.

A reader of few jobs takes them with all values. `decode.IDENTITY` comes along with each.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEPENDENCIES", "POSITION", "QUEUE", "STATUS", "SUBMISSIONS"]

_GPUS: Final = frozenset(
    {"gpus", "tres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task"}
)

SUBMISSIONS: Final = _GPUS | {
    "admin_comment",
    "comment",
    "cpus_per_task",
    "name",
    "partition",
    "submitted",
    "time_limit",
    "user",
    "work_dir",
}
"""For gsubd, which finds the job of each decision (`service.submitted.submissions`)."""

DEPENDENCIES: Final = frozenset({"account", "dependency"})
"""For the keeper, before it runs a job again: who waits for whom (`service.keeper.again_look`)."""

POSITION: Final = frozenset({"partition", "priority", "submitted"})
"""Which of two pending jobs comes first (`client.queued`)."""

QUEUE: Final = (
    _GPUS
    | DEPENDENCIES
    | POSITION
    | {
        "excluded_nodes",
        "features",
        "nodes",
        "num_nodes",
        "reason",
        "required_nodes",
        "restarts",
        "switches",
    }
)
"""For the keeper: what runs where, what waits, and what for (`service.keeper.ask`)."""

STATUS: Final = frozenset(
    {
        "account",
        "end",
        "gpus",
        "name",
        "nodes",
        "num_cpus",
        "num_nodes",
        "partition",
        "qos",
        "reason",
        "restarts",
        "stdout",
        "submitted",
        "time_limit",
        "tres",
    }
)
"""For `gsub status`: what is shown of one's own jobs."""
