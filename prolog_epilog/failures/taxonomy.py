"""The reasons for which an attempt fails: the one table of them.

It extends the 21 reasons of Philly's Table 7 (Jeon et al., ATC'19) by what clusters see today. `origin` is who can mend
it, `retry` the default action of resubmission, which a site may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["NONE", "NO_SIGNATURE", "REASONS", "Origin", "Reason", "Retry"]

Origin: TypeAlias = Literal["user", "engine", "infra", "unknown"]
"""Who can mend it: script, data and request; framework and CUDA; machine, network, storage and scheduler."""
Retry: TypeAlias = Literal[
    "never", "once", "other_node", "backoff", "more_memory", "from_checkpoint", "requeue"
]

NONE: Final = "none"
"""A run that ended well: whatever it warned of, it has no reason."""
NO_SIGNATURE: Final = "no_signature"
"""It failed, and nothing that is known of it says why."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A row: the name, Philly's name for it ("" if it has none), who can mend it, what to do by default, what it is."""

    name: str
    philly: str
    origin: Origin
    retry: Retry
    about: str


_TABLE: Final[tuple[tuple[str, str, Origin, Retry, str], ...]] = (
    ("syntax_error", "Syntax error", "user", "never", "the script has a syntax or indentation error"),
    ("import_error", "Import error", "user", "never", "a Python module or name cannot be imported"),
    ("environment_error", "", "user", "never", "a command, environment or module of the site was not found"),
    ("bad_arguments", "", "user", "never", "an option or a setting was rejected at the start"),
    ("missing_input", "Incorrect inputs", "user", "never", "a file to read does not exist"),
    ("corrupt_input", "Incorrect inputs", "user", "never", "an input cannot be read as what it should be"),
    ("semantic_error", "Semantic error", "user", "never", "the program is wrong, or libraries clash"),
    ("device_assert", "", "user", "never", "an assertion failed in a kernel, mostly an index out of range"),
    ("permission_error", "Permission error", "user", "never", "a file or a service refused access"),
    ("no_space", "", "user", "never", "a disk is full, or a quota used up"),
    ("model_diverged", "Model diverged", "user", "never", "loss or gradients became NaN or infinite"),
    ("cpu_oom", "CPU out of memory", "user", "more_memory", "the host's memory was not enough"),
    ("gpu_oom", "GPU out of memory", "user", "never", "a GPU's memory was not enough"),
    ("shared_memory", "", "user", "never", "/dev/shm was too small"),  # noqa: S108 - a sentence
    ("invalid_memory_access", "Invalid mem access", "user", "once", "memory was accessed that may not be"),
    ("cuda_failure", "CUDA failure", "engine", "other_node", "a call of CUDA or its libraries failed"),
    ("cuda_init_failed", "CUDA init failed", "engine", "other_node", "no GPU could be used"),
    ("cuda_version_mismatch", "CUDA ver. mismatch", "engine", "never", "driver, CUDA and GPU do not fit"),
    ("missing_library", "Cannot load libs", "engine", "never", "a shared library cannot be loaded"),
    ("gpu_hardware", "GPU ECC error", "infra", "other_node", "a GPU or its links are broken"),
    ("nccl_timeout", "", "infra", "other_node", "a collective timed out, and nothing says why"),
    ("nccl_error", "", "infra", "other_node", "the collectives' transport failed, and nothing says why"),
    ("mpi_error", "MPI error", "infra", "once", "an initialisation or call of MPI failed"),
    ("mpi_runtime_failure", "MPI runtime failure", "infra", "backoff", "a daemon or a peer was lost"),
    ("rendezvous_failure", "", "infra", "backoff", "the ranks could not meet at the start"),
    ("filesystem_error", "Incorrect inputs", "infra", "backoff", "a file system failed while being read"),
    ("checkpoint_error", "Model ckpt error", "infra", "backoff", "writing a checkpoint failed"),
    ("network_error", "", "infra", "backoff", "a service outside the job could not be reached"),
    ("container_error", "", "infra", "once", "the container could not be started"),
    ("node_failure", "", "infra", "other_node", "a node failed, or the job could not be started on it"),
    ("preempted", "Job preempted", "infra", "requeue", "the scheduler took the resources back"),
    ("time_limit", "", "user", "from_checkpoint", "the time asked for was up"),
    ("cancelled", "", "user", "never", "it was cancelled by its user or an administrator"),
    ("requeued", "", "user", "never", "it was queued again by its user, an administrator or itself"),
    ("pilot_ended", "", "user", "never", "a worker ended, since the program that gives it work is gone"),
    ("output_error", "Output node error", "user", "never", "an output of the job could not be written"),
    ("core_dump", "Core dump", "unknown", "once", "it aborted, and nothing says why"),
    ("traceback", "Traceback from crash", "unknown", "never", "it ended by an exception of unknown cause"),
    (NO_SIGNATURE, "No signature", "unknown", "never", "nothing is known that says why"),
)

REASONS: Final = {row[0]: Reason(*row) for row in _TABLE}
"""By name, as `failures/taxonomy.md` orders them. `none` is no reason, so not among them."""
