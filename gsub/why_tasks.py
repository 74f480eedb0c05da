"""The tasks of an array that is asked about as a whole: how they are, why those that failed did, and what followed.

Few are looked at, and of each way to end some: a thousand tasks that ended alike are told by the first of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from gsub.again_view import of_this_job
from gsub.job_parts import is_rest
from gsub.why_log import where

if TYPE_CHECKING:
    from gsub.service import Records
    from profiler.findings import Finding
    from profiler.resubmissions import Resubmission, State
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["NO_TASKS", "Task", "Tasks", "facts", "rows", "tasks_of"]

_T = TypeVar("_T")

MOST: Final = 24
"""Tasks that are looked at: two questions to the service each."""
_NAMED: Final = 12
"""Tasks that a line names."""
_WAYS: Final = 3
"""Lines of what followed, for a reason."""
_WORDS: Final[Mapping[State, str]] = {
    "planned": "to be tried again",
    "requeued": "queued again",
    "done": "tried again",
    "stopped": "not tried again",
}
_WITHHELD: Final = "waiting for gsub-act"


@dataclass(frozen=True, slots=True)
class Task:
    """A task that failed, or did before it was tried again: Slurm's word for how it is now, why its last failure was
    (None: not known), and what followed each.
    """

    shown: str
    state: str
    finding: Finding | None = None
    again: tuple[Resubmission, ...] = ()

    @property
    def reason(self) -> str:
        """Why it failed, in a word."""
        if self.finding is not None:
            return self.finding.reason
        return self.again[-1].reason if self.again else f"not known ({self.state})"


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of an array. `states`: how many are in which; `looked`: failed ones; `left`: how many failed ones were
    not looked at, by Slurm's word for them.
    """

    states: Mapping[str, int] = field(default_factory=dict)
    looked: tuple[Task, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)


NO_TASKS: Final = Tasks()


class Asks(Protocol):
    """The service as far as it answers."""

    def asked(self, ask: Callable[[Records], _T]) -> _T | None:
        """Its answer; None where it has none."""
        ...


def tasks_of(job: str, told: Job | AccountingRecord | None, client: SlurmClient, service: Asks) -> Tasks:
    """The tasks of the array `job`; none where it is no array, or one task of it."""
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.parse import task_count

    if not job.isdecimal() or told is None or told.array_job_id is None:
        return NO_TASKS
    found: dict[str, Job | AccountingRecord] = {}
    # slurmctld forgets the tasks that ended first while others still run
    with suppress(SlurmError):
        found.update({one.shown_id: one for one in client.accounting(ids=[job], duplicates=False)})
    with suppress(SlurmError):
        # The record of an array as such (see `is_rest`) is no task; accounting has what it stands for
        live = [one for one in client.jobs(ids=[job]) if one.array_tasks or not (found and is_rest(one))]
        if any(one.array_tasks for one in live):
            # What waits of it stands for tasks that accounting may have by an older word
            found = {shown: one for shown, one in found.items() if one.array_task_id is not None}
        found.update({one.shown_id: one for one in live})
    states: Counter[str] = Counter()
    for one in found.values():
        states[one.state.value] += 1 if one.array_task_id is not None else task_count(one.array_tasks)
    failed = [one for one in found.values() if one.array_task_id is not None and _has_failed(one)]
    chosen = _chosen(sorted(failed, key=lambda one: one.array_task_id or 0))
    ids = {one.shown_id for one in chosen}
    return Tasks(
        states=states,
        looked=tuple(_task(one, service) for one in chosen),
        left=Counter(one.state.value for one in failed if one.shown_id not in ids),
    )


def _has_failed(one: Job | AccountingRecord) -> bool:
    attempts = one.restarts if one.restarts is not None else getattr(one, "attempt", 0)
    return bool(attempts) or (one.state.ended and one.state.value != "COMPLETED")


