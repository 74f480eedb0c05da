"""All that gsub-act may do: a table of verbs, and a table of the fields that `update` may set.

What is not here cannot be asked for. A row says when a verb makes sense, the command that it is, and how one sees in
the job that it came about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from site_configs.hostlist import HostlistError, expand
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job

__all__ = [
    "FIELDS",
    "VERBS",
    "Field",
    "Seen",
    "Verb",
    "WrongFieldError",
    "argv",
    "came_about",
    "check_fields",
]

_FAILED: Final = frozenset(
    {
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
        JobState.BOOT_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
    }
)
_MOST_BACKOFF: Final = 3600
_SOON: Final = 2.0
"""Seconds after which a job that completes may have done so."""
_MOST_NODES: Final = 256


class WrongFieldError(Exception):
    """A field that is not in the table, or a value that its row does not take; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is after something was asked for.

    Parameters
    ----------
    asked: when, in seconds since the epoch.
    restarts: how often the job had been restarted then.
    memory: MiB that it asks for, as MinMemoryNode or MinMemoryCPU; what is not known is not there.
    """

    job: Job
    asked: float
    restarts: int
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that `update` may set.

    Parameters
    ----------
    about: what for, and its values; documentation.
    read: the value as Slurm takes it. Raises WrongFieldError.
    against: why the job may not have it, empty when it may.
    is_so: whether the job has it.
    """

    about: str
    read: Callable[[str], str]
    against: Callable[[str, Job], str]
    is_so: Callable[[str, Seen], bool]


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that may be done to a job.

    Parameters
    ----------
    about: what for, and to which jobs; documentation.
    command: its words, before the job; `update` has more.
    against: why it makes no sense for this job, empty when it does.
    came_about: whether it is seen in the job.
    passes: in how many seconds what is against it may have passed by itself; None: it does not.
    attempt: it is meant for one attempt of the job, which the request may name (`restarts`).
    holds: the job does not start until it is released, and is entered in the ledger.
    always: neither the site's mode nor the off switch keeps it from being done.
    ends: it ends a job that runs: only where the site lets it (`alerts.cancel`), of the attempt that the request has
        to name, without fields, and a few an hour.
    own: nobody can ask for it.
    """

    about: str
    command: tuple[str, ...]
    against: Callable[[Job], str]
    came_about: Callable[[Seen], bool]
    passes: Callable[[Job], float | None] = lambda _: None
    attempt: bool = False
    holds: bool = False
    always: bool = False
    ends: bool = False
    own: bool = False


# --- fields -----------------------------------------------------------------------------------------------------------

_SIZE: Final = re.compile(r"[1-9][0-9]{0,8}")
_START: Final = re.compile(r"now(?:\+([1-9][0-9]{0,3}))?")


def _nodes(text: str) -> str:
    try:
        names = expand(text, _MOST_NODES)
    except HostlistError as error:
        raise WrongFieldError(f"no list of nodes: {error}") from None
    if not names or any(char.isspace() for char in text) or not all(name[0].isalnum() for name in names):
        raise WrongFieldError("no list of nodes")
    return text


def _not_fewer(text: str, job: Job) -> str:
    left_out = set(job.excluded_nodes) - set(expand(text, _MOST_NODES))
    return f"the job excludes {', '.join(sorted(left_out)[:5])} too, and that stays" if left_out else ""


def _excludes(text: str, seen: Seen) -> bool:
    return set(seen.job.excluded_nodes) == set(expand(text, _MOST_NODES))


def _mebibytes(text: str) -> str:
    if not _SIZE.fullmatch(text):
        raise WrongFieldError("memory is a whole number of MiB, from 1 to 999999999")
    return text


def _anything(_text: str, _job: Job) -> str:
    return ""


def _has(name: str) -> Callable[[str, Seen], bool]:
    # Not by the job's TRES, which is that of its submission while it waits. Slurm shows four digits: 12345M as 12.06G.
    return lambda text, seen: abs(seen.memory.get(name, 0) - int(text)) <= int(text) / 100


def _start(text: str) -> str:
    found = _START.fullmatch(text)
    if not found or int(found[1] or 0) > _MOST_BACKOFF:
        raise WrongFieldError(f"a start is now, or now+SECONDS of at most {_MOST_BACKOFF}")
    return text


def _starts(text: str, seen: Seen) -> bool:
    found = _START.fullmatch(text)
    begin = seen.asked + int(found[1] or 0 if found else 0)
    # Slurm keeps whole seconds, and its clock is not ours to the second
    latest = datetime.fromtimestamp(begin + 5, timezone.utc)
    job = seen.job
    return job.state is not JobState.PENDING or (job.eligible is not None and job.eligible <= latest)


FIELDS: Final[Mapping[str, Field]] = {
    "ExcNodeList": Field(
        f"nodes to keep off: a hostlist of at most {_MOST_NODES}, with those that the job excludes already",
        _nodes,
        _not_fewer,
        _excludes,
    ),
    "MinMemoryNode": Field(
        "memory on each node, MiB, within the limits below",
        _mebibytes,
        _anything,
        _has("MinMemoryNode"),
    ),
    "MinMemoryCPU": Field(
        "memory for each CPU, MiB, within the limits below",
        _mebibytes,
        _anything,
        _has("MinMemoryCPU"),
    ),
    "StartTime": Field(
        f"`now`, to end Slurm's delay after a requeue, or `now+SECONDS`, at most {_MOST_BACKOFF}",
        _start,
        _anything,
        _starts,
    ),
}


def check_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as Slurm takes them. Raises WrongFieldError."""
    if not fields:
        raise WrongFieldError("update needs at least one field")
    unknown = sorted(fields.keys() - FIELDS.keys())
    if unknown:
        raise WrongFieldError(f"no field of ours: {unknown[0]}; there are {', '.join(FIELDS)}")
    if {"MinMemoryNode", "MinMemoryCPU"} <= fields.keys():
        raise WrongFieldError("memory is for each node or for each CPU, not both")
    return {name: FIELDS[name].read(value) for name, value in fields.items()}


