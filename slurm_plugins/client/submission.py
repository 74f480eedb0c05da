"""What sbatch said; apart from the other values, since submitting needs none of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Submission"]


@dataclass(frozen=True, slots=True)
class Submission:
    """What sbatch said. ``job_id`` is None when it was told to say nothing (``--quiet``) or only asked
    (``--test-only``).
    """

    job_id: int | None
    cluster: str | None = None
    stdout: str = ""
    stderr: str = ""
