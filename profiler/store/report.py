"""A user's attempts over a span of time, summed up: what `gsub report` tells. All sums are the database's.

What is counted, and how, is as in `profiler.report.frames` and `profiler.report.figures`, which do it for a whole site
in memory: attempts that ran in the window, GPU-hours inside it, all else of whole attempts, and what is not known is
left out of sums and told apart. Tests hold both to the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import fsum
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Double,
    RowMapping,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    union_all,
)

from profiler.answers import Advice, Figure, Report, ReportCause, ReportOutcome, ReportReason, ReportWait
from profiler.store.early import LONG, SEEN, SMOKE
from profiler.store.queries import STATE
from profiler.store.schema import WAITED, finding, job, job_node, verdict
from profiler.waits import CAUSES

__all__ = ["BOUNDS", "FAILED", "LONG_WAIT", "OUTCOMES", "SIZES", "UNKNOWN", "ReportQuery", "never_used"]

UNKNOWN: Final = "n/a"
"""The row of those of which it is not known to which one they belong, and of waiting that nobody saw."""
SIZES: Final = ("0", "1", "2-4", "5-8", "9-16", "17+")
"""GPUs of an attempt, in classes."""
BOUNDS: Final = (0, 1, 4, 8, 16)
"""The most GPUs of each class; the last has none."""
OUTCOMES: Final = {
    "completed": ("COMPLETED",),
    "cancelled": ("CANCELLED", "REQUEUED"),  # both at somebody's word: no failure
    "timeout": ("TIMEOUT", "DEADLINE"),
    "preempted": ("PREEMPTED",),
    "failed": ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"),
    "running": ("RUNNING", "SUSPENDED"),
    "unknown": (),
}
"""How an attempt ended, and Slurm's words for it; all other words, and none, are "unknown"."""
FAILED: Final = ("failed", "timeout", "preempted")
"""The outcomes that are failures."""
LONG_WAIT: Final = 600.0
"""Seconds from which on a wait counts as long."""
_FOR: Final = {cause: f"for_{cause}" for cause in CAUSES} | {UNKNOWN: "for_unknown"}
"""The columns with what an attempt waited for, in seconds."""
_SHORT: Final = 600.0
"""Seconds of run below which nothing is concluded from how much was used."""
_BUSY_CPUS: Final = 0.8
_LOW_USE: Final = 50.0
_MUCH_MEMORY: Final = 4 << 30
_LONG_LIMIT: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Whose attempts: of a uid, that ran from `since` on and before `until` (seconds since the epoch)."""

    cluster: str
    uid: int
    since: float
    until: float


def report(connection: Connection, query: ReportQuery) -> Report:
    """What a user's attempts held, used and lost."""
    values = {"cluster": query.cluster, "uid": query.uid, "since": query.since, "until": query.until}
    rows = connection.execute(_everything(), values).mappings().all()
    groups = [one for one in rows if one["place"] is None]
    spans = _quantiles(one for one in rows if one["place"] is not None)
    gpu = [one for one in groups if one["size"] != "0"]
    seen, busy = _figure(gpu, "seen"), _sum(gpu, "busy")
    share = 100 * busy / seen.value if busy is not None and seen.value else None
    return Report(
        cluster=query.cluster,
        since=query.since,
        until=query.until,
        attempts=_count(groups, "attempts"),
        jobs=int(spans["jobs", ""][5]),
        gpu_seconds=_figure(gpu, "gpu_seconds"),
        utilisation=Figure(share, seen.attempts, seen.unknown),
        idle_gpu_seconds=_figure(gpu, "idle"),
        failed_gpu_seconds=_figure(gpu, "failed"),
        wasted_gpu_seconds=_figure(gpu, "wasted"),
        held_seconds=_figure(groups, "held"),
        queued_seconds=_figure(groups, "wait"),
        outcomes=tuple(_outcomes(groups)),
        failures=tuple(_failures(groups, spans)),
        waits=tuple(_by_size(groups, spans)),
        causes=tuple(_by_cause(groups)),
        advice=tuple(_advice(groups)),
    )


# --- the statements: made once, which takes longer than a report of a few jobs --------------------------------------

_CLUSTER: Final = bindparam("cluster", type_=Text())
_UID: Final = bindparam("uid", type_=BigInteger())
_SINCE: Final[ColumnElement[float]] = bindparam("since", type_=Double())
_UNTIL: Final[ColumnElement[float]] = bindparam("until", type_=Double())


