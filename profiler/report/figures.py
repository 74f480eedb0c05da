"""Small tables out of the frame of `profiler.report.frames`: what an audit shows. Pure.

Each rests on the attempts of the frame and says on how many: the columns `attempts` and `unknown` of a row are how many
it is made of, and of how many of these what it tells is not known. They are left out of its sums and means, never
counted as 0. A share is one of what is known.

    utilisation      mean over GPU-hours: an hour of eight GPUs weighs eight
    quantiles        a value that there was, the lower one of two; each attempt counts once
    failed           outcomes failed, timeout and preempted: Philly's "unsuccessful"
    wasted           GPU-hours of failed attempts, and of GPUs that the others never used
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from profiler.store.report import BOUNDS, FAILED, LONG_WAIT, SIZES, UNKNOWN
from profiler.waits import CAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BY",
    "NEEDED",
    "SIZES",
    "UNKNOWN",
    "Table",
    "audit",
    "by",
    "failures",
    "locality",
    "outcomes",
    "totals",
    "utilisation",
    "utilisation_over_time",
    "utilisation_spread",
    "waiting",
    "waiting_by_cause",
    "waiting_by_cause_and_size",
    "wasted",
    "wasted_by_user",
]

BY: Final = {
    "user": "user",
    "account": "account",
    "partition": "partition",
    "reason": "reason",
    "gpu-type": "gpu_type",
}
"""What an audit can be split by, and the column that holds it."""
NEEDED: Final = (
    "job", "user", "account", "partition", "gpu_type", "gpus", "nodes", "outcome", "reason", "started", "wait_s",
    "held_s", *(f"wait_{cause}_s" for cause in CAUSES), "run_s", "gpu_hours", "utilisation_mean", "gpus_known",
    "gpus_idle", "run_known",
)  # fmt: skip
"""The columns of the frame that tables are made of."""
_STATUS: Final = {
    "completed": "passed",
    "cancelled": "killed",
    "timeout": "unsuccessful",
    "preempted": "unsuccessful",
    "failed": "unsuccessful",
}
_WEEKS: Final = 92
"""From so many days on a course is told by weeks."""
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an audit: `rows` has the columns `attempts` and `unknown` in the end, as the whole has.

    What a column holds is told by its name: `_hours`, `_percent`, `_s` (seconds); the others are counts and texts.
    """

    name: str
    title: str
    note: str
    rows: pd.DataFrame
    attempts: int
    unknown: int


def audit(
    frame: pd.DataFrame, *, since: float, until: float, split: Sequence[str] = tuple(BY)
) -> list[Table]:
    """All tables, and one for each of `split` (keys of BY)."""
    work = _work(frame)
    made = [
        totals(work),
        outcomes(work),
        utilisation(work),
        failures(work),
        wasted(work),
        wasted_by_user(work),
        waiting(work),
        waiting_by_cause(work),
        waiting_by_cause_and_size(work),
        locality(work),
        utilisation_spread(work),
        utilisation_over_time(work, since=since, until=until),
    ]
    return made + [by(work, key) for key in split]


