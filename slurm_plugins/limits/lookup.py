"""Slurm's limits, asked of its commands in fixed formats.

What accounting allows is slurmctld's own word (``scontrol show assoc_mgr``), and slurmdbd's where slurmctld does not
say (``sacctmgr show qos`` and ``show associations``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmError, SlurmFormatError, SlurmUnreachable
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.values import Job, Node, Partition
from slurm_plugins.limits.records import (
    QOS_COLUMNS,
    Associations,
    parse_associations,
    with_default_qos,
    with_static_limits,
)

__all__ = ["Lookup", "Room", "is_enforcing", "parse_lines", "parse_memory_limits", "read_associations"]

_KEEP: Final = 60.0
"""Seconds for which nodes, partitions, slurm.conf and QOS are taken for known."""
_QUIET: Final = 30.0
"""Seconds for which a slurmdbd that was silent is not asked again: sacctmgr waits long for one, and all wait for us."""
_ENFORCING: Final = frozenset({"limits", "qos", "safe", "all"})
_LINE: Final = re.compile(r"(?m)^(\w+)(?:\[\d+\])?\s*= (.*)$")
_NAME: Final = re.compile(r"[^\s,=]+")
_ASSOCIATION_COLUMNS: Final = ("Account", "User", "Partition", "DefaultQOS", "QOS")
_SHOW: Final = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")


@dataclass(frozen=True, slots=True)
class Room:
    """What Slurm told of its limits, for one job; MiB.

    Parameters
    ----------
    partitions: those in which it may start.
    biggest: what the biggest node of them has for jobs; None: not known.
    per_node, per_cpu: MaxMemPerNode and MaxMemPerCPU of slurm.conf.
    enforced: whether accounting enforces limits; `associations` is looked at only then.
    associations: None where they were not told of, and then `missing` says why.
    priority_flags: PriorityFlags of slurm.conf.
    bills: whether any partition has TRESBillingWeights.
    """

    partitions: tuple[Partition, ...]
    biggest: int | None
    per_node: int | None = None
    per_cpu: int | None = None
    enforced: bool = False
    associations: Associations | None = None
    missing: str = ""
    priority_flags: str = ""
    bills: bool = False


def read_associations(runner: Runner, cluster: str) -> Associations:
    """All of them, with each user's default QOS. Raises SlurmError."""
    told = parse_associations(check(runner.read(_SHOW)).stdout)
    told = _with_rows(told, _static(runner))
    return with_default_qos(told, _default_qos(runner, cluster))


@dataclass(frozen=True, slots=True)
class _Machine:
    """What is kept, and of which environment it is."""

    asked: float
    env: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    config: Mapping[str, str]


