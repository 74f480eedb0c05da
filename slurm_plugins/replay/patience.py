"""How long a job waits for a compact place before it takes any: by the live policy's formula, or as the policy says.

The live policy knows the run times of a workload's earlier runs; here these are the trace's own jobs of the same
workload and GPUs, their median. The slowdown is that of twice the nodes (`profiler.spread`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.spread import slowdown
from site_configs.site_model import Locality
from slurm_plugins.decide.context import Workload
from slurm_plugins.decide.worth import worth_of_waiting

if TYPE_CHECKING:
    from slurm_plugins.replay.desk import Desk

__all__ = ["Patience"]


class Patience:
    """Seconds by job, worked out once for all that are alike."""

    def __init__(self, desk: Desk) -> None:
        self._worth: dict[tuple[int, int], float] = {}
        self._locality = Locality()

    def seconds(self, desk: Desk, job: int) -> float:
        """What the policy says where its patience is a number of seconds, else what locality is worth to the job."""
        if desk.policy.patience == "wait":
            return desk.policy.wait_s
        trace, need = desk.trace, desk.need[job]
        workload = int(trace["workload"][job])
        key = workload, need.number
        found = self._worth.get(key)
        if found is None:
            alike = (
                (trace["gpus"] == trace["gpus"][job]) & (trace["workload"] == workload) & (trace["work"] > 0)
            )
            name = trace.words["workload"][workload]
            each = -(-need.gpus // need.nodes)
            known = Workload(
                name,
                runs=int(alike.sum()),
                slowdown=slowdown(name, need.gpus, 2 * need.nodes, gpus_a_node=each),
                run_time=int(np.median(trace["work"][alike])) if alike.any() else None,
            )
            found = self._worth[key] = float(worth_of_waiting(known, self._locality, time_limit=None).wait)
        return found