def totals(frame: pd.DataFrame) -> Table:
    """The whole in some figures, each with its unit."""
    work = _work(frame)
    gpu = work[work.on_gpus]
    hours, seen = _sum(gpu.gpu_hours), _sum(gpu.seen_hours)
    waits = gpu.wait_s.dropna()
    rows = [
        ("attempts", len(work), "", len(work), 0),
        ("jobs", work["job"].nunique(), "", len(work), 0),
        ("users", work["who"].nunique(), "", len(work), _missing(work["who"])),
        ("attempts without a GPU", int((work["gpus"] == 0).sum()), "", len(work), _missing(work["gpus"])),
        ("GPU-hours", hours, "h", len(gpu), _missing(gpu.gpu_hours)),
        ("utilisation", _ratio(_sum(gpu.busy_hours), seen), "%", len(gpu), _missing(gpu.seen_hours)),
        ("GPU-hours of GPUs never used", _sum(gpu.idle_hours), "h", len(gpu), _missing(gpu.idle_hours)),
        ("GPU-hours of failed attempts", _sum(gpu.failed_hours), "h", len(gpu), _missing(gpu.failed_hours)),
        ("GPU-hours wasted, by both", _sum(gpu.wasted_hours), "h", len(gpu), _missing(gpu.wasted_hours)),
        ("share never used", _part(gpu, gpu.idle_hours), "%", len(gpu), _missing(gpu.idle_hours)),
        ("share of failed attempts", _part(gpu, gpu.failed_hours), "%", len(gpu), _missing(gpu.failed_hours)),
        ("share wasted, by both", _part(gpu, gpu.wasted_hours), "%", len(gpu), _missing(gpu.wasted_hours)),
        ("median wait for GPUs", _quantile(waits, 0.5), "s", len(gpu), _missing(gpu.wait_s)),
    ]
    made = pd.DataFrame(rows, columns=["figure", "value", "unit", "attempts", "unknown"])
    note = "GPU-hours are those inside the window; a share is of those of the attempts of which it is known."
    return _table("totals", "In all", note, made, len(work), 0)


def outcomes(frame: pd.DataFrame) -> Table:
    """GPU-hours by how attempts ended (Philly, Table 6)."""
    work = _work(frame)
    made = _sums(work, "outcome")
    made["gpu_hours_percent"] = _shares(made.gpu_hours)
    made["attempts_percent"] = _shares(made.attempts)
    rows = made[["attempts_percent", "gpu_hours", "gpu_hours_percent", "attempts", "unknown"]]
    note = "Outcomes are those known now, also of attempts that ended after the window."
    return _table(
        "outcomes", "GPU-hours by outcome", note, rows.reset_index(), len(work), _missing(work.gpu_hours)
    )


def utilisation(frame: pd.DataFrame) -> Table:
    """Utilisation by size and status (Philly, Table 3)."""
    work = _work(frame)
    work = work[work.on_gpus]
    # What runs still, or ended nobody knows how, is in "all" alone
    whole, some = _sums(work, "size"), _sums(work, ["status", "size"])
    parts = {"all": whole}
    for name in ("passed", "killed", "unsuccessful"):
        part = some.xs(name) if name in some.index else whole.iloc[:0]
        parts[name] = part.set_axis(part.index.astype(object))
    made = pd.DataFrame(index=pd.Index([*whole.index, "all"], name="gpus"))
    for name, part in parts.items():
        sums = _with_all(part)
        made[f"{name}_percent"] = _ratios(sums.busy_hours, sums.seen_hours)
        made[f"{name}_attempts"] = sums.attempts - sums.unseen
        if name == "all":
            made["attempts"], made["unknown"] = sums.attempts, sums.unseen
    for name in parts:
        made[f"{name}_attempts"] = made[f"{name}_attempts"].fillna(0).astype(int)
    order = [
        f"{name}_{what}"
        for name in ("passed", "killed", "unsuccessful", "all")
        for what in ("percent", "attempts")
    ]
    rows = made[[*order, "attempts", "unknown"]].reset_index()
    note = "Mean GPU utilisation over GPU-hours; passed: COMPLETED, killed: CANCELLED, unsuccessful: the other ends."
    unknown = _missing(work.seen_hours)
    return _table("utilisation", "GPU utilisation by size and status", note, rows, len(work), unknown)


