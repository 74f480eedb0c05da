"""Rows of strings into values: which field of which command becomes what. Pure; recorded outputs test it for each
release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeAlias

from . import parse
from .errors import SlurmFormatError
from .protocol import JobId
from .resources import Hosts, Tres
from .states import JobState
from .values import AccountingRecord, Job, StartEstimate

__all__ = [
    "IDENTITY",
    "JobDecoder",
    "accounted_gpus",
    "accounting_record",
    "count_attempts",
    "exclusive",
    "folded_tasks",
    "last_attempts",
    "requested_gpus",
    "start_estimate",
    "started",
    "unfold",
]

Row = Mapping[str, str]


class JobDecoder:
    """Decoder of rows of squeue, keyed by our names (`versions.fields_for`), into jobs with these ``values``.

    None stands for all values. ``columns`` are those that it needs. One that a row lacks is unknown.

    >>> job = JobDecoder({"reason"}).decode({"id": "7", "state": "PENDING", "reason": "Priority"})
    >>> job.shown_id, job.reason
    ('7', 'Priority')
    """

    def __init__(self, values: Collection[str] | None = None) -> None:
        self._make = Job.of if values is not None else lambda read: Job(**read)
        chosen = _VALUES if values is None else {name: _VALUES[name] for name in {*IDENTITY, *values}}
        self.columns = frozenset(column for columns, _ in chosen.values() for column in columns)
        self._own = [(name, read) for name, (columns, read) in chosen.items() if _OWN_COLUMNS & {*columns}]
        own = {name for name, _ in self._own}
        self._shared = [(name, read) for name, (_, read) in chosen.items() if name not in own]
        self._key = tuple({column for name, _ in self._shared for column in chosen[name][0]})
        self._known: dict[tuple[str | None, ...], dict[str, Any]] = {}

    def decode(self, row: Row) -> Job:
        """Make a job of a row. Raises SlurmFormatError, KeyError."""
        # Most jobs of a long queue are like others but for their ids, names and times
        key = tuple(map(row.get, self._key))
        shared = self._known.get(key)
        if shared is None:
            shared = {name: read(row) for name, read in self._shared}
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = shared
        values = shared.copy()
        for name, read in self._own:
            values[name] = read(row)
        return self._make(values)


def folded_tasks(jobs: Iterable[Job], asked: Iterable[JobId] = ()) -> tuple[str, ...]:
    """Name tasks that may wait to run *again*, which squeue counts among those of their array that never ran.

    slurmctld starts an array's tasks in order of their numbers: one that waits below one that has started was started
    before. So may be what was ``asked`` for by its id and is not there beside a waiting array. squeue 22.05 can be
    told to show them by themselves, later ones cannot [measured, 24.11 and 26.05].
    """
    jobs = tuple(jobs)
    waiting = [job for job in jobs if job.array_tasks is not None]
    if not waiting:
        return ()
    last: dict[int | None, int] = {}
    for job in jobs:
        if job.array_task_id is not None and job.state is not JobState.PENDING and job.start is not None:
            last[job.array_job_id] = max(job.array_task_id, last.get(job.array_job_id, 0))
    below = [
        f"{job.array_job_id}_{number}"
        for job in waiting
        if job.array_job_id in last
        for number in parse.task_numbers(job.array_tasks)
        if number < last[job.array_job_id]
    ]
    shown = {str(job.id) for job in jobs} | {job.shown_id for job in jobs}
    return tuple(dict.fromkeys([*below, *(str(one) for one in asked if str(one) not in shown)]))


def unfold(jobs: Iterable[Job], tasks: Iterable[Job]) -> tuple[Job, ...]:
    """Add tasks that have records of their own to ``jobs``, and take them out of what their arrays have left."""
    jobs = tuple(jobs)
    known = {job.id for job in jobs}
    new = [job for job in tasks if job.id not in known and job.array_task_id is not None]
    apart: dict[int | None, set[int | None]] = {}
    for job in new:
        apart.setdefault(job.array_job_id, set()).add(job.array_task_id)
    return (*(_without_tasks(job, apart.get(job.array_job_id, ())) for job in jobs), *new)


def _without_tasks(job: Job, apart: Collection[int | None]) -> Job:
    if not apart or job.array_tasks is None:
        return job
    left = [number for number in parse.task_numbers(job.array_tasks) if number not in apart]
    limit = job.array_tasks.partition("%")[2]
    tasks = parse.task_ranges(left) + (f"%{limit}" if limit else "")
    return Job.of({**job.known, "array_tasks": tasks}) if left else job


_REQUESTS = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")
# sbatch prints NO_VAL for %a in a job that is no array task
_NO_TASK = 4294967294


def _path_fields(
    identity: int, array_job_id: int | None, task: parse.ArrayTask, *, name: str, user: str, node: str | None
) -> dict[str, str | int | None]:
    """What sbatch's pattern letters stand for in the batch script's output (sbatch(1), "filename pattern")."""
    known: dict[str, str | int | None] = {"A": array_job_id or identity, "x": name, "u": user, "N": node}
    known |= {"j": identity, "J": identity, "a": _NO_TASK if array_job_id is None else task.number}
    # the batch step, its first task on its first node
    known |= {"s": "batch", "t": 0, "n": 0}
    if task.pending is not None:
        # Part of an array that still waits: it has no one path yet.
        known |= {"j": None, "J": None, "a": None}
    return known


_RESTARTS = 1 << 20
"""What a record of an attempt holds of them (`profiler.records.JobRef`)."""


@lru_cache(4096)
def _count(value: str, bits: int = 32, most: int = parse.MOST) -> int | None:
    """Parse a number that is passed on to other processes and to the store: none is below 0, or wider than theirs."""
    number = parse.count(value, bits)
    if number is not None and not 0 <= number <= most:
        raise SlurmFormatError(f"a number from 0 to {most} was expected", value)
    return number


def _output(row: Row, column: str) -> str | None:
    """The path of the output whose pattern stands in this column."""
    identity, array = parse.job_id(row["id"]), _is_of_array(row)
    work_dir = parse.text(row.get("work_dir", ""))
    default = "slurm-%A_%a.out" if array else "slurm-%j.out"
    said = parse.text(row.get(column, ""))
    # squeue 22.05 fills in the default itself, and for an array task that of a job that is none [measured]; what a
    # user asked for stays a pattern there.
    if array and said in (name := f"slurm-{identity}.out", f"{(work_dir or '').rstrip('/')}/{name}"):
        said = None
    fields = _path_fields(
        identity,
        _array_job_id(row),
        _task_of(row),
        name=row["name"],
        user=row["user"],
        node=parse.word(row.get("batch_host", "")),
    )
    return parse.expand_path(said or default, fields, work_dir)


def _flag(value: str) -> bool | None:
    # BatchFlag counts further: slurmctld makes it 2 when it requeues a batch job whose node failed
    return value != "0" if value in ("0", "1", "2") else None


def _mebibytes(number: int | None) -> int | None:
    return None if number is None else min(number << 20, parse.MOST)


def started(start: datetime | None, state: JobState, nodes: Hosts) -> datetime | None:
    """When it started: never, if it ended without ever having a node. 22.05 then gives its end as its start."""
    return None if state.ended and not nodes else start


def requested_gpus(values: Mapping[str, Any]) -> int | None:
    """A job's GPUs from its TRES or, where the site does not track GPUs, from its requests; see `parse.gpus`."""
    return parse.gpus(
        values["tres"],
        (
            (values["tres_per_job"], 1),
            (values["tres_per_node"], values["num_nodes"]),
            (values["tres_per_task"], values["num_tasks"]),
            (values["tres_per_socket"], None),
        ),
    )