def _keys() -> Select[Any]:
    """The keys of the attempts that ran in the window, in three parts, each of which an index finds."""
    own = select(job.c.pk).where(job.c.cluster == _CLUSTER, job.c.uid == _UID)
    begun = own.where(job.c.sort_at >= _SINCE, job.c.sort_at < _UNTIL)
    earlier = own.where(job.c.ended > _SINCE, job.c.sort_at + 0 < _SINCE)
    open_ = select(job_node.c.job).where(job_node.c.ended_at.is_(None))
    heard = or_(job.c.touched > _SINCE, and_(job.c.facts_at > _SINCE, STATE == "RUNNING"))
    running = (
        select(job.c.pk)
        .where(job.c.pk.in_(open_), job.c.ended.is_(None), job.c.sort_at + 0 < _SINCE, heard)
        # Not searched by: what runs is few, a user's whole past is not
        .where(job.c.cluster.concat("") == _CLUSTER, job.c.uid + 0 == _UID)
    )
    every = union_all(begun, earlier, running).subquery()
    return select(every.c.pk)


def _attempts() -> Select[Any]:
    """A row for each attempt: what is known of it, how it ended, its run and its waits; NULL is "not known".

    In steps, as `_work`, each behind OFFSET 0: that keeps a database from putting an expression wherever its value is
    used.
    """
    keys = _keys().subquery()
    logs_read = and_(exists().where(finding.c.job == job.c.pk), not_(_has("unseen")))
    real = {name: cast(job.c[name], Double).label(name) for name in ("gpus", "cpus")}
    first = (
        select(
            job.c.job_id,
            case(
                *((STATE.in_(words), name) for name, words in OUTCOMES.items() if words), else_="unknown"
            ).label("outcome"),
            func.coalesce(func.nullif(verdict.c.reason, ""), UNKNOWN).label("reason"),
            *real.values(),
            cast(job.c.gpus_known, Double).label("known"),
            cast(job.c.gpus_idle, Double).label("unused"),
            job.c.utilisation_mean.label("use"),
            job.c.cpu_seconds,
            job.c.node_count,
            cast(job.c.memory_asked_bytes, Double).label("asked"),
            cast(job.c.memory_peak_bytes, Double).label("peak"),
            job.c.time_limit,
            job.c.started,
            job.c.ended,
            job.c.touched,
            job.c.facts_at,
            _no_less(job.c.started - func.coalesce(job.c.eligible, job.c.submitted)).label("wait"),
            _no_less(job.c.eligible - job.c.submitted).label("held"),
            *(job.c[name] for name in WAITED),
            # Of those alone of which it is asked: bodies are long
            case((and_(STATE.in_(OUTCOMES["timeout"]), logs_read), _has("checkpoint"))).label("saved"),
            and_(verdict.c.reason.in_(SEEN), not_(job.c.name.like(SMOKE))).label("smoke_sees"),
        )
        .join_from(keys, job, job.c.pk == keys.c.pk)
        .outerjoin(verdict, verdict.c.job == job.c.pk)
        .offset(0)
        .subquery()
    )
    said = case((and_(first.c.outcome == "running", first.c.facts_at > first.c.touched), first.c.facts_at))
    end = func.coalesce(first.c.ended, said, first.c.touched)
    return select(
        first,
        _no_less(end - first.c.started).label("run"),
        first.c.outcome.in_(FAILED).label("is_failed"),
        case(
            *((first.c.gpus <= most, size) for most, size in zip(BOUNDS, SIZES, strict=False)),
            (first.c.gpus.is_not(None), SIZES[-1]),
            else_=UNKNOWN,
        ).label("size"),
        *_causes(first.c),
    ).offset(0)


def _causes(c: Any) -> Iterable[ColumnElement[Any]]:  # noqa: ANN401 - columns by their names
    """Seconds from submission to start by cause: those of a user's own making are also those before it could start."""
    zero = literal(0.0)
    for cause, name in zip(CAUSES, WAITED, strict=True):
        value = c[name]
        if cause == "user":
            both = func.coalesce(c.held, zero) + func.coalesce(value, zero)
            value = case((or_(c.held.is_not(None), value.is_not(None)), both))
        yield value.label(_FOR[cause])
    seen = sum((func.coalesce(c[name], zero) for name in WAITED), zero)
    yield _no_less(c.wait - seen).label(_FOR[UNKNOWN])