def failures(frame: pd.DataFrame) -> Table:
    """Failed attempts by reason, with the run time until the failure (Philly, Table 7)."""
    work = _work(frame)
    work = work[work.failed]
    made = _sums(work, "reason")
    made["users"] = work.groupby("reason", observed=True)["who"].nunique()
    made["jobs"] = work.groupby("reason", observed=True)["job"].nunique()
    made = made.join(_quantiles(work, "reason", "run_s", (0.5, 0.9, 0.95)))
    made["run_s_percent"] = _shares(work.groupby("reason", observed=True).run_s.sum())
    for name, low, high in (("gpus_1", 1, 1), ("gpus_2_4", 2, 4), ("gpus_over_4", 5, np.inf)):
        some = work[work["gpus"].between(low, high).fillna(False).astype(bool)]
        made[name] = some.groupby("reason", observed=True).size().reindex(made.index, fill_value=0)
    made["gpu_hours_percent"] = _shares(made.gpu_hours)
    made = _costliest(made)
    columns = ["jobs", "users", "run_s_p50", "run_s_p90", "run_s_p95", "run_s_percent", "gpus_1", "gpus_2_4"]
    columns += ["gpus_over_4", "gpu_hours", "gpu_hours_percent", "attempts", "unknown"]
    note = (
        "Outcomes failed, timeout and preempted; run times are of the whole attempt, also before the window."
    )
    unjudged = int((work.reason == UNKNOWN).sum())
    return _table("failures", "Failures by reason", note, made[columns].reset_index(), len(work), unjudged)


def wasted(frame: pd.DataFrame) -> Table:
    """Wasted GPU-hours by reason; GPUs that were never used are a reason of their own."""
    work = _work(frame)
    work = work[work.on_gpus]
    bad, good = work[work.failed], work[~work.failed]
    made = _sums(bad, "reason")
    made["wasted_hours"] = made.failed_hours
    idle = good[(good.idle_hours > 0) | good.idle_hours.isna()]
    if len(idle):
        sums = {
            "wasted_hours": _sum(idle.idle_hours),
            "attempts": len(idle),
            "unknown": _missing(idle.idle_hours),
        }
        made.loc["(GPUs never used)"] = pd.Series(sums)
    made = made[["wasted_hours", "attempts", "unknown"]].astype({"attempts": int, "unknown": int})
    made = made.sort_values("wasted_hours", ascending=False, kind="stable")
    made.insert(1, "wasted_hours_percent", _shares(made.wasted_hours))
    made.index.name = "reason"
    note = "All of failed attempts; of the others the GPUs that they never used. A checkpoint may have saved some."
    unknown = _missing(work.wasted_hours)
    return _table("wasted", "Wasted GPU-hours by reason", note, made.reset_index(), len(work), unknown)


def wasted_by_user(frame: pd.DataFrame) -> Table:
    """Wasted GPU-hours by user, most first."""
    work = _work(frame)
    work = work[work.on_gpus]
    made = _sums(work, "user")
    made["unknown"] = made.unwasted
    made = made.sort_values("wasted_hours", ascending=False, kind="stable")
    made["wasted_percent"] = _ratios(made.wasted_hours, made.judged_hours)
    rows = made[
        ["wasted_hours", "failed_hours", "idle_hours", "gpu_hours", "wasted_percent", "attempts", "unknown"]
    ].reset_index()
    note = (
        "As by reason; the share is of the user's own GPU-hours of which it is known. Never used: those of failed "
        "attempts too."
    )
    unknown = _missing(work.wasted_hours)
    return _table("wasted_by_user", "Wasted GPU-hours by user", note, rows, len(work), unknown)


def waiting(frame: pd.DataFrame) -> Table:
    """Queueing delay by size: from when an attempt could have started until it did."""
    work = _work(frame)
    made = _with_all(_sums(work, "size"))
    quantiles = _quantiles(work, "size", "wait_s", (0.5, 0.9, 0.95))
    quantiles.loc["all"] = [_quantile(work.wait_s.dropna(), share) for share in (0.5, 0.9, 0.95)]
    made = made.join(quantiles)
    made["wait_s_mean"] = _ratios(made.wait_s, made.attempts - made.unwaited, of=1.0)
    made["over_10_min_percent"] = _ratios(made.waited_long, made.attempts - made.unwaited)
    made["unknown"] = made.unwaited
    columns = [
        "wait_s_p50",
        "wait_s_p90",
        "wait_s_p95",
        "wait_s_mean",
        "over_10_min_percent",
        "attempts",
        "unknown",
    ]
    note = "From eligible (submitted, where that is not known) to started; time held by a dependency is not waiting."
    rows = made[columns].reset_index().rename(columns={"size": "gpus"})
    return _table("waiting", "Queueing delay by size", note, rows, len(work), _missing(work.wait_s))


