"""What is shown, one line a scenario, in the order in which they begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slurm_plugins.install.selftest import afterwards, deciding, recording, silence
from slurm_plugins.install.selftest.outcome import Steps
from slurm_plugins.install.selftest.world import World

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One promise.

    Parameters
    ----------
    name: as `--only` takes it.
    needs: what it needs beside a partition that starts jobs; empty: nothing.
    run: its steps; the first line of its docstring is what it shows.
    last: it is seen when all others are over.
    """

    name: str
    needs: str
    run: Callable[[World], Steps]
    last: bool = False

    @property
    def shows(self) -> str:
        """One sentence."""
        return (self.run.__doc__ or "").partition("\n")[0]


SCENARIOS: Final = (
    Scenario("decision", "GPUs", deciding.decision),
    Scenario("cpu-only", "a partition that takes jobs without GPUs", deciding.cpu_only),
    Scenario("opt-out", "GPUs", deciding.opt_out),
    Scenario("limits", "GPUs", deciding.limits),
    Scenario("usage", "service.url", recording.usage),
    Scenario("hooks", "service.url", recording.hooks),
    Scenario("exit-code", "service.url", recording.exit_code),
    Scenario("cancelled", "service.url", recording.cancelled),
    Scenario("array", "service.url", recording.array),
    Scenario("two-nodes", "service.url, two nodes", recording.two_nodes),
    Scenario("requeue", "service.url, Slurm's requeue delay (120 s unless configured)", recording.requeue),
    Scenario("authorisation", "service.url, root", recording.authorisation),
    Scenario("hung-service", "GPUs, root on the controller's host", silence.hung_service),
    Scenario("dead-service", "GPUs, root on the controller's host, --stop-service", silence.dead_service),
    Scenario("cleanup", "", afterwards.cleanup, last=True),
    Scenario("nodes", "", afterwards.nodes, last=True),
)
"""Those of the silent service stand after all others: while it is silent, nobody else may submit."""
