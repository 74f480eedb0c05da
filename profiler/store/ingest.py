"""Records into the store: a batch in one transaction, again and in any order without another effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from profiler.records import GpuUse, JobUsage, NodeEvent, Record
from profiler.store.bulk import chunks, insert_new, lock, upsert
from profiler.store.judging import mark, mark_by_events, patience, settled_badly, take_findings
from profiler.store.merge import Attempt, Batch, Changes, clean, encoded, merged_node, newer_series, told_by
from profiler.store.packing import packed
from profiler.store.schema import gpu_usage, job, job_node, node, node_check, node_event, series
from profiler.store.sums import JOB_SUMS, NODE_SUMS, job_sums, told_gpus

__all__ = ["by_job", "find_jobs", "settle", "take", "write"]

_FACTS: Final = (
    "uid",
    "gid",
    "user",
    "account",
    "partition",
    "nodes",
    "het_job_id",
    "work_dir",
    "stdout",
    "stderr",
)
_TOLD: Final = ("told_source", "told_at", "told_node", "node_count")
_OUTCOME: Final = ("exit_code", "signal", "derived_exit_code")
_STATE: Final = (
    "sort_at",
    "touched",
    "ask_at",
    "asked",
    "complete",
    "facts_at",
    "facts_final",
    "started",
    "ended",
)
_CHANGING: Final = (*_FACTS, *_TOLD, *_OUTCOME, *_STATE, "gpus", *JOB_SUMS)
"""The columns of a job that records change."""

_FIND = select(
    job.c.pk, job.c.job_id, job.c.restarts, job.c.state, *(job.c[name] for name in _CHANGING)
).where(job.c.cluster == bindparam("cluster_"), job.c.job_id.in_(bindparam("ids", expanding=True)))
_FIND_WHOLE = select(job).where(
    job.c.cluster == bindparam("cluster_"), job.c.job_id.in_(bindparam("ids", expanding=True))
)
_SUMMED: Final = (
    "started_at",
    "ended_at",
    "since",
    "gpus",
    *_OUTCOME,
    *NODE_SUMS,
    "cpu_seconds",
    "memory_peak_bytes",
)
"""The columns of job_node that its job's row is made from: a job may have a thousand nodes, and one of them speaks."""
_NODES = select(job_node.c.job, job_node.c.node, *(job_node.c[name] for name in _SUMMED)).where(
    job_node.c.job.in_(bindparam("jobs", expanding=True))
)
_TOUCHED = select(job_node).where(
    job_node.c.job.in_(bindparam("jobs", expanding=True)),
    job_node.c.node.in_(bindparam("nodes", expanding=True)),
)
_SERIES = select(
    series.c.job, series.c.node, series.c.serial, series.c.final, series.c.at, series.c.since
).where(series.c.job.in_(bindparam("jobs", expanding=True)))
_UPDATE = (
    update(job)
    .where(job.c.pk == bindparam("pk_"))
    .values({name: bindparam(f"{name}_") for name in _CHANGING})
)
_FORGET_GPUS = delete(gpu_usage).where(
    gpu_usage.c.job == bindparam("job_"), gpu_usage.c.node == bindparam("node_")
)
_GPU_FIELDS: Final = tuple(
    name for name in GpuUse.__struct_fields__ if name not in ("gpu", "throttled", "xids", "faults")
)


def take(connection: Connection, records: Sequence[Record], at: float) -> None:
    """Write records in the transaction of `connection`; `at` is now, by the service's clock."""
    batch = Batch.of(records)
    lock(connection, [cluster for cluster, _ in batch.nodes])
    if batch.jobs:
        _take_jobs(connection, batch.jobs, at)
    if batch.events:
        _take_events(connection, list(batch.events.values()))
        mark_by_events(connection, list(batch.events.values()), at)
    heard = [{"cluster": cluster, "name": name, "heard": at} for cluster, name in sorted(batch.nodes)]
    upsert(connection, node, heard, newer="heard")


