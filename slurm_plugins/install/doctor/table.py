"""All checks, in the order in which they are told: group by group, what others rest on first."""

from __future__ import annotations

from typing import Final

from slurm_plugins.install.doctor import (
    of_accounting,
    of_gpus,
    of_hooks,
    of_jobs,
    of_keeper,
    of_node,
    of_service,
    of_slurm,
    of_submission,
    of_trust,
)
from slurm_plugins.install.doctor.check import Check

__all__ = ["CHECKS"]

CHECKS: Final[tuple[Check, ...]] = (
    *of_slurm.CHECKS,
    *of_jobs.CHECKS,
    *of_gpus.CHECKS,
    *of_accounting.CHECKS,
    *of_trust.CHECKS,
    *of_submission.CHECKS,
    *of_hooks.CHECKS,
    *of_node.CHECKS,
    *of_service.CHECKS,
    *of_keeper.CHECKS,
)
