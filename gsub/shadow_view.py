"""The page of `gsub admin shadow` on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gsub.term import harmless
from profiler.counting import count
from profiler.report.evidence import LEAST
from profiler.wording import NOT_KNOWN, percent, span

if TYPE_CHECKING:
    from profiler.report.advice import Advice
    from profiler.report.evidence import Figure
    from profiler.report.shadow import Shadow
    from profiler.report.shadow_values import Stage

__all__ = ["VERDICTS", "figure", "listed", "moment", "said", "show"]

_LISTS = ("ended", "failed")
_MOST = 6
"""Kinds that are told of a list: --json has them all."""
VERDICTS = {"for": "helps", "against": "WOULD HARM", "open": "not known yet"}


def show(page: Shadow, advice: Advice) -> None:
    """Print the page, harmless on a terminal: names of partitions, nodes and stages are others' words."""
    for line in (*_head(page), *(line for one in page.stages for line in _stage(one)), *_advice(advice)):
        print(harmless(line).replace("\n", " "))


def _head(page: Shadow) -> Iterator[str]:
    zone = time.strftime("%Z", time.localtime(page.until))
    where = "" if page.partition is None else f", partition {page.partition}"
    yield (
        f"{page.cluster}{where}: what enforce would have changed, of jobs submitted from {moment(page.since)} to "
        f"{moment(page.until)} {zone}"
    )
    yield said(page)


def said(page: Shadow) -> str:
    """What the page rests on, in two sentences."""
    of = page.overview
    left_out = ((of.enforced, "enforced already"), (of.opted_out, "opted out"), (of.unread, "not readable"))
    out = "".join(f", {number:,} {what}" for number, what in left_out if number)
    lost = f"; of {of.lost:,} the job is not known" if of.lost else ""
    return (
        f"{count(of.decisions, 'decision')}{out}; {count(of.attempts, 'attempt')} followed the others{lost}. "
        f"{count(of.failures, 'attempt')} failed in that time."
    )


def _stage(one: Stage) -> Iterator[str]:
    yield ""
    yield f"{one.name}  {VERDICTS[one.verdict]}: {one.why}"
    if one.enforced:
        yield f"  done already: {one.enforced:,}, not counted below"
    if not one.jobs:
        return
    kinds = listed(list(one.changes.items()))
    held = f"{one.gpu_hours:,.1f} GPU-hours"
    yield f"  would have acted on {count(one.attempts, 'attempt')} at {count(one.jobs, 'job')}, {held}: {kinds}"
    for title, figures in (("really", one.happened), ("benefit", one.benefit), ("harm", one.harm)):
        for number, found in enumerate(_lines(figures)):
            yield f"  {title if not number else '':<8}{found}"
    if one.assumes:
        yield f"  assumes {one.assumes}"


def _advice(found: Advice) -> Iterator[str]:
    yield ""
    if found.stage is None:
        yield f"Nothing to turn on: {found.why}."
        for waits in found.waits:
            yield f"  {waits}"
        return
    yield f"Turn on {found.stage}: {found.why}. One line of the site file, in [{found.table}]:"
    yield f"    {found.line}" + (f"      # or: {found.command}" if found.command else "")
    for hold in found.first:
        where = f"[{hold.table}]" + (", for the whole site" if hold.everywhere else "")
        yield f"  before it, to keep {hold.stage} off ({hold.why}), in {where}:"
        yield f"    {hold.line}"
        if hold.hits:
            yield f"    which takes {hold.stage} from what enforces already: {', '.join(hold.hits)}"
    if found.comes_with:
        yield f"  it also turns on, as they have no key of their own: {', '.join(found.comes_with)}"
    if found.keep:
        yield f"  what states its own mode keeps it: {', '.join(found.keep)}"


def _lines(figures: Sequence[Figure]) -> Iterator[str]:
    """A line each; how attempts ended, and of what they failed, on one line."""
    lists: dict[str, list[tuple[str, float]]] = {name: [] for name in _LISTS}
    for one in figures:
        kind, _, name = one.label.partition(": ")
        if kind in lists:
            lists[kind].append((name, one.value or 0))
        else:
            yield figure(one)
    for kind, found in lists.items():
        if found:
            yield f"{kind}: {listed(found)}"


def listed(counts: Sequence[tuple[str, float]]) -> str:
    """The most frequent kinds, with how many of each."""
    told = ", ".join(f"{name} {number:,.0f}" for name, number in counts[:_MOST])
    more = sum(number for _, number in counts[_MOST:])
    return told + (f", others {more:,.0f}" if more else "")


def figure(one: Figure) -> str:
    """A figure in one line, with what it rests on.

    >>> from profiler.report.evidence import Figure, counted
    >>> figure(counted("peaked above", 3, 412)), figure(counted("peaked above", 1, 3))
    ('peaked above: 3 of 412, 1 % (0.2 to 2.1 %)', 'peaked above: 1 of 3 (too few for a share)')
    >>> figure(Figure("waited", None, "s", 3)), figure(Figure("waited", 90.0, "s", 30))
    ('waited: too few (n=3)', 'waited: 1 min 30 s (n=30)')
    """
    ends = "" if one.low is None or one.high is None else f"{one.low:.1f} to {one.high:.1f}"
    if one.value is None:
        return f"{one.label}: {NOT_KNOWN if one.of is None else f'too few (n={one.of})'}"
    if one.unit == "":
        told = f"{one.label}: {one.value:,.0f}"
        if one.of is None:
            return told
        told += f" of {one.of:,}"
        if not one.of:
            return told
        share = f", {percent(100 * one.value / one.of)}"
        return told + (
            share + (f" ({ends} %)" if ends else "") if one.of >= LEAST else " (too few for a share)"
        )
    if one.unit == "s":
        told = span(one.value)
    elif one.unit == "%":
        told = percent(one.value)
    elif one.unit in ("points", "times"):
        told = f"{one.value:+.1f} points" if one.unit == "points" else f"{one.value:.2f} times"
        told += f" ({ends})" if ends else ""
    else:
        told = f"{one.value:,.1f} {one.unit}"
    return f"{one.label}: {told}" + ("" if one.of is None else f" (n={one.of:,})")


def moment(at: float) -> str:
    """A time as people here write it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
