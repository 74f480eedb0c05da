"""Exports of Slurm's accounting: what `sacct --parsable2` printed, of 22.05 to 26.05, with whatever fields it has.

The fields are known by their names in the first line, in any order, and by our tables of them
(`slurm_plugins.client.versions`). Times are seconds since 1970 (SLURM_TIME_FORMAT=%s) or local times of the machine
that reads, whose zone TZ can set. Each row is an attempt at a job: with `--duplicates` a requeued job has several, and
each is replayed by itself, from when it was queued again. Of these rows one job is made:

    parts of a job that was resized     with what it began with, until its last end
    components of a heterogeneous job   with the sum of what they held: Slurm starts them together

What is no run of a job (steps, jobs that never started or run still) is left out and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from slurm_plugins.client import parse
from slurm_plugins.client.decode import accounted_gpus
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.versions import NEWEST, OLDEST, fields_for
from slurm_plugins.replay.traces.files import LARGEST, MOST, Kind, LeftOut, Reading, TraceError, lines, traced
from slurm_plugins.replay.traces.seen import Seen
from slurm_plugins.replay.values import Job

__all__ = ["EXPORT", "FIELDS", "SACCT"]

FIELDS: Final = (
    "JobIDRaw", "JobID", "Cluster", "User", "Account", "QOS", "Partition", "State", "Submit", "Eligible", "Start",
    "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NodeList", "ReqTRES", "AllocTRES", "Priority",
)  # fmt: skip
"""What an export should have: fields of every release, and none that holds free text."""
EXPORT: Final = f"SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S 2026-10-01 -E 2026-11-01 -o {','.join(FIELDS)}"
"""The command that makes one."""

_OURS: Final[Mapping[str, str]] = {
    **{
        theirs.lower(): ours
        for version in (OLDEST, NEWEST)
        for ours, theirs in fields_for(version).sacct.items()
    },
    "timelimit": "time_limit",
    "elapsed": "elapsed_text",
    "allocnodes": "num_nodes",
    "priority": "priority",
}
"""Slurm's name of a field in lower case -> ours."""
_SHOWN: Final = re.compile(r"(\d+)(?:_(\d+|\[.*)|\+(\d+))?")
_MIB: Final = 1 << 20
_LARGEST_ID: Final = 1 << 62

STEP: Final = "a step, which is no job"
FEWER: Final = "fewer fields than the head has: cut off, or broken by a line end in a name"
MORE: Final = "more fields than the head has: a separator in a name"
UNREADABLE: Final = "a field that cannot be read"
NO_ID: Final = "no id of a job"
WAITS: Final = "has not started"
NEVER: Final = "ended before it had started"
RUNS: Final = "has not ended"
TWICE: Final = "told twice"
REVOKED: Final = "started on another cluster of the federation"
NOTHING: Final = "what it held was not recorded"
NO_TIME: Final = "no time of submission, or of the start"


@dataclass(frozen=True, slots=True)
class _Run:
    """A row that is a run: its job, with times in seconds since 1970, and what joins it with other rows."""

    job: Job
    shown: str
    submitted: float
    cluster: str = ""
    nodes: str = ""
    het: int | None = None
    resizing: bool = False


class _LeftOutError(Exception):
    """Why a row is left out."""


def _read(path: Path) -> Reading:
    left = LeftOut()
    with lines(path) as found:
        columns, separator = _columns(path, next(found, ""))
        runs = list(_runs(_rows(found, separator, len(columns), left), columns, left))
    clusters = sorted({run.cluster for run in runs if run.cluster})
    if len(clusters) > 1:
        raise TraceError(
            f"{path}: it has jobs of {len(clusters)} clusters: {', '.join(clusters[:5])}",
            "export those of one, with sacct -M NAME",
        )
    notes: list[str] = []
    jobs = _whole(runs, notes)
    trace = traced(path, jobs, left, dated=True)
    repeats = len(trace) - len(set(trace["job"].tolist()))
    if repeats:
        notes.append(
            f"{repeats:,} are further attempts at jobs that were queued again: each is replayed by itself"
        )
    if not trace["gpus"].any():
        notes.append("no job has a GPU: is gres/gpu in AccountingStorageTRES?")
    seen = Seen.of((run.job, run.nodes) for run in runs if run.nodes)
    return Reading(trace, SACCT.name, seen.cluster(clusters[0] if clusters else "cluster"), tuple(notes))


# --- lines and fields -----------------------------------------------------------------------------------------------