def waiting_by_cause(frame: pd.DataFrame) -> Table:
    """Hours of waiting by what for, of all attempts from submission to start."""
    work = _work(frame)
    causes = _causes(work)
    seen = work[[*_CAUSES]].notna().all(axis=1)
    made = pd.DataFrame(index=pd.Index(causes.columns, name="cause"))
    made["wait_hours"] = causes.sum(min_count=1) / 3600
    made["wait_hours_percent"] = _shares(made.wait_hours)
    made["waited"] = (causes > 0).sum()
    made["attempts"] = len(work)
    made["unknown"] = int((~seen).sum())
    # Before it could start a job waits for its user, whether anybody looked or not
    made.loc["user", "unknown"] = int((work.held_s.isna() | ~seen).sum())
    made.loc[UNKNOWN, "unknown"] = _missing(work.wait_s)
    note = (
        "By the one reason that Slurm named, look by look; n/a: between two looks, or nobody looked. User: a "
        "dependency, a begin time or a hold, also before it could start. Waited: attempts that did so at all."
    )
    unknown = int((~seen | work.wait_s.isna()).sum())
    return _table("waiting_by_cause", "Waiting by cause", note, made.reset_index(), len(work), unknown)


def waiting_by_cause_and_size(frame: pd.DataFrame) -> Table:
    """What share of the time that attempts of a size waited went to which cause."""
    work = _work(frame)
    causes = _causes(work)
    made = _with_all(causes.groupby(work["size"], observed=True).sum(min_count=1).rename_axis("size"))
    whole = made.sum(axis=1, min_count=1)
    sums = _with_all(_sums(work, "size"))
    rows = pd.DataFrame(index=pd.Index(made.index, name="gpus"))
    for name in made:
        rows["not_known_percent" if name == UNKNOWN else f"{name}_percent"] = _ratios(
            made[name].fillna(0.0), whole
        )
    rows["wait_hours"] = whole / 3600
    rows["attempts"] = sums.attempts
    rows["unknown"] = sums.unwaited
    note = "As by cause; shares of all hours that attempts of the size waited, from submission to start."
    unknown = _missing(work.wait_s)
    return _table(
        "waiting_by_cause_and_size", "Waiting by cause and size", note, rows.reset_index(), len(work), unknown
    )


def locality(frame: pd.DataFrame) -> Table:
    """Utilisation of attempts on several GPUs by the nodes they were spread over (Philly, Table 5).

    The fewest nodes are reckoned from what was seen: the most GPUs that an attempt had on each node in its partition.
    """
    work = _work(frame)
    work = work[(work["gpus"] > 1).fillna(False).astype(bool)]
    gpus, nodes = work["gpus"].astype("Float64"), work["nodes"].astype("Float64")
    each = (
        (gpus / nodes.where(nodes > 0))
        .groupby(work["partition"].astype(object).fillna(UNKNOWN))
        .transform("max")
    )
    fewest = np.ceil((gpus / np.floor(each).clip(lower=1)).to_numpy(np.float64, na_value=np.nan))
    more = nodes.to_numpy(np.float64, na_value=np.nan) / fewest
    labels = ["fewest", "up to twice", "more"]
    place = np.where(np.isnan(more), 3, np.searchsorted([1.0, 2.0], more))
    spread = pd.Categorical.from_codes(place, dtype=pd.CategoricalDtype(pd.Index([*labels, UNKNOWN])))
    work = work.assign(spread=spread)
    keys = ["size", "spread"]
    made = _sums(work, keys)
    made["utilisation_percent"] = _ratios(made.busy_hours, made.seen_hours)
    made = made.join(_quantiles(work, keys, "utilisation_mean", (0.5,)))
    made = made.rename(columns={"utilisation_mean_p50": "utilisation_p50_percent"})
    made["nodes_mean"] = work.assign(n=nodes).groupby(keys, observed=True).n.mean().astype(float)
    made["unknown"] = made.unseen
    columns = [
        "nodes_mean",
        "utilisation_percent",
        "utilisation_p50_percent",
        "gpu_hours",
        "attempts",
        "unknown",
    ]
    rows = made[columns].reset_index().rename(columns={"size": "gpus", "spread": "nodes"})
    note = "Attempts on 2 GPUs and more. Fewest nodes: by the most GPUs on a node that were seen in the partition."
    unknown = _missing(work.seen_hours)
    return _table("locality", "Locality against utilisation", note, rows, len(work), unknown)


