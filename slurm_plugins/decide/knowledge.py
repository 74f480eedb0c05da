"""What was learnt about workloads and nodes, as one snapshot in memory: `Knowledge` from records.

A record is one JSON line of ``profiles.jsonl`` in the service's state folder::

    {"kind": "workload", "cluster": "c", "uid": 1000, "workload": "script:3f…", "gpu_type": "a100", "runs": 12,
     "slowdown": 1.3, "run_time": 7200, "memory_peak": 41000,
     "curve": {"points": [[2, 0.7], [4, 0.98], [8, 1.0]], "uncertainty": 0.01}}
    {"kind": "class", "cluster": "c", "gpu_type": "a100", "runs": 880, "slowdown": 1.1, "run_time": 5400}
    {"kind": "avoid", "cluster": "c", "partition": "gpu", "node": "n3", "reason": "3 Xid 79 in 2 days"}

A later line about the same thing replaces the earlier one; a line that cannot be used is left out and reported.

**Which jobs are the same workload?** Those of one cluster, user and type of GPU that share the first of these that has
a record:

1. ``own:`` the user's own name for it (``gsub:workload=NAME`` in the comment); no other then.
2. ``script:`` the script without what changes from run to run (its #SBATCH lines, comments, empty lines, runs of
   blanks), with the job's name without its digits: ``lr-0.1-seed-7`` and ``lr-0.1-seed-8`` are one.
3. ``text:`` the same without the name.
4. ``like:`` the script without seeds, dates and paths of outputs either, with that name.
5. ``name:`` the name without its digits, for jobs without a script. A script that was edited is another workload: what
   its predecessor needed is a guess, not a measurement.

The rules are `profiler.workload`'s; `fingerprints` are those from ``script:`` on that never change.

What a script is called with is not known at submission (Slurm's Lua has it, the shim does not send it): runs that
differ in their arguments alone are one workload unless the job's name tells them apart.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from profiler.workload import exact, like, owned
from slurm_plugins.decide.context import Curve, Workload
from slurm_plugins.decide.request import HEAD_BYTES, Request

__all__ = [
    "PROFILES",
    "AvoidRecord",
    "ClassRecord",
    "CurveRecord",
    "Profiles",
    "WorkloadRecord",
    "fingerprints",
    "load",
]

PROFILES: Final = "profiles.jsonl"
"""The file in the service's state folder; read when gsubd starts and when it takes its site file anew."""
_MAX_LINE: Final = 64 * 1024
_MAX_PROBLEMS: Final = 20

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Runs = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Slowdown = Annotated[float, msgspec.Meta(gt=0, le=1000)] | None
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] | None
_Mib = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None
_Relative = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class CurveRecord(msgspec.Struct, frozen=True):
    """A `Curve` as a line holds it."""

    points: tuple[tuple[Annotated[float, msgspec.Meta(gt=0, le=65536)], _Relative], ...]
    memory: tuple[tuple[Annotated[int, msgspec.Meta(ge=1, le=1 << 40)], _Relative], ...] = ()
    uncertainty: _Relative = 0.0


class WorkloadRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="workload"):
    """What is known of one workload of one user on one type of GPU ("" where the nodes name none)."""

    cluster: _Name
    uid: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    workload: _Name
    gpu_type: _Name = ""
    runs: _Runs = 0
    slowdown: _Slowdown = None
    run_time: _Seconds = None
    memory_peak: _Mib = None
    curve: CurveRecord | None = None


class ClassRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="class"):
    """What jobs on one type of GPU have in common, whoever's they are: for workloads without a record.

    No CPUs or memory: what one workload needs says nothing about another's.
    """

    cluster: _Name
    gpu_type: _Name = ""
    runs: _Runs = 0
    slowdown: _Slowdown = None
    run_time: _Seconds = None


class AvoidRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="avoid"):
    """A node that jobs of a partition should avoid, and one sentence why."""

    cluster: _Name
    partition: _Name
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