def _chosen(failed: Sequence[Job | AccountingRecord]) -> list[Job | AccountingRecord]:
    """Those that are looked at: of each way to end in turn."""
    ways: dict[tuple[object, ...], list[Job | AccountingRecord]] = {}
    for one in failed:
        ways.setdefault((one.state.value, one.exit.code, one.exit.signal), []).append(one)
    ranked = sorted(
        ((turn, place, one) for place, alike in enumerate(ways.values()) for turn, one in enumerate(alike)),
        key=lambda ranks: ranks[:2],
    )
    return sorted((one for _, _, one in ranked[:MOST]), key=lambda one: one.array_task_id or 0)


def _task(one: Job | AccountingRecord, service: Asks) -> Task:
    shown = one.shown_id
    answer = service.asked(lambda records: records.verdict(shown))
    if answer is None:
        return Task(shown, one.state.value)
    followed = service.asked(lambda records: records.resubmissions(shown))
    again = of_this_job(followed.resubmissions, answer.job) if followed is not None else ()
    return Task(
        shown,
        one.state.value,
        answer.verdict.finding if answer.verdict is not None and _ended_badly(one) else None,
        again,
    )


def _ended_badly(one: Job | AccountingRecord) -> bool:
    return one.state.ended and one.state.value != "COMPLETED"


def rows(tasks: Tasks) -> Iterator[tuple[str, str]]:
    """Lines, each with its label: how many are how, then those that failed by reason, the most frequent first."""
    if not tasks.states:
        return
    total = sum(tasks.states.values())
    yield "tasks", f"{total}: {_counts(tasks.states)}"
    by_reason: dict[str, list[Task]] = {}
    for task in tasks.looked:
        by_reason.setdefault(task.reason, []).append(task)
    for reason, some in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield "failed", f"{len(some)} x {reason}: {_named(some)}"
        first = next((one.finding for one in some if one.finding and one.finding.evidence), None)
        if first is not None:
            yield "", f"{where(first.evidence[0])}{first.evidence[0].text}"
        yield from _followed(some)
    if tasks.left:
        count = sum(tasks.left.values())
        yield "", f"{count} more that failed were not looked at ({_counts(tasks.left)}): gsub why ARRAY_TASK"


def _followed(some: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """What followed their last failures: tasks of which the same came are one line."""
    ways: dict[tuple[str, str], list[Task]] = {}
    for task in some:
        if task.again:
            last = task.again[-1]
            words = _WITHHELD if last.withheld else _WORDS[last.state]
            ways.setdefault((words, last.stop), []).append(task)
    ordered = sorted(ways.items(), key=lambda item: -len(item[1]))
    for (words, _), alike in ordered[:_WAYS]:
        now = "" if words == _WORDS["stopped"] else f" (now {_counts(Counter(one.state for one in alike))})"
        who = "all" if len(alike) == len(some) > 1 else _named(alike)
        row = alike[0].again[-1]
        typed = f" Type: {row.command}" if row.state == "stopped" and row.command else ""
        yield "", f"{words}{now}: {who}. {alike[0].shown}: {row.why}{typed}"
    rest = sum(len(alike) for _, alike in ordered[_WAYS:])
    if rest:
        yield "", f"and {rest} in other ways: gsub why ARRAY_TASK"


def _named(tasks: Sequence[Task]) -> str:
    names = ", ".join(one.shown for one in tasks[:_NAMED])
    return names + (f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else "")


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda one: -one[1]))


def facts(tasks: Tasks, plain: Callable[[Any], Any]) -> Iterable[tuple[str, Any]]:
    """Members of the object of `--json`; `plain` makes plain values of structures."""
    yield "task_states", dict(tasks.states)
    yield (
        "tasks",
        [
            {
                "id": task.shown,
                "state": task.state,
                "reason": task.reason,
                "finding": plain(task.finding),
                "resubmissions": [plain(row) for row in task.again],
            }
            for task in tasks.looked
        ],
    )
    yield "tasks_not_looked_at", sum(tasks.left.values())
