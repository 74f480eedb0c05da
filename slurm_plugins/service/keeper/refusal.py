"""A request that is not granted: its status, why, and what to do."""

from __future__ import annotations

from profiler.answers import Problem

__all__ = ["RefusedError"]


class RefusedError(Exception):
    """Answered with `status` and a `Problem`. 503 says too when to come again."""

    def __init__(self, status: int, error: str, remedy: str = "") -> None:
        self.status = status
        self.problem = Problem(error, remedy)
        super().__init__(error)