_Record = WorkloadRecord | ClassRecord | AvoidRecord
_DECODER: Final = msgspec.json.Decoder(_Record)
_Key = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Profiles:
    """A `Knowledge` made of records: every look-up is a few look-ups in a dictionary, however many there are.

    >>> record = WorkloadRecord("c", 1000, "name:train-#", "a100", slowdown=1.3)
    >>> from slurm_plugins.decide.request import Job
    >>> job = Request(id=1, uid=1000, job=Job(name="train-17"), batch=False)
    >>> Profiles.of([record], "c").workload(job, "a100").slowdown
    1.3
    """

    workloads: Mapping[_Key, Workload] = field(default_factory=dict, hash=False)
    classes: Mapping[str, Workload] = field(default_factory=dict, hash=False)
    avoided: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Partition -> node -> why; the worst node first, as the records had them."""
    _users: frozenset[int] = frozenset()
    _alike: frozenset[int] = frozenset()
    """Users with a record of a likeness: only their scripts are read word by word."""

    @classmethod
    def of(cls, records: Iterable[_Record], cluster: str) -> Profiles:
        """The records of one cluster; a later one about the same thing replaces the earlier."""
        workloads: dict[_Key, Workload] = {}
        classes: dict[str, Workload] = {}
        avoided: dict[str, dict[str, str]] = {}
        for record in records:
            if record.cluster != cluster:
                continue
            if isinstance(record, WorkloadRecord):
                workloads[record.uid, record.workload, record.gpu_type] = _workload(record)
            elif isinstance(record, ClassRecord):
                classes[record.gpu_type] = Workload(
                    f"class:{record.gpu_type}", record.runs, record.slowdown, record.run_time, source="class"
                )
            else:
                avoided.setdefault(record.partition, {})[record.node] = record.reason
        return cls(
            MappingProxyType(workloads),
            MappingProxyType(classes),
            MappingProxyType({name: MappingProxyType(nodes) for name, nodes in avoided.items()}),
            frozenset(uid for uid, _, _ in workloads),
            frozenset(uid for uid, name, _ in workloads if name.startswith("like:")),
        )

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        """The record of the request's workload; else that of its class; else None."""
        if request.uid in self._users:  # most users have none: their scripts need no digest
            for fingerprint in _known_as(request, alike=request.uid in self._alike):
                found = self.workloads.get((request.uid, fingerprint, gpu_type))
                if found is not None:
                    return found
        return self.classes.get(gpu_type)

    def avoid(self, partition: str) -> Mapping[str, str]:
        """Node -> why; the worst first."""
        return self.avoided.get(partition, _NO_NODES)


_NO_NODES: Final[Mapping[str, str]] = MappingProxyType({})


def _workload(record: WorkloadRecord) -> Workload:
    curve = record.curve
    return Workload(
        record.workload,
        record.runs,
        record.slowdown,
        record.run_time,
        record.memory_peak,
        None if curve is None else Curve(curve.points, curve.memory, curve.uncertainty),
    )


# --- which jobs are the same workload -------------------------------------------------------------------------------


def fingerprints(request: Request) -> tuple[str, ...]:
    """The names under which a request's workload may be known, the most telling first. Stable across releases.

    >>> from slurm_plugins.decide.request import Job
    >>> script = "#!/bin/sh\\n#SBATCH --nodes={}\\nsrun python train.py\\n"
    >>> one, other = (
    ...     Request(id=1, uid=1, job=Job(name=f"seed-{n}"), script_head=script.format(n)) for n in (1, 2))
    >>> fingerprints(one) == fingerprints(other)
    True
    """
    return exact(request.script_head, request.job.name or "", _tail(request))


def _known_as(request: Request, *, alike: bool) -> tuple[str, ...]:
    """`fingerprints`, and those that were added since: the user's own name for it, and its likeness."""
    own = request.asks("workload")
    if own and own != "yes":  # the bare word names nothing
        return (owned(own),)
    near = like(request.script_head, request.job.name or "", _tail(request)) if alike else ""
    return (*fingerprints(request), near) if near else fingerprints(request)


def _tail(request: Request) -> int:
    """How long a script is tells apart those that only differ beyond what travels along."""
    return request.script_bytes if request.script_bytes > HEAD_BYTES else 0


# --- reading --------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], cluster: str) -> tuple[Profiles, tuple[str, ...]]:
    """The snapshot that a file of records gives, and what was wrong in it, at most 20 lines.

    A file that is not there is an empty one: nothing was learnt yet. Raises OSError for one that cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Profiles(), ()
    with open(handle, "rb") as lines:  # noqa: PTH123 - a descriptor: a FIFO must not hang the service
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return read(lines, cluster, os.fspath(path))


def read(lines: Iterable[bytes], cluster: str, source: str = "") -> tuple[Profiles, tuple[str, ...]]:
    """As `load`, from lines."""
    problems: list[str] = []
    more = 0
    records: list[_Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(_checked(line))
        except ValueError as error:  # msgspec's errors are such; they hold nothing of the line's values
            if len(problems) < _MAX_PROBLEMS - 1:
                problems.append(f"{source}:{number}: {str(error)[:200]}")
            else:
                more += 1
    if more:
        problems.append(f"{source}: {more} more lines cannot be used")
    return Profiles.of(records, cluster), tuple(problems)


def _checked(line: bytes) -> _Record:
    if len(line) > _MAX_LINE:
        raise ValueError(f"longer than {_MAX_LINE} bytes")
    record: _Record = _DECODER.decode(line)
    if isinstance(record, WorkloadRecord) and record.curve is not None:
        for name, points in (("points", record.curve.points), ("memory", record.curve.memory)):
            if any(not before[0] < after[0] for before, after in pairwise(points)):
                raise ValueError(f"curve.{name}: want them by their first number, ascending, none twice")
        if not math.isfinite(record.curve.uncertainty):
            raise ValueError("curve.uncertainty: want a number")
    return record
