"""One step of what was decided: what gsub-act is asked, and what its answer makes of the row. Pure.

    planned --requeue--> requeued --update--> done
    planned --requeuehold--> requeued --update--> requeued --release--> done      (Slurm's own delay is too short)

A request's id is a digest of what it is about: whoever asks again after a crash is answered, and nothing is done twice.
Only when Slurm has said no is it another one. Every request names the attempt (`restarts`), so that neither an old plan
nor a second asker requeues a job once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from profiler.logs import one_line
from profiler.resubmissions import ENDED, SILENT, Resubmission, Stop
from slurm_plugins.act.ask import new
from slurm_plugins.act.wire import Answer, Request
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.again_facts import overtaken

__all__ = [
    "PATIENCE",
    "answered",
    "prepared",
    "refused",
    "request_of",
    "resume",
    "stopped",
    "unanswered",
    "withhold",
]

SHORT: Final = 15.0
"""Seconds of Slurm's own delay after a requeue that are too few to change a job in."""
PATIENCE: Final = 1800.0
"""Seconds after the decision for which gsub-act, or Slurm, may be away; then the user is told what to type."""
_HELD: Final = 170.0
"""Seconds in which a hold of ours is released: gsub-act ends it by itself after three minutes."""
_NOES: Final = 3
"""Times that Slurm may say no to a step."""
_AFTER_NO: Final = 3.0
_COMPLETING: Final = 2.0
_LONGEST: Final = 60.0
_LONGEST_WAIT: Final = 3600.0
"""Seconds ahead to which gsub-act sets a job's start at most."""
_APART: Final = 2.0
"""Seconds from a decision to a new start: 22.05 runs no prolog for a job that starts within a second of its end."""
_BY: Final = "verdict-"
_PROMISE: Final = "it is tried again"
_CONDITION: Final = "it would be tried again"
_BUT: Final = f", but {SILENT}."
_LONGEST_WHY: Final = 600

_WORDS: Final[tuple[tuple[str, Stop], ...]] = (
    ("switched gsub-act off", "off"),
    ("the site is in ", "mode"),
    ("--no-requeue", "no_requeue"),
    ("no batch job", "no_requeue"),
    ("heterogeneous", "array"),
    ("of an array", "array"),
    ("limit", "limit"),
    ("more than a node", "limit"),
    ("MaxMem", "limit"),
)
"""What a refusal of gsub-act means, by a word in it."""


def prepared(row: Resubmission, delay: float, *, quick: bool) -> Resubmission:
    """A plan by the way that Slurm's own `delay` after a requeue, in seconds, leaves to carry it out.

    `quick`: it may be cut short.
    """
    if row.state in ENDED or row.step != "requeue":
        return row
    wait = row.delay_s if quick else max(row.delay_s, min(delay, _LONGEST_WAIT))
    return msgspec.structs.replace(row, delay_s=wait, step="requeue" if delay >= SHORT else "requeuehold")


def request_of(row: Resubmission) -> Request:
    """What is asked of gsub-act for the step of this row."""
    # Those of a requeue are looked at only: a job that may not be changed is not run again as it was
    fields = {} if row.step == "release" else _fields(row)
    attempt = {"requeue": row.restarts, "requeuehold": row.restarts, "update": row.restarts + 1}.get(row.step)
    about = [row.cluster, row.job_id, row.restarts, row.step, row.failed, sorted(fields.items())]
    request = new(
        row.step,
        row.shown or str(row.job_id),
        cluster=row.cluster,
        why=one_line(row.why, 300) or "it failed",
        by=_BY + hashlib.sha256(f"{row.cluster} {row.job_id} {row.restarts}".encode()).hexdigest()[:16],
        fields=fields,
        restarts=attempt,
        number=_number(row),
        own_id=f"r-{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:40]}",
    )
    if row.step == "requeuehold":
        return msgspec.structs.replace(request, until=request.at + _HELD)
    return request


def _number(row: Resubmission) -> int | None:
    """An array task's own number: where it has the array's, that tells of all."""
    array, _, task = row.shown.partition("_")
    return row.job_id if task and array != str(row.job_id) else None


def _fields(row: Resubmission) -> Mapping[str, str]:
    fields = {}
    if row.exclude:
        fields["ExcNodeList"] = row.exclude
    if row.memory_mib is not None and row.memory_per:
        fields["MinMemoryNode" if row.memory_per == "node" else "MinMemoryCPU"] = str(row.memory_mib)
    fields["StartTime"] = f"now+{round(row.delay_s)}" if row.delay_s >= 1 else "now"
    return fields