def _columns(path: Path, head: str) -> tuple[list[str], str]:
    """Our name of each field, "" of one that is not needed; and what separates them."""
    found = re.match(r"[A-Za-z]+([^A-Za-z]+)[A-Za-z]", head)
    separator = found[1] if found else "|"
    columns = [_OURS.get(name.lower(), "") for name in head.split(separator)]
    for needs in (
        ("id", "shown_id"),
        ("state",),
        ("submitted", "eligible"),
        ("start",),
        ("tres", "tres_requested"),
    ):
        if not set(needs) & set(columns):
            names = " or ".join(name for ours, name in fields_for(NEWEST).sacct.items() if ours in needs)
            raise TraceError(f"{path}: its first line names no field {names}", f"export with: {EXPORT}")
    return columns, separator


def _rows(found: Iterable[str], separator: str, width: int, left: LeftOut) -> Iterator[list[str]]:
    """Fields of each record. A name with a line end in it makes several lines of one record: they are joined."""
    begun = ""
    for line in found:
        fields = line.split(separator)
        if begun and len(fields) < width:
            begun += f"\n{line}"
            fields = begun.split(separator)
        elif begun:
            # A whole record: the piece before it was cut off
            left[FEWER] += 1
            begun = ""
        if len(fields) < width:
            begun = begun or line
            continue
        if len(fields) == width:
            yield fields
        else:
            left[MORE] += 1
        begun = ""
    if begun:
        left[FEWER] += 1


def _runs(found: Iterable[list[str]], columns: Sequence[str], left: LeftOut) -> Iterator[_Run]:
    """The runs; each other row is counted."""
    told: set[tuple[str, float, float]] = set()
    for fields in found:
        row = {name: value for name, value in zip(columns, fields, strict=True) if name}
        try:
            run = _run(row)
        except _LeftOutError as why:
            left[str(why)] += 1
        except (SlurmFormatError, ValueError, OverflowError, OSError):
            left[UNREADABLE] += 1
        else:
            key = (run.shown, run.submitted, run.job.began)
            if key in told:
                left[TWICE] += 1
                continue
            told.add(key)
            yield run


def _run(row: Mapping[str, str]) -> _Run:
    """A row as a run. Raises _LeftOutError where it is none."""
    get = row.get
    shown = get("shown_id") or get("id", "")
    if "." in shown or "." in get("id", ""):
        raise _LeftOutError(STEP)
    found = _SHOWN.fullmatch(shown)
    if found is None:
        raise _LeftOutError(NO_ID)
    state, flags = _state(get("state", ""))
    began, ended = _moment(get("start", "")), _moment(get("end", ""))
    known = [at for at in (_moment(get("submitted", "")), _moment(get("eligible", ""))) if at is not None]
    if JobFlag.REVOKED in flags:
        raise _LeftOutError(REVOKED)
    nodes = parse.word(get("nodes", "")) or ""
    if state is JobState.PENDING or (began is None and not state.ended):
        raise _LeftOutError(WAITS)
    # Slurm 22.05 gives what was cancelled in the queue a start as well, but neither nodes nor resources
    held = _held(get("tres", ""), get("tres_requested", ""), get("num_nodes", ""))
    if (
        began is None
        or ("nodes" in row and not nodes)
        or ("tres" in row and "nodes" not in row and not held.allocated)
    ):
        raise _LeftOutError(NEVER if state.ended else WAITS)
    if ended is None:
        raise _LeftOutError(RUNS)
    if not known:
        raise _LeftOutError(NO_TIME)
    if held.gpus is None:
        raise _LeftOutError(NOTHING)
    elapsed = get("elapsed", "")
    ran = int(elapsed) if elapsed.isascii() and elapsed.isdigit() else parse.duration(get("elapsed_text", ""))
    number = _number(get("id", ""), found)
    if number > _LARGEST_ID or max(held.gpus, held.nodes) > MOST or (ran or 0) > LARGEST:
        raise _LeftOutError(UNREADABLE)
    return _Run(
        Job(
            job=number,
            arrival=min(max(known), began),
            # Whole seconds: what began and ended within one ran for a part of it
            work=max(float(ended - began if ran is None else ran), 1.0),
            gpus=held.gpus,
            limit=_limit(get("time_limit", "")),
            nodes=held.nodes,
            cpus=held.cpus,
            cpus_asked=held.cpus_asked,
            memory=held.memory,
            gpu_type=held.gpu_type,
            queue=get("partition", ""),
            user=get("user", ""),
            account=get("account", ""),
            qos=get("qos", ""),
            priority=float(parse.count(get("priority", "")) or math.nan),
            outcome=_outcome(state, flags),
            began=began,
        ),
        shown,
        known[0],
        get("cluster", ""),
        nodes,
        int(found[1]) if found[3] else None,
        JobFlag.RESIZING in flags,
    )


