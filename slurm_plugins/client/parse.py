"""Slurm's words into values: pure functions from text, one for each kind of field.

All take what Slurm prints for "nothing" (``(null)``, ``N/A``, ``None``, ``Unknown``...) and raise
`SlurmFormatError` with the faulty piece for what they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple

from .errors import SlurmFormatError
from .resources import Hosts, Tres
from .states import ExitStatus, JobFlag, JobState, NodeState
from .submission import LAST_JOB_ID

__all__ = [
    "ArrayTask",
    "StateWord",
    "array_task",
    "count",
    "duration",
    "exit_status",
    "expand_path",
    "gpus",
    "hosts",
    "job_id",
    "job_state",
    "memory",
    "names",
    "node_state",
    "task_count",
    "task_numbers",
    "task_ranges",
    "text",
    "time",
    "time_limit",
    "tres",
    "word",
]

_NOTHING = frozenset(
    {"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "UNKNOWN", "None assigned", "n/s"}
)
# slurm.h: INFINITE and NO_VAL of a field of so many bits. In a wider field, 65534 is a number like any other.
_NO_NUMBER: Mapping[int, frozenset[int]] = {
    bits: frozenset((1 << wide) - below for wide in (16, 32, 64) if wide >= bits for below in (1, 2))
    for bits in (16, 32, 64)
}
MOST = (1 << 63) - 1
"""The largest number that a store and JSON hold; amounts beyond it are cut to it."""


def text(word: str) -> str | None:
    """User text as it is, None for the ``(null)`` of C's printf. A comment that really reads "None" stays."""
    return None if word in ("", "(null)") else word


def word(value: str) -> str | None:
    """A name, None for any of Slurm's words for nothing."""
    return None if value in _NOTHING else value


_RANGES = r"\[[0-9]{1,18}(?:-[0-9]{1,18})?(?:,[0-9]{1,18}(?:-[0-9]{1,18})?)*\]"
_HOST = rf"(?:[A-Za-z_.-]|[0-9]{{1,18}}(?![0-9])|{_RANGES})+"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")
_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_MOST_HOSTS = 1 << 20


@lru_cache(4096)
def hosts(value: str | None) -> Hosts:
    """Parse a node list; sacct's "None assigned" and squeue's "n/a" are no nodes.

    Raises SlurmFormatError for what `Hosts` could not expand, or only to more nodes than a cluster has.
    """
    expression = word(value or "") or ""
    if expression and (not _HOSTS.fullmatch(expression) or not 0 < _host_count(expression) <= _MOST_HOSTS):
        raise SlurmFormatError("a list of nodes was expected", expression)
    return Hosts(expression)


def _host_count(expression: str) -> int:
    """Count the nodes of a list without expanding it; 0 for a range that ends before it begins."""
    total = 0
    for item in _ITEM.findall(expression):
        size = 1
        for ranges in re.findall(r"\[([^\]]*)\]", item):
            bounds = [part.partition("-") for part in ranges.split(",")]
            sizes = [int(last or first) - int(first) + 1 for first, _, last in bounds]
            if min(sizes) < 1:
                return 0
            size *= sum(sizes)
        total += size
    return total


def names(value: str) -> tuple[str, ...]:
    """``a,b`` -> ``("a", "b")``; nothing -> ``()``. Commas inside parentheses separate nothing."""
    if value in _NOTHING:
        return ()
    return tuple(part for part in re.split(r",(?![^(]*\))", value) if part)


def count(value: str, bits: int = 32) -> int | None:
    """Parse a whole number; None for nothing, ``*``, UNLIMITED, and NO_VAL and INFINITE of a field of ``bits`` bits.

    >>> count("1-3"), count("2K"), count("65534"), count("65534", bits=16)
    (1, 2048, 65534, None)
    """
    if value in _NOTHING or value in ("*", "UNLIMITED", "INFINITE", "NOT_SET"):
        return None
    found = re.fullmatch(r"(-?[0-9]{1,20})([KMGTP]?)(?:-[0-9]{1,20}[KMGTP]?)?\+?", value)
    if not found:
        raise SlurmFormatError("a number was expected", value)
    number = int(found[1]) << _SHIFT[found[2]]
    if number.bit_length() > 64:
        raise SlurmFormatError("a number of at most 64 bits was expected", value)
    return None if number in _NO_NUMBER[bits] else number


def job_id(value: str) -> int:
    """Parse the id of a job. Raises SlurmFormatError for what slurmctld gives to no job."""
    number = int(value) if re.fullmatch("[0-9]{1,10}", value) else 0
    if not 0 < number <= LAST_JOB_ID:
        raise SlurmFormatError("a job id was expected", value)
    return number


# "?" is what Slurm prints where its own letters end (convert_num_unit): --mem=9223372036854775807M is "8?"
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60, "?": 60}