def answered(row: Resubmission, answer: Answer, now: float) -> Resubmission | None:
    """The row after an answer; None for a refusal that is not about time: `refused` then needs a look at the job."""
    said = one_line(answer.said, 300)
    if answer.result == "done":
        return _after_step(row, now)
    if answer.result == "refused" and answer.again is None:
        return None
    if answer.result == "failed":
        return _after_no(row, said, now)
    if now - row.at > PATIENCE:
        return stopped(row, _meaning(said), said or "gsub-act could not do it in time")
    wait = min(max(answer.again or _AFTER_NO, 0.2), _LONGEST)
    return msgspec.structs.replace(row, due=now + wait, said=said, tries=row.tries + 1)


def _after_step(row: Resubmission, now: float) -> Resubmission:
    after = msgspec.structs.replace(row, said="", tries=row.tries + 1, failed=0)
    if row.step in ("requeue", "requeuehold"):
        # Which way it came shows in the next steps alone: a hold has to be released
        held = row.step == "requeuehold"
        due = max(now, min(row.at + _APART, now + _APART))
        return msgspec.structs.replace(after, state="requeued", step="update", held=held, due=due)
    if row.step == "update" and row.held:
        return msgspec.structs.replace(after, step="release", due=now)
    if row.stop:
        return stopped(row, row.stop, row.said)
    return msgspec.structs.replace(after, state="done", step="", due=None)


def _after_no(row: Resubmission, said: str, now: float) -> Resubmission:
    tries, failed = row.tries + 1, row.failed + 1
    if failed < _NOES:
        return msgspec.structs.replace(
            row, due=now + _AFTER_NO * failed, said=said, tries=tries, failed=failed
        )
    return _unchanged(msgspec.structs.replace(row, tries=tries), "slurm", said, now)


def refused(row: Resubmission, answer: Answer, job: Job | None, now: float) -> Resubmission:
    """The row after gsub-act said no for good; `job` is what Slurm has of it now, None where it has nothing."""
    said = one_line(answer.said, 300)
    row = msgspec.structs.replace(row, tries=row.tries + 1)
    if row.step == "release":
        # By its user, an administrator, or gsub-act itself when it took too long
        return _after_step(row, now)
    if job is None:
        return stopped(row, "gone", "Slurm has no record of it any more")
    if row.step == "update":
        if job.restarts != row.restarts + 1 or job.state is not JobState.PENDING:
            return stopped(row, "moved_on", "it started before it could be changed")
        return _unchanged(row, _meaning(said), said, now)
    past = overtaken(row.restarts, job)
    if past:
        return stopped(row, "moved_on", past)
    if JobFlag.COMPLETING in job.flags and now - row.at < PATIENCE:
        return msgspec.structs.replace(row, due=now + _COMPLETING, said=said)
    return stopped(row, _meaning(said), said)


def _meaning(said: str) -> Stop:
    return next((stop for word, stop in _WORDS if word in said), "slurm")


def _unchanged(row: Resubmission, stop: Stop, said: str, now: float) -> Resubmission:
    """It is queued again and cannot be changed: it runs as it was. A hold of ours is released first."""
    if row.step == "update" and row.held:
        return msgspec.structs.replace(row, step="release", stop=stop, said=said, failed=0, due=now)
    return stopped(row, stop, said)


def unanswered(row: Resubmission, why: str, wait: float, now: float) -> Resubmission:
    """The row after gsub-act did not answer: it is asked the same once more, for some time."""
    if now - row.at > PATIENCE:
        return stopped(row, "slurm", why)
    return msgspec.structs.replace(row, due=now + wait, said=one_line(why, 300), tries=row.tries + 1)


def withhold(row: Resubmission) -> Resubmission:
    """The row while gsub-act does not answer: its sentence promises nothing that nobody would do."""
    if row.withheld:
        return row
    why = row.why
    if row.state == "planned":
        why = why.removesuffix(".").replace(_PROMISE, _CONDITION, 1)[: _LONGEST_WHY - len(_BUT)] + _BUT
    return msgspec.structs.replace(row, why=why, said=SILENT)


def resume(row: Resubmission) -> Resubmission:
    """The row of `withheld` once gsub-act answers again: its sentence as it was planned."""
    if not row.withheld:
        return row
    why = row.why
    if why.endswith(_BUT):
        why = why.removesuffix(_BUT).replace(_CONDITION, _PROMISE, 1) + "."
    return msgspec.structs.replace(row, why=why, said="")


def stopped(row: Resubmission, stop: Stop, why: str) -> Resubmission:
    """The row of a plan that comes to nothing, or to less, with a sentence for its user; its step tells how far."""
    why = one_line(why, 300).rstrip(".")
    again = row.state == "requeued"
    begun = "It was to be tried again, but is not"
    if again:
        begun = "It runs again, but not as it was to"
    elif stop == "moved_on":
        begun = "Nothing is done"
    return msgspec.structs.replace(
        row,
        state="stopped",
        stop=stop,
        why=f"{begun}: {why}.",
        command=""
        if again or stop in ("moved_on", "off", "mode")
        else f"gsub resubmit {row.shown or row.job_id}",
        said=why,
        due=None,
    )
