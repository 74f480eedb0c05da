"""What is asked of verdicts: a page of them, one with its likes, the decision at submission, the table of reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, select

from profiler.answers import JobSummary, ReasonRow, Reasons, Similar, Verdict, Verdicts
from profiler.store.bodies import finding_of
from profiler.store.bulk import chunks
from profiler.store.queries import LIMIT, LISTED, STATE, page, unsearched
from profiler.store.schema import decision as decision_
from profiler.store.schema import job, verdict
from profiler.wording import shown_id

__all__ = ["ReasonsQuery", "VerdictQuery"]

_DAYS: Final = 30
"""Days before a failure in which others like it are looked for."""
_NAMED: Final = 5
_LATER: Final = 1000
"""Runs that ended well after a failure, among which those of its name are looked for."""
_KNOWN_AFTER: Final = 600.0
"""Seconds after a submission in which its decision is written down at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictQuery:
    """Which verdicts: of a user's jobs, of one job or attempt, or all; all conditions hold. Times are of the end."""

    cluster: str
    uid: int | None = None
    user: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    job_id: int | None = None
    restarts: int | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonsQuery:
    """Of which failures: those that ended from `since` on and before `until`, of a uid, a user, an account."""

    cluster: str
    since: float
    until: float
    uid: int | None = None
    user: str | None = None
    account: str | None = None


def verdicts(connection: Connection, query: VerdictQuery) -> Verdicts:
    """A page of verdicts, the last to end first. Raises CursorError."""
    wanted = select(verdict.c.job, verdict.c.at)
    if query.job_id is None:
        wanted = wanted.where(verdict.c.cluster == query.cluster)
    else:
        # Its attempts are looked up first, and nothing else is searched by: a planner might take the cluster's verdicts
        attempts = select(job.c.pk).where(job.c.cluster == query.cluster, job.c.job_id == query.job_id)
        if query.restarts is not None:
            attempts = attempts.where(job.c.restarts == query.restarts)
        found = connection.execute(attempts.order_by(job.c.restarts.desc()).limit(LIMIT)).scalars().all()
        wanted = wanted.where(verdict.c.job.in_(found))
    if query.uid is not None:
        wanted = wanted.where(verdict.c.uid == query.uid)
    if query.user is not None:
        wanted = wanted.where(unsearched(verdict.c.user) == query.user)
    if query.reason is not None:
        # Everybody's by one reason are in an index; a user's are few enough to be looked through
        by_it = verdict.c.reason if query.uid is None else unsearched(verdict.c.reason)
        wanted = wanted.where(by_it == query.reason)
    if query.fingerprint is not None:
        # A user's are in an index by it; among everybody's it is looked for
        by_it = verdict.c.fingerprint if query.uid is not None else unsearched(verdict.c.fingerprint)
        wanted = wanted.where(by_it == query.fingerprint)
    keys, after = page(connection, wanted, verdict.c.at, query)
    return Verdicts(tuple(_by_key(connection, [key for key, _ in keys])), after)


def of_attempt(connection: Connection, pk: int) -> Verdict | None:
    """Why an attempt failed."""
    return next(iter(_by_key(connection, [pk])), None)


def _by_key(connection: Connection, keys: Sequence[int]) -> list[Verdict]:
    wanted = select(
        verdict.c.job,
        verdict.c.cluster,
        verdict.c.job_id,
        job.c.restarts,
        verdict.c.body,
        verdict.c.source,
        verdict.c.at,
        STATE,
        verdict.c.gpu_seconds,
    ).join(job, job.c.pk == verdict.c.job)
    found: dict[int, Verdict] = {}
    for some in chunks(keys):
        for row in connection.execute(wanted.where(verdict.c.job.in_(some))):
            found[row[0]] = Verdict(*row[1:4], finding_of(row[4]), *row[5:])
    return [found[key] for key in keys if key in found]


def similar(connection: Connection, pk: int) -> Similar | None:
    """Other failures of the user that look like that of an attempt; None where there are none."""
    of = connection.execute(select(verdict).where(verdict.c.job == pk)).mappings().first()
    if of is None or of["uid"] is None:
        return None
    like = and_(
        verdict.c.cluster == of["cluster"],
        verdict.c.uid == of["uid"],
        verdict.c.at >= of["at"] - _DAYS * 86400.0,
        verdict.c.job != pk,
    )
    if of["fingerprint"]:
        found = _similar(connection, of, and_(like, verdict.c.fingerprint == of["fingerprint"]))
        if found is not None:
            return found
    if not of["name"] or of["reason"] == "none":
        return None
    same = and_(like, verdict.c.reason == of["reason"], verdict.c.name == of["name"])
    found = _similar(connection, of, same)
    return None if found is None else msgspec.structs.replace(found, by="reason")


