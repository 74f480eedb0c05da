"""gsub's own stages, in their order."""

from __future__ import annotations

from typing import Final

from slurm_plugins.decide.stage import Stage
from slurm_plugins.decide.stages.avoid_nodes import AvoidNodes
from slurm_plugins.decide.stages.gang import Gang
from slurm_plugins.decide.stages.limits import Limits
from slurm_plugins.decide.stages.sensitivity import Sensitivity
from slurm_plugins.decide.stages.topology import Topology

__all__ = ["STAGES"]

STAGES: Final[tuple[Stage, ...]] = (Gang(), Topology(), Sensitivity(), AvoidNodes(), Limits())
