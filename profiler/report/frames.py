"""The store as a pandas data frame: one row for each attempt at a job that ran in a window of time.

    store = open_store("sqlite:////var/lib/gsub/store.db", read_only=True)
    frame = jobs(store, cluster="lab", since=1_760_000_000.0, until=1_762_000_000.0)
    frame.groupby("account", observed=True).gpu_hours.sum()

**Which rows.** Every attempt that ran at some moment from `since` on and before `until`; one of which only the time is
known at which a node first told of it counts as started then. Several attempts at one job (requeues) are several rows.

**GPU-hours are those inside the window**: GPUs times the part of the run that lies in it. So the hours of two months
are those of both together, and no attempt has more than it could have. All else (run time, waiting, utilisation,
outcome) is of the whole attempt, as it is known now, also where it ended after the window.

**What is not known is NA**, never 0: NaN in columns of reals, NaT in times, `<NA>` in whole numbers, no category in
texts. `isna()` finds all of them, sums leave them out. COLUMNS says what is in each column, and its unit.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pandas as pd
from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from profiler.store.bulk import chunks
from profiler.store.queries import STATE
from profiler.store.report import OUTCOMES as STATES
from profiler.store.schema import WAITED, gpu_usage, job, job_node, verdict
from profiler.waits import CAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiler.store import Store

__all__ = ["COLUMNS", "OUTCOMES", "Frame", "jobs", "pseudonymous", "span"]

Frame: TypeAlias = pd.DataFrame

_WAITED: Final = {
    "priority": "jobs that come before it (fair share)",
    "resources": "GPUs, CPUs or memory",
    "locality": "few switches, or GPUs that are free but lie apart",
    "limits": "limits of its account or QOS",
    "user": "something of its user's, as a hold",
    "other": "anything else",
}
COLUMNS: Final = {
    "job": "Slurm's job id",
    "restarts": "how often it was requeued before this attempt",
    "name": "the job's name",
    "user": "who submitted it",
    "account": "Slurm account",
    "partition": "partition that it ran in",
    "qos": "quality of service",
    "gpu_type": "name of its GPUs as NVML has it, the most common one",
    "gpus": "GPUs that Slurm gave it, 0 for a job without",
    "nodes": "nodes that it ran on",
    "cpus": "CPUs that Slurm gave it",
    "state": "Slurm's word for how it ended, or RUNNING",
    "outcome": "the same in a few words: OUTCOMES",
    "reason": "why it failed, by gsub's verdict (docs/why.md)",
    "tier": "how the verdict was found: explicit, implicit, cascade...",
    "submitted": "when it was submitted (UTC)",
    "eligible": "when it could have started first (UTC)",
    "started": "when it started (UTC)",
    "ended": "when it ended (UTC); NaT while it runs",
    "wait_s": "seconds from when it could have started (or, unknown, was submitted) until it did",
    "held_s": "seconds from its submission until it could have started: a dependency, a begin time, a hold",
    **{
        f"wait_{name}_s": f"of wait_s, seconds that it was seen to wait for {what}"
        for name, what in _WAITED.items()
    },
    "run_s": "seconds that it ran; of a running one, until it was last heard of",
    "limit_s": "seconds that it was allowed; NaN also where there is no limit",
    "gpu_hours": "GPUs times hours of its run inside the window",
    "utilisation_mean": "GPU utilisation in per cent, mean over its GPUs and its run",
    "gpus_known": "GPUs of which anything is known",
    "gpus_idle": "GPUs that it never used",
    "gpu_memory_peak_bytes": "most memory in use on one of its GPUs",
    "gpu_memory_total_bytes": "memory of that GPU",
    "memory_asked_bytes": "host memory that it asked for, on all its nodes",
    "memory_peak_bytes": "most host memory that it used on one node",
    "cpus_used": "CPUs that it kept busy, in the mean over its run",
    "run_known": "whether start, end (or last word) and number of GPUs are known",
    "use_known": "whether the utilisation of its GPUs is known",
    "why_known": "whether there is a verdict",
}
"""What is in each column of `jobs`."""

OUTCOMES: Final = tuple(STATES)
"""How an attempt ended. In Philly's words: completed is passed, cancelled killed, the next three unsuccessful."""
_OUTCOME: Final = {state: outcome for outcome, states in STATES.items() for state in states}
_CHUNK: Final = 5_000
"""Rows that are turned into columns at a time."""
_GAP: Final = 10_000
"""Keys further apart than this are looked for by two ranges."""