def _number(raw: str, shown: re.Match[str]) -> int:
    """A job's number: JobIDRaw, or one that is made of what is shown, and is nobody else's."""
    if raw.isascii() and raw.isdigit():
        return int(raw)
    if shown[3]:  # a component's number is its job's and its place
        return int(shown[1]) + int(shown[3])
    if shown[2]:
        task = parse.array_task(shown[2]).number
        return (int(shown[1]) << 32) + (task or 0) + 1
    return int(shown[1])


def _moment(text: str) -> float | None:
    """Seconds since 1970 of a time as sacct prints it. Raises ValueError, SlurmFormatError."""
    if len(text) == 10 and text.isascii() and text.isdigit() and text < "4":
        return float(text)  # until 2096: short of what Slurm prints for no time
    if "T" not in text:
        at = parse.time(text)
        return None if at is None else at.timestamp()
    return datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True, slots=True)
class _Held:
    """What a job held, or asked for where that is all that is known; memory in MiB."""

    allocated: bool
    gpus: int | None
    gpu_type: str
    cpus: float
    cpus_asked: float
    memory: float
    nodes: int
    """Nodes that it insists on. One is no wish: that many are asked for where none are named."""


@lru_cache(maxsize=65536)
def _held(allocated: str, requested: str, count: str) -> _Held:
    total, asked = parse.tres(allocated), parse.tres(requested)
    held = total if total.pairs else asked
    nodes = asked.get("node") or held.get("node") or parse.count(count) or 1
    return _Held(
        bool(total.pairs),
        accounted_gpus(total, asked),
        held.gpu_type or asked.gpu_type or "",
        float(held.get("cpu", 0)),
        float(asked.get("cpu", 0)),
        (held.memory or 0) / _MIB,
        nodes if nodes > 1 else 0,
    )


def _outcome(state: JobState, flags: frozenset[JobFlag]) -> str:
    if JobFlag.REQUEUED in flags and not state.ended:
        return "requeued"
    return "" if state is JobState.UNKNOWN else state.value.lower()


def _state(text: str) -> tuple[JobState, frozenset[JobFlag]]:
    # Who cancelled it makes many words of one
    return _state_of(text.partition(" by ")[0])


@lru_cache(maxsize=1024)
def _state_of(text: str) -> tuple[JobState, frozenset[JobFlag]]:
    found = parse.job_state(text)
    return found.state, found.flags


@lru_cache(maxsize=4096)
def _limit(text: str) -> float:
    return float(parse.time_limit(text) or math.inf)


# --- jobs -----------------------------------------------------------------------------------------------------------


def _whole(runs: Iterable[_Run], notes: list[str]) -> list[Job]:
    """One job of what are parts of one."""
    plain: list[Job] = []
    parts: dict[tuple[str, float], list[Job]] = {}
    components: dict[tuple[int, float], list[Job]] = {}
    runs = list(runs)
    resized = {(run.shown, run.submitted) for run in runs if run.resizing}
    for run in runs:
        if (key := (run.shown, run.submitted)) in resized:
            parts.setdefault(key, []).append(run.job)
        elif run.het is not None:
            components.setdefault((run.het, run.submitted), []).append(run.job)
        else:
            plain.append(run.job)
    if parts:
        notes.append(f"{len(parts):,} were resized as they ran: each is replayed with what it began with")
    if components:
        notes.append(
            f"{len(components):,} are heterogeneous: each is replayed as one job with the sum of its parts"
        )
    plain += [_joined(sorted(jobs, key=lambda job: job.began)) for jobs in parts.values()]
    return plain + [_together(jobs) for jobs in components.values()]


def _joined(parts: Sequence[Job]) -> Job:
    """A resized job, from the parts in their order."""
    return replace(parts[0], work=sum(part.work for part in parts), outcome=parts[-1].outcome)


def _together(parts: Sequence[Job]) -> Job:
    """A heterogeneous job; on how many nodes is left open where its parts differ in that."""
    first = min(parts, key=lambda job: job.job)
    shapes = {(job.nodes, job.gpus) for job in parts}
    types = {job.gpu_type for job in parts if job.gpus}
    return replace(
        first,
        work=max(job.work for job in parts),
        gpus=sum(job.gpus for job in parts),
        cpus=sum(job.cpus for job in parts),
        memory=sum(job.memory for job in parts),
        nodes=sum(max(job.nodes, 1) for job in parts) if len(shapes) == 1 else 0,
        gpu_type=types.pop() if len(types) == 1 else "",
        limit=max(job.limit for job in parts),
    )


def _knows(head: str) -> bool:
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", head)}
    return bool(words & {"jobid", "jobidraw"}) and bool(words & {"state", "submit", "start", "alloctres"})


SACCT: Final = Kind("sacct", "an export of sacct", _knows, _read)
