'''A stage of the pipeline: one idea about what a job should get. A site adds its own without editing gsub.

    from slurm_plugins.decide.stage import Change, Context, Proposal, Request, Stage

    class NightQueue(Stage):
        """Jobs over 24 h are asked to prefer the old nodes."""

        name = "night_queue"

        def decide(self, request: Request, context: Context) -> Proposal:
            if (request.job.time_limit or 0) <= 24 * 60 or request.job.prefer:
                return Proposal()
            return Proposal((Change("prefer", None, "v100", "longer than 24 h: the V100 nodes are less in demand"),))

In the package's pyproject.toml, under ``[project.entry-points."gsub.stages"]``:
``night_queue = "mysite.stages:NightQueue"``.
'''

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import NO_PROPOSAL, Change, Note, Proposal
from slurm_plugins.decide.request import Job, Request

__all__ = ["NO_PROPOSAL", "Change", "Context", "Job", "Note", "Proposal", "Request", "Stage"]


class Stage(ABC):
    """One idea; its docstring is its documentation (`gsub explain` and docs show the first line)."""

    name: ClassVar[str]
    """As it appears in reasons, records and metrics: lower case, one word."""

    @abstractmethod
    def decide(self, request: Request, context: Context) -> Proposal:
        """Propose changes for one request.

        Pure: no I/O, no clock, no state; the same arguments give the same answer. `request` already holds what earlier
        stages changed. What the user stated is not changed unless the job or the site allows it. It has a millisecond;
        what it raises is recorded and its proposal dropped.
        """