_TEXTS: Final = ("name", "user", "account", "partition", "qos", "state", "reason", "tier")
_REALS: Final = ("submitted", "eligible", "started", "ended", "limit_s", "utilisation_mean", "cpu_seconds")
_COUNTS: Final = ("gpus", "nodes", "cpus", "gpus_known", "gpus_idle")
_SIZES: Final = (
    "gpu_memory_peak_bytes",
    "gpu_memory_total_bytes",
    "memory_asked_bytes",
    "memory_peak_bytes",
)
_NUMBERS: Final = ("pk", "job", "restarts", *_REALS, *_COUNTS, *_SIZES, "touched", "facts_at", *WAITED)
_FROM: Final = {
    "state": STATE,
    "reason": verdict.c.reason.label("why"),
    "tier": verdict.c.tier,
    "job": job.c.job_id,
    "limit_s": job.c.time_limit,
    "nodes": job.c.node_count,
}
"""What is read for them; the others are columns of a job by the same name."""
_ALONE: Final = {
    **{
        name: name
        for name in (*_TEXTS, "limit_s", *_COUNTS, *_SIZES)
        if name not in ("state", "reason", "gpus")
    },
    "cpu_seconds": "cpus_used",
    **{name: f"wait_{cause}_s" for name, cause in zip(WAITED, CAUSES, strict=True)},
}
"""What is read for one column of the frame alone, and so left out without it."""


