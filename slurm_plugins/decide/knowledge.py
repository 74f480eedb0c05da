"""What was learnt about workloads and nodes, as one snapshot in memory: `Knowledge` from records.

A record is one JSON line of ``profiles.jsonl`` in the service's state folder::

    {"kind": "workload", "cluster": "c", "uid": 1000, "workload": "script:3f…", "gpu_type": "a100", "runs": 12,
     "slowdown": 1.3, "run_time": 7200, "memory_peak": 41000,
     "curve": {"points": [[2, 0.7], [4, 0.98], [8, 1.0]], "uncertainty": 0.01}}
    {"kind": "class", "cluster": "c", "gpu_type": "a100", "runs": 880, "slowdown": 1.1, "run_time": 5400}
    {"kind": "avoid", "cluster": "c", "partition": "gpu", "node": "n3", "reason": "3 Xid 79 in 2 days"}

A later line about the same thing replaces the earlier one; a line that cannot be used is left out and reported.

**Which jobs are the same workload?** Those of one cluster, user and type of GPU that share the first of these that has
a record; what that one does not tell (a run of which only the memory is known has no curve) is taken from the next:

1. ``own:`` the user's own name for it (GSUB_WORKLOAD in the job's environment, which ``--workload=NAME`` sets, or
   ``gsub:workload=NAME`` in the comment); no other then.
2. ``run:`` and ``args:`` the script with its arguments, with and without the environment. `gsub SCRIPT` puts their
   digests into GSUB_WORKLOAD (`TOLD`); the shim does not send what they are made of.
3. ``script:`` the script without what changes from run to run (its #SBATCH lines, comments, empty lines, runs of
   blanks), with the job's name without its digits: ``lr-0.1-seed-7`` and ``lr-0.1-seed-8`` are one.
4. ``text:`` the same without the name.
5. ``like:`` the script without seeds, dates and paths of outputs either, with that name.
6. ``name:`` the name without its digits, for jobs without a script. A script that was edited is another workload: what
   its predecessor needed is a guess, not a measurement.

The rules are `profiler.workload`'s; `fingerprints` are those from ``script:`` on that never change. For plain `sbatch`,
runs that differ in their arguments alone are one workload unless the job's name tells them apart.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from profiler.workload import exact, like, owned
from slurm_plugins.decide.context import Curve, Workload
from slurm_plugins.decide.request import HEAD_BYTES, Request

__all__ = [
    "LIKE_BYTES",
    "PROFILES",
    "TOLD",
    "AvoidRecord",
    "ClassRecord",
    "CurveRecord",
    "Profiles",
    "WorkloadRecord",
    "fingerprints",
    "load",
    "names",
]

PROFILES: Final = "profiles.jsonl"
"""The file in the service's state folder; read when gsubd starts and when it takes its site file anew."""
_MAX_LINE: Final = 64 * 1024
_MAX_PROBLEMS: Final = 20

