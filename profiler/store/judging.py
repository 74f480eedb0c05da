"""What verdicts are made of, and where they go: findings in, attempts to be judged out, verdicts in.

The store does not judge: it marks each attempt of which something was told that counts, hands out all that is known of
those marked (`cases`), and writes what was made of it (`put`), unless more was told meanwhile: then the mark is another
one, and the attempt comes again. So a verdict follows every late finding, usage or node event, and nobody searches.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, or_, select

from profiler.answers import JobSummary, NodeUse
from profiler.findings import Finding, Source
from profiler.records import GpuRef, GpuUse, JobFinding, JobRef, NodeEvent
from profiler.store.bodies import body_of, readable
from profiler.store.bulk import chunks, lock, upsert
from profiler.store.marks import Failed, unmark
from profiler.store.marks import mark as mark_failed
from profiler.store.merge import END_SOURCES, Changes, clean
from profiler.store.queries import LISTED, event_of, gpu_use, host_use
from profiler.store.schema import finding, gpu_usage, job, job_node, node_event, unjudged, verdict
from profiler.store.turns import in_turns

__all__ = [
    "Case",
    "Judged",
    "cases",
    "mark",
    "mark_by_events",
    "patience",
    "put",
    "settled_badly",
    "take_findings",
    "with_finding",
]

_PATIENCE: Final = 60.0
"""Seconds for which a finding waits for Slurm's word on how the attempt ended; then it is judged without."""
_READING: Final = 10.0
"""Seconds for which Slurm's word waits for what the logs say: a verdict without them would mostly be another one."""
SLACK: Final = 60.0
"""Seconds by which an event may lie outside of the attempt that it tells of: clocks differ, checks come by at times."""
_EVENTS: Final = 64
"""Events of one attempt that are looked at: the last ones, near its end."""
_ENDED: Final = 500
"""Attempts that one batch of events may bring up again."""
_BY_EPILOG: Final = END_SOURCES.index("epilog")
_WELL: Final = ("COMPLETED", "PENDING", "RUNNING", "SUSPENDED")

_gpu_refs = msgspec.json.Decoder(tuple[GpuRef, ...])


