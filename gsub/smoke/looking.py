"""What a race's smoke run asks Slurm, and when: often of its own node, rarely of the rest.

The run ends when the real job starts, or when its GPU is the last one that a job of its user lacks
(`gsub.smoke.making_way`). That is so only from the moment in which the other jobs on its node have made room, so every
turn asks for that node alone, of which slurmctld has one record. The user's jobs are asked for every `FULL` seconds,
and in a turn that finds room there, `MOST` times in a run; all nodes only then, and where one of those jobs is next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from gsub.smoke.making_way import in_the_way, limited, next_ones, room
from gsub.smoke.real_job import Standing, standing

if TYPE_CHECKING:
    from slurm_plugins.client.values import Job, Node

__all__ = ["FULL", "MOST", "Asked", "Looks"]

FULL: Final = 10.0
"""Seconds between two looks at the user's jobs while the smoke job's node has no room for any of them."""
MOST: Final = 30
"""Looks at the user's jobs that a run has beyond those."""


class Asked(Protocol):
    """What is asked. All but `look` raise SlurmError where Slurm does not answer."""

    def look(self, job: int) -> Standing:
        """How one job stands."""

    def jobs_of(self, user: str) -> Sequence[Job]:
        """The user's jobs."""

    def taken(self, node: str) -> tuple[int, int]:
        """The GPUs of a node, and how many of them jobs hold."""

    def nodes(self) -> Sequence[Node]:
        """All nodes."""


class Looks:
    """The looks of one run: each call is a turn, and says how the real job stands.

    Parameters
    ----------
    asked: Slurm. real, smoke: the jobs. user: whose they are. clock: in seconds.
    """

    def __init__(
        self, asked: Asked, real: int, smoke: int, user: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._asked = asked
        self._real = real
        self._smoke = smoke
        self._user = user
        self._clock = clock
        self._due = clock()
        self._more = MOST
        self._jobs: Sequence[Job] = ()

    def __call__(self) -> Standing:
        """How the real job stands now."""
        from slurm_plugins.client.errors import SlurmError

        due = self._clock() >= self._due
        try:
            if not due and not (self._more and self._room()):
                return "waits"
            if not due:
                self._more -= 1
            self._due = self._clock() + FULL
            self._jobs = self._asked.jobs_of(self._user)
            real = [job for job in self._jobs if self._real in (job.id, job.array_job_id, job.het_job_id)]
            # that it is not among them is no fact: slurmctld says it in words
            found = standing(real) if real else self._asked.look(self._real)
            return "way" if found == "waits" and self._lacks_ours() else found
        except SlurmError:
            return "unknown"

    def _lacks_ours(self) -> bool:
        """Whether a job of the user's lacks nothing but what the smoke jobs hold."""
        if limited(self._jobs):
            return True
        if not next_ones(self._jobs) or not self._room():
            return False
        return bool(in_the_way(self._smoke, self._jobs, self._asked.nodes()))

    def _room(self) -> bool:
        """Whether a node of the smoke job would do for one of the user's jobs, were the smoke jobs gone."""
        nodes = next((job.nodes for job in self._jobs if job.id == self._smoke), ())
        return room(self._jobs, {name: self._asked.taken(name) for name in nodes})
