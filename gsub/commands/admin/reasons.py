"""`gsub admin reasons`: why jobs failed, how often, and what GPUs they held for it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from profiler.answers import ReasonRow, Reasons

__all__ = ["moment", "reasons", "table", "window"]

HEADS: Final = ("REASON", "GPU-HOURS", "SHARE", "ATTEMPTS", "JOBS", "USERS", "MEDIAN", "MENDED BY")
_LEFT: Final = frozenset({"REASON", "MENDED BY"})
_UNITS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_BACK: Final = re.compile(r"([1-9][0-9]{0,5})([hdw])")
_FORMS: Final = "an age like 12h, 30d or 8w, or a date like 2026-11-01 or 2026-11-01T08:00"
_MENDED: Final = {"user": "its user", "engine": "framework, CUDA", "infra": "the site"}


@click.command()
@click.option(
    "--since", default="30d", metavar="WHEN", help="That ended then or later: 12h, 30d, 8w, 2026-11-01. [30d]"
)
@click.option("--until", metavar="WHEN", help="That ended before then. [now]")
@click.option("--account", metavar="NAME", help="Only of this Slurm account.")
@click.option("--user", metavar="NAME", help="Only of this user.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reasons(since: str, until: str | None, account: str | None, user: str | None, as_json: bool) -> None:
    """Why attempts at jobs failed, the reason that cost most first.

    GPU-HOURS are GPUs asked for times run time, MEDIAN is the median run time until the failure. Operators of the site
    file see all jobs, others their own. Reasons are explained in docs/why.md.
    """
    from gsub.service import records

    span = dict(zip(("since", "until"), window(since, until), strict=True))
    whose = {name: value for name, value in (("account", account), ("user", user)) if value is not None}
    found = records().reasons(**span, **whose)
    if as_json:
        from gsub.commands.submit import print_json

        print_json(_facts(found))
    else:
        print("\n".join(table(found)))


def window(since: str, until: str | None) -> tuple[float, float]:
    """From when until when, at most now, as --since and --until say it; in seconds since the epoch.

    Raises UserError (exit 2).
    """
    now = time.time()
    begin = moment(since, now, "--since")
    end = now if until is None else min(now, moment(until, now, "--until"))
    if begin >= end and until is not None and _is_default("since"):
        from gsub.term import one_line

        raise UserError(
            f"--until {one_line(until)} lies before the period begins",
            why=f"it begins {since} ago unless --since says otherwise",
            fix=f"say an earlier --since too: {_FORMS}",
            exit_code=USAGE,
        )
    if begin >= end:
        raise UserError(
            "--since lies after --until, or in the future", fix="turn them round", exit_code=USAGE
        )
    return begin, end


def _is_default(option: str) -> bool:
    """Whether the command that runs was not given this option."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.DEFAULT


def moment(text: str, now: float, option: str) -> float:
    """A time as a person writes it: so long ago, or a local date; in seconds since the epoch.

    Raises UserError (exit 2).

    >>> moment("2d", 200000.0, "--since")
    27200.0
    """
    back = _BACK.fullmatch(text)
    if back is not None:
        return max(0.0, now - int(back[1]) * _UNITS[back[2]])
    try:
        at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        at = -1.0
    if not 0 <= at <= 4e9:
        from gsub.term import one_line

        raise UserError(f"{option} {one_line(text)!r} is no time", fix=f"write {_FORMS}", exit_code=USAGE)
    return at


def table(found: Reasons) -> Iterator[str]:
    """The table as text, a line a reason, with a sum; harmless on a terminal."""
    yield f"failed attempts that ended from {_date(found.since)} to {_date(found.until)}"
    if not found.reasons:
        yield "none is known"
        return
    held = sum(row.gpu_seconds for row in found.reasons)
    rows = [HEADS, *(_cells(row, held) for row in found.reasons)]
    attempts = sum(row.attempts for row in found.reasons)
    rows.append(("in all", _hours(held), "", str(attempts), "", "", "", ""))
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
    for row in rows:
        yield "  ".join(_padded(row, widths)).rstrip()


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for head, cell, width in zip(HEADS, row, widths, strict=True):
        yield cell.ljust(width) if head in _LEFT else cell.rjust(width)


def _cells(row: ReasonRow, held: float) -> tuple[str, ...]:
    from gsub.term import one_line
    from profiler.wording import percent, span
    from prolog_epilog.failures.taxonomy import REASONS

    known = REASONS.get(row.reason)
    return (
        one_line(row.reason),
        _hours(row.gpu_seconds),
        percent(100 * row.gpu_seconds / held if held else None),
        str(row.attempts),
        str(row.jobs),
        str(row.users),
        span(row.runtime_p50),
        "" if known is None else _MENDED.get(known.origin, ""),
    )


def _hours(seconds: float) -> str:
    """GPU-hours; little is not nothing."""
    hours = seconds / 3600
    return f"{hours:.1f}" if hours >= 0.05 or not hours else "<0.1"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def _facts(found: Reasons) -> dict[str, object]:
    names = ("reason", "attempts", "jobs", "users", "gpu_seconds", "runtime_p50")
    rows = [{name: getattr(row, name) for name in names} for row in found.reasons]
    return {"since": found.since, "until": found.until, "reasons": rows}
