"""Which of several records about one thing counts. Pure: the same whatever the order in which they come.

Of two starts (or ends) of a job on a node the one counts that was told by a better witness, then the earlier one; of
usage, series and findings the one with the higher serial. So a store is a function of the set of records that it was
given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from profiler.records import JobEnded, JobFinding, JobSeries, JobStarted, JobUsage, NodeEvent, Record
from profiler.store.sums import NODE_SUMS, node_sums

__all__ = [
    "END_SOURCES",
    "HOST_SOURCES",
    "START_SOURCES",
    "Attempt",
    "Batch",
    "Changes",
    "clean",
    "count_hosts",
    "encoded",
    "told_by",
]

START_SOURCES: Final = ("prolog", "reconciled")
END_SOURCES: Final = ("epilog", "reconciled", "reboot")
HOST_SOURCES: Final = ("cgroup2", "cgroup1", "proc")
"""Sources, the best first; a table holds the place."""

Attempt: TypeAlias = tuple[str, int, int]
"""Cluster, job id, restarts."""
Row: TypeAlias = dict[str, Any]

_BLANK: Final[Row] = {
    **dict.fromkeys(("started_at", "start_source", "gpus", "ended_at", "end_source")),
    **dict.fromkeys(("exit_code", "signal", "derived_exit_code")),
    **dict.fromkeys(("serial", "final", "usage_at", "since", "until", "unseen_seconds")),
    "note": "",
    **dict.fromkeys(("host_source", "cpu_seconds", "cpus", "memory_peak_bytes", "memory_working_bytes")),
    **dict.fromkeys(("memory_limit_bytes", "oom_kills")),
    **dict.fromkeys(NODE_SUMS),
}


def clean(text: str) -> str:
    """Text that any database holds: PostgreSQL knows no NUL, and nothing knows half a character."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\ufffd") if "\0" in text else text


def encoded(value: object) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()


@dataclass(slots=True)
class Changes:
    """What a batch tells of one attempt."""

    started: dict[str, JobStarted] = field(default_factory=dict)
    ended: dict[str, JobEnded] = field(default_factory=dict)
    usage: dict[str, JobUsage] = field(default_factory=dict)
    series: dict[str, JobSeries] = field(default_factory=dict)
    finding: dict[str, JobFinding] = field(default_factory=dict)

    def nodes(self) -> list[str]:
        """The nodes that tell what the job did there."""
        return sorted({*self.started, *self.ended, *self.usage, *self.series})


@dataclass(slots=True)
class Batch:
    """Records put together by what they are about, the best of each kept."""

    jobs: dict[Attempt, Changes] = field(default_factory=dict)
    events: dict[str, NodeEvent] = field(default_factory=dict)
    nodes: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Batch:
        """Sort records by what they are about."""
        batch = cls()
        for record in records:
            batch.nodes.add((record.cluster, record.node))
            if isinstance(record, NodeEvent):
                batch.events.setdefault(record.id, record)
                continue
            key = (record.cluster, record.job.job_id, record.job.restarts)
            changes = batch.jobs.get(key)
            if changes is None:
                changes = batch.jobs[key] = Changes()
            if isinstance(record, JobStarted):
                _keep(changes.started, record, _start_rank)
            elif isinstance(record, JobEnded):
                _keep(changes.ended, record, _end_rank)
            elif isinstance(record, JobUsage):
                _keep(changes.usage, record, _serial_rank)
            elif isinstance(record, JobFinding):
                _keep(changes.finding, record, _finding_rank)
            else:
                _keep(changes.series, record, _serial_rank)
        return batch


def _keep(best: dict[str, Any], record: Any, rank: Any) -> None:  # noqa: ANN401 - five kinds, each with its rank
    other = best.get(record.node)
    if other is None or rank(record) < rank(other):
        best[record.node] = record


# Ranks: the lowest counts.
def _start_rank(record: JobStarted) -> tuple[int, float]:
    return START_SOURCES.index(record.source), record.at


def _end_rank(record: JobEnded) -> tuple[int, float]:
    return END_SOURCES.index(record.source), record.at


def _serial_rank(record: JobUsage | JobSeries) -> tuple[int, bool, float]:
    return -record.serial, not record.final, -record.at


def _finding_rank(record: JobFinding) -> tuple[int, float]:
    return -record.serial, -record.at


