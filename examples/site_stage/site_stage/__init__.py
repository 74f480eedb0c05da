"""A stage of a site's own: small jobs go to the old nodes first."""

from __future__ import annotations

from typing import Final

from slurm_plugins.client.parse import tres
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Context, Proposal, Request, Stage

__all__ = ["OldNodes"]

_FEATURE: Final = "v100"
_LONGEST: Final = 4 * 60  # minutes, as Slurm has --time


class OldNodes(Stage):
    """Jobs of one GPU and up to 4 h prefer the old nodes, and leave the new ones to those that need them."""

    name = "old_nodes"

    def decide(self, request: Request, context: Context) -> Proposal:
        job = request.job
        if job.prefer or job.features or not 0 < (job.time_limit or 0) <= _LONGEST:
            return NO_PROPOSAL  # what the user stated stays
        gpus = {tres(text or "").gpus for text in (job.tres_per_job, job.tres_per_node)} - {None}
        pool = context.inventory.pool(job.partition)
        if gpus != {1} or pool is None or not any(_FEATURE in kind.features for kind in pool.kinds):
            return NO_PROPOSAL
        return Proposal(
            (Change("prefer", None, _FEATURE, "one GPU for up to 4 h: the old nodes are enough"),)
        )