class Lookup:
    """What holds for one job; `clock` is any that does not go back."""

    def __init__(self, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: _Machine | None = None
        self._qos: tuple[float, Mapping[str, str], dict[str, dict[str, str]]] | None = None
        self._silent: tuple[float, SlurmUnreachable] | None = None

    def room(self, env: Mapping[str, str], job: Job) -> Room:
        """What holds for a job, in the Slurm of `env`. Raises SlurmError; what accounting does not tell is in it."""
        machine = self._machine(env)
        names = set(job.partition.split(","))
        partitions = tuple(partition for partition in machine.partitions if partition.name in names)
        sizes = [
            node.memory - (node.memory_reserved or 0)
            for node in machine.nodes
            if node.memory and names & set(node.partitions)
        ]
        per_node, per_cpu = parse_memory_limits(machine.config)
        room = Room(
            partitions,
            max(sizes) >> 20 if sizes else None,
            per_node,
            per_cpu,
            is_enforcing(machine.config.get("AccountingStorageEnforce")),
            priority_flags=machine.config.get("PriorityFlags", ""),
            bills=any(partition.billing_weights for partition in machine.partitions),
        )
        if not room.enforced:
            return room
        try:
            return replace(room, associations=self._associations(env, job, room))
        except SlurmUnreachable:
            raise  # nothing is known, and it may be asked again
        except SlurmError as error:
            return replace(room, missing=str(error))

    def _machine(self, env: Mapping[str, str]) -> _Machine:
        now, kept = self._clock(), self._kept
        if kept is None or now - kept.asked > _KEEP or kept.env != env:
            client = CommandClient(env, timeout=self._seconds)
            shown = check(Runner(env, timeout=self._seconds).read(["scontrol", "show", "config"])).stdout
            kept = _Machine(now, dict(env), client.partitions(), client.nodes(), parse_lines(shown))
            self._kept = kept
        return kept

    def _associations(self, env: Mapping[str, str], job: Job, room: Room) -> Associations | None:
        own = (job.qos or "").split(",")
        asked = sorted({name.lower() for name in (*own, *(p.qos or "" for p in room.partitions)) if name})
        if not all(_NAME.fullmatch(name) for name in (job.user, *asked)) or job.uid is None:
            return None
        runner = Runner(env, timeout=self._seconds)
        qos = [f"qos={','.join(asked)}"] if asked else []
        told = parse_associations(check(runner.read([*_SHOW, f"users={job.user}", *qos])).stdout)
        return _with_rows(told, self._static(env, runner))

    def _static(self, env: Mapping[str, str], runner: Runner) -> dict[str, dict[str, str]]:
        """As the function of that name, kept. Raises SlurmError."""
        now = self._clock()
        if self._qos is not None and now - self._qos[0] <= _KEEP and self._qos[1] == env:
            return self._qos[2]
        if self._silent is not None and now - self._silent[0] < _QUIET:
            raise self._silent[1]
        try:
            found = _static(runner)
        except SlurmUnreachable as error:
            self._silent = self._clock(), error
            raise
        self._qos = now, dict(env), found
        return found


def _with_rows(told: Associations, rows: Mapping[str, Mapping[str, str]]) -> Associations:
    """With what slurmdbd has of QOS; one that it does not know stays as slurmctld told of it, and so not whole."""
    qos = {
        name: with_static_limits(one, rows[name]) if name in rows else one for name, one in told.qos.items()
    }
    return replace(told, qos=qos)


def _static(runner: Runner) -> dict[str, dict[str, str]]:
    """The limits of QOS for each user and account. Raises SlurmError."""
    return {row["Name"].lower(): row for row in _sacctmgr(runner, ["qos"], QOS_COLUMNS)}


def _default_qos(runner: Runner, cluster: str) -> list[tuple[str, str, str, str, str]]:
    """Account, user, partition, default QOS and all QOS of each user. Raises SlurmError."""
    rows = _sacctmgr(runner, ["associations", "where", f"cluster={cluster}"], _ASSOCIATION_COLUMNS)
    return [(row["Account"], row["User"], row["Partition"], row["DefaultQOS"], row["QOS"])
            for row in rows if row["User"]]  # fmt: skip


def _sacctmgr(runner: Runner, what: Sequence[str], columns: Sequence[str]) -> list[dict[str, str]]:
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
    done = check(runner.read(argv, daemon="slurmdbd"))
    rows = [line.split("|") for line in done.stdout.splitlines() if line]
    for row in rows:
        if len(row) != len(columns):
            raise SlurmFormatError(f"{len(columns)} columns were expected", "|".join(row))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def parse_lines(shown: str) -> dict[str, str]:
    """Parse the output of ``scontrol show config``; of a name that stands there several times, its first value.

    >>> parse_lines("EpilogSlurmctld[0]      = /a\\nEpilogSlurmctld[1]      = /b\\nPriorityFlags           = (null)")
    {'EpilogSlurmctld': '/a', 'PriorityFlags': ''}
    """
    found: dict[str, str] = {}
    for name, value in _LINE.findall(shown):
        found.setdefault(name, "" if value.strip() == "(null)" else value.strip())
    return found


def is_enforcing(value: str | None) -> bool:
    """Whether accounting enforces limits, by AccountingStorageEnforce; if it is not told, it may.

    >>> is_enforcing("associations,limits,qos"), is_enforcing("none"), is_enforcing("associations"), is_enforcing(None)
    (True, False, False, True)
    """
    return value is None or not _ENFORCING.isdisjoint(word.strip().lower() for word in value.split(","))


def parse_memory_limits(config: Mapping[str, str]) -> tuple[int | None, int | None]:
    """MaxMemPerNode and MaxMemPerCPU of slurm.conf, MiB; None: no limit.

    >>> parse_memory_limits({"MaxMemPerNode": "UNLIMITED", "MaxMemPerCPU": "4000"})
    (None, 4000)
    """
    per_node, per_cpu = (config.get(name, "") for name in ("MaxMemPerNode", "MaxMemPerCPU"))
    return (
        int(per_node) or None if per_node.isdigit() else None,
        int(per_cpu) or None if per_cpu.isdigit() else None,
    )
