"""What Slurm lets a job have of memory, asked of its commands in fixed formats.

Nodes, partitions and slurm.conf change seldom and are kept for a minute; what accounting allows changes with each job
that starts, and is asked for each time. Five commands at most, one as a rule: ``scontrol show assoc_mgr``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurm_plugins.act.allowed import Room
from slurm_plugins.act.assoc import Associations, parse_associations, with_static_limits
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmError, SlurmUnreachable
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.values import Job, Node, Partition

__all__ = ["Lookup", "enforces", "parse_memory_limits"]

_KEEP: Final = 60.0
"""Seconds for which nodes, partitions and slurm.conf are taken for known."""
_QUIET: Final = 30.0
"""Seconds for which a slurmdbd that was silent is not asked again: sacctmgr waits long for one, and all wait for us."""
_ENFORCING: Final = frozenset({"limits", "qos", "safe", "all"})
_LINE: Final = re.compile(r"(?m)^(AccountingStorageEnforce|MaxMemPerNode|MaxMemPerCPU)\s*= (.*)$")
_NAME: Final = re.compile(r"[^\s,=]+")


@dataclass(frozen=True, slots=True)
class _Machine:
    """What is kept, and of which environment it is."""

    asked: float
    env: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    config: Mapping[str, str]


class Lookup:
    """Asks Slurm; `clock` is any that does not go back."""

    def __init__(self, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: _Machine | None = None
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
            enforces(machine.config.get("AccountingStorageEnforce")),
        )
        if not room.enforced:
            return room
        try:
            return replace(
                room, associations=self._associations(Runner(env, timeout=self._seconds), job, room)
            )
        except SlurmUnreachable:
            raise  # nothing is known, and it may be asked again
        except SlurmError as error:
            return replace(room, missing=str(error))

    def _machine(self, env: Mapping[str, str]) -> _Machine:
        now, kept = self._clock(), self._kept
        if kept is None or now - kept.asked > _KEEP or kept.env != env:
            client = CommandClient(env, timeout=self._seconds)
            shown = check(Runner(env, timeout=self._seconds).read(["scontrol", "show", "config"])).stdout
            config = {name: value.strip() for name, value in _LINE.findall(shown)}
            kept = _Machine(now, dict(env), client.partitions(), client.nodes(), config)
            self._kept = kept
        return kept

    def _associations(self, runner: Runner, job: Job, room: Room) -> Associations | None:
        own = (job.qos or "").split(",")
        asked = sorted({name.lower() for name in (*own, *(p.qos or "" for p in room.partitions)) if name})
        if not all(_NAME.fullmatch(name) for name in (job.user, *asked)) or job.uid is None:
            return None
        done = check(
            runner.read(
                ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos", f"users={job.user}",
                 *([f"qos={','.join(asked)}"] if asked else [])]
            )
        )  # fmt: skip
        found = parse_associations(done.stdout)
        account = (job.account or "").lower()
        silent = [
            qos.name
            for qos in found.qos.values()
            if qos.name in asked and (job.uid not in qos.users or account not in qos.accounts)
        ]
        if not silent:
            return found
        rows = self._static(runner, silent)
        # one that slurmdbd does not know stays as it was told, and so not known
        told = {
            name: with_static_limits(found.qos[name], rows[name], job.uid, account)
            for name in silent
            if name in rows
        }
        return replace(found, qos={**found.qos, **told})

    def _static(self, runner: Runner, names: list[str]) -> dict[str, dict[str, str]]:
        """The limits of a QOS for each user and account, as slurmdbd has them. Raises SlurmError."""
        if self._silent is not None and self._clock() - self._silent[0] < _QUIET:
            raise self._silent[1]
        columns = ("Name", "MaxTRESPU", "MaxTRESPA")
        argv = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", "where", f"name={','.join(names)}"]
        try:
            done = check(runner.read([*argv, f"format={','.join(columns)}"], daemon="slurmdbd"))
        except SlurmUnreachable as error:
            self._silent = self._clock(), error
            raise
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return {
            row[0].lower(): dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)
        }


def enforces(value: str | None) -> bool:
    """Whether accounting enforces limits, by AccountingStorageEnforce; if it is not told, it may.

    >>> enforces("associations,limits,qos"), enforces("none"), enforces("associations"), enforces(None)
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
