"""What follows failed attempts: those to be decided out, decisions in, those to be worked on out.

Of what waits, users come in turn: a thousand failures of one do not keep another's waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, select, update

from profiler.answers import JobSummary
from profiler.findings import Finding, Source
from profiler.resubmissions import ENDED, PastAttempt, Resubmission
from profiler.store.bodies import readable, row_of
from profiler.store.bulk import chunks, lock, upsert
from profiler.store.judging import with_finding
from profiler.store.marks import unmark
from profiler.store.merge import clean
from profiler.store.queries import LISTED
from profiler.store.schema import job, job_node, resubmission, undecided, unjudged, verdict
from profiler.store.turns import in_turns
from site_configs.hostlist import HostlistError, expand

__all__ = [
    "Due",
    "Undecided",
    "due",
    "of_attempt",
    "of_job",
    "past_of",
    "put",
    "put_off",
    "to_decide",
]

_WAITING: Final = 10_000
"""Rows that are looked at for those that this release can read."""
_PAST: Final = 100
"""Earlier attempts of a job that are told: the last ones."""
_NODES: Final = 4096
"""Nodes of an attempt that are told."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A failed attempt of which it is to be decided what follows. `key` and `mark` are the store's own.

    `nodes` are those that it ran on, `runtime` its seconds, `comment` the job's. `resubmission` is what was decided
    before the verdict changed; mostly None. `unread`: a node told of the attempt, and what its
    logs say is not in the verdict yet.
    """

    key: int
    mark: int
    job: JobSummary
    finding: Finding
    source: Source
    nodes: tuple[str, ...] = ()
    runtime: float | None = None
    comment: str = ""
    resubmission: Resubmission | None = None
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """A decision to be worked on, and whose job it is about."""

    uid: int | None
    resubmission: Resubmission


# To be decided

_UNDECIDED = in_turns(
    undecided,
    undecided.c.job,
    undecided.c.uid,
    undecided.c.due,
    undecided.c.cluster == bindparam("cluster_"),
    undecided.c.due <= bindparam("now_"),
)
_VERDICTS = (
    select(
        *(verdict.c.job, undecided.c.mark, verdict.c.body, verdict.c.source, verdict.c.runtime),
        *(job.c.comment, resubmission.c.body.label("decided")),
    )
    .join(undecided, undecided.c.job == verdict.c.job)
    .join(job, job.c.pk == verdict.c.job)
    .join(resubmission, resubmission.c.job == verdict.c.job, isouter=True)
    .where(verdict.c.job.in_(bindparam("jobs", expanding=True)))
)
_TO_JUDGE = select(unjudged.c.job).where(unjudged.c.job.in_(bindparam("jobs", expanding=True)))
_ON = (
    select(job_node.c.job, job_node.c.node)
    .where(job_node.c.job.in_(bindparam("jobs", expanding=True)))
    .order_by(job_node.c.job, job_node.c.node)
)
_PUT_OFF = (
    update(undecided)
    .where(undecided.c.job == bindparam("job_"), undecided.c.mark == bindparam("mark_"))
    .values(due=bindparam("due_"))
)


def to_decide(connection: Connection, cluster: str, limit: int, now: float) -> tuple[Undecided, ...]:
    """Attempts that wait for a decision: users in turn, of each the one that has waited longest first."""
    keys = connection.execute(_UNDECIDED, {"cluster_": cluster, "now_": now, "limit_": limit}).scalars().all()
    found: dict[int, Undecided] = {}
    for some in chunks(keys):
        found |= _undecided(connection, some)
    return tuple(found[key] for key in keys if key in found)


def _undecided(connection: Connection, keys: Sequence[int]) -> dict[int, Undecided]:
    jobs = {row[0]: JobSummary(*row[1:]) for row in connection.execute(LISTED, {"keys": keys})}
    told, read = _told(connection, keys), with_finding(connection, keys)
    read -= {row[0] for row in connection.execute(_TO_JUDGE, {"jobs": keys})}
    found = {}
    for row in connection.execute(_VERDICTS, {"jobs": keys}).mappings():
        key = row["job"]
        finding = readable(row["body"])
        if key in jobs and finding is not None:
            found[key] = Undecided(
                key=key,
                mark=row["mark"],
                job=jobs[key],
                finding=finding,
                source=row["source"],
                nodes=_nodes(jobs[key].nodes, told.get(key, ())),
                runtime=row["runtime"],
                comment=row["comment"],
                resubmission=None if row["decided"] is None else row_of(row["decided"]),
                unread=key in told and key not in read,
            )
    return found


def _told(connection: Connection, keys: Sequence[int]) -> dict[int, list[str]]:
    """The nodes that told of attempts, by name."""
    told: dict[int, list[str]] = {}
    for row in connection.execute(_ON, {"jobs": keys}):
        told.setdefault(row[0], []).append(row[1])
    return told


def _nodes(hostlist: str, told: Sequence[str]) -> tuple[str, ...]:
    """The nodes of an attempt: Slurm's list of them, else those that told of it."""
    try:
        named = expand(hostlist, _NODES)
    except HostlistError:
        named = ()
    return named or tuple(told[:_NODES])