TOLD: Final = re.compile(
    r"(?P<run>run:[0-9a-f]{32}),(?P<args>args:[0-9a-f]{32}),(?P<text>text:[0-9a-f]{32}),(?P<like>like:[0-9a-f]{32})"
)
"""GSUB_WORKLOAD as `gsub SCRIPT` sets it. ``text:`` is the script's: a job inherits the variables of the one that
submits it, and what they say of another script is not meant for this one."""
LIKE_BYTES: Final = 4096
"""A longer script is not read word by word here, which takes a millisecond a KiB: the shim waits 50 ms for all."""
_ARGUMENTS: Final = re.compile(r"\$(?:[1-9@*]|\{[1-9@*])|\bsys\.argv\b|\bgetopts\b|\bargparse\b")
_SMOKE: Final = " -m gsub.smoke.runner "
_HEAD: Final = 1024
_NOT_OWN: Final = re.compile(r"(?:run|args|text|script):[0-9a-f]{32}(?:,.*)?")

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

    def beside(self, others: Profiles) -> Profiles:
        """These and those of others; of a workload, a class or a node that both know, these."""
        known = dict.fromkeys([*self.avoided, *others.avoided])
        return Profiles(
            MappingProxyType({**others.workloads, **self.workloads}),
            MappingProxyType({**others.classes, **self.classes}),
            MappingProxyType({name: _both(self.avoid(name), others.avoid(name)) for name in known}),
            self._users | others._users,
            self._alike | others._alike,
        )

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        """The record of the request's workload, what it lacks from wider ones; else that of its class; else None."""
        of_class = self.classes.get(gpu_type)
        if request.uid not in self._users:  # most users have none: their scripts need no digest
            return of_class
        told = self._told(request.uid, names(request, alike=False), gpu_type)
        if request.uid in self._alike and all(one.curve is None for one in told):
            told += self._told(request.uid, names(request)[-1:], gpu_type)
        if not told:
            return of_class
        found = _together(told, of_class)
        return replace(found, other_arguments=_other_arguments(request, found.key))

    def _told(self, uid: int, known_as: Iterable[str], gpu_type: str) -> list[Workload]:
        found = (self.workloads.get((uid, name, gpu_type)) for name in known_as)
        return [one for one in found if one is not None]

    def avoid(self, partition: str) -> Mapping[str, str]:
        """Node -> why; the worst first."""
        return self.avoided.get(partition, _NO_NODES)


_NO_NODES: Final[Mapping[str, str]] = MappingProxyType({})


def _both(nodes: Mapping[str, str], others: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({**nodes, **{node: why for node, why in others.items() if node not in nodes}})


def _together(told: list[Workload], of_class: Workload | None) -> Workload:
    """The first of them, each thing that it does not know from the first that does."""
    one = told[0]
    for wider in told[1:]:
        if one.curve is None and wider.curve is not None:
            one = replace(one, curve=wider.curve, key=wider.key, runs=wider.runs)
        if one.memory_peak is None:
            one = replace(one, memory_peak=wider.memory_peak)
        if one.slowdown is None and one.run_time is None:
            one = replace(one, slowdown=wider.slowdown, run_time=wider.run_time)
    if one.slowdown is None and one.run_time is None and of_class is not None:
        return replace(one, slowdown=of_class.slowdown, run_time=of_class.run_time, source=of_class.source)
    return one


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


def names(request: Request, *, alike: bool = True) -> tuple[str, ...]:
    """All names under which a request's workload may be known, the most telling first.

    `fingerprints`, and around them those that only gsub, or the user, can tell. `alike`: also its likeness, the last
    of them, for which a script of up to `LIKE_BYTES` is read word by word where gsub did not tell it. None for a smoke
    job: its script is ours, and it has the CPUs that it was to have.
    """
    if _SMOKE in request.script_head[:_HEAD]:
        return ()
    stated = request.env.get("GSUB_WORKLOAD", "").strip()
    wish = request.wishes("workload")
    for own in ("" if _NOT_OWN.fullmatch(stated) else stated, "" if wish == "yes" else wish):
        if name := owned(own):  # the bare word of a comment names nothing
            return (name,)
    known = fingerprints(request)
    told = TOLD.fullmatch(stated)
    if told and told["text"] in known:
        return (told["run"], told["args"], *known, *((told["like"],) if alike else ()))
    if not alike or request.script_bytes > LIKE_BYTES:
        return known
    near = like(request.script_head, request.job.name or "", _tail(request))
    return (*known, near) if near else known


def _other_arguments(request: Request, key: str) -> bool:
    """Whether what is known under this name may be of runs with other arguments: gsub told these, and it is not known
    under them; or nobody told them, and the script reads some.
    """
    if key.partition(":")[0] not in ("script", "text", "like"):
        return False
    stated = request.env.get("GSUB_WORKLOAD", "").strip()
    return TOLD.fullmatch(stated) is not None or _ARGUMENTS.search(request.script_head) is not None


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
