"""What sbatch said; apart from the other values, since submitting needs none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["LAST_JOB_ID", "SUBMITTED", "Submission"]

LAST_JOB_ID = 0xFFFEFFFF
"""The greatest id of a job. ``srun --no-allocate`` draws numbers beyond it, which slurmctld has no jobs for
(MIN_NOALLOC_JOBID)."""

SUBMITTED = re.compile(
    r"^(?:Submitted batch job (\d+)(?: on cluster (\S+))?|(\d+)(?:;(\S+))?)\n", re.MULTILINE
)
"""A whole line of sbatch that names the job it made: groups 1 and 2 (id, cluster), with --parsable 3 and 4."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What sbatch said. ``job_id`` is None when it was told to say nothing (``--quiet``) or only asked
    (``--test-only``).
    """

    job_id: int | None
    cluster: str | None = None
    stdout: str = ""
    stderr: str = ""
