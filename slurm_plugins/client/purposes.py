"""Which values of jobs each reader of the whole queue needs: squeue's work and ours grow with each of them.

A reader of few jobs takes them with all values. `decode.IDENTITY` comes along with each.
"""

from __future__ import annotations

from typing import Final

__all__ = ["QUEUE", "SUBMISSIONS"]

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

QUEUE: Final = _GPUS | {
    "account",
    "dependency",
    "excluded_nodes",
    "features",
    "nodes",
    "num_nodes",
    "partition",
    "priority",
    "reason",
    "required_nodes",
    "restarts",
    "switches",
}
"""For the keeper: what runs where, what waits, and what for (`service.keeper.ask`)."""