def _take_jobs(connection: Connection, told: Mapping[Attempt, Changes], at: float) -> None:
    jobs = _attempts(connection, told, at)
    keys = {row["pk"]: key for key, row in jobs.items()}
    stored = by_job(connection, list(keys))
    touched = _touched(connection, {pk: told[key] for pk, key in keys.items() if stored[pk]})
    rows: list[dict[str, Any]] = []
    gpus: list[dict[str, Any]] = []
    outdated: list[dict[str, Any]] = []
    for pk, key in keys.items():
        changes, nodes = told[key], stored[pk]
        for name in changes.nodes():
            before = touched.get((pk, name))
            row, new_usage = merged_node(before, changes, name)
            row |= {"job": pk, "node": name}
            nodes[name] = row
            rows.append(row)
            if new_usage:
                if before is not None and before["serial"] is not None:
                    outdated.append({"job_": pk, "node_": name})
                gpus += gpu_rows(pk, changes.usage[name])
    upsert(connection, job_node, rows)
    if outdated:
        connection.execute(_FORGET_GPUS, outdated)
    if gpus:
        connection.execute(insert(gpu_usage), gpus)
    told_of = {pk: told[key] for pk, key in keys.items()}
    since = _take_series(connection, told_of, at)
    found = take_findings(connection, told_of)
    for pk, key in keys.items():
        row, changes = jobs[key], told[key]
        row |= told_by(row, changes.started, final=row["facts_at"] is not None)
        if changes.ended:
            row["ask_at"], row["asked"] = at, 0
        row["touched"] = max(row["touched"], at)
        settle(row, list(stored[pk].values()), since.get(pk, found.get(pk)))
    write(connection, jobs.values())
    judged = ((pk, jobs[key]) for pk, key in keys.items() if pk in found or settled_badly(jobs[key]))
    waits = ((pk, keys[pk][0], patience(row, at, found=pk in found)) for pk, row in judged)
    mark(connection, waits, at)


def _attempts(
    connection: Connection, told: Mapping[Attempt, Changes], at: float
) -> dict[Attempt, dict[str, Any]]:
    """The rows of these attempts; those that are not there yet are made."""
    found = _find(connection, told)
    new = sorted(key for key in told if key not in found)
    if new:
        blank = {"sort_at": at, "touched": at, "ask_at": at}
        insert_new(
            connection,
            job,
            [
                {"cluster": cluster, "job_id": number, "restarts": count, **blank}
                for cluster, number, count in new
            ],
        )
        found |= _find(connection, new)
    return {key: found[key] for key in sorted(told)}


def _find(connection: Connection, keys: Iterable[Attempt]) -> dict[Attempt, dict[str, Any]]:
    wanted = set(keys)
    found: dict[Attempt, dict[str, Any]] = {}
    for cluster in sorted({key[0] for key in wanted}):
        for ids in chunks(sorted({key[1] for key in wanted if key[0] == cluster})):
            for row in find_jobs(connection, cluster, ids):
                key = (cluster, row["job_id"], row["restarts"])
                if key in wanted:
                    found[key] = row
    return found


def find_jobs(
    connection: Connection, cluster: str, ids: Sequence[int], *, whole: bool = False
) -> list[dict[str, Any]]:
    """All attempts at these jobs, a chunk of ids at most: what records change of them, or (`whole`) all columns."""
    statement = _FIND_WHOLE if whole else _FIND
    return [dict(row) for row in connection.execute(statement, {"cluster_": cluster, "ids": ids}).mappings()]


