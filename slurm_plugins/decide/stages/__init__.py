"""gsub's own stages, in their order."""

from __future__ import annotations

from typing import Final

from slurm_plugins.decide.stage import Stage
from slurm_plugins.decide.stages.gang import Gang

__all__ = ["STAGES"]

STAGES: Final[tuple[Stage, ...]] = (Gang(),)
