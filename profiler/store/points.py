"""What runs of workloads measured, kept for each user apart, and no more of it than curves are made from.

Of one user there are `WORKLOADS` workloads at most, each type of GPU on its own (those that were measured last stay),
of each `RUNS` runs that were driven, `RUNS` ordinary ones with a point, and as many of which only the memory is known:
a sweep of thousands of ordinary runs must not push out the one that learnt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, func, select

from profiler.gathered import RUNS
from profiler.points import Measured
from profiler.store.bulk import chunks, insert_new, lock
from profiler.store.merge import clean
from profiler.store.schema import decision, job, job_node, profile_point

__all__ = ["RUNS", "WORKLOADS", "Ran", "forget", "put", "ran", "runs", "users"]

WORKLOADS: Final = 200
_ENDED: Final = 5000
"""Attempts that are looked at in one go."""
_PROC: Final = 2  # of profiler.store.merge.HOST_SOURCES: resident pages, no page cache

_decoder: Final = msgspec.json.Decoder(Measured)


def put(connection: Connection, cluster: str, uid: int, measured: Sequence[Measured]) -> int:
    """Keep what runs of a user measured; a repeat changes nothing. How many were new."""
    lock(connection, [cluster])
    before = _count(connection, cluster, uid)
    rows: list[dict[str, Any]] = [
        {
            "cluster": cluster,
            "uid": uid,
            "id": one.id,
            "family": clean(one.workload[-1]),
            "gpu_type": one.gpu_type,
            "source": one.source,
            "counts": len(one.points),
            "at": one.at,
            "body": msgspec.json.encode(one).decode(),
        }
        for one in measured
    ]
    insert_new(connection, profile_point, rows)
    new = _count(connection, cluster, uid) - before
    if new:
        _trim(connection, cluster, uid)
    return new


def _count(connection: Connection, cluster: str, uid: int) -> int:
    table = profile_point.c
    wanted = select(func.count()).where(table.cluster == cluster, table.uid == uid)
    return int(connection.execute(wanted).scalar_one())


def _trim(connection: Connection, cluster: str, uid: int) -> None:
    """Remove what is more than may be kept of a user."""
    table = profile_point.c
    found = connection.execute(
        select(table.pk, table.family, table.gpu_type, table.counts, table.source)
        .where(table.cluster == cluster, table.uid == uid)
        .order_by(table.at.desc(), table.pk.desc())
    ).all()
    kept: dict[tuple[str, str, bool, bool], int] = {}
    families: dict[tuple[str, str], None] = {}
    over = []
    for row in found:
        # The type is the sender's word, too
        if (row.family, row.gpu_type) not in families and len(families) >= WORKLOADS:
            over.append(row.pk)
            continue
        families[row.family, row.gpu_type] = None
        key = (row.family, row.gpu_type, row.counts > 0, row.source == "run")
        kept[key] = kept.get(key, 0) + 1
        if kept[key] > RUNS:
            over.append(row.pk)
    for some in chunks(over):
        connection.execute(delete(profile_point).where(table.pk.in_(some)))


def users(connection: Connection, cluster: str) -> tuple[int, ...]:
    """The users of whom something is kept."""
    table = profile_point.c
    found = connection.execute(select(table.uid).where(table.cluster == cluster).distinct()).scalars()
    return tuple(sorted(found))


def runs(connection: Connection, cluster: str, uid: int) -> tuple[Measured, ...]:
    """What runs of a user measured, the newest first."""
    table = profile_point.c
    found = connection.execute(
        select(table.body)
        .where(table.cluster == cluster, table.uid == uid)
        .order_by(table.at.desc(), table.pk.desc())
    ).scalars()
    return tuple(one for body in found if (one := _read(body)) is not None)


def named(connection: Connection, cluster: str, uid: int) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The names of each run of a user, with its key for `forget`."""
    table = profile_point.c
    found = connection.execute(
        select(table.pk, table.body).where(table.cluster == cluster, table.uid == uid)
    ).all()
    return tuple((row.pk, one.workload) for row in found if (one := _read(row.body)) is not None)


def forget(connection: Connection, cluster: str, uid: int, keys: Sequence[int]) -> int:
    """Remove runs of a user; how many of them there were."""
    lock(connection, [cluster])
    table, count = profile_point.c, 0
    for some in chunks(keys):
        own = (table.cluster == cluster, table.uid == uid, table.pk.in_(some))
        count += connection.execute(delete(profile_point).where(*own)).rowcount
    return count


def _read(body: str) -> Measured | None:
    """None for one that another release wrote."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None


# --- ordinary runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ran:
    """An attempt that ended, with what is known of its memory; `decision` is the line of gsubd's journal.

    `peak` is the most bytes that it came to use on one node, without what the kernel could have taken back where that
    is known.
    """

    uid: int
    job_id: int
    restarts: int
    ended: float
    gpus: int
    peak: int
    decision: str


def ran(
    connection: Connection, cluster: str, since: float, known: Collection[tuple[int, int]] = ()
) -> tuple[Ran, ...]:
    """The attempts that ended since then, of which both a decision and the memory are known; not those in `known`
    (job and restarts)."""
    ended = (
        select(job.c.pk, job.c.job_id, job.c.restarts)
        .where(job.c.cluster == cluster, job.c.ended >= since)
        .order_by(job.c.ended.desc())
        .limit(_ENDED)
    )
    keys = [row.pk for row in connection.execute(ended) if (row.job_id, row.restarts) not in known]
    return tuple(one for some in chunks(keys) for one in _of(connection, cluster, some))


def _of(connection: Connection, cluster: str, keys: Sequence[int]) -> Iterator[Ran]:
    wanted = select(
        job.c.pk, job.c.job_id, job.c.restarts, job.c.uid, job.c.ended, job.c.gpus, job.c.array_job_id
    )
    jobs = {
        row.pk: row
        for row in connection.execute(wanted.where(job.c.pk.in_(keys)))
        if row.uid is not None and row.gpus and row.ended is not None
    }
    nodes: dict[int, list[int | None]] = {}
    table = job_node.c
    used = select(table.job, table.host_source, table.memory_peak_bytes, table.memory_working_bytes)
    for there in connection.execute(used.where(table.job.in_(list(jobs)))):
        # The peak of a cgroup counts the page cache, which is no need
        seen = there.memory_peak_bytes if there.host_source == _PROC else there.memory_working_bytes
        nodes.setdefault(there.job, []).append(seen)
    decided: dict[int, str] = {}
    # An array is decided about as a whole
    numbers = sorted({jobs[pk].array_job_id or jobs[pk].job_id for pk in nodes})
    for some in chunks(numbers):
        lines = select(decision.c.job_id, decision.c.body).where(
            decision.c.cluster == cluster, decision.c.job_id.in_(some), decision.c.body.is_not(None)
        )
        decided.update((number, body) for number, body in connection.execute(lines))
    for pk, peaks in nodes.items():
        one = jobs[pk]
        known = [peak for peak in peaks if peak]
        body = decided.get(one.array_job_id or one.job_id)
        if known and body is not None:
            gpus = max(-(-one.gpus // len(peaks)), 1)
            yield Ran(one.uid, one.job_id, one.restarts, one.ended, gpus, max(known), body)