def put_off(connection: Connection, of: Sequence[Undecided], until: float) -> None:
    """Let attempts wait until a later time; not those that were judged anew meanwhile."""
    values = [{"job_": one.key, "mark_": one.mark, "due_": until} for one in of]
    if values:
        connection.execute(_PUT_OFF, values)


# Decided

_FIND = select(job.c.pk, job.c.job_id, job.c.restarts, job.c.uid).where(
    job.c.cluster == bindparam("cluster_"), job.c.job_id.in_(bindparam("ids", expanding=True))
)
_STATES = select(resubmission.c.job, resubmission.c.state).where(
    resubmission.c.job.in_(bindparam("jobs", expanding=True))
)
_MARKS = select(undecided.c.job, undecided.c.mark).where(
    undecided.c.job.in_(bindparam("jobs", expanding=True))
)


def put(
    connection: Connection, rows: Sequence[Resubmission], at: float, of: Sequence[Undecided] = ()
) -> tuple[Resubmission, ...]:
    """Write what was decided, or what has come of it; those of them that were written.

    `of` are the attempts that were decided about: each row of one ends its mark, and is not written where the attempt
    was judged anew meanwhile: it comes again. Passed over are rows of attempts that are not there any more, and what
    would undo what is done. `at` is when a row that names no time, and has not ended, is worked on.
    """
    clusters = sorted({row.cluster for row in rows})
    lock(connection, clusters)
    found: dict[tuple[str, int, int], tuple[int, int | None]] = {}
    for cluster in clusters:
        for ids in chunks(sorted({row.job_id for row in rows if row.cluster == cluster})):
            for one in connection.execute(_FIND, {"cluster_": cluster, "ids": ids}):
                found[cluster, one.job_id, one.restarts] = (one.pk, one.uid)
    last = {key: row for row in rows if (key := (row.cluster, row.job_id, row.restarts)) in found}
    keys = sorted(found[key][0] for key in last)
    marks: dict[int, int] = {}
    states: dict[int, str] = {}
    for some in chunks(keys):
        marks |= {one[0]: one[1] for one in connection.execute(_MARKS, {"jobs": some})}
        states |= {one[0]: one[1] for one in connection.execute(_STATES, {"jobs": some})}
    answered = {one.key: one.mark for one in of}
    written: dict[int, Resubmission] = {}
    for key, row in last.items():
        pk = found[key][0]
        outdated = pk in answered and marks.get(pk) != answered[pk]
        if not outdated and (states.get(pk) != "done" or row.state == "done"):
            written[pk] = row
    values = [_values(pk, found, written[pk], at) for pk in sorted(written)]
    upsert(connection, resubmission, values)
    unmark(connection, [key for key, mark in sorted(answered.items()) if marks.get(key) == mark])
    return tuple(written.values())


def _values(
    pk: int, found: Mapping[tuple[str, int, int], tuple[int, int | None]], row: Resubmission, at: float
) -> dict[str, Any]:
    due_at = None
    if row.state not in ENDED:
        # Nothing that has not ended may wait for ever
        due_at = at if row.due is None else row.due
    return {
        "job": pk,
        "cluster": row.cluster,
        "job_id": row.job_id,
        "restarts": row.restarts,
        "uid": found[row.cluster, row.job_id, row.restarts][1],
        "state": row.state,
        "reason": clean(row.reason),
        "due": due_at,
        "at": row.at,
        "body": msgspec.json.encode(row).decode(),
    }