def by_job(connection: Connection, jobs: Sequence[int]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """What `settle` needs of the nodes of these jobs, by job and node."""
    nodes: dict[int, dict[str, Mapping[str, Any]]] = {pk: {} for pk in jobs}
    for some in chunks(jobs):
        for row in connection.execute(_NODES, {"jobs": some}):
            nodes[row[0]][row[1]] = dict(zip(_SUMMED, row[2:], strict=True))
    return nodes


def _touched(connection: Connection, told: Mapping[int, Changes]) -> dict[tuple[int, str], dict[str, Any]]:
    """The rows of job_node that a batch speaks of, and a few more."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for jobs in chunks(list(told)):
        names = sorted({name for pk in jobs for name in told[pk].nodes()})
        for nodes in chunks(names):
            for row in connection.execute(_TOUCHED, {"jobs": jobs, "nodes": nodes}).mappings():
                found[row["job"], row["node"]] = dict(row)
    return found


def settle(row: dict[str, Any], nodes: Sequence[Mapping[str, Any]], since: float | None = None) -> None:
    """Bring a job's row in line with those of its nodes. Slurm's own word, where it gave it, stays.

    `since` is a time to sort it by when nothing else tells one.
    """
    row |= job_sums(nodes)
    begun = min((one["started_at"] for one in nodes if one["started_at"] is not None), default=None)
    seen = min((one["since"] for one in nodes if one["since"] is not None), default=None)
    asked = row["facts_at"] is not None
    if not asked or row["started"] is None:
        row["started"] = begun
    if not asked or row["gpus"] is None:
        row["gpus"] = told_gpus(nodes)
    ends = [one["ended_at"] for one in nodes if one["ended_at"] is not None]
    running = any(one["started_at"] is not None and one["ended_at"] is None for one in nodes)
    if not row["facts_final"]:
        # A job is over when all its nodes say so, and not before all have said a word
        over = bool(ends) and not running and len(ends) >= (row["node_count"] or 1)
        row["ended"] = max(ends) if over else None
        for name in _OUTCOME:
            row[name] = max((one[name] for one in nodes if one[name] is not None), default=None)
    for earliest in (row["started"], begun, seen, min(ends, default=None), since):
        if earliest is not None:
            row["sort_at"] = earliest
            break
    row["complete"] = row["ended"] is not None and not running
    if row["facts_final"]:
        row["ask_at"] = None


def write(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write what records and Slurm's facts change of jobs."""
    values = [{f"{name}_": row[name] for name in _CHANGING} | {"pk_": row["pk"]} for row in rows]
    if values:
        connection.execute(_UPDATE, values)


def gpu_rows(pk: int, usage: JobUsage) -> list[dict[str, Any]]:
    """The rows of gpu_usage of a record."""
    return [
        {
            "job": pk,
            "node": usage.node,
            "place": place,
            "minor": use.gpu.minor,
            "uuid": None if use.gpu.uuid is None else clean(use.gpu.uuid),
            "parent_uuid": None if use.gpu.parent_uuid is None else clean(use.gpu.parent_uuid),
            "name": clean(use.gpu.name),
            "throttled": None if use.throttled is None else encoded(use.throttled),
            "xids": encoded(use.xids) if use.xids else None,
            "faults": encoded(use.faults) if use.faults else None,
            **{name: getattr(use, name) for name in _GPU_FIELDS},
        }
        for place, use in enumerate(usage.gpus)
    ]


def _take_series(connection: Connection, told: Mapping[int, Changes], at: float) -> dict[int, float]:
    """Write series; the earliest start of one by job, for those that series or findings are told of."""
    # An attempt that nothing else is known of is sorted by its series, and only without one by its finding
    jobs = [pk for pk, changes in told.items() if changes.series or changes.finding]
    stored: dict[tuple[int, str], Any] = {}
    since: dict[int, float] = {}
    for some in chunks(jobs):
        for row in connection.execute(_SERIES, {"jobs": some}):
            stored[row.job, row.node] = row[2:5]
            since[row.job] = min(row.since, since.get(row.job, row.since))
    rows = []
    for pk in jobs:
        for name, record in told[pk].series.items():
            since[pk] = min(record.since, since.get(pk, record.since))
            if newer_series(stored.get((pk, name)), record):
                rows.append(
                    {
                        "job": pk,
                        "node": name,
                        "serial": record.serial,
                        "final": record.final,
                        "at": record.at,
                        "touched": at,
                        "since": record.since,
                        "step": record.step,
                        "columns": packed(record),
                    }
                )
    upsert(connection, series, rows)
    return since


def _take_events(connection: Connection, events: Sequence[NodeEvent]) -> None:
    rows = [
        {
            "id": one.id,
            "cluster": one.cluster,
            "node": one.node,
            "at": one.at,
            "name": clean(one.name),
            "state": one.state,
            "detail": clean(one.detail),
            "action": one.action,
            "gpu": None if one.gpu is None else encoded(one.gpu),
            "job_id": one.job.job_id if one.job else None,
            "restarts": one.job.restarts if one.job else None,
        }
        for one in events
    ]
    insert_new(connection, node_event, rows)
    last: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["at"], row["id"])):
        if row["state"] != "info":
            key = (str(row["cluster"]), str(row["node"]), str(row["name"]))
            names = ("cluster", "node", "name", "at", "state")
            last[key] = {name: row[name] for name in names} | {"event_id": row["id"]}
    upsert(connection, node_check, [last[key] for key in sorted(last)], newer="at")