def memory(value: str, unit: str = "M") -> int | None:
    """Bytes. Slurm counts in MiB and prints ``4G``, ``4096M``, ``1.50T``, ``500`` (``unit``); None for nothing,
    UNLIMITED and 64-bit sentinels.

    sacct's old ``4Gn`` and ``100Mc`` (per node, per CPU) lose their letter: the multiple is the caller's to know.
    """
    if value in _NOTHING or value in ("UNLIMITED", "INFINITE"):
        return None
    found = re.fullmatch(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?([KMGTPE?]?)[Bb]?[nc]?", value)
    if not found:
        raise SlurmFormatError("an amount of memory was expected", value)
    if int(found[1]) in _NO_NUMBER[64]:
        return None
    shift = _SHIFT[found[3] or unit]
    fraction = (int(found[2]) << shift) // 10 ** len(found[2]) if found[2] else 0
    return min((int(found[1]) << shift) + fraction, MOST)


def time(value: str) -> datetime | None:
    """An aware datetime in UTC from seconds since 1970 (SLURM_TIME_FORMAT=%s, which `runner` sets); None for nothing.

    Local times (``2026-11-21T04:42:12``) are refused: they are ambiguous for an hour a year. 0 is how old releases
    print "never". None too beyond the years that a date can have: ``sbatch --begin=now+999999999weeks`` is taken.
    """
    if value in _NOTHING or value in ("0", "NONE", "INFINITE", "N/S"):
        return None
    if not re.fullmatch("[0-9]+|-[0-9]{10,}", value):
        raise SlurmFormatError("a time in seconds since 1970 was expected", value)
    if value.startswith("-") or len(value) > len(str(_YEAR_9999)):
        return None
    seconds = int(value)
    if seconds in _NO_NUMBER[32] or seconds > _YEAR_9999:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc)


_YEAR_9999 = 253402300799

_DURATION = re.compile("(?:([0-9]{1,10})-)?([0-9]{1,10})(?::([0-9]{1,10}))?(?::([0-9]{1,10}))?(?:[.][0-9]+)?")


def duration(value: str) -> int | None:
    """Seconds from what Slurm prints: ``MM:SS``, ``H:MM:SS``, ``D-HH:MM:SS``; None for nothing, UNLIMITED, INVALID.

    >>> duration("1-02:00:00"), duration("10:00")
    (93600, 600)
    """
    if value in _NOTHING or value in ("UNLIMITED", "INVALID", "NOT_SET", "INFINITE"):
        return None
    found = _DURATION.fullmatch(value)
    if not found:
        raise SlurmFormatError("a duration was expected", value)
    days, first, second, third = found.groups()
    if third is not None:
        hours, minutes, seconds = int(first), int(second), int(third)
    elif days is not None:
        hours, minutes, seconds = int(first), int(second or 0), 0
    else:
        hours, minutes, seconds = (0, int(first), int(second)) if second is not None else (0, 0, int(first))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def time_limit(value: str) -> int | None:
    """Seconds from a limit that is a duration or sacct's plain minutes; None for unlimited and ``Partition_Limit``."""
    if value in ("Partition_Limit", "PARTITION_LIMIT"):
        return None
    if re.fullmatch("[0-9]{1,10}", value):
        return None if int(value) in _NO_NUMBER[32] else int(value) * 60
    return duration(value)


def exit_status(value: str) -> ExitStatus:
    """``3:0``, or the raw wait status that squeue prints in 22.05 (768 is exit code 3, 9 is signal 9).

    A job without an exit status has a NO_VAL there, which 22.05 prints as -2.
    """
    if value in _NOTHING:
        return ExitStatus()
    found = re.fullmatch("(-?[0-9]{1,10})(?::(-?[0-9]{1,10}))?", value)
    if not found:
        raise SlurmFormatError("an exit status was expected", value)
    if found[2] is not None:
        return ExitStatus(_status(found[1]), _status(found[2]))
    status = _status(found[1])
    # WIFSIGNALED, WTERMSIG and WEXITSTATUS of wait(2): the code counts only where no signal ended it
    signal = status & 0x7F
    return ExitStatus(0, signal) if 0 < signal < 0x7F else ExitStatus((status >> 8) & 0xFF)


def _status(digits: str) -> int:
    number = int(digits)
    return 0 if number < 0 or number in _NO_NUMBER[32] else number