_DUE = in_turns(
    resubmission,
    resubmission.c.job,
    resubmission.c.uid,
    resubmission.c.due,
    resubmission.c.cluster == bindparam("cluster_"),
    resubmission.c.due.is_not(None),
    resubmission.c.due <= bindparam("now_"),
)
_BODIES = select(resubmission.c.job, resubmission.c.uid, resubmission.c.body).where(
    resubmission.c.job.in_(bindparam("jobs", expanding=True))
)


def due(connection: Connection, cluster: str, limit: int, now: float) -> tuple[Due, ...]:
    """Decisions that are to be worked on: users in turn, of each the longest due first."""
    keys = connection.execute(_DUE, {"cluster_": cluster, "now_": now, "limit_": _WAITING}).scalars().all()
    found: list[Due] = []
    # No more at once than are wanted: mostly all of them can be read
    for some in chunks(keys, max(1, min(limit, 500))):
        bodies = {row[0]: (row[1], row[2]) for row in connection.execute(_BODIES, {"jobs": some})}
        for key in some:
            row = row_of(bodies[key][1]) if key in bodies else None
            if row is not None:
                found.append(Due(bodies[key][0], row))
        if len(found) >= limit:
            break
    return tuple(found[:limit])


# Of one job


def of_attempt(connection: Connection, pk: int) -> Resubmission | None:
    """What was decided after a failed attempt."""
    found = connection.execute(_BODIES, {"jobs": [pk]}).first()
    return None if found is None else row_of(found[2])


def of_job(
    connection: Connection, cluster: str, job_id: int, uid: int | None = None
) -> tuple[Resubmission, ...]:
    """What was decided after each failed attempt at a job, of `uid` only if given; the oldest attempt first."""
    wanted = select(resubmission.c.job).where(
        resubmission.c.cluster == cluster, resubmission.c.job_id == job_id
    )
    if uid is not None:
        wanted = wanted.where(resubmission.c.uid == uid)
    keys = connection.execute(wanted.order_by(resubmission.c.restarts.desc()).limit(_PAST)).scalars().all()
    rows = {row[0]: row_of(row[2]) for row in connection.execute(_BODIES, {"jobs": keys})}
    return tuple(row for key in reversed(keys) if (row := rows.get(key)) is not None)


_ATTEMPTS = (
    select(job.c.pk, job.c.uid)
    .where(
        job.c.cluster == bindparam("cluster_"),
        job.c.job_id == bindparam("job_id_"),
        job.c.restarts <= bindparam("restarts_"),
    )
    .order_by(job.c.restarts.desc())
    .limit(_PAST + 1)
)
_EARLIER = (
    select(
        *(job.c.pk, job.c.restarts, job.c.nodes, job.c.started, job.c.ended),
        *(verdict.c.body.label("verdict"), verdict.c.source, resubmission.c.body.label("decided")),
    )
    .join(verdict, verdict.c.job == job.c.pk, isouter=True)
    .join(resubmission, resubmission.c.job == job.c.pk, isouter=True)
    .where(job.c.pk.in_(bindparam("jobs", expanding=True)))
)


def past_of(
    connection: Connection, cluster: str, job_id: int, before_restarts: int
) -> tuple[PastAttempt, ...]:
    """The attempts at a job before that one, the oldest first: the last hundred of them.

    Numbers of jobs come again: an attempt of another user, and all before it, are of another job.
    """
    values = {"cluster_": cluster, "job_id_": job_id, "restarts_": before_restarts}
    attempts = [(row[0], row[1]) for row in connection.execute(_ATTEMPTS, values)]
    keys: list[int] = []
    for key, uid in attempts:
        if uid != attempts[0][1]:
            break
        keys.append(key)
    told = _told(connection, keys)
    rows = connection.execute(_EARLIER, {"jobs": keys}).mappings()
    found = [_past(dict(row), told.get(row["pk"], ())) for row in rows if row["restarts"] < before_restarts]
    return tuple(sorted(found, key=lambda one: one.restarts))[-_PAST:]


def _past(row: Mapping[str, Any], told: Sequence[str]) -> PastAttempt:
    known = row["started"] is not None and row["ended"] is not None
    return PastAttempt(
        restarts=row["restarts"],
        finding=None if row["verdict"] is None else readable(row["verdict"]),
        source=row["source"] or "user",
        nodes=_nodes(row["nodes"], told),
        runtime=max(0.0, row["ended"] - row["started"]) if known else None,
        ended=row["ended"],
        resubmission=None if row["decided"] is None else row_of(row["decided"]),
    )
