"""The table `[resubmit]` of the site file: what follows a failed attempt, and how often. Part of `site_model`."""

from __future__ import annotations

from dataclasses import dataclass

from site_configs import kinds as t

__all__ = ["ACTIONS", "LONGEST_BACKOFF", "REASONS", "Resubmit"]

ACTIONS: tuple[str, ...] = (
    "never", "once", "other_node", "backoff", "more_memory", "from_checkpoint", "requeue",
)  # fmt: skip
"""What may follow a failure: `profiler.resubmissions.ACTIONS`, which is above this floor."""
REASONS: tuple[str, ...] = (
    "syntax_error", "import_error", "environment_error", "bad_arguments", "missing_input", "corrupt_input",
    "semantic_error", "device_assert", "permission_error", "no_space", "model_diverged", "cpu_oom", "gpu_oom",
    "shared_memory", "invalid_memory_access", "cuda_failure", "cuda_init_failed", "cuda_version_mismatch",
    "missing_library", "gpu_hardware", "nccl_timeout", "nccl_error", "mpi_error", "mpi_runtime_failure",
    "rendezvous_failure", "filesystem_error", "checkpoint_error", "network_error", "container_error", "node_failure",
    "preempted", "time_limit", "cancelled", "requeued", "pilot_ended", "output_error", "core_dump", "traceback",
    "no_signature",
)  # fmt: skip
"""The names of `prolog_epilog.failures.taxonomy`, which is above this floor: a slip in the file is told at once."""
LONGEST_BACKOFF = 3600
"""Seconds: as far ahead as gsub-act sets a job's start."""


@dataclass(frozen=True, slots=True)
class Resubmit:
    """What follows a failed attempt, where a job's mode is enforce. docs/resubmission.md says how it is decided."""

    enabled: bool = t.key(
        True, t.FLAG, "Does gsub try anything again? false: it only tells what it would do."
    )
    budget: int = t.key(
        3, t.count(0, 100, "attempts"), "Further attempts of a job that makes no progress between them."
    )
    budget_most: int = t.key(
        20, t.count(0, 100, "attempts"), "Further attempts in a job's whole life, whatever the budget says."
    )
    backoff: int = t.key(
        60,
        t.DURATION,
        "Wait before trying again what passes by itself; doubled each time, half of it by chance.",
    )
    backoff_most: int = t.key(LONGEST_BACKOFF, t.DURATION, "Longest such wait, at most 1 h.")
    memory_factor: float = t.key(
        1.5,
        t.ratio(1.05, 10),
        "After a lack of memory: this many times what was asked for, or the peak + 20 %.",
    )
    avoid_most: int = t.key(
        8, t.count(0, 128, "nodes"), "Most nodes that gsub keeps a job off by itself after it failed there."
    )
    confidence: float = t.key(
        0.5, t.ratio(0, 1), "A reason that is less sure than this counts as no_signature."
    )
    without_gpus: bool = t.key(
        False,
        t.FLAG,
        "Are jobs that asked for no GPU tried again too? Their scripts may not be safe to run twice.",
    )
    mail: bool = t.key(False, t.FLAG, "Is the user told by mail too? It goes through receipt.mail_server.")
    actions: tuple[tuple[str, str], ...] = t.key(
        (),
        t.pairs(REASONS, t.choice(*ACTIONS), "actions by reason", "a reason of docs/resubmission.md"),
        'What follows a reason: a table [resubmit.actions] of lines like gpu_oom = "never". '
        "Unset: as docs/resubmission.md says.",
    )
