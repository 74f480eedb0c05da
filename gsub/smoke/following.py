"""A smoke job followed beside the real one: what is new of it, told once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gsub.smoke.kept import SKEW
from gsub.term import one_line

if TYPE_CHECKING:
    from gsub.smoke.result import Result
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import Job

__all__ = ["Following"]

_ASKED: Final = 10.0  # seconds between two questions to Slurm about it
_PATIENCE: Final = 15.0  # seconds for the result to come through a network file system
_ENDINGS: Final = {
    "DEADLINE": "it did not start in time, so Slurm dropped it; the job goes on without",
    "CANCELLED": "it was cancelled; the job goes on without",
    "PREEMPTED": "it was preempted; the job goes on without",
    "NODE_FAIL": "its node failed; the job goes on without",
}


class Following:
    """A smoke job: `state` is the user's folder of state, where its result comes."""

    def __init__(self, job_id: int, state: str, client: SlurmClient) -> None:
        self.job_id = job_id
        self.state = state
        self.client = client
        self.result: Result | None = None
        self.over = False
        self._since = time.time()  # it was submitted a moment ago
        self._asked = float("-inf")
        self._ended: float | None = None
        self._last: Job | None = None
        self._said = ""

    @property
    def held(self) -> bool:
        """Whether it held the real job."""
        return self.result is not None and self.result.held

    def news(self) -> list[str]:
        """What is new since the last call; harmless lines. Never raises an error of Slurm's."""
        if self.over:
            return []
        from gsub.smoke.result import lines, read

        found = read(self.state, self.job_id) if self.state else None
        if found is not None and found.at >= self._since - SKEW:
            self.result = found
            self.over = True
            return [
                f"smoke job {self.job_id}: {line}" if not n else line
                for n, line in enumerate(lines(self.result))
            ]
        now = time.monotonic()
        if now - self._asked < _ASKED:
            return []
        self._asked = now
        return self._state(now)

    def _state(self, now: float) -> list[str]:
        from slurm_plugins.client.errors import SlurmError

        try:
            jobs = self.client.jobs(ids=[str(self.job_id)])
        except SlurmError:
            return []
        job = jobs[0] if jobs else None
        if job is not None:
            self._last = job
        if job is not None and not job.state.ended:
            state = job.state.value
            if state == self._said or state not in ("PENDING", "RUNNING"):
                return []
            self._said = state
            return [f"smoke job {self.job_id} {state}"]
        self._ended = now if self._ended is None else self._ended
        if now - self._ended < _PATIENCE and self.state:
            return []
        self.over = True
        how = self._last.state.value if self._last is not None else ""
        why = _ENDINGS.get(how, f"it ended without a result ({one_line(how) or 'Slurm has forgotten it'})")
        return [f"smoke job {self.job_id}: {why}"]