def exclusive(sharing: str) -> str | None:
    """NODE, USER, MCS or TOPO from ``OverSubscribe=`` as Slurm before 26.05 prints it; None when the job shares its
    nodes.
    """
    return {"NO": "NODE", "EXCLUSIVE": "NODE", "USER": "USER", "MCS": "MCS", "TOPO": "TOPO"}.get(sharing)


def _exclusive(row: Row) -> str | None:
    # 26.05 has a field of its own, and then OverSubscribe=NO no longer means it
    said = row.get("exclusive")
    if said is None:
        return exclusive(row.get("sharing", ""))
    return None if said in ("NO", "OK") else parse.word(said)


_Reader: TypeAlias = tuple[tuple[str, ...], Callable[[Row], Any]]


def _of(column: str, read: Callable[[str], Any]) -> _Reader:
    """A value that is made of one column."""
    return (column,), lambda row: read(row.get(column, ""))


_state = lru_cache(256)(parse.job_state)
_task = lru_cache(256)(parse.array_task)
# Most jobs of a long queue ask for what others do
_tres = lru_cache(4096)(parse.tres)
_request = lru_cache(4096)(parse.requested)


def _task_of(row: Row) -> parse.ArrayTask:
    return _task(row.get("array_task", ""))


def _is_of_array(row: Row) -> bool:
    task = _task_of(row)
    return task.number is not None or task.pending is not None


