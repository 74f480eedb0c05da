"""What enforce would have changed, against what really happened: read from the store, a stage at a time.

Two windows, one span of time: decisions of jobs that were **submitted** in it, each with all attempts at its job; and
failures that **ended** in it, with what would have followed. What was enforced is counted apart: it tells nothing of
what would have been. Rows are read in the order of their times, so that the order in which they were written shows
nowhere; of a million jobs only counts and a few numbers for each are held at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from sqlalchemy import Connection, Row, func, select

from profiler.report.shadow_again import Again, Failure, LaterRun
from profiler.report.shadow_stages import Stages
from profiler.report.shadow_values import Attempt, Body, Script, Stage
from profiler.store.bulk import chunks
from profiler.store.queries import STATE, unsearched
from profiler.store.schema import decision, job, job_node, resubmission, verdict

if TYPE_CHECKING:
    from profiler.store import Store
    from site_configs.site_model import Site

__all__ = ["AGAIN", "SETTLED", "Overview", "Shadow", "shadow"]

_Decided: TypeAlias = tuple[Row[Any], Body | None]
_CHUNK: Final = 500
_NEAR: Final = 600.0
"""Seconds after a submission in which its decision is written down at the latest."""
AGAIN: Final = 86400.0
"""Seconds after a failure in which a run of the same script counts as the user's own next attempt."""
SETTLED: Final = 7 * 86400.0
"""Seconds between a decision and the end of the window after which a job without an attempt counts as one that never
runs: the store has jobs that ran, and does not tell one that waits from one that was cancelled."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page rests on: decisions of the window, and what is known of them.

    `enforced` and `opted_out` would tell nothing and are left out; `unread` are records that cannot be read; `lost` are
    decisions of which no job is known (Slurm refused it, --test-only, or several jobs could be meant).
    """

    decisions: int = 0
    enforced: int = 0
    opted_out: int = 0
    unread: int = 0
    lost: int = 0
    attempts: int = 0
    failures: int = 0
    """Failed attempts that ended in the window, with or without a decision."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """The page: times are seconds since the epoch."""

    cluster: str
    since: float
    until: float
    partition: str | None
    overview: Overview
    stages: tuple[Stage, ...]


def shadow(
    store: Store,
    *,
    cluster: str,
    since: float,
    until: float,
    partition: str | None = None,
    site: Site | None = None,
    progress: Callable[[int], None] | None = None,
) -> Shadow:
    """Read the page out of a store; `site` tells where leaf switches are. Raises StoreError."""
    with store.reading("The decisions cannot be read.") as connection:
        again = Again()
        failures = 0
        for failed in _failures(connection, cluster, since, until, partition):
            failures += 1
            again.take(failed)
        _name_scripts(connection, cluster, again)
        stages = Stages(site)
        counts: Counter[str] = Counter()
        last = until + AGAIN if again.waits else until
        for rows in _decisions(connection, cluster, since, last):
            bodies = [(row, _body(row.body)) for row in rows]
            for row, body in bodies:
                if body is not None and row.job_id is not None and body.script is not None:
                    again.submitted(row.uid, body.script.sha256, row.at, row.job_id, within=AGAIN)
            for some in _batches([(row, body) for row, body in bodies if row.at < until]):
                _judge(connection, cluster, some, stages, counts, partition, until - SETTLED)
            if progress is not None:
                progress(counts["decisions"])
        again.learn(_later_runs(connection, cluster, again.later()))
    return Shadow(
        cluster,
        since,
        until,
        partition,
        Overview(**counts, failures=failures),
        (*stages.done(), again.done()),
    )


# --- decisions ------------------------------------------------------------------------------------------------------


def _decisions(
    connection: Connection, cluster: str, since: float, until: float
) -> Iterator[Sequence[Row[Any]]]:
    """Decisions by their time, some at a time."""
    columns = (
        decision.c[name] for name in ("at", "id", "uid", "mode", "enforced", "outcome", "job_id", "body")
    )
    wanted = (
        select(*columns)
        # By the index of times: the primary key would give all of the cluster's
        .where(unsearched(decision.c.cluster) == cluster, decision.c.at < until, decision.c.body.is_not(None))
        .order_by(decision.c.at, decision.c.id)
        .limit(_CHUNK)
    )
    at, key = since, ""
    while rows := connection.execute(
        wanted.where(decision.c.at >= at, (decision.c.at > at) | (decision.c.id > key))
    ).all():
        yield rows
        at, key = rows[-1].at, rows[-1].id


def _body(text: str) -> Body | None:
    try:
        return msgspec.json.decode(text, type=Body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _batches(rows: Sequence[_Decided]) -> Iterator[Sequence[_Decided]]:
    """Decisions to be looked at together; an array alone, which may have as many attempts as all the others."""
    others: list[_Decided] = []
    for row, body in rows:
        if body is not None and body.asked.array_inx:
            yield [(row, body)]
        else:
            others.append((row, body))
    yield others


def _judge(  # noqa: PLR0917
    connection: Connection,
    cluster: str,
    rows: Sequence[_Decided],
    stages: Stages,
    counts: Counter[str],
    partition: str | None,
    settled: float,
) -> None:
    """Add decisions to the stages, and to the counts of an Overview. Jobs submitted by `settled` had time to run."""
    numbers = sorted({row.job_id for row, _ in rows if row.job_id is not None})
    attempts = _attempts(connection, cluster, numbers)
    owners = _owners(connection, cluster, numbers)
    memory = [
        one.key
        for row, body in rows
        if body is not None and body.changes_memory
        for one in attempts.get(row.job_id, ())
    ]
    peaks = _peaks(connection, memory)
    for row, body in rows:
        if body is None:
            counts.update(("decisions", "unread"))
            continue
        others = owners.get(row.job_id, ())
        own = [one for one in attempts.get(row.job_id, ()) if _is_of(one, row, others)]
        # One that may go to several partitions goes by the most cautious mode of them: not by this one's alone
        where = body.asked.partition or (own[0].partition if own else "")
        if partition not in (None, where):
            continue
        counts["decisions"] += 1
        # A refusal that was carried out held no edits
        done = row.enforced or (row.mode == "enforce" and body.reject is not None)
        if done or body.opted_out:
            counts["enforced" if done else "opted_out"] += 1
            continue
        counts["lost"] += row.outcome != "job"
        counts["attempts"] += len(own)
        for one in own:
            one.peak = peaks.get(one.key, one.peak)
        stages.add(body, own, settled=row.outcome == "job" and row.at <= settled)


def _is_of(one: Attempt, row: Row[Any], others: Sequence[tuple[float, str]]) -> bool:
    """Whether an attempt is of this decision: numbers of jobs come again, and so do users."""
    if row.uid is not None and one.uid is not None and row.uid != one.uid:
        return False
    if one.submitted is None:
        return not others
    before = [other for other in ((row.at, row.id), *others) if other[0] <= one.submitted + _NEAR]
    return bool(before) and max(before)[1] == row.id


def _owners(
    connection: Connection, cluster: str, numbers: Sequence[int]
) -> Mapping[int, list[tuple[float, str]]]:
    """The decisions of those numbers of jobs that have several: time and id of each."""
    ids: dict[int, list[str]] = {}
    for some in chunks(numbers):
        # An index alone answers this: the number and the primary key
        wanted = select(decision.c.job_id, decision.c.id).where(
            decision.c.cluster == cluster, decision.c.job_id.in_(some)
        )
        for row in connection.execute(wanted):
            ids.setdefault(row.job_id, []).append(row.id)
    several = [(number, key) for number, keys in ids.items() if len(keys) > 1 for key in keys]
    times: dict[str, float] = {}
    for keys in chunks([key for _, key in several]):
        wanted = select(decision.c.id, decision.c.at).where(
            decision.c.cluster == cluster, decision.c.id.in_(keys)
        )
        times |= {row.id: row.at for row in connection.execute(wanted)}
    found: dict[int, list[tuple[float, str]]] = {}
    for number, key in several:
        found.setdefault(number, []).append((times[key], key))
    return found


_OF_JOB = (
    *(job.c[name] for name in ("pk", "job_id", "array_job_id", "restarts", "uid", "partition", "nodes")),
    STATE,
    *(job.c[name] for name in ("submitted", "eligible", "started", "ended", "node_count", "cpus", "gpus")),
    *(job.c[name] for name in ("memory_asked_bytes", "memory_peak_bytes", "cpu_seconds", "utilisation_mean")),
    verdict.c.reason.label("why"),
)


def _rows_of(connection: Connection, cluster: str, numbers: Sequence[int]) -> Iterator[Row[Any]]:
    """The attempts at jobs of these numbers, an array's tasks by the array's."""
    wanted = select(*_OF_JOB).outerjoin(verdict, verdict.c.job == job.c.pk).where(job.c.cluster == cluster)
    for some in chunks(numbers):
        alone = connection.execute(wanted.where(job.c.job_id.in_(some))).all()
        tasks = connection.execute(wanted.where(job.c.array_job_id.in_(some))).all()
        # The last task of an array has the array's own number
        yield from {row.pk: row for row in (*alone, *tasks)}.values()


def _attempts(
    connection: Connection, cluster: str, numbers: Sequence[int]
) -> Mapping[int | None, list[Attempt]]:
    found: dict[int | None, list[Attempt]] = {}
    for row in _rows_of(connection, cluster, numbers):
        number = row.job_id if row.array_job_id is None else row.array_job_id
        found.setdefault(number, []).append(Attempt.of(row))
    for some in found.values():
        some.sort(key=lambda one: (one.job_id, one.restarts))
    return found


def _peaks(connection: Connection, keys: Sequence[int]) -> Mapping[int, float]:
    """The most memory on a node without what the kernel could take back, of attempts all of whose nodes tell it."""
    found: dict[int, float] = {}
    for some in chunks(keys):
        working = job_node.c.memory_working_bytes
        wanted = (
            select(job_node.c.job, func.max(working).label("most"))
            .where(job_node.c.job.in_(some))
            .group_by(job_node.c.job)
            .having(func.count() == func.count(working))
        )
        found |= {row.job: float(row.most) for row in connection.execute(wanted)}
    return found


# --- failures -------------------------------------------------------------------------------------------------------


class _Followed(msgspec.Struct):
    """What is read of a resubmission."""

    stop: str = ""


class _Named(msgspec.Struct):
    """What is read of a decision to know its script again."""

    script: Script | None = None


def _failures(
    connection: Connection, cluster: str, since: float, until: float, partition: str | None
) -> Iterator[Failure]:
    """Failed attempts by the time of their end, with what would have followed."""
    names = ("job", "job_id", "uid", "at", "reason", "gpu_seconds")
    wanted = (
        select(
            *(verdict.c[name] for name in names),
            job.c.array_job_id,
            job.c.restarts,
            resubmission.c.state,
            resubmission.c.body,
        )
        .join(job, job.c.pk == verdict.c.job)
        .outerjoin(resubmission, resubmission.c.job == verdict.c.job)
        .where(verdict.c.cluster == cluster, verdict.c.at < until, verdict.c.reason != "none")
        .order_by(verdict.c.at, verdict.c.job)
        .limit(_CHUNK)
    )
    if partition is not None:
        wanted = wanted.where(job.c.partition == partition)
    at, key = since, -1
    while rows := connection.execute(
        wanted.where(verdict.c.at >= at, (verdict.c.at > at) | (verdict.c.job > key))
    ).all():
        at, key = rows[-1].at, rows[-1].job
        for row in rows:
            yield Failure(
                number=row.job_id if row.array_job_id is None else row.array_job_id,
                job_id=row.job_id,
                restarts=row.restarts,
                uid=row.uid,
                at=row.at,
                reason=row.reason,
                gpu_seconds=row.gpu_seconds,
                followed=_followed(row.state, row.body),
            )


def _followed(state: str | None, body: str) -> str:
    """What gsub said: it `tried` again, it `would`, `never`, or another word for why not; "" where it said nothing."""
    if state is None:
        return ""
    if state != "stopped":
        return "tried"
    try:
        stop = msgspec.json.decode(body, type=_Followed).stop
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return "would" if stop == "mode" else stop


def _name_scripts(connection: Connection, cluster: str, again: Again) -> None:
    """Find the script of each failure by the decision of its job."""
    numbers = again.numbers()
    keys: dict[str, int] = {}
    for some in chunks(numbers):
        wanted = select(decision.c.job_id, decision.c.id).where(
            decision.c.cluster == cluster, decision.c.job_id.in_(some)
        )
        keys |= {row.id: row.job_id for row in connection.execute(wanted)}
    for ids in chunks(list(keys)):
        wanted_body = select(decision.c.id, decision.c.at, decision.c.uid, decision.c.body).where(
            decision.c.cluster == cluster, decision.c.id.in_(ids), decision.c.body.is_not(None)
        )
        for row in connection.execute(wanted_body):
            try:
                named = msgspec.json.decode(row.body, type=_Named)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if named.script is not None and named.script.sha256:
                again.script(keys[row.id], row.uid, row.at, named.script.sha256)
    again.begin()


def _later_runs(connection: Connection, cluster: str, numbers: Sequence[int]) -> Iterator[LaterRun]:
    for row in _rows_of(connection, cluster, numbers):
        yield LaterRun(
            number=row.job_id if row.array_job_id is None else row.array_job_id,
            job_id=row.job_id,
            restarts=row.restarts,
            uid=row.uid,
            submitted=row.submitted,
            state=row.state or "",
            reason=row.why or "",
        )