def _work(second: CTE) -> Select[Any]:
    """The same attempts with what sums are made of."""
    stop = second.c.started + second.c.run
    low = case((second.c.started > _SINCE, second.c.started), else_=_SINCE)
    inside = _no_less(case((stop < _UNTIL, stop), (stop >= _UNTIL, _UNTIL)) - low)
    third = select(second, (second.c.gpus * inside).label("gpu_seconds")).offset(0).subquery()
    gpus, held = third.c.gpus, third.c.gpu_seconds
    unused = never_used(held, gpus, third.c.known, third.c.unused)
    share = case((third.c.known < gpus, third.c.known / gpus), (third.c.known >= gpus, 1.0))
    fourth = (
        select(
            third,
            case((and_(gpus > 0, third.c.use.is_not(None)), held * share)).label("seen"),
            unused.label("idle"),
            case((third.c.is_failed, held), else_=0.0).label("failed"),
            case((third.c.is_failed, held), else_=unused).label("wasted"),
        )
        .offset(0)
        .subquery()
    )
    return select(fourth, (fourth.c.seen * fourth.c.use / 100).label("busy")).offset(0)


def never_used(
    held: ColumnElement[Any], gpus: ColumnElement[Any], known: ColumnElement[Any], unused: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Of the time that an attempt held its `gpus` what fell to those it never used; NULL: not all were seen."""
    return case(
        (gpus == 0, 0.0),
        (known < gpus, null()),
        (unused < gpus, held * unused / gpus),
        (unused >= gpus, held),
    )


def _has(key: str) -> ColumnElement[bool]:
    """Whether the finding of a verdict has this key, which is left out when empty.

    It is searched for in the text: in what a log says, which is in there too, quotes are escaped.
    """
    return verdict.c.body.like(f'%,"{key}":%')


def _no_less(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Not less than 0; NULL stays NULL, which not every database's "greatest" does."""
    return case((value < 0, 0.0), else_=value)


_SUMMED: Final = ("gpu_seconds", "seen", "busy", "idle", "failed", "wasted", "wait", "held")


@cache
def _everything() -> CompoundSelect[Any]:
    """The rows of `_sums`, and those of `_ranked`: they alone have a `place`. Half of the work is to find attempts and
    what is known of them, so one statement does it once for both.
    """
    attempts = _attempts().cte("attempts")
    sums, ranked = _sums(attempts), _ranked(attempts).subquery()
    no_place = [cast(null(), kind).label(name) for name, kind in _RANK]
    padded = [cast(null(), column.type) for column in list(sums.selected_columns)[3:]]
    keys = [ranked.c.kind, ranked.c.key, literal("")]
    return union_all(
        sums.add_columns(*no_place),
        select(*keys, *padded, *(cast(ranked.c[name], kind) for name, kind in _RANK)),
    )


_RANK: Final = (("value", Double), ("place", BigInteger), ("last", BigInteger))


def _sums(attempts: CTE) -> Select[Any]:
    """Sums by outcome, reason and size: a few hundred rows at most, of which all tables are made."""
    work = _work(attempts).subquery()
    keys = (work.c.outcome, work.c.reason, work.c.size)
    columns: list[ColumnElement[Any]] = [func.count().label("attempts")]
    for name in _SUMMED:
        columns += [func.sum(work.c[name]).label(name), func.count(work.c[name]).label(f"{name}_known")]
    columns.append(func.count(case((work.c.wait >= LONG_WAIT, 1))).label("waited_long"))
    for name in _FOR.values():
        columns += [
            func.sum(work.c[name]).label(name),
            func.count(case((work.c[name] > 0, 1))).label(f"{name}_at_all"),
        ]
    columns += [
        func.count(work.c[WAITED[0]]).label("looked"),
        func.count(case((work.c.held.is_not(None), work.c[WAITED[0]]))).label("looked_and_held"),
    ]
    for one in _HINTS:
        columns += one.columns(work)
    return select(*keys, *columns).group_by(*keys)


def _ranked(work: CTE) -> CompoundSelect[Any]:
    """Values that there were, the lower one of two, at 5 and 9 tenths: by kind and key, with place and last place.

    Waits by size and of all; run times until the failure by reason. And how many jobs there were, of kind "jobs".
    """
    kinds = [
        select(literal("wait").label("kind"), work.c.size.label("key"), work.c.wait.label("value")),
        select(literal("wait"), literal("all"), work.c.wait),
        select(literal("run"), work.c.reason, work.c.run).where(work.c.is_failed),
    ]
    values = union_all(*kinds).subquery()
    keys = (values.c.kind, values.c.key)
    ranked = (
        select(
            *keys,
            values.c.value,
            (func.row_number().over(order_by=values.c.value, partition_by=keys) - 1).label("place"),
            (func.count().over(partition_by=keys) - 1).label("last"),
        )
        .where(values.c.value.is_not(None))
        .subquery()
    )
    place, last = ranked.c.place, ranked.c.last
    # By whole numbers: no share of a tenth is a binary fraction
    wanted = [and_(10 * place <= tenths * last, 10 * (place + 1) > tenths * last) for tenths in (5, 9)]
    # Each job counts once, however often it was tried
    jobs = cast(func.count(work.c.job_id.distinct()), Double)
    counted = select(literal("jobs"), literal(""), jobs, literal(0), literal(0))
    return union_all(select(ranked).where(or_(*wanted)), counted)


def _quantiles(rows: Iterable[RowMapping]) -> dict[tuple[str, str], dict[int, float]]:
    """Of rows of `_ranked`: by kind and key, each by its tenths (5: the median)."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        for tenths in (5, 9):
            if row["place"] == tenths * row["last"] // 10:
                # In the places of a sum's outcome and reason
                found.setdefault((row["outcome"], row["reason"]), {})[tenths] = row["value"]
    return found


# --- what would have helped -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hint:
    """A kind of advice, as conditions and values over the columns of `_work`.

    `known`: for which attempts it can be said; `is_so`: for which of these it is. `values` are summed up over those, or
    with a name that begins with "most" the highest is told.
    """

    name: str
    known: Callable[[Any], ColumnElement[bool]]
    is_so: Callable[[Any], ColumnElement[bool]]
    stake: str | None = None
    values: tuple[tuple[str, str], ...] = ()

    def columns(self, work: Any) -> Iterable[ColumnElement[Any]]:  # noqa: ANN401 - a subquery
        """What the database is asked for."""
        known = self.known(work.c)
        so = and_(known, self.is_so(work.c))
        yield func.count(case((known, 1))).label(f"{self.name}_of")
        yield func.count(case((so, 1))).label(f"{self.name}_so")
        yield func.max(case((so, work.c.job_id))).label(f"{self.name}_job")
        if self.stake is not None:
            yield func.sum(case((so, work.c[self.stake]))).label(f"{self.name}_stake")
        for name, column in self.values:
            whole = func.max if name.startswith("most") else func.sum
            yield whole(case((so, work.c[column]))).label(f"{self.name}_{name}")


def _ended_well(c: Any) -> ColumnElement[bool]:  # noqa: ANN401 - columns by their names
    return and_(c.outcome == "completed", c.run >= _SHORT)


_HINTS: Final = (
    _Hint("no_checkpoint", lambda c: c.saved.is_not(None), lambda c: not_(c.saved), "gpu_seconds"),
    _Hint(
        "smoke",
        lambda c: and_(c.is_failed, c.gpus > 1, c.reason != UNKNOWN, c.run.is_not(None)),
        lambda c: and_(c.smoke_sees, c.run < LONG),
        "gpu_seconds",
    ),
    _Hint(
        "unused_gpus",
        lambda c: and_(not_(c.is_failed), c.gpus > 0, c.run >= _SHORT, c.idle.is_not(None)),
        lambda c: c.unused >= c.gpus,
        "idle",
    ),
    _Hint(
        "spare_gpus",
        lambda c: and_(not_(c.is_failed), c.gpus > 1, c.run >= _SHORT, c.idle.is_not(None)),
        lambda c: and_(c.unused > 0, c.unused < c.gpus),
        "idle",
        (("gpus", "gpus"), ("unused", "unused")),
    ),
    _Hint(
        "cpus",
        lambda c: and_(
            c.gpus > 0, c.seen.is_not(None), c.use > 0, c.run >= _SHORT, c.cpus > 0, c.cpu_seconds > 0
        ),
        lambda c: and_(c.use < _LOW_USE, c.cpu_seconds >= _BUSY_CPUS * c.cpus * c.run),
        "gpu_seconds",
        (("seen", "seen"), ("busy", "busy")),
    ),
    # The peak is of one node, what was asked for is of all
    _Hint(
        "memory",
        lambda c: and_(_ended_well(c), c.node_count == 1, c.asked > 0, c.peak > 0),
        lambda c: and_(c.asked > 2 * c.peak, c.asked - c.peak >= _MUCH_MEMORY),
        None,
        (("asked", "asked"), ("most_used", "peak")),
    ),
    _Hint(
        "time_limit",
        lambda c: and_(_ended_well(c), c.time_limit > 0),
        lambda c: and_(c.time_limit >= _LONG_LIMIT, c.time_limit > 4 * c.run),
        None,
        (("asked", "time_limit"), ("most_used", "run")),
    ),
)


def _advice(groups: Sequence[RowMapping]) -> Iterable[Advice]:
    """What there is to say, the most GPU-hours at stake first."""
    told = []
    for one in _HINTS:
        count, of = (_count(groups, f"{one.name}_{which}") for which in ("so", "of"))
        if not count:
            continue
        values = {}
        for name, _ in one.values:
            found = _known(groups, f"{one.name}_{name}")
            values[name] = max(found) if name.startswith("most") else fsum(found)
        if one.name == "smoke":
            values = {
                reason: float(_count(part, "smoke_so"))
                for reason, part in sorted(_by(groups, "reason").items())
                if reason in SEEN and _count(part, "smoke_so")
            }
        stake = None if one.stake is None else _sum(groups, f"{one.name}_stake")
        last = max(_known(groups, f"{one.name}_job"))
        told.append(Advice(one.name, count, of, int(last), stake, values))
    return sorted(told, key=lambda one: -(one.gpu_seconds or 0.0))


# --- tables out of the sums -----------------------------------------------------------------------------------------


def _known(groups: Iterable[RowMapping], name: str) -> list[float]:
    # PostgreSQL sums whole numbers up as decimals
    return [float(one[name]) for one in groups if one[name] is not None]


def _sum(groups: Iterable[RowMapping], name: str) -> float | None:
    """None of none that is known."""
    found = _known(groups, name)
    return fsum(found) if found else None


def _count(groups: Iterable[RowMapping], name: str) -> int:
    return sum(one[name] for one in groups)


def _figure(groups: Sequence[RowMapping], name: str) -> Figure:
    """The sum of a column of `_SUMMED`."""
    attempts = _count(groups, "attempts")
    return Figure(_sum(groups, name), attempts, attempts - _count(groups, f"{name}_known"))


def _by(groups: Sequence[RowMapping], name: str) -> dict[str, list[RowMapping]]:
    parts: dict[str, list[RowMapping]] = {}
    for one in groups:
        parts.setdefault(one[name], []).append(one)
    return parts


def _outcomes(groups: Sequence[RowMapping]) -> Iterable[ReportOutcome]:
    parts = _by(groups, "outcome")
    for name in OUTCOMES:
        if name in parts:
            held = _figure(parts[name], "gpu_seconds")
            yield ReportOutcome(name, held.attempts, held.value, held.unknown)


def _failures(
    groups: Sequence[RowMapping], spans: Mapping[tuple[str, str], Mapping[int, float]]
) -> Iterable[ReportReason]:
    """The costliest first."""
    rows = []
    for name, part in _by([one for one in groups if one["outcome"] in FAILED], "reason").items():
        held = _figure(part, "gpu_seconds")
        median = spans.get(("run", name), {}).get(5)
        rows.append(ReportReason(name, held.attempts, held.value, median, held.unknown))
    return sorted(rows, key=lambda one: (-(one.gpu_seconds or 0.0), -one.attempts, one.reason))


def _by_cause(groups: Sequence[RowMapping]) -> Iterable[ReportCause]:
    attempts = _count(groups, "attempts")
    known = dict.fromkeys(CAUSES, _count(groups, "looked"))
    # Before it could start a job waited for its user, whether anybody looked or not
    known |= {"user": _count(groups, "looked_and_held"), UNKNOWN: _count(groups, "wait_known")}
    for cause, name in _FOR.items() if attempts else ():
        yield ReportCause(
            cause, attempts, attempts - known[cause], _count(groups, f"{name}_at_all"), _sum(groups, name)
        )


def _by_size(
    groups: Sequence[RowMapping], spans: Mapping[tuple[str, str], Mapping[int, float]]
) -> Iterable[ReportWait]:
    parts = _by(groups, "size")
    for name in (*SIZES, UNKNOWN, "all"):
        part = groups if name == "all" else parts.get(name, ())
        if part:
            waited, found = _figure(part, "wait"), spans.get(("wait", name), {})
            long = _count(part, "waited_long")
            yield ReportWait(
                name, waited.attempts, waited.unknown, found.get(5), found.get(9), waited.value, long
            )