# --- verbs ------------------------------------------------------------------------------------------------------------


def _requeueable(job: Job) -> str:
    if job.het_job_id is not None:
        return "a heterogeneous job is not requeued by gsub"
    if job.array_tasks is not None or (job.array_job_id is not None and job.array_task_id is None):
        return "of an array its tasks are requeued, one by one"
    if JobFlag.COMPLETING in job.flags:
        return "it is still completing: how it ended is known afterwards"
    if job.state not in _FAILED:
        return f"it is {_state(job)}: only a job that failed is requeued"
    if job.batch is False:
        return "it is no batch job: Slurm cannot run it again"
    if job.requeue is False:
        return "its user or the site forbids it (--no-requeue)"
    return ""


def _completing(job: Job) -> float | None:
    return _SOON if JobFlag.COMPLETING in job.flags else None


def _holdable(job: Job) -> str:
    if job.state is not JobState.PENDING:
        return f"it is {_state(job)}: only a pending job can be held"
    return "it is held already" if job.held else ""


def _releasable(job: Job) -> str:
    if job.state is not JobState.PENDING or not job.held:
        return f"it is not held ({_state(job)})"
    # Ours are the user's to release; an administrator who holds the job too has said more than we.
    return "an administrator holds it" if job.reason == "JobHeldAdmin" else ""


def _updatable(job: Job) -> str:
    if job.state is not JobState.PENDING:
        return f"it is {_state(job)}: only a pending job can be changed"
    return "" if job.restarts else "it was never requeued: a job's first attempt runs as its user wrote it"


def _cancellable(job: Job) -> str:
    if job.het_job_id is not None:
        return "a heterogeneous job is not cancelled by gsub"
    if job.array_tasks is not None or (job.array_job_id is not None and job.array_task_id is None):
        return "of an array its tasks are cancelled, one by one"
    if JobFlag.COMPLETING in job.flags:
        return "it is completing already"
    return "" if job.state is JobState.RUNNING else f"it is {_state(job)}: only a running job is cancelled"


def _stoppable(job: Job) -> str:
    return "" if job.state is JobState.PENDING else f"it is {_state(job)}: only a pending job can be held"


def _requeued(seen: Seen) -> bool:
    return seen.job.restarts > seen.restarts or seen.job.state not in _FAILED


def _held(seen: Seen) -> bool:
    return seen.job.held


def _released(seen: Seen) -> bool:
    return not seen.job.held


def _ended(seen: Seen) -> bool:
    job = seen.job
    return (
        job.state is not JobState.RUNNING or JobFlag.COMPLETING in job.flags or job.restarts != seen.restarts
    )


def _never(_: Seen) -> bool:
    return False  # by its fields


def _state(job: Job) -> str:
    return (job.state_text or job.state.value).lower()


VERBS: Final[Mapping[str, Verb]] = {
    "requeue": Verb(
        "run a job that failed once more: same id, script and environment, after Slurm's delay",
        ("scontrol", "requeue"),
        _requeueable,
        _requeued,
        _completing,
        attempt=True,
    ),
    "requeuehold": Verb(
        "the same, held until it is released, where that delay is too short",
        ("scontrol", "requeuehold"),
        _requeueable,
        _requeued,
        _completing,
        attempt=True,
        holds=True,
    ),
    # scontrol's "hold" would be an administrator's, which the user could not release
    "hold": Verb(
        "keep a pending job from starting; its user can release it",
        ("scontrol", "uhold"),
        _holdable,
        _held,
        holds=True,
    ),
    "release": Verb(
        "let a job go that gsub-act holds; in every mode",
        ("scontrol", "release"),
        _releasable,
        _released,
        always=True,
    ),
    "update": Verb(
        "set fields of a pending job that was requeued: those of the table below and no other",
        ("scontrol", "update"),
        _updatable,
        _never,
        attempt=True,
    ),
    # An administrator's hold: its user could release the other, and the job would start at once
    "stop": Verb(
        "gsub-act's own: hold a pending job whose memory it has set, and which has grown beyond a limit since",
        ("scontrol", "hold"),
        _stoppable,
        _held,
        own=True,
    ),
    # By its state, too: one that was requeued after our look, and waits, stays
    "cancel": Verb(
        "end a running job, where the site says `alerts.cancel = true`: SIGTERM, and SIGKILL after Slurm's KillWait",
        ("scancel", "--state=RUNNING"),
        _cancellable,
        _ended,
        attempt=True,
        ends=True,
    ),
}


def argv(verb: str, job: str, fields: Mapping[str, str], comment: str = "") -> list[str]:
    """The command line of a verb; an update writes the Comment `comment`, where there is one.

    >>> argv("update", "7_1", {"StartTime": "now"})
    ['scontrol', 'update', 'JobId=7_1', 'StartTime=now']
    """
    command = VERBS[verb].command
    if verb == "update":
        written = {**fields, "Comment": comment} if comment else fields
        return [*command, f"JobId={job}", *(f"{name}={value}" for name, value in written.items())]
    return [*command, job]


def came_about(verb: str, fields: Mapping[str, str], seen: Seen) -> bool:
    """Whether what was asked for is seen in the job."""
    if verb == "update":
        return all(FIELDS[name].is_so(value, seen) for name, value in fields.items() if name in FIELDS)
    return VERBS[verb].came_about(seen)
