"""What the page of an audit says of each table in a sentence, and how it draws it: from the table's own rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite, nan
from typing import Final

import pandas as pd
from markupsafe import Markup

from profiler.report.cells import CAUSES, cell
from profiler.report.figures import UNKNOWN, Table
from profiler.report.files import About
from profiler.report.plots import Bar, Caption, Plot, Range, Series, bars, course, groups, ranges, stacks
from profiler.store.report import FAILED
from profiler.wording import NOT_KNOWN, plain

__all__ = ["NAME", "amount_of_hours", "draw", "say"]

NAME: Final = 120
"""Most signs of a name."""
_BARS: Final = 12
"""Most bars of a plot that has one for each name."""
_OUTCOME: Final = {"completed": "s1", "running": "s4", "cancelled": "s3", "unknown": "s3"}
"""Styles of outcomes; the others are failures."""
_CAUSE: Final = {
    "priority": "s1", "resources": "s4", "locality": "s2", "limits": "s5", "user": "s6", "other": "s3", UNKNOWN: "s7",
}  # fmt: skip
"""Styles of what attempts wait for."""
_STATUS: Final = (("passed", "s1"), ("killed", "s3"), ("unsuccessful", "s2"))


def say(table: Table) -> str:
    """A sentence or two; with markup only of ours."""
    if not len(table.rows):
        return "There is none."
    return _OF[table.name][0](table) if table.name in _OF else _say_by(table)


def draw(table: Table, about: About) -> Plot | None:
    """Its plot, if there is one."""
    if not len(table.rows) or table.name not in _OF:
        return None
    return _OF[table.name][1](table, about)


def amount_of_hours(value: float) -> str:
    """Hours where there is little room: large ones without decimals.

    >>> amount_of_hours(1234.56), amount_of_hours(12.34)
    ('1,235', '12.3')
    """
    return f"{value:,.0f}" if value >= 100 else cell("_hours", value)


# --- sentences ------------------------------------------------------------------------------------------------------


def _name(text: str) -> Markup:
    """A name from outside: whichever way it is written, what stands around it stays in place."""
    return Markup("<bdi>{}</bdi>").format(plain(text, NAME))


def _per_cent(value: float) -> str:
    return cell("_percent", value)


def _hours(value: float) -> str:
    return f"{amount_of_hours(value)} GPU-hours"


def _parts(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _say_over_time(table: Table) -> str:
    unit = table.title.rsplit(" ", 1)[-1]
    known = table.rows.utilisation_percent.dropna()
    if known.empty:
        return f"Of no {unit} is the utilisation known."
    low, high = _per_cent(known.min()), _per_cent(known.max())
    said = (
        f"From {unit} to {unit} jobs used between {low} and {high} of what the GPUs that they held could do."
    )
    gaps = len(table.rows) - len(known)
    return said + (f" Of {_parts(gaps, unit)} it is not known: gaps in the line." if gaps else "")


def _say_spread(table: Table) -> str:
    rows = table.rows.set_index("utilisation")
    low = float(rows.gpu_hours_percent[["0", "0-10"]].sum(min_count=1))
    lost = rows.loc[UNKNOWN]
    said = f"Attempts that used their GPUs to 10 % or less held {_per_cent(low)} of the GPU-hours."
    if lost["attempts"]:
        many = _parts(int(lost["attempts"]), "attempt")
        said += f" Not in the plot: {many} of unknown utilisation, with {_hours(lost['gpu_hours'])}."
    return said


def _say_utilisation(table: Table) -> str:
    row = table.rows.set_index("gpus").loc["all"]
    passed, bad = _per_cent(row["passed_percent"]), _per_cent(row["unsuccessful_percent"])
    whole = _per_cent(row["all_percent"])
    return f"{whole} in the mean: {passed} in attempts that passed, {bad} in unsuccessful ones."


def _say_outcomes(table: Table) -> str:
    rows = table.rows.set_index("outcome").gpu_hours_percent
    if rows.isna().all():
        return "There are no GPU-hours that are known."
    failed = rows[rows.index.isin(FAILED)]
    good = _per_cent(rows.get("completed", 0.0))
    bad = _per_cent(failed.sum(min_count=min(1, len(failed))))
    return f"{good} of the GPU-hours went to attempts that completed, {bad} to failed ones."


def _say_wasted(table: Table) -> str:
    row = table.rows.iloc[0]
    if not row["wasted_hours"] > 0:
        return "As far as is known, none."
    share = _per_cent(row["wasted_hours_percent"])
    said = Markup("Most by {}: {}, {} of all that was wasted.")
    return said.format(_name(row["reason"]), _hours(row["wasted_hours"]), share)


def _say_wasted_by_user(table: Table) -> str:
    wasted = table.rows.wasted_hours.fillna(0.0)
    if not wasted.sum() > 0:
        return "As far as is known, nobody wasted any."
    half = int((wasted.cumsum() < wasted.sum() / 2).sum()) + 1
    return f"Half of it was wasted by {half:,} of {_parts(len(wasted), 'user')}."


def _say_failures(table: Table) -> str:
    row = table.rows.iloc[0]
    said = Markup("{} cost most: {} in {}, half of which had failed within {}.")
    if len(table.rows) > _BARS:
        said += f" The plot has the first {_BARS} of {len(table.rows)} reasons."
    many = _parts(int(row["attempts"]), "attempt")
    return said.format(_name(row["reason"]), _hours(row["gpu_hours"]), many, cell("_s", row["run_s_p50"]))


def _say_waiting(table: Table) -> str:
    row = table.rows.set_index("gpus").loc["all"]
    half, most = cell("_s", row["wait_s_p50"]), cell("_s", row["wait_s_p90"])
    return f"Half of all attempts waited {half} or less, one in ten {most} or more."


def _say_waiting_by_cause(table: Table) -> str:
    rows = table.rows.set_index("cause")
    whole, lost = rows.wait_hours.sum(), rows.wait_hours.fillna(0.0)[UNKNOWN]
    if not whole > 0:
        return "As far as is known, nobody waited."
    if lost >= whole:
        return "What jobs waited for was not seen."
    known = rows.drop(UNKNOWN).wait_hours
    share = _per_cent(100 * known.max() / (whole - lost))
    said = f"Most by {_cause(str(known.idxmax()))}: {share} of the time of which it was seen."
    return said + (f" Of {_per_cent(100 * lost / whole)} of all waiting it was not." if lost > 0 else "")


def _say_causes_by_size(table: Table) -> str:
    rows = table.rows[table.rows.gpus != "all"].set_index("gpus")
    apart = rows.locality_percent.dropna()
    if apart.empty or not apart.max() > 0:
        return "No size was seen to wait for GPUs that were free but lay apart."
    return f"GPUs that were free but lay apart held up {_of_size(str(apart.idxmax()))} most: {_per_cent(apart.max())}."


def _say_locality(table: Table) -> str:
    attempts = table.rows.groupby("nodes").attempts.sum()
    lost = int(attempts.get(UNKNOWN, 0))
    known = int(attempts.sum()) - lost
    if not known:
        return "Of no attempt on several GPUs is it known how many nodes it ran on."
    share = _per_cent(100 * attempts.get("fewest", 0) / known)
    said = f"{share} of the attempts on several GPUs ran on as few nodes as could hold them."
    return said + (f" Of {_parts(lost, 'attempt')} it is not known." if lost else "")


def _say_by(table: Table) -> str:
    row = table.rows.iloc[0]
    said = Markup("Most GPU-hours: {} with {}, {} of all.")
    return said.format(
        _name(str(row.iloc[0])), amount_of_hours(row["gpu_hours"]), _per_cent(row["gpu_hours_percent"])
    )


# --- plots of the same rows -----------------------------------------------------------------------------------------


def _numbers(values: pd.Series) -> list[float]:
    return [float(value) for value in values.astype(float).fillna(nan)]


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(texts) + ". The table below has the same numbers."


def _draw_over_time(table: Table, about: About) -> Plot:
    rows = table.rows
    begins = [max(at.timestamp(), about.since) for at in rows["from"]]
    use, held = _numbers(rows.utilisation_percent), _numbers(rows.gpus_mean)
    known = [value for value in use if isfinite(value)]
    told = f"{len(known)} of {len(use)} parts of the time are known"
    if known:
        told += f", from {min(known):.0f} to {max(known):.0f} per cent"
    line, columns = Series("s1", "mean utilisation", use), Series("s3", "GPUs held", held)
    return course(Caption(table.name, table.title, _listed([told])), begins, about.until, line, columns)


def _draw_spread(table: Table, about: About) -> Plot:
    rows = table.rows[table.rows.utilisation != UNKNOWN]
    labels = [str(label).rsplit("-", 1)[-1] for label in rows.utilisation]
    hours, attempts = _numbers(rows.gpu_hours_percent), _numbers(rows.attempts_percent)
    told = _listed(
        f"{label} %: {_told(value)} of GPU-hours"
        for label, value in zip(rows.utilisation, hours, strict=True)
    )
    series = [Series("s1", "share of GPU-hours", hours), Series("s3", "share of attempts", attempts)]
    return groups(
        Caption(table.name, table.title, told),
        labels,
        series,
        "mean utilisation: none, or up to … %",
    )


def _draw_utilisation(table: Table, about: About) -> Plot:
    rows = table.rows
    series = [Series(style, name, _numbers(rows[f"{name}_percent"])) for name, style in _STATUS]
    told = _listed(
        f"{gpus} GPUs: " + ", ".join(f"{one.name} {_told(one.values[place])}" for one in series)
        for place, gpus in enumerate(rows.gpus)
    )
    return groups(Caption(table.name, table.title, told), list(rows.gpus), series, "GPUs of an attempt")


def _draw_locality(table: Table, about: About) -> Plot:
    found = table.rows.pivot(index="gpus", columns="nodes", values="utilisation_percent")
    sizes = list(dict.fromkeys(table.rows.gpus))
    styles = {"fewest": "s1", "up to twice": "s2", "more": "s3", UNKNOWN: "s4"}
    names = {
        "fewest": "fewest nodes",
        "up to twice": "up to twice as many",
        "more": "more",
        UNKNOWN: "not known how many",
    }
    series = [
        Series(style, names.get(key, key), _numbers(found[key].reindex(sizes)))
        for key, style in styles.items()
        if key in found
    ]
    told = _listed(
        f"{size} GPUs: " + ", ".join(f"{one.name} {_told(one.values[place])}" for one in series)
        for place, size in enumerate(sizes)
    )
    return groups(Caption(table.name, table.title, told), sizes, series, "GPUs of an attempt")


def _told(value: float) -> str:
    return f"{value:.0f} %" if isfinite(value) else NOT_KNOWN


def _of_size(label: str) -> str:
    return {"1": "1 GPU", "all": "all"}.get(label, f"{label} GPUs")


def _bars_of(
    key: str, column: str, share: str, style: Callable[[str], str]
) -> Callable[[Table, About], Plot]:
    """A bar of hours for each row, with its share; of many rows for the first ones, and one for the others."""

    def draw(table: Table, about: About) -> Plot:
        rows = table.rows
        shown = []
        for label, hours, part in zip(rows[key], _numbers(rows[column]), _numbers(rows[share]), strict=True):
            of = "of own" if share == "wasted_percent" else ""
            text = (
                f"{amount_of_hours(hours)} h, {_per_cent(part)} {of}".strip()
                if isfinite(hours)
                else NOT_KNOWN
            )
            name = _cause(label) if key == "cause" else plain(label, NAME)
            shown.append(Bar(name, hours, text, style(label)))
            if len(shown) == _BARS and len(rows) > _BARS + 1:
                rest = rows.iloc[_BARS:]
                left = float(rest[column].sum(min_count=1))
                text = f"{amount_of_hours(left)} h" if isfinite(left) else NOT_KNOWN
                shown.append(Bar(f"{len(rest):,} others", left, text, "s3"))
                break
        told = _listed(f"{bar.label}: {bar.text}" for bar in shown)
        return bars(Caption(table.name, table.title, told), shown)

    return draw


def _ranges_of(column: str, name: Callable[[str], str]) -> Callable[[Table, About], Plot]:
    """Three quantiles for each row."""

    def draw(table: Table, about: About) -> Plot:
        shown = []
        for row in table.rows.head(_BARS).to_dict("records"):
            label = str(row[str(table.rows.columns[0])])
            low, middle, high = (float(row[f"{column}_{part}"]) for part in ("p50", "p90", "p95"))
            text = ", ".join(
                f"{share} {cell('_s', value)}"
                for share, value in (("median", low), ("90 %", middle), ("95 %", high))
            )
            shown.append(Range(name(label), low, middle, high, text))
        told = _listed(f"{one.label}: {one.text}" for one in shown)
        return ranges(
            Caption(table.name, table.title, told), shown, ("half within", "90 % within", "95 % within")
        )

    return draw


def _cause(name: str) -> str:
    return CAUSES.get(name, name)


def _draw_causes_by_size(table: Table, about: About) -> Plot:
    rows = table.rows
    columns = {name: "not_known" if name == UNKNOWN else name for name in _CAUSE}
    series = [
        Series(style, _cause(name), _numbers(rows[f"{columns[name]}_percent"]))
        for name, style in _CAUSE.items()
    ]
    labels = [_of_size(str(size)) for size in rows.gpus]
    told = _listed(
        f"{label}: "
        + ", ".join(f"{one.name} {_told(one.values[place])}" for one in series if one.values[place])
        for place, label in enumerate(labels)
    )
    return stacks(Caption(table.name, table.title, told), labels, series)


_Say = Callable[[Table], str]
_Draw = Callable[[Table, About], Plot]
_OF: Final[Mapping[str, tuple[_Say, _Draw]]] = {
    "outcomes": (
        _say_outcomes,
        _bars_of("outcome", "gpu_hours", "gpu_hours_percent", lambda label: _OUTCOME.get(label, "s2")),
    ),
    "utilisation": (_say_utilisation, _draw_utilisation),
    "failures": (_say_failures, _ranges_of("run_s", lambda label: plain(label, NAME))),
    "wasted": (_say_wasted, _bars_of("reason", "wasted_hours", "wasted_hours_percent", lambda _: "s2")),
    "wasted_by_user": (
        _say_wasted_by_user,
        _bars_of("user", "wasted_hours", "wasted_percent", lambda _: "s2"),
    ),
    "waiting": (_say_waiting, _ranges_of("wait_s", _of_size)),
    "waiting_by_cause": (
        _say_waiting_by_cause,
        _bars_of("cause", "wait_hours", "wait_hours_percent", lambda name: _CAUSE[name]),
    ),
    "waiting_by_cause_and_size": (_say_causes_by_size, _draw_causes_by_size),
    "locality": (_say_locality, _draw_locality),
    "utilisation_spread": (_say_spread, _draw_spread),
    "utilisation_over_time": (_say_over_time, _draw_over_time),
}
"""What is said of a table, and how it is drawn."""