def utilisation_spread(frame: pd.DataFrame) -> Table:
    """How attempts and GPU-hours spread over utilisation, in tenths; none at all apart."""
    work = _work(frame)
    work = work[work.on_gpus]
    known = work.utilisation_mean.to_numpy()
    labels = ["0", *(f"{low}-{low + 10}" for low in range(0, 100, 10))]
    # (0, 10], (10, 20]...: 100 is in the last one
    place = np.where(np.isnan(known), 11, np.where(known <= 0, 0, np.ceil(np.clip(known, 0, 100) / 10)))
    tenths = pd.CategoricalDtype(pd.Index([*labels, UNKNOWN]))
    work = work.assign(tenth=pd.Categorical.from_codes(place.astype(np.int8), dtype=tenths))
    made = _sums(work, "tenth").reindex([*labels, UNKNOWN], fill_value=0)
    seen = made.index != UNKNOWN
    made["attempts_percent"] = _shares(made.attempts.where(seen))
    made["gpu_hours_percent"] = _shares(made.gpu_hours.where(seen))
    made.index.name = "utilisation"
    rows = made[["attempts_percent", "gpu_hours", "gpu_hours_percent", "attempts", "unknown"]].reset_index()
    note = "Mean utilisation of an attempt, in per cent; a limit belongs to the class below it."
    unknown = _missing(work.utilisation_mean)
    return _table("utilisation_spread", "Utilisation of attempts", note, rows, len(work), unknown)


def utilisation_over_time(frame: pd.DataFrame, *, since: float, until: float) -> Table:
    """GPU-hours and utilisation day by day, or from 92 days on week by week (from Monday), in UTC.

    An attempt's mean utilisation is counted for each hour that it ran. `since` is not before the store's first record
    (`profiler.report.frames.span`): from there on, a day without attempts is one on which none ran.
    """
    work = _work(frame)
    work = work[work.on_gpus]
    weekly = until - since >= _WEEKS * _DAY
    step = 7 * _DAY if weekly else _DAY
    # 1970-01-05 was a Monday
    origin = 4 * _DAY if weekly else 0.0
    first = origin + np.floor((since - origin) / step) * step
    edges = np.clip(np.arange(first, until + step, step), since, until)
    edges = edges[: int(np.searchsorted(edges, until)) + 1]
    begin = _seconds(work.started)
    end = begin + work.run_s.to_numpy()
    begin, end = np.clip(begin, edges[0], None), np.clip(end, edges[0], None)
    there = work.run_known.to_numpy(bool)
    gpus = work["gpus"].to_numpy(np.float64, na_value=np.nan)
    use = work.utilisation_mean.to_numpy()
    seen = there & ~np.isnan(use)
    hours = _poured(begin[there], end[there], gpus[there], edges)
    weight = work.seen_gpus.to_numpy()[seen]
    seen_hours = _poured(begin[seen], end[seen], weight, edges)
    busy = _poured(begin[seen], end[seen], weight * use[seen] / 100, edges)
    starts, ends = np.arange(len(edges) - 1), np.arange(1, len(edges))
    made = pd.DataFrame({"from": pd.to_datetime(edges[starts], unit="s", utc=True)})
    made["gpu_hours"] = hours
    made["gpus_mean"] = hours / ((edges[ends] - edges[starts]) / 3600)
    made["utilisation_percent"] = _ratios(pd.Series(busy), pd.Series(seen_hours))
    made["attempts"] = _present(begin[there], end[there], edges)
    made["unknown"] = made.attempts - _present(begin[seen], end[seen], edges)
    title = f"Utilisation by {'week' if weekly else 'day'}"
    note = "By UTC; GPUs held: how many jobs had at a time, in the mean."
    unknown = len(work) - int(seen.sum())
    return _table("utilisation_over_time", title, note, made, len(work), unknown)


