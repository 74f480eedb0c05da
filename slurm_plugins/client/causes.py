"""What a pending job waits for, in a few classes, by the one reason that Slurm names. Pure."""

from __future__ import annotations

from typing import Final

from profiler.waits import CAUSES

from .values import Job

__all__ = ["CAUSES", "cause"]

_OF_USER: Final = ("Dependency", "BeginTime", "JobHeld", "JobArrayTaskLimit")
_LIMITS: Final = ("QOS", "Assoc", "MaxMemPerLimit", "AccountingPolicy")
_OF_ACCOUNT: Final = "PerAccount"  # how limits of an account in its QOS end: MaxGRESPerAccount


def cause(job: Job) -> str:
    """Which of CAUSES a pending job waits for."""
    reason = job.reason or ""
    if job.held or reason.startswith(_OF_USER):
        return "user"
    if reason.startswith(_LIMITS) or reason.endswith(_OF_ACCOUNT):
        return "limits"
    if reason.startswith("Resources"):
        return "locality" if job.switches else "resources"
    return "priority" if reason.startswith("Priority") else "other"
