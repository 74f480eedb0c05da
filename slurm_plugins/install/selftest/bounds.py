"""How much of a site's cluster a selftest may take; told before anything is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["JOB_NAME", "MOST_JOBS", "Bounds"]

JOB_NAME: Final = "gsub-selftest"
"""All of its jobs have this name."""
MOST_JOBS: Final = 14
"""Jobs in all, array tasks counted; a run without trouble makes 12, of which 4 never start."""
_RUNNING: Final = 8
"""Of those, the ones that run."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the site allows.

    Parameters
    ----------
    partition, account, qos: of all jobs; empty: Slurm's default.
    nodes: most nodes of one job, 1 or 2.
    minutes: time limit of each job.
    wait: seconds that a job may stay pending until its scenario is skipped.
    record: seconds from a job's end to its whole record: the agent's report, its delivery, a retry.
    pause: whether gsubd may be stopped for at most 3 s, to see that nobody waits for it.
    stop_service: whether gsubd's unit may be stopped and started again.
    """

    partition: str
    account: str = ""
    qos: str = ""
    nodes: int = 2
    minutes: int = 1
    wait: float = 120.0
    record: float = 60.0
    pause: bool = True
    stop_service: bool = False

    def price(self, gpus: int) -> str:
        """What a run costs at most; `gpus`: those of a job, 0 in a partition without any."""
        unit = "GPU" if gpus else "CPU"
        return (
            f"at most {MOST_JOBS} jobs named {JOB_NAME}, nice'd; those that start take 1 {unit} for at most "
            f"{self.minutes} min each, {_RUNNING * self.minutes} {unit}-minutes in all"
        )
