"""What the service's API asks of the store.

Lists come in pages with a stable order: the last to start, to end, or to happen, first; among equals the last one
entered.
A page ends with a cursor, opaque text that says after which row the next page begins: rows that come or go meanwhile
neither hide nor repeat others.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal, Protocol

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    and_,
    bindparam,
    case,
    not_,
    or_,
    select,
    tuple_,
)

from profiler.answers import (
    Events,
    Jobs,
    JobSummary,
    Nodes,
    NodeSeries,
    NodeSummary,
    NodeUse,
    Series,
    Usage,
)
from profiler.records import GpuRef, GpuUse, HostUse, JobRef, NodeEvent
from profiler.store.bulk import chunks
from profiler.store.merge import END_SOURCES, HOST_SOURCES
from profiler.store.packing import unpacked
from profiler.store.schema import gpu_usage, job, job_node, node, node_check, node_event, series

__all__ = [
    "LIMIT",
    "LISTED",
    "STATE",
    "CursorError",
    "EventQuery",
    "JobQuery",
    "event_of",
    "gpu_use",
    "host_use",
    "node_use",
    "page",
    "unsearched",
]

LIMIT: Final = 1000
"""Most rows of a page."""

_SUMMARY: Final = JobSummary.__struct_fields__
_GPU: Final = tuple(
    name for name in GpuUse.__struct_fields__ if name not in ("gpu", "throttled", "xids", "faults")
)
_throttled = msgspec.json.Decoder(dict[str, float])
_xids = msgspec.json.Decoder(tuple[int, ...])
_faults = msgspec.json.Decoder(tuple[str, ...])
_gpu_ref = msgspec.json.Decoder(GpuRef)


_UNDER_WAY: Final = ("PENDING", "RUNNING", "SUSPENDED")
"""Slurm's states of jobs that have not ended."""
_OUTDATED = and_(job.c.ended.is_not(None), job.c.facts_final.is_(False), job.c.state.in_(_UNDER_WAY))
"""Its nodes have told of its end since Slurm was asked: how it is now is not known."""
STATE = case((_OUTDATED, None), else_=job.c.state).label("state")
"""Slurm's word for how a job is, as it is answered."""
_SHOWN = (job.c.pk, *(STATE if name == "state" else job.c[name] for name in _SUMMARY))
"""The row's key, and its columns as they are answered."""

# By place, not by name: a page may have a thousand
LISTED = select(*_SHOWN).where(job.c.pk.in_(bindparam("keys", expanding=True)))
"""Rows of `job` by their keys: the key, then the members of a `JobSummary`."""


class CursorError(ValueError):
    """A cursor that no page ended with, or a limit out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs: all conditions hold. `since` <= start < `until`, seconds since the epoch.

    With `ended_since` those that ended then or later, the last to end first: what is new to who asked before.
    """

    cluster: str
    uid: int | None = None
    user: str | None = None
    account: str | None = None
    state: str | None = None
    since: float | None = None
    until: float | None = None
    ended_since: float | None = None
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events of which node."""

    cluster: str
    node: str
    since: float | None = None
    until: float | None = None
    limit: int = 100
    cursor: str | None = None


class _Paged(Protocol):
    """What every question for a page has. `since` <= the row's time < `until`."""

    @property
    def since(self) -> float | None: ...
    @property
    def until(self) -> float | None: ...
    @property
    def limit(self) -> int: ...
    @property
    def cursor(self) -> str | None: ...


def find(
    connection: Connection, cluster: str, job_id: int, restarts: int | None = None
) -> tuple[int, JobSummary] | None:
    """The key of an attempt, and what is answered of it; without `restarts` the last one's."""
    wanted = select(*_SHOWN).where(job.c.cluster == cluster, job.c.job_id == job_id)
    if restarts is not None:
        wanted = wanted.where(job.c.restarts == restarts)
    row = connection.execute(wanted.order_by(job.c.restarts.desc()).limit(1)).first()
    return None if row is None else (row[0], JobSummary(*row[1:]))


def id_of(
    connection: Connection, cluster: str, leader: int, *, task: int | None = None, offset: int | None = None
) -> int | None:
    """The id of an array's task ("12_3") or of a hetjob's component ("12+1"), once Slurm has told it."""
    if task is not None:
        where = and_(job.c.array_job_id == leader, job.c.array_task_id == task)
    else:
        where = and_(job.c.het_job_id == leader, job.c.het_offset == offset)
    wanted = select(job.c.job_id).where(job.c.cluster == cluster, where).order_by(job.c.pk.desc()).limit(1)
    found: int | None = connection.execute(wanted).scalar()
    return found