def _similar(connection: Connection, of: Any, like: ColumnElement[bool]) -> Similar | None:  # noqa: ANN401 - a row
    count, last_at = connection.execute(select(func.count(), func.max(verdict.c.at)).where(like)).one()
    if not count:
        return None
    last = select(verdict.c.job).where(like).order_by(verdict.c.at.desc(), verdict.c.job.desc()).limit(_NAMED)
    keys = connection.execute(last).scalars().all()
    rows = {row[0]: JobSummary(*row[1:]) for row in connection.execute(LISTED, {"keys": keys})}
    names = tuple(shown_id(rows[key]) for key in keys if key in rows)
    # In two steps: a user's runs from an index, then the names of those that are left
    later = (
        select(job.c.name)
        .where(
            job.c.cluster == of["cluster"],
            job.c.uid == of["uid"],
            job.c.sort_at > max(last_at, of["at"]),
            unsearched(job.c.state) == "COMPLETED",
        )
        .order_by(job.c.sort_at, job.c.pk)
        .limit(_LATER)
        .subquery()
    )
    passed = connection.execute(select(func.count()).where(later.c.name == of["name"])).scalar()
    return Similar(count, _DAYS, names[0] if names else "", last_at, passed or 0, names)


def decision(connection: Connection, of: JobSummary) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What was decided when a job was submitted, and how that was found to be of it: lines of the journal."""
    number = of.job_id if of.array_job_id is None else of.array_job_id
    # In two steps, lest SQLite read all decisions of the cluster by the primary key: first their ids, from an index
    ids = select(decision_.c.id).where(decision_.c.cluster == of.cluster, decision_.c.job_id == number)
    keys = connection.execute(ids.limit(LIMIT)).scalars().all()
    wanted = select(decision_.c.at, decision_.c.uid, decision_.c.body, decision_.c.joined)
    rows = [
        row
        for some in chunks(keys)
        for row in connection.execute(
            wanted.where(decision_.c.cluster == of.cluster, decision_.c.id.in_(some))
        )
        # Numbers of jobs come again
        if of.submitted is None or row.at <= of.submitted + _KNOWN_AFTER
    ]
    row = max(rows, key=lambda row: float(row.at), default=None)
    # One number, another user: it was another job
    if row is None or (row.uid is not None and row.uid != of.uid):
        return None, None
    return _line(row.body), _line(row.joined)


def _line(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def reasons(connection: Connection, query: ReasonsQuery) -> Reasons:
    """Failures by reason, the costliest first."""
    rows = [_row(connection, query, reason) for reason in _present(connection, query.cluster)]
    told = [row for row in rows if row is not None]
    told.sort(key=lambda row: (-row.gpu_seconds, -row.attempts, row.reason))
    return Reasons(tuple(told), query.since, query.until)


def _present(connection: Connection, cluster: str) -> Iterator[str]:
    """The reasons that there are: each found by one step in an index, where DISTINCT would read all of it."""
    least = select(func.min(verdict.c.reason)).where(verdict.c.cluster == cluster)
    found = connection.execute(least).scalar()
    while found is not None:
        if found != "none":
            yield found
        found = connection.execute(least.where(verdict.c.reason > found)).scalar()


def _row(connection: Connection, query: ReasonsQuery, reason: str) -> ReasonRow | None:
    """One reason, out of its part of an index; None: nothing of that span or of those people.

    Reason by reason, because a GROUP BY sorts all rows [measured, SQLite, 320,000 verdicts: 0.33 s of CPU, else 1.2 s].
    """
    where = [
        verdict.c.cluster == query.cluster,
        verdict.c.reason == reason,
        verdict.c.at >= query.since,
        verdict.c.at < query.until,
    ]
    if query.uid is not None:
        # Not searched by: the indexes of a user's verdicts do not hold what is summed up
        where.append(verdict.c.uid + 0 == query.uid)
    if query.user is not None:
        where.append(unsearched(verdict.c.user) == query.user)
    if query.account is not None:
        where.append(unsearched(verdict.c.account) == query.account)
    sums = select(
        func.count(),
        func.count(verdict.c.job_id.distinct()),
        func.count(verdict.c.uid.distinct()),
        func.sum(verdict.c.gpu_seconds),
        func.count(verdict.c.runtime),
    ).where(*where)
    attempts, jobs, users, held, ran = connection.execute(sums).one()
    if not attempts:
        return None
    # The lower one of two in the middle: a run time that there was
    runtimes = (
        select(verdict.c.runtime).where(*where, verdict.c.runtime.is_not(None)).order_by(verdict.c.runtime)
    )
    median = connection.execute(runtimes.limit(1).offset((ran - 1) // 2)).scalar() if ran else None
    return ReasonRow(reason, attempts, jobs, users, held or 0.0, median)
