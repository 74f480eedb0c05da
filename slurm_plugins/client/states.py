"""States of jobs and nodes, with the flags apart that Slurm prints among them; and how a job ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["EXIT_ZERO", "ExitStatus", "JobFlag", "JobState", "NodeState"]


class JobState(str, Enum):
    """The state of a job without its flags (slurm.h: enum job_states).

    ``UNKNOWN`` when the text forms show a flag in the state's place and the flag does not tell the state: a
    COMPLETING job has ended, but only slurmdbd or a later look says how.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    @property
    def ended(self) -> bool:
        """The attempt is over, well or badly."""
        return self not in _NOT_ENDED


_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


class JobFlag(str, Enum):
    """What Slurm adds to a state (slurm.h: JOB_STATE_FLAGS); the text forms show it *instead* of the state."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"


class NodeState(str, Enum):
    """The state of a node without its flags (slurm.h: enum node_states)."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    MIXED = "MIXED"
    DOWN = "DOWN"
    ERROR = "ERROR"
    FUTURE = "FUTURE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a batch script ended: exit code, and the signal that ended it (0 = none), as in sacct's ``3:0``."""

    code: int = 0
    signal: int = 0

    def __bool__(self) -> bool:
        """True when something was wrong, as with an exit status in C."""
        return bool(self.code or self.signal)

    def __str__(self) -> str:
        return f"{self.code}:{self.signal}"


EXIT_ZERO = ExitStatus()
