"""What one's jobs held, used and lost over a period: a screen of text, the same tables as data, and as CSV files.

Names of tables and columns are those of `gsub admin audit`; what they say is the same there and here.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import fsum
from typing import TYPE_CHECKING, Final

from gsub.printed import Line
from profiler.answers import Advice, Report
from profiler.counting import count
from profiler.report.cells import UNITS, cell, head
from profiler.wording import NOT_KNOWN, percent, plain, size, span
from prolog_epilog.failures.taxonomy import REASONS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Queue", "as_csv", "facts", "lines", "tables"]

_WIDTH: Final = 80
_ROWS: Final = 8
"""Most rows of a table that are shown; files have them all."""
_SENTENCES: Final = 4
_MENDED: Final = {"user": "you", "engine": "framework", "infra": "the site"}
_LEFT: Final = frozenset({"figure", "outcome", "reason", "mended_by", "cause", "gpus"})
"""Columns of texts."""

Value = str | float | int | None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: rows of values by the columns' names, which tell their units (`profiler.report.cells`)."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    attempts: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Queue:
    """One's pending jobs, as Slurm has them now: what each waits for (`profiler.waits.CAUSES`), its GPUs and seconds.

    None in the place of GPUs or seconds is "not known". An array of which tasks wait is one job.
    """

    jobs: tuple[tuple[str, int | None, float | None], ...]


def tables(found: Report, queue: Queue | None = None) -> tuple[Sheet, ...]:
    """All that there is to tell, as tables; `queue` is None where it was not asked for, or Slurm did not answer."""
    now = () if queue is None else (_now(queue),)
    return (
        _totals(found),
        _outcomes(found),
        _failures(found),
        _waiting(found),
        _causes(found),
        _advice(found),
        *now,
    )


def _totals(found: Report) -> Sheet:
    rows: list[tuple[Value, ...]] = [
        ("attempts", found.attempts, "", found.attempts, 0),
        ("jobs", found.jobs, "", found.attempts, 0),
    ]
    for name, unit, one in (
        ("GPU-hours", "h", found.gpu_seconds),
        ("utilisation", "%", found.utilisation),
        ("GPU-hours of GPUs never used", "h", found.idle_gpu_seconds),
        ("GPU-hours of failed attempts", "h", found.failed_gpu_seconds),
        ("GPU-hours wasted, by both", "h", found.wasted_gpu_seconds),
    ):
        value = _hours(one.value) if unit == "h" else one.value
        rows.append((name, value, unit, one.attempts, one.unknown))
    columns = ("figure", "value", "unit", "attempts", "unknown")
    return Sheet(
        "totals", "In all", "GPU-hours are those inside the window.", columns, tuple(rows), found.attempts, 0
    )


def _outcomes(found: Report) -> Sheet:
    whole = _whole(one.gpu_seconds for one in found.outcomes)
    rows = tuple(
        (
            one.outcome,
            _share(one.attempts, found.attempts),
            _hours(one.gpu_seconds),
            _share(one.gpu_seconds, whole),
            one.attempts,
            one.unknown,
        )
        for one in found.outcomes
    )
    columns = ("outcome", "attempts_percent", "gpu_hours", "gpu_hours_percent", "attempts", "unknown")
    note = "Outcomes are those known now, also of attempts that ended after the window."
    unknown = sum(one.unknown for one in found.outcomes)
    return Sheet("outcomes", "How they ended", note, columns, rows, found.attempts, unknown)


def _failures(found: Report) -> Sheet:
    whole = _whole(one.gpu_seconds for one in found.failures)
    rows = tuple(
        (
            one.reason,
            one.runtime_p50,
            _hours(one.gpu_seconds),
            _share(one.gpu_seconds, whole),
            _MENDED.get(REASONS[one.reason].origin, "") if one.reason in REASONS else "",
            one.attempts,
            one.unknown,
        )
        for one in found.failures
    )
    columns = ("reason", "run_s_p50", "gpu_hours", "gpu_hours_percent", "mended_by", "attempts", "unknown")
    note = "All GPU-hours of failed attempts count as lost; a checkpoint may have saved some."
    unjudged = sum(one.attempts for one in found.failures if one.reason == NOT_KNOWN)
    attempts = sum(one.attempts for one in found.failures)
    return Sheet("failures", "Failures by reason", note, columns, rows, attempts, unjudged)


def _waiting(found: Report) -> Sheet:
    rows = []
    for one in found.waits:
        known = one.attempts - one.unknown
        mean = None if one.wait_seconds is None else one.wait_seconds / known
        long = _share(one.over_10_min, known)
        rows.append((one.gpus, one.wait_p50, one.wait_p90, mean, long, one.attempts, one.unknown))
    columns = (
        "gpus",
        "wait_s_p50",
        "wait_s_p90",
        "wait_s_mean",
        "over_10_min_percent",
        "attempts",
        "unknown",
    )
    note = "From eligible (submitted, where that is not known) to started."
    waited = found.queued_seconds
    return Sheet("waiting", "Waiting by GPUs", note, columns, tuple(rows), waited.attempts, waited.unknown)


def _causes(found: Report) -> Sheet:
    whole = _whole(one.wait_seconds for one in found.causes)
    rows = tuple(
        (
            one.cause,
            _hours(one.wait_seconds),
            _share(one.wait_seconds, whole),
            one.waited,
            one.attempts,
            one.unknown,
        )
        for one in found.causes
    )
    columns = ("cause", "wait_hours", "wait_hours_percent", "waited", "attempts", "unknown")
    note = "From submission to start, by the one reason that Slurm named, look by look; n/a: nobody saw it."
    unknown = max((one.unknown for one in found.causes), default=0)
    return Sheet("causes", "Waiting by cause", note, columns, rows, found.attempts, unknown)


def _now(queue: Queue) -> Sheet:
    rows = []
    for cause in dict.fromkeys(name for name, _, _ in queue.jobs):
        gpus = [number for name, number, _ in queue.jobs if name == cause]
        waits = [seconds for name, _, seconds in queue.jobs if name == cause]
        known = [number for number in gpus if number is not None]
        longest = max((seconds for seconds in waits if seconds is not None), default=None)
        rows.append((cause, sum(known) if known else None, longest, len(gpus), gpus.count(None)))
    rows.sort(key=lambda row: -row[3])
    columns = ("cause", "gpus_asked", "wait_s_max", "jobs", "unknown")
    note = "By the one reason that Slurm names of each job; of an array that waits, one job."
    unknown = sum(row[-1] for row in rows)
    return Sheet("waiting_now", "Waiting now, by cause", note, columns, tuple(rows), len(queue.jobs), unknown)


def _advice(found: Report) -> Sheet:
    rows = tuple(
        (one.what, _sentence(one), _hours(one.gpu_seconds), one.job_id, one.attempts, one.of - one.attempts)
        for one in found.advice
    )
    columns = ("what", "sentence", "gpu_hours", "last_job", "attempts", "others")
    note = "Others: attempts of which it is known that it is not so."
    return Sheet("advice", "What would have helped", note, columns, rows, found.attempts, 0)


# --- as data --------------------------------------------------------------------------------------------------------


def facts(found: Report, queue: Queue | None = None) -> dict[str, object]:
    """One object; what is not known is null, times are ISO 8601."""
    return {
        **_about(found),
        "tables": {
            one.name: {
                "title": one.title,
                "note": one.note,
                "attempts": one.attempts,
                "unknown": one.unknown,
                "rows": [dict(zip(one.columns, row, strict=True)) for row in one.rows],
            }
            for one in tables(found, queue)
        },
    }


def as_csv(folder: Path, found: Report, queue: Queue | None = None) -> int:
    """A file for each table, and index.csv of all of them; how many tables. Raises OSError and FolderError.

    Texts that a spreadsheet would take for a formula have an apostrophe ahead of them.
    """
    import csv

    from profiler.report.folder import as_text, whole

    made, about = tables(found, queue), _about(found)

    def write(file: Path, rows: Sequence[Sequence[object]]) -> None:
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(
                [as_text(value) if isinstance(value, str) else value for value in row] for row in rows
            )

    with whole(folder) as fresh:
        index = [
            ("table", "title", "note", "attempts", "unknown", *about),
            *((one.name, one.title, one.note, one.attempts, one.unknown, *about.values()) for one in made),
        ]
        write(fresh / "index.csv", index)
        for one in made:
            write(fresh / f"{one.name}.csv", [one.columns, *one.rows])
    return len(made)


def _about(found: Report) -> dict[str, str]:
    since, until = (datetime.fromtimestamp(at, timezone.utc).isoformat() for at in (found.since, found.until))
    return {"cluster": found.cluster, "since": since, "until": until}


# --- as a screen of text --------------------------------------------------------------------------------------------


def lines(found: Report, queue: Queue | None = None, trouble: str = "") -> Iterator[Line]:
    """The whole in 80 columns, harmless on a terminal: figures, a few sentences, failures, waiting.

    `trouble` says why it is not known what waits now.
    """
    zone = time.strftime("%Z", time.localtime(found.until))
    yield Line(
        f"my jobs on {plain(found.cluster)} from {_date(found.since)} to {_date(found.until)} {zone}", "head"
    )
    if not found.attempts:
        yield Line("none of yours ran then: a job is known from its start; --since 8w looks further back")
        yield from _queued(queue, trouble)
        return
    totals, outcomes, failures, waiting, causes, _ = tables(found)
    yield Line(f"{found.attempts:,} attempts at {found.jobs:,} jobs; what is not known is in no figure")
    yield Line("")
    yield from _grid(totals, ("figure", "value", "attempts", "unknown"), totals.rows[2:])
    if found.advice:
        yield Line("")
        yield Line("What would have helped", "head")
        for one in found.advice[:_SENTENCES]:
            yield from map(
                Line,
                textwrap.wrap(f"- {_sentence(one)}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False),
            )
        left = len(found.advice) - _SENTENCES
        if left > 0:
            yield Line(f"  and {left} more: --json or --csv has them", "note")
    if failures.rows:
        yield from _told(failures, ("reason", "gpu_hours", "run_s_p50", "mended_by", "attempts", "unknown"))
    if waited := sorted((row for row in causes.rows if row[1]), key=lambda row: -float(row[1] or 0.0)):
        yield from _told(replace(causes, rows=tuple(waited)), causes.columns)
    yield from _queued(queue, trouble)
    yield from _told(
        waiting, ("gpus", "wait_s_p50", "wait_s_p90", "over_10_min_percent", "attempts", "unknown")
    )
    yield from _told(outcomes, ("outcome", "gpu_hours", "gpu_hours_percent", "attempts", "unknown"))


def _queued(queue: Queue | None, trouble: str) -> Iterator[Line]:
    if queue is not None and queue.jobs:
        sheet = _now(queue)
        yield from _told(sheet, sheet.columns)
    if trouble:
        yield Line("")
        yield Line(f"what waits now is not known: {plain(trouble)}", "note")


def _told(sheet: Sheet, columns: Sequence[str]) -> Iterator[Line]:
    """A table under its title, its first rows."""
    yield Line("")
    yield Line(sheet.title, "head")
    yield from _grid(sheet, columns, sheet.rows[:_ROWS])
    left = len(sheet.rows) - _ROWS
    if left > 0:
        yield Line(f"  and {left} more: --json or --csv has them", "note")


def _grid(sheet: Sheet, columns: Sequence[str], rows: Sequence[tuple[Value, ...]]) -> Iterator[Line]:
    places = [sheet.columns.index(column) for column in columns]
    unit = sheet.columns.index("unit") if "unit" in sheet.columns else None
    texts = [[head(column) for column in columns]]
    for row in rows:
        kinds = [
            UNITS.get(str(row[unit]), "") if column == "value" and unit is not None else column
            for column in columns
        ]
        texts.append([cell(kind, row[place]) for kind, place in zip(kinds, places, strict=True)])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for number, text in enumerate(texts):
        cells = (
            value.ljust(width) if column in _LEFT else value.rjust(width)
            for column, value, width in zip(columns, text, widths, strict=True)
        )
        yield Line(("  " + "  ".join(cells)).rstrip(), "" if number else "note")


def _sentence(one: Advice) -> str:
    """What would have helped, with the attempts that it rests on."""
    attempts, values = count(one.attempts, "attempt"), one.values
    hours = f"{cell('gpu_hours', _hours(one.gpu_seconds))} GPU-hours"
    mean = {name: value / one.attempts for name, value in values.items()}
    last = f"last: job {one.job_id}"
    if one.what == "no_checkpoint":
        text = (
            f"{attempts} ran into the time limit, and no log shows a checkpoint: {hours} ({last}). "
            "With checkpoints the next attempt goes on where this one ended."
        )
    elif one.what == "smoke":
        reasons = ", ".join(f"{plain(name, 40)} {number:.0f}" for name, number in values.items())
        text = f"{attempts} failed of what a smoke run finds on one GPU ({reasons}): {hours}. gsub --smoke SCRIPT"
    elif one.what == "unused_gpus":
        text = f"{attempts} never used a GPU, and did not fail: {hours} ({last}). Ask for none where none is needed."
    elif one.what == "spare_gpus":
        used = cell("gpus_mean", mean["gpus"] - mean["unused"])
        text = (
            f"{attempts} used {used.removesuffix('.0')} of {cell('gpus_mean', mean['gpus']).removesuffix('.0')} GPUs "
            f"in the mean; the others stood idle for {hours} ({last}). Ask for fewer, or start a rank on each."
        )
    elif one.what == "cpus":
        share = 100 * values["busy"] / values["seen"] if values["seen"] else None
        text = (
            f"{attempts} kept all CPUs busy while the GPUs stood at {percent(share)} ({last}): more CPUs may help. "
            "gsub learn SCRIPT measures how many."
        )
    elif one.what == "memory":
        text = (
            f"{one.attempts} of {one.of} attempts that ended well on one node used less than half of their memory: "
            f"{size(mean['asked'])} asked in the mean, {size(values['most_used'])} used at most ({last}). --mem"
        )
    elif one.what == "time_limit":
        text = (
            f"{one.attempts} of {one.of} attempts that ended well ran for less than a quarter of their time limit: "
            f"{span(mean['asked'])} asked in the mean, {span(values['most_used'])} run at most ({last}). "
            "A shorter --time lets Slurm start a job in a gap."
        )
    else:  # a service that knows more than this gsub
        text = f"{attempts}: {plain(one.what, 40)} ({last})"
    return text


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _whole(values: Iterable[float | None]) -> float:
    return fsum(value for value in values if value is not None)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