def jobs(connection: Connection, query: JobQuery) -> Jobs:
    """A page of jobs. Raises CursorError."""
    place = job.c.sort_at if query.ended_since is None else job.c.ended
    wanted = select(job.c.pk, place).where(job.c.cluster == query.cluster)
    if query.uid is not None:
        wanted = wanted.where(job.c.uid == query.uid)
    for name in ("user", "account", "state"):
        value = getattr(query, name)
        if value is not None:
            wanted = wanted.where(
                (job.c[name] if query.ended_since is None else unsearched(job.c[name])) == value
            )
    if query.ended_since is not None:
        wanted = wanted.where(job.c.ended >= query.ended_since)
    if query.state in _UNDER_WAY:  # few, and the last of a list: no index has to hold it
        wanted = wanted.where(not_(_OUTDATED))
    keys, after = page(connection, wanted, job.c.sort_at, query)
    rows: dict[int, JobSummary] = {}
    for some in chunks([pk for pk, _ in keys]):
        for row in connection.execute(LISTED, {"keys": some}):
            rows[row[0]] = JobSummary(*row[1:])
    return Jobs(tuple(rows[pk] for pk, _ in keys if pk in rows), after)


def unsearched(column: Column[Any]) -> ColumnElement[str]:
    """A column of text by which no index is entered.

    SQLite would take the index with the most equalities, and read and sort all that an account ever ran.
    """
    return column.concat("")


def usage(connection: Connection, pk: int, of: JobSummary, node: str | None = None) -> Usage:
    """What a job did on its nodes, or on one of them."""
    gpus: dict[str, list[GpuUse]] = {}
    wanted = select(gpu_usage).where(gpu_usage.c.job == pk).order_by(gpu_usage.c.node, gpu_usage.c.place)
    if node is not None:
        wanted = wanted.where(gpu_usage.c.node == node)
    for one in connection.execute(wanted).mappings():
        gpus.setdefault(one["node"], []).append(gpu_use(one))
    nodes = select(job_node).where(job_node.c.job == pk)
    if node is not None:
        nodes = nodes.where(job_node.c.node == node)
    uses = [node_use(one, tuple(gpus.get(one["node"], ()))) for one in connection.execute(nodes).mappings()]
    return Usage(of, tuple(sorted(uses, key=lambda use: use.node)))


def node_use(row: RowMapping, gpus: tuple[GpuUse, ...]) -> NodeUse:
    """What a job did on a node, out of a row of job_node and the GPUs there."""
    return NodeUse(
        node=row["node"],
        since=row["since"] if row["since"] is not None else row["started_at"],
        until=row["until"] if row["until"] is not None else row["ended_at"],
        final=bool(row["final"]),
        ended_by=None if row["end_source"] is None else _END[row["end_source"]],
        gpus=gpus,
        host=host_use(row),
        unseen_seconds=row["unseen_seconds"],
        note=row["note"],
    )


def host_use(row: RowMapping) -> HostUse | None:
    """A job's processors and memory on a node, out of a row of job_node."""
    if row["host_source"] is None:
        return None
    return HostUse(
        source=_HOST[row["host_source"]],
        cpu_seconds=row["cpu_seconds"],
        cpus=row["cpus"],
        memory_peak_bytes=row["memory_peak_bytes"],
        memory_working_bytes=row["memory_working_bytes"],
        memory_limit_bytes=row["memory_limit_bytes"],
        oom_kills=row["oom_kills"],
    )


_HOST: Final[tuple[Literal["cgroup2", "cgroup1", "proc"], ...]] = HOST_SOURCES
_END: Final[tuple[Literal["epilog", "reconciled", "reboot"], ...]] = END_SOURCES


def gpu_use(row: RowMapping) -> GpuUse:
    """A row of gpu_usage as it was told."""
    return GpuUse(
        gpu=GpuRef(row["minor"], row["uuid"], row["name"], row["parent_uuid"]),
        throttled=None if row["throttled"] is None else _throttled.decode(row["throttled"]),
        xids=() if row["xids"] is None else _xids.decode(row["xids"]),
        faults=() if row["faults"] is None else _faults.decode(row["faults"]),
        **{name: row[name] for name in _GPU},
    )


def courses(connection: Connection, pk: int, of: JobSummary, node: str | None, limit: int) -> Series:
    """A job over time, on `limit` nodes at most (the first by name), or on one."""
    wanted = select(series).where(series.c.job == pk)
    if node is not None:
        wanted = wanted.where(series.c.node == node)
    nodes = []
    for one in connection.execute(wanted.order_by(series.c.node).limit(_within(limit))).mappings():
        columns = unpacked(one["columns"])
        nodes.append(
            NodeSeries(
                one["node"], one["since"], one["step"], columns.gpus, columns.cpus, columns.memory_bytes
            )
        )
    return Series(of, tuple(sorted(nodes, key=lambda course: course.node)))