def _array_job_id(row: Row) -> int | None:
    return _count(row.get("array_job_id", "")) if _is_of_array(row) else None


def _het_job_id(row: Row) -> int | None:
    return (
        (_count(row.get("het_job_id", "")) or None) if _count(row.get("het_offset", "")) is not None else None
    )


def _het_offset(row: Row) -> int | None:
    return _count(row.get("het_offset", "")) if _het_job_id(row) else None


def _start(row: Row) -> datetime | None:
    return started(
        parse.time(row.get("start", "")), _state(row["state"]).state, parse.hosts(row.get("nodes"))
    )


def _switches_wait(row: Row) -> int | None:
    return parse.duration(row.get("switches_wait", "")) if _count(row.get("switches", "")) else None


def _gpus(row: Row) -> int | None:
    return _count_gpus(tuple(row.get(name, "") for name in _SIZE_COLUMNS))


@lru_cache(4096)
def _count_gpus(columns: tuple[str, ...]) -> int | None:
    """Count the GPUs that a job of these ``_SIZE_COLUMNS`` has or asks for."""
    row = dict(zip(_SIZE_COLUMNS, columns, strict=True))
    read = {name: _request(row[name]) for name in _REQUESTS}
    values = {name: found for name, (found, _) in read.items()}
    sizes = {name: _count(row[name]) for name in ("num_nodes", "num_tasks")}
    gpus = requested_gpus({**values, **sizes, "tres": _tres(row["tres"])})
    # it may ask for some
    return gpus if gpus or all(whole for _, whole in read.values()) else None


def _stdout(row: Row) -> str | None:
    # srun and salloc write to the terminal that they were started in
    return None if _flag(row.get("batch", "")) is False else _output(row, "stdout")


def _stderr(row: Row) -> str | None:
    # sbatch(1): without --error both streams go to the same file
    is_apart = _flag(row.get("batch", "")) is not False and parse.text(row.get("stderr", "")) is not None
    return _output(row, "stderr") if is_apart else _stdout(row)


_PATH_COLUMNS = (
    "id",
    "array_job_id",
    "array_task",
    "name",
    "user",
    "batch_host",
    "work_dir",
    "batch",
    "stdout",
)
_SIZE_COLUMNS = ("tres", *_REQUESTS, "num_nodes", "num_tasks")