def jobs(
    store: Store,
    *,
    cluster: str,
    since: float,
    until: float,
    columns: Collection[str] = tuple(COLUMNS),
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """All attempts at jobs of a cluster that ran from `since` on and before `until` (seconds since the epoch).

    One row each, in no order; the columns of COLUMNS, or those of them that are asked for: fewer are read sooner.
    `progress` is told how many were read so far. All is of one moment of the store. Raises StoreError.
    """
    with store.reading("The jobs cannot be read.") as connection, _no_collector():
        window = _Window(cluster, since, until)
        unread = {name for name, column in _ALONE.items() if column not in columns}
        texts, numbers = _read(connection, window, unread, progress)
        types = _gpu_types(connection, numbers["pk"] if "gpu_type" in columns else np.empty(0))
    return _frame(texts, numbers, types, window, columns)


def span(store: Store, cluster: str) -> tuple[float, float] | None:
    """When the first and the last attempt at a job of a cluster started, as far as known; None: it has none."""
    wanted = select(func.min(job.c.sort_at)).where(job.c.cluster == cluster)
    with store.reading("The jobs cannot be read.") as connection:
        first = connection.execute(wanted).scalar()
        last = connection.execute(select(func.max(job.c.sort_at)).where(job.c.cluster == cluster)).scalar()
    return None if first is None or last is None else (first, last)


def pseudonymous(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with made-up names for users, accounts and jobs, and other job ids: for publishing.

    The same name is the same pseudonym within this frame and nowhere else: the key is made for it and forgotten, so
    that not even who knows all names can find them. Partitions, QOS and times stay as they are.
    """
    key = os.urandom(32)
    made = frame.copy(deep=False)
    for column, prefix in (("user", "user"), ("account", "account"), ("name", "job")):
        if column not in made:
            continue
        old = made[column].cat.categories
        made[column] = made[column].cat.rename_categories(
            [f"{prefix}-{_digest(key, column, name)}" for name in old]
        )
        # Sorted anew: the place among the others would tell a name's
        made[column] = made[column].cat.reorder_categories(sorted(made[column].cat.categories))
    ids, places = np.unique(made["job"].to_numpy(), return_inverse=True)
    order = np.random.default_rng(int.from_bytes(os.urandom(16), "big")).permutation(len(ids))
    made["job"] = order[places] + 1
    # Rows came in the order of their keys: the times are what is left of it
    order_by = [name for name in ("job", "restarts") if name in made]
    shuffled: pd.DataFrame = made.sort_values(order_by, ignore_index=True)
    return shuffled


def _digest(key: bytes, column: str, name: str) -> str:
    return hashlib.blake2b(f"{column}\0{name}".encode("utf-8", "replace"), digest_size=8, key=key).hexdigest()


# --- reading --------------------------------------------------------------------------------------------------------


class _Codes(dict["str | None", int]):
    """Texts by number, in the order in which they are met."""

    def __missing__(self, text: str | None) -> int:
        return self.setdefault(text, len(self) - 2)


class _Texts:
    """A column of texts as it is read: each text once, and which one each row has (-1: none)."""

    def __init__(self) -> None:
        self._known = _Codes({None: -1, "": -1})
        self._codes: list[NDArray[np.int32]] = []

    def codes(self, values: Sequence[str | None]) -> NDArray[np.int32]:
        """Which one each of these is."""
        return np.fromiter(map(self._known.__getitem__, values), np.int32, len(values))

    def add(self, values: Sequence[str | None]) -> None:
        self._codes.append(self.codes(values))

    def column(self) -> pd.Categorical:
        return self.of(np.concatenate(self._codes) if self._codes else np.empty(0, np.int32))

    def of(self, codes: NDArray[np.int32]) -> pd.Categorical:
        """The column of rows that have these texts."""
        return _categorical(codes, [text for text in self._known if text])


def _categorical(codes: NDArray[np.int32], texts: Sequence[str]) -> pd.Categorical:
    """Its categories are sorted, so that the order in which rows were read shows nowhere."""
    order = sorted(range(len(texts)), key=lambda place: texts[place])
    places = np.full(len(texts) + 1, -1, np.int32)
    places[order] = np.arange(len(texts), dtype=np.int32)
    dtype = pd.CategoricalDtype(pd.Index([texts[place] for place in order], dtype=object))
    return pd.Categorical.from_codes(places[codes], dtype=dtype)


@dataclass(frozen=True, slots=True)
class _Window:
    """Which attempts: those of a cluster that ran from `since` on and before `until`."""

    cluster: str
    since: float
    until: float


def _read(
    connection: Connection, window: _Window, unread: Collection[str], progress: Callable[[int], None] | None
) -> tuple[dict[str, pd.Categorical], dict[str, NDArray[np.float64]]]:
    """All of _TEXTS and _NUMBERS; of what is `unread` nothing is known."""
    texts = {name: _Texts() for name in _TEXTS if name not in unread}
    numbers: dict[str, list[NDArray[np.float64]]] = {name: [] for name in _NUMBERS if name not in unread}
    read = [_FROM[name] if name in _FROM else job.c[name] for name in (*texts, *numbers)]
    count = 0
    for wanted in _wanted(read, window):
        for rows in _streamed(connection, wanted):
            columns = list(zip(*rows, strict=True))
            for one, values in zip(texts.values(), columns, strict=False):
                one.add(values)
            for parts, values in zip(numbers.values(), columns[len(texts) :], strict=True):
                parts.append(_reals(values))
            count += len(rows)
            if progress is not None:
                progress(count)
    nothing = np.broadcast_to(np.nan, count)
    joined = {}
    for name in _NUMBERS:
        joined[name] = (
            nothing if name in unread else np.concatenate(numbers.pop(name)) if count else np.empty(0)
        )
    nowhere = _Texts().of(np.full(count, -1, np.int32))
    return {name: texts[name].column() if name in texts else nowhere for name in _TEXTS}, joined


def _reals(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Numbers; None becomes NaN, which takes twice the time."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except TypeError:
        return np.array(values, np.float64)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without Python's search for cycles: rows have none, and it takes a quarter of the time [measured]."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _wanted(read: Sequence[ColumnElement[Any]], window: _Window) -> Iterator[Select[Any]]:
    """The attempts that ran in the window, in three parts, each of which an index finds."""
    since, until = window.since, window.until
    rows = select(*read).outerjoin(verdict, verdict.c.job == job.c.pk).where(job.c.cluster == window.cluster)
    yield rows.where(job.c.sort_at >= since, job.c.sort_at < until)
    yield rows.where(job.c.ended > since, job.c.sort_at + 0 < since)
    open_ = select(job_node.c.job).where(job_node.c.ended_at.is_(None))
    heard = or_(job.c.touched > since, and_(job.c.facts_at > since, STATE == "RUNNING"))
    yield rows.where(job.c.pk.in_(open_), job.c.ended.is_(None), job.c.sort_at + 0 < since, heard)


def _streamed(connection: Connection, wanted: Select[Any]) -> Iterator[Sequence[Sequence[Any]]]:
    """A statement's rows, some at a time; the server keeps the others.

    From SQLite as its driver's own tuples: SQLAlchemy's rows, which know their columns by name, cost half as much again
    [measured].
    """
    if connection.dialect.name != "sqlite":
        yield from connection.execution_options(stream_results=True).execute(wanted).partitions(_CHUNK)
        return
    # SQLite has rows made one by one anyway; with "stream_results" SQLAlchemy would have taken the first one already
    with connection.execute(wanted) as result:
        while result.cursor is not None and (rows := result.cursor.fetchmany(_CHUNK)):
            yield rows


def _gpu_types(connection: Connection, keys: NDArray[np.float64]) -> pd.Categorical:
    """The most common name of the GPUs of each attempt, in the order of the keys."""
    texts = _Texts()
    if not len(keys):
        return texts.column()
    order = np.argsort(keys)
    pks = keys[order].astype(np.int64)
    found = np.full(len(pks), -1, np.int32)
    mixed: list[int] = []
    name = func.nullif(gpu_usage.c.name, "")
    least, differ = func.min(name), func.min(name) != func.max(name)
    edges = np.flatnonzero(np.diff(pks) > _GAP)
    for first, last in zip(pks[np.r_[0, edges + 1]], pks[np.r_[edges, -1]], strict=True):
        # Grouped by the key alone, in whose order the rows are: nothing is sorted
        wanted = (
            select(gpu_usage.c.job, least, differ)
            .where(gpu_usage.c.job.between(int(first), int(last)))
            .group_by(gpu_usage.c.job)
        )
        for rows in _streamed(connection, wanted):
            of, one, several = zip(*rows, strict=True)
            places, there = _places(pks, np.array(of, np.int64))
            found[places[there]] = texts.codes(one)[there]
            mixed += compress(of, several)
    for some in chunks(mixed):
        number = func.count()
        wanted = (
            select(gpu_usage.c.job, gpu_usage.c.name, number)
            .where(gpu_usage.c.job.in_(some), gpu_usage.c.name != "")
            .group_by(gpu_usage.c.job, gpu_usage.c.name)
            # The last one to come stays: the most common, of several the first by name
            .order_by(number, gpu_usage.c.name.desc())
        )
        for row in connection.execute(wanted):
            places, there = _places(pks, np.array([row[0]], np.int64))
            found[places[there]] = texts.codes([row[1]])[0]
    back = np.empty_like(found)
    back[order] = found
    return texts.of(back)


def _places(keys: NDArray[np.int64], of: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Where each of these is among the sorted keys, and whether it is."""
    places = np.searchsorted(keys, of)
    there = (places < len(keys)) & (keys[np.minimum(places, len(keys) - 1)] == of)
    return places, there


# --- columns --------------------------------------------------------------------------------------------------------


def _frame(
    texts: dict[str, pd.Categorical],
    numbers: dict[str, NDArray[np.float64]],
    types: pd.Categorical,
    window: _Window,
    columns: Collection[str],
) -> pd.DataFrame:
    started, ended = numbers["started"], numbers["ended"]
    outcome = _outcome(texts["state"], ended)
    # Of a running attempt, until when it is known to run: a node spoke of it, or Slurm
    running = np.asarray(outcome == "running")
    said = np.where(running, numbers["facts_at"], np.nan)
    end = np.where(np.isnan(ended), np.fmax(numbers["touched"], said), ended)
    run = np.maximum(end - started, 0.0)
    inside = np.maximum(np.minimum(started + run, window.until) - np.maximum(started, window.since), 0.0)
    first = np.where(np.isnan(numbers["eligible"]), numbers["submitted"], numbers["eligible"])
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(run > 0, numbers["cpu_seconds"] / run, np.nan)
    values: dict[str, Any] = {
        "job": numbers["job"].astype(np.int64),
        "restarts": numbers["restarts"].astype(np.int32),
        **texts,
        "gpu_type": types,
        "outcome": outcome,
        **{name: _whole(numbers[name], np.int32) for name in _COUNTS},
        **{name: _whole(numbers[name], np.int64) for name in _SIZES},
        **{name: _times(numbers[name]) for name in ("submitted", "eligible", "started", "ended")},
        "wait_s": np.maximum(started - first, 0.0),
        "held_s": np.maximum(numbers["eligible"] - numbers["submitted"], 0.0),
        **{f"wait_{cause}_s": numbers[name] for cause, name in zip(CAUSES, WAITED, strict=True)},
        "run_s": run,
        "limit_s": numbers["limit_s"],
        "gpu_hours": numbers["gpus"] * inside / 3600,
        "utilisation_mean": numbers["utilisation_mean"],
        "cpus_used": used,
    }
    # A job without GPUs has no use of them to be known
    values["run_known"] = ~np.isnan(values["gpu_hours"])
    values["use_known"] = ~np.isnan(numbers["utilisation_mean"])
    values["why_known"] = texts["reason"].codes >= 0
    made = {name: values[name] for name in COLUMNS if name in columns}
    frame: pd.DataFrame = pd.DataFrame(made, copy=False)
    return frame


def _outcome(states: pd.Categorical, ended: NDArray[np.float64]) -> pd.Categorical:
    """How each ended. What Slurm calls otherwise, and an end of which it has not spoken yet, is unknown."""
    codes = [OUTCOMES.index(_OUTCOME.get(state, "unknown")) for state in states.categories]
    found = np.array([*codes, OUTCOMES.index("unknown")], np.int8)[states.codes]
    dtype = pd.CategoricalDtype(pd.Index(OUTCOMES, dtype=object), ordered=True)
    outcome: pd.Categorical = pd.Categorical.from_codes(found, dtype=dtype)
    return outcome


def _whole(values: NDArray[np.float64], kind: type[np.integer[Any]]) -> pd.arrays.IntegerArray:
    unknown = np.isnan(values)
    return pd.arrays.IntegerArray(np.where(unknown, 0, values).astype(kind), unknown)


def _times(seconds: NDArray[np.float64]) -> pd.DatetimeIndex:
    unknown = np.isnan(seconds)
    found = np.where(unknown, 0, np.round(seconds * 1e6)).astype(np.int64).view("M8[us]")
    found[unknown] = np.datetime64("NaT")
    times: pd.DatetimeIndex = pd.DatetimeIndex(found).tz_localize("UTC")
    return times