def nodes(connection: Connection, cluster: str, name: str | None = None) -> Nodes:
    """The nodes of a cluster: what runs on each and what is not well there."""
    wanted = select(node.c.name, node.c.heard).where(node.c.cluster == cluster)
    checks = select(node_check.c.event_id).where(node_check.c.cluster == cluster, node_check.c.state != "ok")
    if name is not None:
        wanted = wanted.where(node.c.name == name)
        checks = checks.where(node_check.c.node == name)
    jobs_of: dict[str, list[JobRef]] = {}
    for at, ref in _running(connection, cluster, name):
        jobs_of.setdefault(at, []).append(ref)
    unwell: dict[str, list[NodeEvent]] = {}
    # By their ids, not by a join: PostgreSQL would read all events for it
    for ids in chunks(connection.execute(checks).scalars().all()):
        for row in connection.execute(select(node_event).where(node_event.c.id.in_(ids))).mappings():
            unwell.setdefault(row["node"], []).append(event_of(row))
    return Nodes(
        tuple(
            NodeSummary(
                one.name,
                one.heard,
                tuple(sorted(jobs_of.get(one.name, ()), key=lambda ref: (ref.job_id, ref.restarts))),
                tuple(sorted(unwell.get(one.name, ()), key=lambda event: event.name)),
            )
            for one in sorted(connection.execute(wanted), key=lambda row: str(row.name))
        )
    )


def _running(connection: Connection, cluster: str, name: str | None) -> Iterator[tuple[str, JobRef]]:
    """What runs, and on which node."""
    # In two steps, lest SQLite begin with all jobs of the cluster: first the few rows of the index of open ones
    wanted = select(job_node.c.job).where(job_node.c.ended_at.is_(None))
    rows = (
        select(job_node.c.node, job.c.cluster, job.c.job_id, job.c.restarts)
        .join(job, job.c.pk == job_node.c.job)
        .where(job_node.c.ended_at.is_(None), job.c.ended.is_(None))
        # A job whose start nobody told runs as long as its usage is not the last
        .where(or_(job_node.c.started_at.is_not(None), job_node.c.final.is_(False)))
    )
    if name is not None:
        wanted = wanted.where(job_node.c.node == name)
        rows = rows.where(job_node.c.node == name)
    for some in chunks(sorted(set(connection.execute(wanted).scalars()))):
        for row in connection.execute(rows.where(job_node.c.job.in_(some))):
            if row.cluster == cluster:
                yield row.node, JobRef(row.job_id, row.restarts)


def events(connection: Connection, query: EventQuery) -> Events:
    """A page of a node's events. Raises CursorError."""
    wanted = select(node_event.c.pk, node_event.c.at).where(
        node_event.c.cluster == query.cluster, node_event.c.node == query.node
    )
    keys, after = page(connection, wanted, node_event.c.at, query)
    rows = _by_key(connection, node_event, [pk for pk, _ in keys])
    return Events(tuple(event_of(row) for row in rows), after)


def event_of(row: RowMapping) -> NodeEvent:
    """A row of node_event as it was told."""
    return NodeEvent(
        id=row["id"],
        cluster=row["cluster"],
        node=row["node"],
        at=row["at"],
        name=row["name"],
        state=row["state"],
        detail=row["detail"],
        action=row["action"],
        gpu=None if row["gpu"] is None else _gpu_ref.decode(row["gpu"]),
        job=None if row["job_id"] is None else JobRef(row["job_id"], row["restarts"]),
    )


def page(
    connection: Connection,
    wanted: Select[int, float],
    when: ColumnElement[float],
    query: _Paged,
) -> tuple[Sequence[tuple[int, float]], str | None]:
    """The keys and times of a page's rows, read from an index alone, and the cursor of the next page.

    `wanted` selects these two, and rows are sorted by them; `since` and `until` speak of `when`.
    """
    pk, place = wanted.selected_columns
    limit = _within(query.limit)
    if query.since is not None:
        wanted = wanted.where(when >= query.since)
    if query.until is not None:
        wanted = wanted.where(when < query.until)
    if query.cursor is not None:
        wanted = wanted.where(tuple_(place, pk) < tuple_(*_place(query.cursor)))
    rows = connection.execute(wanted.order_by(place.desc(), pk.desc()).limit(limit + 1)).all()
    keys = [(row[0], row[1]) for row in rows[:limit]]
    return keys, _cursor(keys[-1]) if len(rows) > limit else None


def _by_key(connection: Connection, table: Table, keys: Sequence[int]) -> list[RowMapping]:
    """The rows with these keys, in their order."""
    rows: dict[int, RowMapping] = {}
    for some in chunks(keys):
        for row in connection.execute(select(table).where(table.c.pk.in_(some))).mappings():
            rows[row["pk"]] = row
    return [rows[pk] for pk in keys if pk in rows]


def _within(limit: int) -> int:
    if not 1 <= limit <= LIMIT:
        raise CursorError(f"A page has 1 to {LIMIT} rows, not {limit}.")
    return limit


def _cursor(place: tuple[int, float]) -> str:
    pk, when = place
    return urlsafe_b64encode(f"{when!r} {pk}".encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[float, int]:
    """Time and key of the row after which a page begins."""
    try:
        if len(cursor) > 100:
            raise ValueError
        when, pk = (
            urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("ascii").split(" ")
        )
        at, number = float(when), int(pk)
        if not isfinite(at) or not 0 <= number < 1 << 63:
            raise ValueError
    except (ValueError, binascii.Error):
        raise CursorError("No page ended with this cursor.") from None
    return at, number