# A value of `Job` -> the columns that it is made of, and how.
_VALUES: Mapping[str, _Reader] = {
    "id": _of("id", parse.job_id),
    "state": (("state",), lambda row: _state(row["state"]).state),
    "name": (("name",), lambda row: row["name"]),
    "user": (("user",), lambda row: row["user"]),
    "state_text": (("state",), lambda row: row["state"]),
    "flags": (("state",), lambda row: _state(row["state"]).flags),
    "reason": _of("reason", parse.word),
    "uid": _of("uid", _count),
    "account": _of("account", parse.text),
    "qos": _of("qos", parse.text),
    "partition": _of("partition", str),
    "priority": _of("priority", _count),
    "nice": _of("nice", lambda text: parse.count(text) or 0),
    "array_job_id": (("array_job_id", "array_task"), _array_job_id),
    "array_task_id": (("array_task",), lambda row: _task_of(row).number),
    "array_tasks": (("array_task",), lambda row: _task_of(row).pending),
    "het_job_id": (("het_job_id", "het_offset"), _het_job_id),
    "het_offset": (("het_job_id", "het_offset"), _het_offset),
    "exit": _of("exit", parse.exit_status),
    "derived_exit": _of("derived_exit", parse.exit_status),
    "restarts": _of("restarts", lambda text: _count(text, most=_RESTARTS) or 0),
    "requeue": _of("requeue", _flag),
    "batch": _of("batch", _flag),
    "submitted": _of("submitted", parse.time),
    "eligible": _of("eligible", parse.time),
    "start": (("start", "state", "nodes"), _start),
    "end": _of("end", parse.time),
    "deadline": _of("deadline", parse.time),
    "time_limit": _of("time_limit", parse.time_limit),
    "nodes": _of("nodes", parse.hosts),
    "scheduled_nodes": _of("scheduled_nodes", parse.hosts),
    "required_nodes": _of("required_nodes", parse.hosts),
    "excluded_nodes": _of("excluded_nodes", parse.hosts),
    "batch_host": _of("batch_host", parse.word),
    "reservation": _of("reservation", parse.text),
    "features": _of("features", parse.text),
    "prefer": _of("prefer", parse.text),
    "switches": _of("switches", lambda text: _count(text) or None),
    "switches_wait": (("switches", "switches_wait"), _switches_wait),
    "exclusive": (("exclusive", "sharing"), _exclusive),
    "num_nodes": _of("num_nodes", _count),
    "num_cpus": _of("num_cpus", _count),
    "num_tasks": _of("num_tasks", _count),
    "cpus_per_task": _of("cpus_per_task", lambda text: _count(text, bits=16)),
    "tres": _of("tres", _tres),
    **{name: _of(name, lambda text: _request(text)[0]) for name in _REQUESTS},
    "cpus_per_gpu": _of("cpus_per_tres", lambda text: _request(text)[0].gpus),
    "memory_per_gpu": _of("mem_per_tres", lambda text: _mebibytes(_request(text)[0].gpus)),
    "gpus": (_SIZE_COLUMNS, _gpus),
    "licenses": _of("licenses", parse.text),
    "dependency": _of("dependency", parse.text),
    "comment": _of("comment", parse.text),
    "admin_comment": _of("admin_comment", parse.text),
    "system_comment": _of("system_comment", parse.text),
    "command": _of("command", parse.text),
    "work_dir": _of("work_dir", parse.text),
    "stdout": (_PATH_COLUMNS, _stdout),
    "stderr": ((*_PATH_COLUMNS, "stderr"), _stderr),
}

_OWN_COLUMNS = frozenset(
    {
        "admin_comment",
        "array_job_id",
        "array_task",
        "batch_host",
        "command",
        "comment",
        "deadline",
        "dependency",
        "eligible",
        "end",
        "id",
        "name",
        "nodes",
        "priority",
        "scheduled_nodes",
        "start",
        "stderr",
        "stdout",
        "submitted",
        "system_comment",
        "work_dir",
    }
)
"""Columns in which jobs differ that are alike in the others: values of those are read once for all such jobs."""
_MOST_KNOWN = 8192

IDENTITY = (
    "id",
    "state",
    "flags",
    "uid",
    "start",
    "array_job_id",
    "array_task_id",
    "array_tasks",
    "het_job_id",
    "het_offset",
)
"""Values that each job is read with: which job it is, whose, and what `folded_tasks` goes by."""


_SHOWN_ID = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10}|\[.*\])|\+([0-9]{1,10}))?")