def merged_node(stored: Mapping[str, Any] | None, changes: Changes, node: str) -> tuple[Row, bool]:
    """A row of job_node with what is new of it, and whether its usage (so, its GPUs) is new."""
    row: Row = dict(stored) if stored is not None else dict(_BLANK)
    start, end, usage = changes.started.get(node), changes.ended.get(node), changes.usage.get(node)
    if start is not None and (
        row["started_at"] is None or _start_rank(start) < (row["start_source"], row["started_at"])
    ):
        row |= {
            "started_at": start.at,
            "start_source": START_SOURCES.index(start.source),
            "gpus": None if start.gpus is None else encoded(start.gpus),
        }
    if end is not None and (row["ended_at"] is None or _end_rank(end) < (row["end_source"], row["ended_at"])):
        row |= {
            "ended_at": end.at,
            "end_source": END_SOURCES.index(end.source),
            "exit_code": end.exit_code,
            "signal": end.signal,
            "derived_exit_code": end.derived_exit_code,
        }
    stored_rank = (-row["serial"], not row["final"], -row["usage_at"]) if row["serial"] is not None else None
    new_usage = usage is not None and (stored_rank is None or _serial_rank(usage) < stored_rank)
    if usage is not None and new_usage:
        row |= _usage_row(usage)
    return row, new_usage


def _usage_row(usage: JobUsage) -> Row:
    host = usage.host
    return {
        "serial": usage.serial,
        "final": usage.final,
        "usage_at": usage.at,
        "since": usage.since,
        "until": usage.until,
        "unseen_seconds": usage.unseen_seconds,
        "note": clean(usage.note),
        "host_source": HOST_SOURCES.index(host.source) if host else None,
        "cpu_seconds": host.cpu_seconds if host else None,
        "cpus": host.cpus if host else None,
        "memory_peak_bytes": host.memory_peak_bytes if host else None,
        "memory_working_bytes": host.memory_working_bytes if host else None,
        "memory_limit_bytes": host.memory_limit_bytes if host else None,
        "oom_kills": host.oom_kills if host else None,
        **node_sums(usage.gpus),
    }


def told_by(stored: Mapping[str, Any], started: Mapping[str, JobStarted], *, final: bool) -> Row:
    """What the best start record says of the job as a whole, if it is better than what the store heard of before.

    Once Slurm itself was asked (`final` or not: facts_at is set), its word stays and only what it left open is filled.
    """
    if not started:
        return {}
    best = min(started.values(), key=lambda one: (*_start_rank(one), one.node))
    rank = (*_start_rank(best), best.node)
    if stored["told_at"] is not None and rank >= (
        stored["told_source"],
        stored["told_at"],
        stored["told_node"],
    ):
        return {}
    row: Row = {
        "uid": best.uid,
        "gid": best.gid,
        "user": clean(best.user),
        "account": clean(best.account),
        "partition": clean(best.partition),
        "nodes": clean(best.nodes),
        "het_job_id": best.het_job_id,
        "work_dir": clean(best.work_dir),
        "stdout": clean(best.stdout),
        "stderr": clean(best.stderr),
    }
    if final:
        row = {name: value for name, value in row.items() if stored[name] in (None, "")}
    row |= {
        "told_source": rank[0],
        "told_at": best.at,
        "told_node": best.node,
        "node_count": count_hosts(best.nodes),
    }
    return row


_HOST: Final = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def count_hosts(hostlist: str) -> int | None:
    """How many nodes a hostlist has, without expanding it; None for one that cannot be read, or has none.

    >>> count_hosts("n[1-3,7],gpu-a[01-02]x[0-3]")
    12
    """
    total = 0
    parts = _HOST.findall(hostlist)
    if ",".join(parts) != hostlist:
        return None
    for part in parts:
        count = 1
        for ranges in re.findall(r"\[([^\[\]]*)\]", part):
            inside = 0
            for one in ranges.split(","):
                found = _RANGE.fullmatch(one)
                if not found:
                    return None
                low, high = int(found[1]), int(found[2] or found[1])
                if high < low:
                    return None
                inside += high - low + 1
            count *= inside
        total += count
    return total if 0 < total < 1 << 31 else None


def newer_series(stored: Sequence[Any] | None, series: JobSeries) -> bool:
    """Whether a series outranks the one in the store: (serial, final, at)."""
    return stored is None or _serial_rank(series) < (-stored[0], not stored[1], -stored[2])