def by(frame: pd.DataFrame, key: str) -> Table:
    """Who or what has which part: a key of BY. By reason only failed attempts are told."""
    work = _work(frame)
    column = BY[key]
    work = work[work.failed] if key == "reason" else work
    made = _sums(work, column)
    groups = work.groupby(column, observed=True)
    made["jobs"] = groups["job"].nunique()
    if key != "user":
        made["users"] = groups["who"].nunique()
    made["gpu_hours_percent"] = _shares(made.gpu_hours)
    made["utilisation_percent"] = _ratios(made.busy_hours, made.seen_hours)
    made["failed_percent"] = _ratios(made.failures, made.attempts)
    made = _costliest(made.join(_quantiles(work, column, "wait_s", (0.5,))))
    columns = [
        "jobs",
        *(["users"] if key != "user" else []),
        "gpu_hours",
        "gpu_hours_percent",
        "utilisation_percent",
    ]
    columns += ["idle_hours", "failed_hours", "failed_percent", "wait_s_p50", "attempts", "unknown"]
    made["unknown"] = made.unseen
    note = "Unknown: of the attempts on GPUs, those whose utilisation is not known."
    title = f"By {key.replace('gpu-type', 'GPU type')}"
    unknown = int(made.unknown.sum())
    return _table(f"by_{column}", title, note, made[columns].reset_index(), len(work), unknown)


# --- what all of them stand on --------------------------------------------------------------------------------------


def _work(frame: pd.DataFrame) -> pd.DataFrame:
    """What sums are made of, a row each; given such a frame, the same."""
    if "seen_hours" in frame:
        return frame
    gpus, known, idle = (
        frame[name].to_numpy(np.float64, na_value=np.nan) for name in ("gpus", "gpus_known", "gpus_idle")
    )
    hours, use = frame.gpu_hours.to_numpy(), frame.utilisation_mean.to_numpy()
    outcome = frame.outcome.astype(object).to_numpy()
    failed = np.isin(outcome, FAILED)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = hours * np.clip(known / gpus, 0, 1)
        # GPUs that nobody saw may be idle or not
        idle_hours = np.where(known < gpus, np.nan, hours * np.clip(idle / gpus, 0, 1))
    wait = frame.wait_s.to_numpy()
    columns: dict[str, Any] = {
        name: frame[name]
        for name in (
            "job",
            "gpus",
            "nodes",
            "started",
            "run_s",
            "run_known",
            "utilisation_mean",
            "held_s",
            *_CAUSES,
        )
    }
    columns |= {
        name: _keys(frame[name]) for name in ("partition", "reason", "gpu_type", "account", "outcome")
    }
    columns["user"] = _keys(frame["user"])
    on_gpus = ~(gpus == 0)
    idle_hours[gpus == 0] = 0.0
    columns |= {
        # Counted; one that is not known is nobody
        "who": frame["user"],
        "on_gpus": on_gpus,
        "seen_gpus": np.fmin(known, gpus),
        "size": _classes(gpus),
        "status": pd.Series(outcome, index=frame.index).map(_STATUS),
        "failed": failed,
        "wait_s": wait,
        "waited_long": np.where(np.isnan(wait), np.nan, wait >= LONG_WAIT),
        "gpu_hours": hours,
        "seen_hours": np.where(np.isnan(use), np.nan, seen),
        "busy_hours": seen * use / 100,
        "idle_hours": idle_hours,
        "failed_hours": np.where(failed, hours, 0.0),
        "wasted_hours": np.where(failed, hours, idle_hours),
    }
    # Of which it is known whether they were wasted
    columns["judged_hours"] = np.where(np.isnan(columns["wasted_hours"]), np.nan, hours)
    # Of which attempts it is not known
    columns |= {
        "unrun": np.isnan(hours),
        "unseen": on_gpus & np.isnan(columns["seen_hours"]),
        "unwasted": np.isnan(columns["wasted_hours"]),
        "unwaited": np.isnan(wait),
    }
    work: pd.DataFrame = pd.DataFrame(columns)
    return work