# What a flag, printed in the state's place, says of the state beneath. Absent: it does not tell.
_BENEATH: Mapping[JobFlag, JobState] = {
    JobFlag.CONFIGURING: JobState.RUNNING,
    JobFlag.POWER_UP_NODE: JobState.RUNNING,
    JobFlag.RESIZING: JobState.RUNNING,
    JobFlag.SIGNALING: JobState.RUNNING,
    JobFlag.STOPPED: JobState.RUNNING,
    JobFlag.REQUEUE_FED: JobState.PENDING,
    JobFlag.REQUEUE_HOLD: JobState.PENDING,
    JobFlag.RESV_DEL_HOLD: JobState.PENDING,
    JobFlag.SPECIAL_EXIT: JobState.PENDING,
    JobFlag.EXPEDITING: JobState.PENDING,
}


class StateWord(NamedTuple):
    """A state taken apart: ``CANCELLED by 1000`` is (CANCELLED, no flags, 1000)."""

    state: JobState
    flags: frozenset[JobFlag]
    cancelled_by: int | None


def job_state(value: str) -> StateWord:
    """A job's state with its flags apart; several words are joined by ``+`` or ``,``. An unknown word is UNKNOWN,
    not an error.
    """
    head, _, by = value.partition(" by ")
    state: JobState | None = None
    flags: set[JobFlag] = set()
    for part in re.split(r"[+,|]", head.strip().upper()):
        if part in JobState.__members__:
            state = JobState[part]
        elif part in JobFlag.__members__:
            flags.add(JobFlag[part])
    if state is None:
        state = next((_BENEATH[flag] for flag in flags if flag in _BENEATH), JobState.UNKNOWN)
    return StateWord(state, frozenset(flags), int(by) if re.fullmatch("[0-9]{1,10}", by) else None)


# sinfo(1), "NODE STATE CODES": a letter behind the state stands for a flag
_NODE_SUFFIX = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_NODE_WORDS: Mapping[str, tuple[NodeState | None, str | None]] = {
    "ALLOC": (NodeState.ALLOCATED, None),
    "MIX": (NodeState.MIXED, None),
    "COMP": (NodeState.IDLE, "COMPLETING"),
    "DRAINING": (NodeState.ALLOCATED, "DRAIN"),
    "DRAINED": (NodeState.IDLE, "DRAIN"),
    "FAILING": (NodeState.ALLOCATED, "FAIL"),
    "INVAL": (NodeState.UNKNOWN, "INVALID_REG"),
    "MAINT": (None, "MAINTENANCE"),
    "NO_RESPOND": (None, "NOT_RESPONDING"),
}


def node_state(value: str) -> tuple[NodeState, frozenset[str]]:
    """A node's state with its flags apart: ``MIXED+DRAIN``, ``DOWN*``, ``IDLE+PLANNED``. Unknown words become flags."""
    state: NodeState | None = None
    flags: set[str] = set()
    for part in value.strip().upper().split("+"):
        name = part.rstrip("".join(_NODE_SUFFIX))
        flags.update(_NODE_SUFFIX[letter] for letter in part[len(name) :])
        if name in NodeState.__members__:
            state = state or NodeState[name]
        elif name:
            base, flag = _NODE_WORDS.get(name, (None, name))
            state = state or base
            if flag:
                flags.add(flag)
    return state or NodeState.UNKNOWN, frozenset(flags)


class ArrayTask(NamedTuple):
    """One task's index, or the tasks that a pending array has left."""

    number: int | None
    pending: str | None


def array_task(value: str) -> ArrayTask:
    """``3`` is a task, ``3-5%2`` or ``[3-5%2]`` what is left of an array, nothing neither."""
    value = value.strip("[]")
    if value in _NOTHING:
        return ArrayTask(None, None)
    if re.fullmatch("[0-9]{1,10}", value):
        return ArrayTask(None, None) if int(value) in _NO_NUMBER[32] else ArrayTask(int(value), None)
    return ArrayTask(None, value)


_TASKS = re.compile("([0-9]{1,7})-([0-9]{1,7})(?::([0-9]{1,7}))?")


def task_count(pending: str | None) -> int:
    """How many tasks a pending array has left; each piece that names no range counts as one, as a list that was cut.

    >>> task_count("1,3-5,10-20:5%2"), task_count(None), task_count("3-5,...")
    (7, 1, 4)
    """
    pieces = (pending or "").partition("%")[0].split(",")
    return sum(max(1, len(_tasks(piece))) for piece in pieces)


def _tasks(piece: str) -> range:
    """Those of a piece of an expression that is a range; none of another."""
    found = _TASKS.fullmatch(piece.strip())
    return range(int(found[1]), int(found[2]) + 1, max(1, int(found[3] or 1))) if found else range(0)


def task_numbers(pending: str | None) -> tuple[int, ...]:
    """The tasks that an expression names, in its order; a piece that is none (of a list that was cut) names none.

    >>> task_numbers("1,3-5,10-20:5%2"), task_numbers(None), task_numbers("3-5,...")
    ((1, 3, 4, 5, 10, 15, 20), (), (3, 4, 5))
    """
    found: list[int] = []
    for piece in (pending or "").strip("[]").partition("%")[0].split(","):
        text = piece.strip()
        found += [int(text)] if re.fullmatch("[0-9]{1,10}", text) else _tasks(text)
    return tuple(found)


