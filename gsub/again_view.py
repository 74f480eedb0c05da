"""What followed each failed attempt at a job, as its user reads it: tried again and how, or why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from profiler.receipt import ENDED

if TYPE_CHECKING:
    from profiler.answers import JobSummary
    from profiler.resubmissions import Resubmission, State

__all__ = ["of_this_job", "rows"]

_SO_FAR: Final[dict[State, str]] = {
    "planned": "this is still to be done",
    "requeued": "it is queued again, its change is still to be made",
}
"""What is said of a decision that is not carried out yet."""
_WITHHELD: Final[dict[State, str]] = {
    "planned": "gsub-act is asked again for half an hour; after that this says what to type",
    "requeued": "it is queued again, its change waits for gsub-act, which does not answer",
}
"""The same while nobody is there to carry it out."""


def of_this_job(decided: Iterable[Resubmission], job: JobSummary) -> tuple[Resubmission, ...]:
    """Those of the attempts that this job has had: numbers of jobs come again, and the service keeps them for long."""
    over = job.state in ENDED if job.state is not None else job.ended is not None
    return tuple(one for one in decided if one.restarts < job.restarts + over)


def rows(decided: Iterable[Resubmission]) -> Iterator[tuple[str, str]]:
    """Lines, each with its label: of every attempt in their order what was decided; then what its user may type.

    What is to be typed is of the last attempt alone: the ones before it were followed by another.
    """
    last: Resubmission | None = None
    for last in decided:
        text = f"attempt {last.restarts + 1}: {last.why}"
        if last.withheld:
            text += f" ({_WITHHELD[last.state]})"
        elif so_far := _SO_FAR.get(last.state):
            text += f" ({so_far}{f'; so far: {last.said}' if last.said else ''})"
        yield "again", text
    if last is not None and last.state == "stopped" and last.command:
        yield "type", last.command