@dataclass(frozen=True, slots=True)
class Case:
    """An attempt to be judged, and what is known of it. `key` and `mark` are the store's own.

    `job` has Slurm's word (`state` None: it gave none), `nodes` the nodes that told of it, each with those GPUs only
    whose figures speak of trouble, `events` what happened on them meanwhile, to GPUs of this job or to the whole node.
    `silent` are those of its nodes on which no epilog has told of its end.
    """

    key: int
    mark: int
    job: JobSummary
    derived_exit_code: int | None = None
    finding: Finding | None = None
    nodes: tuple[NodeUse, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """What a case came to. Without a finding there is nothing to tell: it ended well."""

    case: Case
    finding: Finding | None = None
    source: Source = "user"


# Findings in

_FOUND = select(finding.c.job, finding.c.node, finding.c.serial, finding.c.at).where(
    finding.c.job.in_(bindparam("jobs", expanding=True))
)


def take_findings(connection: Connection, told: Mapping[int, Changes]) -> dict[int, float]:
    """Write findings; the time of the one that counts, by attempt, for all of these attempts that have one."""
    stored: dict[tuple[int, str], tuple[int, float]] = {}
    for some in chunks(list(told)):
        for row in connection.execute(_FOUND, {"jobs": some}):
            stored[row[0], row[1]] = (row[2], row[3])
    rows = []
    for pk, changes in told.items():
        for name, record in changes.finding.items():
            if (record.serial, record.at) > stored.get((pk, name), (-1, 0.0)):
                stored[pk, name] = (record.serial, record.at)
                rows.append(_row(pk, record))
    upsert(connection, finding, rows)
    at: dict[int, float] = {}
    for (pk, _), (_, when) in stored.items():
        at[pk] = min(when, at.get(pk, when))
    return at


def with_finding(connection: Connection, jobs: Sequence[int]) -> set[int]:
    """Those of these attempts that have a finding."""
    return {row[0] for some in chunks(jobs) for row in connection.execute(_FOUND, {"jobs": some})}


def _row(pk: int, record: JobFinding) -> dict[str, Any]:
    return {
        "job": pk,
        "node": record.node,
        "serial": record.serial,
        "at": record.at,
        "body": body_of(record.finding),
    }


# Marks


def settled_badly(row: Mapping[str, Any]) -> bool:
    """Whether Slurm's last word on an attempt, a row of `job`, asks for a verdict: it failed, or a step of it did."""
    if not row["facts_final"] or row["state"] is None:
        return False
    return row["state"] not in _WELL or bool(row["derived_exit_code"])


def patience(row: Mapping[str, Any], at: float, *, found: bool) -> float:
    """Seconds for which an attempt, a row of `job`, waits to be judged: for Slurm's last word, then for its logs'."""
    if not row["facts_final"]:
        return _PATIENCE
    ended = row["ended"]
    return 0.0 if found or ended is None or at - ended > _PATIENCE else _READING


def mark(connection: Connection, jobs: Iterable[tuple[int, str, float]], at: float) -> None:
    """Mark attempts (key, cluster, seconds to wait for more) as to be judged."""
    rows = [
        {"job": pk, "cluster": cluster, "due": at + wait, "mark": secrets.randbits(62)}
        for pk, cluster, wait in sorted(jobs)
    ]
    # What is told again and again does not put it off
    upsert(connection, unjudged, rows, least=("due",))


def mark_by_events(connection: Connection, events: Sequence[NodeEvent], at: float) -> None:
    """Mark the attempts that ended badly on a node about when something happened there."""
    spans: dict[tuple[str, str], list[float]] = {}
    for one in events:
        if one.state != "ok":
            spans.setdefault((one.cluster, one.node), []).append(one.at)
    columns = (
        *(job.c.pk, job.c.cluster, job.c.facts_final, job.c.state, job.c.derived_exit_code),
        *(job_node.c.started_at, job_node.c.ended_at),
    )
    for (cluster, name), times in sorted(spans.items()):
        wanted = (
            select(*columns)
            .select_from(job_node.join(job, job.c.pk == job_node.c.job))
            .where(
                job_node.c.node == name,
                job_node.c.ended_at.is_not(None),
                job_node.c.ended_at >= min(times) - SLACK,
                or_(job_node.c.started_at.is_(None), job_node.c.started_at <= max(times) + SLACK),
            )
            .order_by(job_node.c.ended_at)
            .limit(_ENDED)
        )
        rows = [dict(row) for row in connection.execute(wanted).mappings() if row["cluster"] == cluster]
        meant = [row for row in rows if settled_badly(row) and any(_within(row, when) for when in times)]
        mark(connection, [(row["pk"], cluster, 0.0) for row in meant], at)


def _within(row: Mapping[str, Any], when: float) -> bool:
    """Whether a time is within an attempt's on a node, a row of `job_node`."""
    started = row["ended_at"] if row["started_at"] is None else row["started_at"]
    return bool(started - SLACK <= when <= row["ended_at"] + SLACK)


# Cases out

_DUE = in_turns(
    unjudged.join(job, job.c.pk == unjudged.c.job),
    unjudged.c.job,
    job.c.uid,
    unjudged.c.due,
    unjudged.c.cluster == bindparam("cluster_"),
    unjudged.c.due <= bindparam("now_"),
    more=(unjudged.c.mark,),
)
_MORE = select(job.c.pk, job.c.derived_exit_code).where(job.c.pk.in_(bindparam("jobs", expanding=True)))
_FINDINGS = select(finding).where(finding.c.job.in_(bindparam("jobs", expanding=True)))
_NODES = select(job_node).where(job_node.c.job.in_(bindparam("jobs", expanding=True)))
_TROUBLED = select(gpu_usage).where(
    gpu_usage.c.job.in_(bindparam("jobs", expanding=True)),
    or_(
        gpu_usage.c.xids.is_not(None),
        gpu_usage.c.ecc_uncorrected > 0,
        gpu_usage.c.stuck_seconds > 0,
        gpu_usage.c.throttled.contains("hw_"),
    ),
)


def cases(connection: Connection, cluster: str, limit: int, now: float) -> tuple[Case, ...]:
    """Attempts that are due to be judged, users in turn, each with all that is known of it."""
    due = [
        tuple(row) for row in connection.execute(_DUE, {"cluster_": cluster, "now_": now, "limit_": limit})
    ]
    found: list[Case] = []
    for some in chunks(due):
        found += _cases(connection, cluster, dict(some))
    return tuple(found)


def _cases(connection: Connection, cluster: str, marks: Mapping[int, int]) -> list[Case]:
    keys = {"jobs": list(marks)}
    jobs = {row[0]: JobSummary(*row[1:]) for row in connection.execute(LISTED, {"keys": list(marks)})}
    derived = {row[0]: row[1] for row in connection.execute(_MORE, keys)}
    gpus: dict[tuple[int, str], list[tuple[int, GpuUse]]] = {}
    for row in connection.execute(_TROUBLED, keys).mappings():
        gpus.setdefault((row["job"], row["node"]), []).append((row["place"], gpu_use(row)))
    nodes: dict[int, list[NodeUse]] = {}
    held: dict[int, dict[str, tuple[GpuRef, ...] | None]] = {}
    silent: dict[int, list[str]] = {}
    for row in connection.execute(_NODES, keys).mappings():
        pk, name = row["job"], row["node"]
        if row["end_source"] != _BY_EPILOG:
            silent.setdefault(pk, []).append(name)
        held.setdefault(pk, {})[name] = None if row["gpus"] is None else _gpu_refs.decode(row["gpus"])
        nodes.setdefault(pk, []).append(
            NodeUse(
                node=name,
                since=row["started_at"] if row["started_at"] is not None else row["since"],
                until=row["ended_at"] if row["ended_at"] is not None else row["until"],
                gpus=tuple(use for _, use in sorted(gpus.get((pk, name), ()), key=itemgetter(0))),
                host=host_use(row),
            )
        )
    findings: dict[int, tuple[tuple[bool, int, float, str], str]] = {}
    for row in connection.execute(_FINDINGS, keys).mappings():
        # A node that the job was on is believed before one that it was not
        there = row["node"] in held.get(row["job"], {})
        rank = (there, row["serial"], row["at"], row["node"])
        if row["job"] not in findings or rank > findings[row["job"]][0]:
            findings[row["job"]] = (rank, row["body"])
    return [
        Case(
            key=pk,
            mark=marks[pk],
            job=jobs[pk],
            derived_exit_code=derived[pk],
            finding=readable(findings[pk][1]) if pk in findings else None,
            nodes=tuple(sorted(nodes.get(pk, ()), key=lambda one: one.node)),
            events=_events(connection, cluster, jobs[pk], held.get(pk, {})),
            silent=tuple(sorted(silent.get(pk, ()))),
        )
        for pk in marks
        if pk in jobs
    ]


def _events(
    connection: Connection, cluster: str, of: JobSummary, held: Mapping[str, tuple[GpuRef, ...] | None]
) -> tuple[NodeEvent, ...]:
    """What happened on an attempt's nodes while it ran, that may concern it."""
    if of.started is None and of.ended is None:
        return ()
    found: list[NodeEvent] = []
    for some in chunks(sorted(held)):
        span = [node_event.c.cluster == cluster, node_event.c.node.in_(some), node_event.c.state != "ok"]
        if of.started is not None:
            span.append(node_event.c.at >= of.started - SLACK)
        else:
            span.append(node_event.c.at >= (of.ended or 0.0) - SLACK)
        if of.ended is not None:
            span.append(node_event.c.at <= of.ended + SLACK)
        wanted = (
            select(node_event)
            .where(and_(*span))
            .order_by(node_event.c.at.desc(), node_event.c.pk.desc())
            .limit(_EVENTS)
        )
        found += [event_of(row) for row in connection.execute(wanted).mappings()]
    ref = JobRef(of.job_id, of.restarts)
    found = [one for one in found if concerns(one, ref, held.get(one.node))]
    return tuple(sorted(found, key=lambda one: (one.at, one.id))[-_EVENTS:])


def concerns(event: NodeEvent, ref: JobRef, gpus: Sequence[GpuRef] | None) -> bool:
    """Whether an event on a job's node may be about the job: not if it is another job's, or of a GPU of another."""
    if event.job is not None:
        return event.job == ref
    if event.gpu is None or gpus is None:
        return True
    return any(_same(event.gpu, one) for one in gpus)


def _same(one: GpuRef, other: GpuRef) -> bool:
    known = {value for value in (one.uuid, one.parent_uuid) if value is not None}
    if known and (other.uuid is not None or other.parent_uuid is not None):
        return other.uuid in known or (other.parent_uuid is not None and other.parent_uuid in known)
    return one.minor is not None and one.minor == other.minor


# Verdicts in

_MARKS = select(unjudged.c.job, unjudged.c.mark).where(unjudged.c.job.in_(bindparam("jobs", expanding=True)))
_BEFORE = select(verdict.c.job, verdict.c.reason).where(verdict.c.job.in_(bindparam("jobs", expanding=True)))
_JUDGED = delete(unjudged).where(unjudged.c.job == bindparam("job_"))
_NOTHING = delete(verdict).where(verdict.c.job == bindparam("job_"))


def put(connection: Connection, judged: Sequence[Judged], at: float) -> tuple[Judged, ...]:
    """Write verdicts; those of them that say something new: a first one, or another reason than before.

    Not written are those of attempts of which more was told meanwhile: they come again. `at` is the time of a verdict
    on an attempt of which no time is known.
    """
    lock(connection, sorted({one.case.job.cluster for one in judged}))
    by_key = {one.case.key: one for one in judged}
    marks: dict[int, int] = {}
    for some in chunks(list(by_key)):
        marks |= {row[0]: row[1] for row in connection.execute(_MARKS, {"jobs": some})}
    current = [one for key, one in sorted(by_key.items()) if marks.get(key) == one.case.mark]
    if current:
        connection.execute(_JUDGED, [{"job_": one.case.key} for one in current])
    before: dict[int, str] = {}
    for some in chunks([one.case.key for one in current]):
        before |= {row[0]: row[1] for row in connection.execute(_BEFORE, {"jobs": some})}
    upsert(
        connection, verdict, [_verdict(one, one.finding, at) for one in current if one.finding is not None]
    )
    well = [{"job_": one.case.key} for one in current if one.finding is None]
    if well:
        connection.execute(_NOTHING, well)
    _mark(connection, current, at)
    return tuple(
        one for one in current if one.finding is not None and before.get(one.case.key) != one.finding.reason
    )


def _mark(connection: Connection, judged: Sequence[Judged], at: float) -> None:
    """With the verdict itself: no failure may be forgotten between it and what follows."""
    failed = []
    for one in judged:
        if one.finding is not None and one.finding.reason != "none":
            of = one.case.job
            failed.append(Failed(one.case.key, of.cluster, of.uid, of.ended, clean(one.finding.reason)))
    mark_failed(connection, failed, at)
    keys = {one.key for one in failed}
    unmark(connection, [one.case.key for one in judged if one.case.key not in keys])


def _verdict(judged: Judged, what: Finding, now: float) -> dict[str, Any]:
    of = judged.case.job
    runtime = None
    if of.started is not None and of.ended is not None:
        runtime = max(0.0, of.ended - of.started)
    at = next((when for when in (of.ended, of.started, of.submitted) if when is not None), now)
    return {
        "job": judged.case.key,
        "cluster": of.cluster,
        "job_id": of.job_id,
        "uid": of.uid,
        "user": of.user,
        "account": of.account,
        "name": of.name,
        "at": at,
        "reason": clean(what.reason),
        "tier": what.tier,
        "confidence": what.confidence,
        "signature": clean(what.signature),
        "fingerprint": clean(what.fingerprint),
        "source": judged.source,
        "gpu_seconds": None if runtime is None or of.gpus is None else runtime * of.gpus,
        "runtime": runtime,
        "body": body_of(what),
    }
