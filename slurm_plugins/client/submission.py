"""What sbatch said; apart from the other values, since submitting needs none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SUBMITTED", "Submission"]

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
