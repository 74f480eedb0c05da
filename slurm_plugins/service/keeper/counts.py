"""What the keeper counts: the metrics of its /metrics, by the names that a dashboard uses."""

from __future__ import annotations

from typing import Final

from slurm_plugins.service.metrics import Registry

__all__ = ["Counts"]

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# From a record's making to its taking: the agent gathers for a minute, a service that was away makes it hours.
_LAG: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0, 7200.0, 86400.0)


class Counts:
    """One registry and the counters that the parts of the keeper share; counted in the event loop."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.records = registry.counter("gsub_collected_total", "Records taken, by kind.", ["kind"])
        self.batches = registry.counter(
            "gsub_batches_total", "Batches, by whose address they came from: own, other, unknown.", ["from"]
        )
        self.refused = registry.counter(
            "gsub_records_refused_total", "Records that will never be taken, by reason.", ["why"]
        )
        self.batch_seconds = registry.histogram(
            "gsub_batch_seconds", "Time from a batch's arrival to its answer.", _SECONDS
        )
        self.lag = registry.histogram(
            "gsub_record_lag_seconds", "Time from a record's making on a node to its taking.", _LAG
        )
        self.requests = registry.counter(
            "gsub_api_requests_total", "Requests answered, by route and status.", ["route", "status"]
        )
        self.closed = registry.counter(
            "gsub_api_connections_closed_total", "Connections that the keeper closed, by reason.", ["why"]
        )
        self.store_errors = registry.counter(
            "gsub_store_errors_total", "Calls of the store that failed, by what they were for.", ["what"]
        )
        self.looks = registry.counter(
            "gsub_enrich_looks_total", "Looks at Slurm for its word on jobs, by how they ended.", ["result"]
        )
        self.unread = registry.counter(
            "gsub_keeper_unread_rows_total",
            "Rows of Slurm's answers that were left out, by what they are of.",
            ["of"],
        )
        self.enriched = registry.counter("gsub_enriched_total", "Attempts at jobs that Slurm told of.")
        self.verdicts = registry.counter(
            "gsub_verdicts_total", "Verdicts on attempts, new or with another reason, by reason.", ["reason"]
        )
        self.decisions = registry.counter(
            "gsub_decisions_stored_total", "Lines of the decisions' journal that are in the store."
        )
        self.mails = registry.counter(
            "gsub_receipts_mailed_total", "Receipts by mail, by how they ended.", ["how"]
        )
        self.resubmissions = registry.counter(
            "gsub_resubmissions_total",
            "Decisions on failed attempts, by action and by what they came to: planned, done, or why not.",
            ["action", "result"],
        )
        self.notices = registry.counter(
            "gsub_notices_mailed_total", "Mails about what followed failures, by how they ended.", ["how"]
        )