def accounting_record(row: Row) -> AccountingRecord:
    """A row of ``sacct -X``, keyed by our names."""
    get = row.get
    shown = _SHOWN_ID.fullmatch(row.get("shown_id") or row["id"])
    if not shown:
        raise SlurmFormatError("a job id was expected", row["shown_id"])
    identity = parse.job_id(row["id"])
    state = parse.job_state(row["state"])
    task = parse.array_task(shown[2] or "")
    array_job_id = int(shown[1]) if shown[2] else None
    nodes = parse.hosts(get("nodes"))
    work_dir = parse.text(get("work_dir", ""))
    path_fields = _path_fields(identity, array_job_id, task, name=row["name"], user=row["user"], node=None)
    total, requested = parse.tres(get("tres", "")), parse.tres(get("tres_requested", ""))
    return AccountingRecord(
        id=identity,
        name=row["name"],
        user=row["user"],
        state=state.state,
        state_text=row["state"],
        flags=state.flags,
        cancelled_by=state.cancelled_by,
        reason=parse.word(get("reason", "")),
        restarts=_count(get("restarts", ""), most=_RESTARTS),
        uid=_count(get("uid", "")),
        group=parse.word(get("group", "")),
        account=parse.text(get("account", "")),
        qos=parse.text(get("qos", "")),
        partition=get("partition", ""),
        cluster=parse.text(get("cluster", "")),
        priority=_count(get("priority", "")),
        array_job_id=array_job_id,
        array_task_id=task.number,
        array_tasks=task.pending,
        het_job_id=int(shown[1]) if shown[3] else None,
        het_offset=int(shown[3]) if shown[3] else None,
        exit=parse.exit_status(get("exit", "")),
        derived_exit=parse.exit_status(get("derived_exit", "")),
        submitted=parse.time(get("submitted", "")),
        eligible=parse.time(get("eligible", "")),
        start=started(parse.time(get("start", "")), state.state, nodes),
        end=parse.time(get("end", "")),
        elapsed=_count(get("elapsed", "")),
        suspended=parse.duration(get("suspended", "")),
        planned=parse.duration(get("planned", "")),
        time_limit=parse.time_limit(get("time_limit", "")),
        nodes=nodes,
        num_nodes=_count(get("num_nodes", "")),
        num_cpus=_count(get("num_cpus", "")),
        tres_requested=requested,
        tres=total,
        gpus=accounted_gpus(total, requested),
        features=parse.text(get("features", "")),
        reservation=parse.text(get("reservation", "")),
        failed_node=parse.word(get("failed_node", "")),
        scheduler_flags=parse.names(get("flags", "")),
        comment=parse.text(get("comment", "")),
        admin_comment=parse.text(get("admin_comment", "")),
        system_comment=parse.text(get("system_comment", "")),
        extra=parse.text(get("extra", "")),
        submit_line=parse.text(get("submit_line", "")),
        work_dir=work_dir,
        stdout=parse.expand_path(parse.text(get("stdout", "")), path_fields, work_dir),
        stderr=parse.expand_path(parse.text(get("stderr", "")), path_fields, work_dir),
    )


def accounted_gpus(total: Tres, requested: Tres) -> int | None:
    """None when nothing at all was recorded: then the cluster may not track TRES."""
    if not total and not requested:
        return None
    return (total if total else requested).gpus or 0


def count_attempts(records: Iterable[AccountingRecord]) -> tuple[AccountingRecord, ...]:
    """The records in order of id and time, with ``attempt`` counted per job.

    A job that is changed (``scontrol update``) while a requeue still ends its attempt: slurmdbd then writes the next
    attempt's ``restarts`` into that one's row, and two rows have the same [measured, 24.11]. A job has each
    number but 0 once, so the earlier row is known to be the attempt before.
    """
    never = datetime.max.replace(tzinfo=timezone.utc)
    ordered = sorted(
        records, key=lambda record: (record.id, record.submitted or never, record.start or never)
    )
    for place in range(len(ordered) - 2, -1, -1):
        one, after = ordered[place], ordered[place + 1]
        if one.id == after.id and one.restarts and one.restarts == after.restarts:
            ordered[place] = replace(one, restarts=one.restarts - 1)
    counted, seen = [], dict.fromkeys((record.id for record in ordered), 0)
    for record in ordered:
        counted.append(
            replace(record, attempt=seen[record.id] if record.restarts is None else record.restarts)
        )
        seen[record.id] += 1
    return tuple(counted)


def last_attempts(records: Iterable[AccountingRecord]) -> tuple[AccountingRecord, ...]:
    """Of records in order, each job's last."""
    return tuple({record.id: record for record in records}.values())


_ESTIMATE = re.compile(
    r"Job \d+ to start at (\S+).*? using (\d+) processors on (?:nodes )?(\S+)(?: in partition (\S+))?"
)


def start_estimate(message: str) -> StartEstimate:
    """``sbatch: Job 11 to start at 1795238871 using 1 processors on nodes n4 in partition gpu``, printed to stderr.

    26.05.5 leaves a stray letter behind the time.
    """
    found = _ESTIMATE.search(message)
    if not found:
        raise SlurmFormatError("an estimate of the start was expected", message)
    start, cpus, nodes, where = found.groups()
    return StartEstimate(parse.time(start), int(cpus), Hosts(nodes), where, found[0])
