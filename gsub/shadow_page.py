"""The page of `gsub admin shadow` as one HTML file: what a stage would have done, whom it helped and whom it harmed.

The look, the script and the Content-Security-Policy are the audit's (`profiler.report.layout`); the words and the
figures are those of the terminal (`gsub.shadow_view`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nan
from typing import TYPE_CHECKING, Final

from gsub.shadow_view import VERDICTS, figure, listed, moment, said
from profiler.counting import count
from profiler.report.cells import cell
from profiler.report.evidence import LEAST, Figure, interval
from profiler.report.layout import Cell, Column, Section, rendered
from profiler.report.plots import Series, stacks
from profiler.report.svg import Caption, Plot
from profiler.wording import NOT_KNOWN, percent, plain

if TYPE_CHECKING:
    from profiler.report.advice import Advice
    from profiler.report.shadow import Shadow
    from profiler.report.shadow_values import Stage

__all__ = ["page"]

_NAME: Final = 120
_OVERVIEW: Final = (
    ("stage", False), ("verdict", False), ("attempts", True), ("jobs", True), ("GPU-hours", True), ("helped", True),
    ("harmed", True), ("of known", True), ("done already", True),
)  # fmt: skip
_FIGURES: Final = (
    ("tells of", False),
    ("what", False),
    ("value", True),
    ("rests on", True),
    ("95 % interval", False),
)
_KINDS: Final = (("really", "happened"), ("benefit", "benefit"), ("harm", "harm"))


def page(it: Shadow, advice: Advice) -> str:
    """The whole page."""
    where = "" if it.partition is None else f", partition {plain(it.partition, _NAME)}"
    return rendered(
        "shadow.html",
        cluster=plain(it.cluster, _NAME) + where,
        since=moment(it.since),
        until=moment(it.until),
        rests=said(it),
        cards=list(_cards(it)),
        advice=_advice(advice),
        overview=_overview(it),
        sections=[(_stage(one), _facts(one)) for one in it.stages],
    )


def _cards(it: Shadow) -> Iterator[Mapping[str, object]]:
    for one in it.stages:
        yield {
            "name": plain(one.name, _NAME),
            "text": VERDICTS[one.verdict],
            "more": plain(one.why, _NAME * 2),
            "rests": f"rests on {count(one.attempts, 'attempt')}, of {one.known:,} the effect is known",
        }


def _overview(it: Shadow) -> Section:
    rows = []
    for one in it.stages:
        numbers = (one.attempts, one.jobs, one.gpu_hours, one.helped, one.harmed, one.known, one.enforced)
        names = ("attempts", "jobs", "gpu_hours", "helped", "harmed", "known", "enforced")
        rows.append(
            [
                Cell(plain(one.name, _NAME), None, key=True),
                Cell(VERDICTS[one.verdict], None),
                *(_number(name, number) for name, number in zip(names, numbers, strict=True)),
            ]
        )
    lacking = [one.name for one in it.stages if one.known < LEAST]
    note = "Helped and harmed are attempts of which it is known; n/a: the store cannot tell."
    finding = (
        "" if not lacking else f"Of fewer than {LEAST} attempts is the effect known: {', '.join(lacking)}."
    )
    columns = [Column(name, number) for name, number in _OVERVIEW]
    attempts, unknown = it.overview.attempts, it.overview.lost
    return Section(
        "overview", "The stages side by side", plain(finding, _NAME * 4), note, attempts, unknown, _plot(it), columns,
        rows, 0, (),
    )  # fmt: skip


def _plot(it: Shadow) -> Plot | None:
    """Of each stage of which enough is known: the shares that it would have helped and harmed, and the rest."""
    known = [
        one for one in it.stages if one.known >= LEAST and (one.helped is not None or one.harmed is not None)
    ]
    if not known:
        return None
    helped = [_share(one.helped, one.known) for one in known]
    harmed = [_share(one.harmed, one.known) for one in known]
    rest = [max(0.0, 100 - good - bad) for good, bad in zip(helped, harmed, strict=True)]
    series = [
        Series("s6", "would have helped", helped),
        Series("s2", "would have harmed", harmed),
        Series("s7", "neither", rest),
    ]
    names = [plain(one.name, _NAME) for one in known]
    told = "; ".join(
        f"{name}: helped {good:.0f} %, harmed {bad:.0f} %"
        for name, good, bad in zip(names, helped, harmed, strict=True)
    )
    caption = Caption("overview", "Helped and harmed", f"{told}. The table below has the same numbers.")
    return stacks(caption, names, series)


def _share(part: int | None, whole: int) -> float:
    return 100 * (part or 0) / whole


def _stage(one: Stage) -> Section:
    rows = [
        [
            Cell(title, None, key=True),
            Cell(plain(found.label, _NAME), None, key=True),
            _value(found),
            _number("of", found.of),
            Cell(_interval(found), None),
        ]
        for title, member in _KINDS
        for found in getattr(one, member)
    ]
    columns = [Column(name, number) for name, number in _FIGURES]
    note = f"Supposed: {one.assumes}" if one.assumes else ""
    name = "stage-" + "".join(sign if sign.isalnum() else "-" for sign in one.name.lower())[:_NAME]
    title = f"{plain(one.name, _NAME)}: {VERDICTS[one.verdict]}"
    finding = plain(one.why, _NAME * 2)
    return Section(
        name,
        title,
        finding,
        plain(note, _NAME * 4),
        one.attempts,
        one.attempts - one.known,
        None,
        columns,
        rows,
        0,
        (),
    )


def _facts(one: Stage) -> str:
    """What it would have done, in a sentence."""
    if not one.jobs:
        return "It would have acted on no job."
    kinds = listed(list(one.changes.items()))
    text = f"It would have acted on {count(one.attempts, 'attempt')} at {count(one.jobs, 'job')}, "
    text += f"{cell('gpu_hours', one.gpu_hours)} GPU-hours: {kinds}."
    sure = (
        f" Of those known it would have helped {percent(100 * interval(one.helped, one.known)[0])} at least."
        if (one.helped is not None and one.known >= LEAST)
        else ""
    )
    return plain(text + sure, _NAME * 8)


def _value(found: Figure) -> Cell:
    if found.value is None:
        return Cell(NOT_KNOWN, "")
    text = figure(found).removeprefix(f"{found.label}: ")
    return Cell(plain(text.partition(" (")[0], _NAME), f"{found.value:.12g}")


def _interval(found: Figure) -> str:
    if found.low is None or found.high is None:
        return "–"
    unit = " %" if found.unit in ("", "%") else f" {found.unit}"
    return f"{found.low:.1f} to {found.high:.1f}{unit}"


def _number(name: str, value: float | None) -> Cell:
    known = nan if value is None else float(value)
    return Cell(cell(name, known), "" if value is None else f"{known:.12g}")


def _advice(found: Advice) -> Mapping[str, object]:
    """The line, what goes before it, and what comes with it, as the terminal says them."""
    return {
        "stage": None if found.stage is None else plain(found.stage, _NAME),
        "why": plain(found.why, _NAME * 4),
        "waits": [plain(one, _NAME * 4) for one in found.waits],
        "table": plain(found.table or "", _NAME),
        "line": plain(found.line or "", _NAME * 4),
        "command": plain(found.command or "", _NAME * 4),
        "first": [
            {
                "stage": plain(one.stage, _NAME),
                "why": plain(one.why, _NAME * 2),
                "table": plain(one.table, _NAME),
                "line": plain(one.line, _NAME * 2),
                "everywhere": one.everywhere,
                "hits": [plain(hit, _NAME) for hit in one.hits],
            }
            for one in found.first
        ],
        "comes_with": [plain(one, _NAME) for one in found.comes_with],
        "keep": [plain(one, _NAME) for one in found.keep],
    }
