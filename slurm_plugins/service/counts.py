"""What gsubd counts: the metrics of /metrics, by the names that a dashboard uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.request import Request
from slurm_plugins.service.metrics import Registry

__all__ = ["Counts"]

# Seconds. The shim's deadline is the last bound but one; the aim is a p99 below 3 ms.
_BOUNDS: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)

# What the shim counts, as it names it on the wire.
_SHIM: Final = frozenset({"opened", "late", "dropped"})


class Counts:
    """One registry and the counters that the parts of gsubd share."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.decisions = registry.counter("gsub_decisions_total", "Decisions by mode.", ["mode"])
        self.opted_out = registry.counter("gsub_opted_out_total", "Decisions on jobs whose user said no.")
        self.edits = registry.counter(
            "gsub_edits_total",
            "Changes decided, by stage and mode; only those of enforce are made.",
            ["stage", "mode"],
        )
        self.rejects = registry.counter("gsub_rejects_total", "Jobs that can never run, by mode.", ["mode"])
        self.stage_failures = registry.counter(
            "gsub_stage_failures_total", "Proposals dropped because a stage failed.", ["stage"]
        )
        self.seconds = registry.histogram(
            "gsub_decision_seconds", "Time from a question's line to its answer, inside gsubd.", _BOUNDS
        )
        self.malformed = registry.counter("gsub_malformed_total", "Questions that could not be read.")
        self.faults = registry.counter("gsub_faults_total", "Questions that a fault of gsubd left undecided.")
        self.closed = registry.counter(
            "gsub_connections_closed_total", "Connections that gsubd closed, by reason.", ["why"]
        )
        self.shim = registry.counter(
            "gsub_shim_events_total",
            "What the shim tells: times its breaker opened, answers that came late, answers it dropped.",
            ["event"],
        )
        self.joined = registry.counter(
            "gsub_joined_total", "Decisions whose job was found, by what told.", ["by"]
        )
        self.unjoined = registry.counter(
            "gsub_unjoined_total", "Decisions whose job was not found: ambiguous, or no job came.", ["why"]
        )
        self.polls = registry.counter("gsub_polls_total", "Looks at Slurm, by how they ended.", ["result"])
        self.unread = registry.counter(
            "gsub_unread_rows_total",
            "Rows of Slurm's answers that were left out, by what they are of.",
            ["of"],
        )
        self.reloads = registry.counter(
            "gsub_site_file_reads_total", "Times the site file was read, by how it ended.", ["result"]
        )
        self._shim: dict[str, int] = {}

    def gauge(self, name: str, about: str, read: Callable[[], float | None]) -> None:
        """Add a value that is looked up when asked for."""
        self.registry.gauge(name, about, read)

    def told_by_shim(self, totals: Mapping[str, int]) -> None:
        """The shim tells its counts since its start; a count that fell means that it started anew."""
        for event, total in totals.items():
            if event in _SHIM and total >= 0:
                before = self._shim.get(event, 0)
                self.shim.add(event, by=total - before if total >= before else total)
                self._shim[event] = total

    def decided(self, request: Request, decision: Decision, seconds: float) -> None:
        """Count one decision."""
        mode = decision.mode
        self.decisions.add(mode)
        self.seconds.add(seconds)
        if decision.opted_out:
            self.opted_out.add()
        for change in decision.changes:
            if change.stage:
                self.edits.add(change.stage, mode)
        if decision.reject is not None:
            self.rejects.add(mode)
        for failure in decision.failures:
            self.stage_failures.add(failure.stage)
        if request.shim:
            self.told_by_shim(request.shim)

    def refused(self, why: str) -> None:
        """A connection was closed by us."""
        self.closed.add(why)