_SUMMED: Final = (
    *(f"{name}_hours" for name in ("gpu", "seen", "busy", "idle", "failed", "wasted", "judged")),
    *("wait_s", "waited_long", "failed", "unrun", "unseen", "unwasted", "unwaited"),
)


_CAUSES: Final = tuple(f"wait_{cause}_s" for cause in CAUSES)


def _causes(work: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each attempt's waiting by cause, and of no known one: from submission to start."""
    seen = {cause: work[name].to_numpy() for cause, name in zip(CAUSES, _CAUSES, strict=True)}
    known = np.nansum(list(seen.values()), axis=0)
    wait, held = work.wait_s.to_numpy(), work.held_s.to_numpy()
    both = np.isnan(held) & np.isnan(seen["user"])
    seen["user"] = np.where(both, np.nan, np.nan_to_num(held) + np.nan_to_num(seen["user"]))
    # Slurm may have corrected when it could start since its causes were written
    seen[UNKNOWN] = np.maximum(wait - known, 0.0)
    causes: pd.DataFrame = pd.DataFrame(seen, index=work.index)
    return causes


def _sums(work: pd.DataFrame, keys: str | list[str]) -> pd.DataFrame:
    """Sums of each group, with `attempts`, and `unknown`: how many of which the GPU-hours are not known."""
    groups = work.groupby(keys, observed=True)
    made: pd.DataFrame = groups[list(_SUMMED)].sum(min_count=1).rename(columns={"failed": "failures"})
    made.insert(0, "attempts", groups.size())
    counts = made.columns.difference(
        [name for name in _SUMMED if name.endswith("_hours") or name == "wait_s"]
    )
    made = made.fillna(dict.fromkeys(counts, 0)).astype(dict.fromkeys(counts, np.int64))
    made["unknown"] = made["unrun"]
    if not isinstance(made.index, pd.MultiIndex):
        # In the order of the categories, and open for rows of other names
        made.index = made.index.astype(object)
    return made


def _with_all(made: pd.DataFrame) -> pd.DataFrame:
    """The groups' sums with that of all."""
    # Of what is counted there is a sum even of no group, of hours there is none
    sums = {name: made[name].sum(min_count=int(made[name].dtype.kind == "f")) for name in made}
    whole = pd.DataFrame(sums, index=pd.Index(["all"])).astype(made.dtypes.to_dict())
    with_all: pd.DataFrame = pd.concat([made, whole]).rename_axis(made.index.name)
    return with_all


def _quantiles(
    work: pd.DataFrame, keys: str | list[str], column: str, shares: Sequence[float]
) -> pd.DataFrame:
    """Values that there were, the lower one of two, in columns like run_s_p50."""
    groups = work.groupby(keys, observed=True)[column]
    parts = {
        f"{column}_p{round(100 * share)}": groups.quantile(share, interpolation="lower") for share in shares
    }
    made: pd.DataFrame = pd.DataFrame(parts)
    if not isinstance(made.index, pd.MultiIndex):
        made.index = made.index.astype(object)
    return made


def _quantile(values: pd.Series, share: float) -> float:
    return float(values.quantile(share, interpolation="lower")) if len(values) else float("nan")


def _sum(values: pd.Series) -> float:
    """NaN of none that is known."""
    return float(values.sum(min_count=1))


def _part(work: pd.DataFrame, some: pd.Series) -> float:
    """What share `some` of each attempt's GPU-hours are, in per cent of those of the attempts where it is known."""
    return _ratio(_sum(some), _sum(work.gpu_hours[some.notna()]))


def _ratio(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else float("nan")


def _ratios(part: pd.Series, whole: pd.Series, of: float = 100.0) -> pd.Series:
    ratios: pd.Series = of * part / whole.where(whole > 0)
    return ratios


def _shares(part: pd.Series) -> pd.Series:
    whole = part.sum()
    return 100 * part / (whole if whole > 0 else float("nan"))


def _costliest(made: pd.DataFrame) -> pd.DataFrame:
    """The most GPU-hours first."""
    ordered: pd.DataFrame = made.sort_values(["gpu_hours", "attempts"], ascending=False, kind="stable")
    return ordered


def _missing(values: pd.Series) -> int:
    return int(values.isna().sum())


def _table(  # noqa: PLR0917 - as the type has them
    name: str, title: str, note: str, rows: pd.DataFrame, attempts: int, unknown: int
) -> Table:
    rows = rows.reset_index(drop=True)
    # As texts: categories name those too of whom no row tells
    texts = [column for column in rows if isinstance(rows[column].dtype, pd.CategoricalDtype)]
    return Table(name, title, note, rows.astype(dict.fromkeys(texts, object)), attempts, unknown)


def _keys(values: pd.Series) -> pd.Series:
    """Texts to group by: what is not known is a group of its own."""
    if UNKNOWN not in values.cat.categories:
        values = values.cat.add_categories([UNKNOWN])
    return values.fillna(UNKNOWN)


def _classes(gpus: NDArray[np.float64]) -> pd.Categorical:
    """Classes of sizes, in their order."""
    place = np.where(np.isnan(gpus), len(SIZES), np.searchsorted(BOUNDS, gpus))
    dtype = pd.CategoricalDtype(pd.Index([*SIZES, UNKNOWN], dtype=object))
    classes: pd.Categorical = pd.Categorical.from_codes(place.astype(np.int8), dtype=dtype)
    return classes


def _seconds(times: pd.Series) -> NDArray[np.float64]:
    """Times as seconds since the epoch; NaN where they are not known."""
    found = times.to_numpy("datetime64[us]")
    return np.where(np.isnat(found), np.nan, found.astype(np.int64) / 1e6)


def _poured(
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    weight: NDArray[np.float64],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Hours between each edge and the next: of each run the part that lies there, times its weight.

    By what had been run up to each edge, so that a long run costs no more than a short one.
    """
    # From the first one on: sums of large numbers would lose seconds
    begin, end, edges = begin - edges[0], end - edges[0], edges - edges[0]

    def up_to(times: NDArray[np.float64]) -> NDArray[np.float64]:
        place = np.searchsorted(edges, times)
        count = np.bincount(place, weight, len(edges) + 1)[: len(edges)].cumsum()
        moment = np.bincount(place, weight * times, len(edges) + 1)[: len(edges)].cumsum()
        return np.asarray(count * edges - moment)

    return np.diff(up_to(begin) - up_to(end)) / 3600


def _present(
    begin: NDArray[np.float64], end: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
    """How many ran at some moment between each edge and the next."""
    # One that lasted no time was there for a moment
    over = np.sort(np.maximum(end, np.nextafter(begin, np.inf)))
    there = np.searchsorted(np.sort(begin), edges[1:]) - np.searchsorted(over, edges[:-1], side="right")
    return np.asarray(there, np.int64)