def task_ranges(numbers: Iterable[int]) -> str:
    """Write numbers of tasks as an expression.

    >>> task_ranges([0, 3, 4, 5, 9])
    '0,3-5,9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


_TRES_ITEM = re.compile(
    # name, types behind "/" or ":" (never only digits, else it is the count), count, unit, trailing "(S:0-1)" or
    # "(IDX:0)"
    r"(?P<name>[A-Za-z_][\w.-]*(?:[/:](?!\d+(?:\.\d+)?[KMGTPE?]?(?:\(|$))[\w.-]+)*)"
    r"(?:[=:](?P<count>\d+(?:\.\d+)?)(?P<unit>[KMGTPE?]?))?(?:\((?P<note>[^)]*)\))?"
)
_TRES_PREFIXES = ("gres/", "license/", "bb/", "fs/", "ic/", "topology/")
_TRES_PLAIN = frozenset({"cpu", "mem", "node", "billing", "energy", "vmem", "pages"})


def tres(value: str) -> Tres:
    """Resources from every form that Slurm writes: ``cpu=4,mem=4G,gres/gpu:a100=2``, ``gres:gpu:4``,
    ``gpu:a100:2(S:0-1)``, ``gpu``.

    Memory becomes bytes (a number without unit is MiB), other counts keep Slurm's K/M (powers of 1024), a name
    without count is 1.
    """
    if value in _NOTHING:
        return Tres()
    pairs: dict[str, int] = {}
    for item in names(value.replace(":(null)", "")):
        found = _TRES_ITEM.fullmatch(item)
        if not found:
            raise SlurmFormatError("resources were expected", value)
        name = _tres_name(found["name"])
        amount = f"{found['count'] or 1}{found['unit'] or ''}"
        number = memory(amount) if name == "mem" else memory(amount, unit="")
        if number is not None:
            pairs[name] = min(pairs.get(name, 0) + number, MOST)
    return Tres(tuple(pairs.items()))


def requested(value: str) -> tuple[Tres, bool]:
    """Resources of a request, which Slurm hands on as the user typed it; and whether all of it was understood.

    It takes blanks (``gpu: 2``) and names that we do not read. Those are left out: what one user typed must not keep
    the others' jobs from being listed.
    """
    pairs: dict[str, int] = {}
    whole = True
    for item in names(re.sub(r"\s", "", value)):
        try:
            found = tres(item)
        except SlurmFormatError:
            whole = False
            continue
        for name, number in found.items():
            pairs[name] = min(pairs.get(name, 0) + number, MOST)
    return Tres(tuple(pairs.items())), whole


def _tres_name(name: str) -> str:
    if name.startswith("gres:"):
        name = "gres/" + name[5:]
    elif name not in _TRES_PLAIN and not name.startswith(_TRES_PREFIXES):
        # slurm.conf's own form, as in a node's Gres=
        name = "gres/" + name
    return name


_PATH_FIELD = re.compile("%0*([0-9]*)([%A-Za-z])")


def expand_path(
    pattern: str | None, fields: Mapping[str, str | int | None], work_dir: str | None
) -> str | None:
    """The full path of a job's output from sbatch's pattern (sbatch(1), "filename pattern").

    ``fields`` maps pattern letters to values; a letter that is not there, or None, stays as it is. A backslash switches
    expansion off, as in sbatch.
    """
    if not pattern:
        return None

    def field(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        known = fields.get(letter)
        if known is None:
            return found[0]
        # sbatch(1): "%4j"; at most 10 digits, numbers only
        return (
            str(known).zfill(int(width or 0) if len(width) < 2 else 10)
            if str(known).isdecimal()
            else str(known)
        )

    path = pattern.replace("\\", "") if "\\" in pattern else _PATH_FIELD.sub(field, pattern)
    return path if path.startswith("/") or not work_dir else f"{work_dir.rstrip('/')}/{path}"


def gpus(total: Tres, requests: Iterable[tuple[Tres, int | None]]) -> int | None:
    """How many GPUs a job has or asks for: 0 only when it names none at all, None when they cannot be counted.

    ``total`` is what Slurm counted; without GPUs there (AccountingStorageTRES may leave them out), ``requests`` are
    asked: pairs of resources and how many times they are given (nodes, tasks...; None = unknown).
    """
    if total.gpus is not None:
        return total.gpus
    counts = [
        None if times is None else min(request.gpus * times, MOST)
        for request, times in requests
        if request.gpus is not None
    ]
    if not counts:
        return 0
    known = [number for number in counts if number is not None]
    return max(known) if known else None
