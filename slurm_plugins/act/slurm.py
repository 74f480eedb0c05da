"""Slurm as gsub-act has it: a job looked at, one command of the table, and what Slurm lets us do."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from slurm_plugins.client.commands import CommandClient, valid_id
from slurm_plugins.client.errors import NoSuchJob, SlurmError
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job
from slurm_plugins.client.versions import FieldTable
from slurm_plugins.limits.lookup import Lookup, Room
from slurm_plugins.service.slurm_config import parse_config

__all__ = ["ACT_SECONDS", "Commands", "Rights", "Slurm", "Whom"]

ACT_SECONDS: Final = 20.0
"""What one command may take; Slurm's own give up on a silent controller after 10 s or so."""

_ACCOUNTING: Final = re.compile(r"(?m)^AccountingStorageType\s*= (.*)$")
_MEMORY: Final = re.compile(r" (MinMemoryNode|MinMemoryCPU)=([0-9.]+)([MGT])\b")
_UNITS: Final = {"M": 1, "G": 1024, "T": 1 << 20}
_SAME_VERSION: Final = 600.0
"""Seconds for which Slurm's commands are taken for those of one release."""
_ENOUGH: Final = frozenset({"operator", "administrator"})


@dataclass(frozen=True, slots=True)
class Rights:
    """What Slurm lets us do. `enough` is None while it is not known; `why` and `fix` say what is missing."""

    enough: bool | None
    cluster: str = ""
    slurm_uid: int | None = None
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Whom:
    """Who we are, and whether the site lets us act as SlurmUser (`--as-slurm-user`)."""

    uid: int
    name: str
    as_slurm_user: bool = False

    @classmethod
    def us(cls, *, as_slurm_user: bool = False) -> Whom:
        """This process."""
        uid = os.geteuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        return cls(uid, name, as_slurm_user)


class Slurm(Protocol):
    """What the desk needs of Slurm. Everything raises SlurmError."""

    def job(self, job: str, *, nodes: bool = True, number: int | None = None) -> Job:
        """A job, or a task of an array. Raises NoSuchJob.

        `nodes`: with those that it excludes, which cost older releases a second look; else they may be missing.
        `number`: a task's own, by which slurmctld sends one record and not those of the whole array.
        """
        ...

    def jobs(self, jobs: Sequence[str]) -> tuple[Job, ...]:
        """Those of these jobs that Slurm still has, without the nodes that they exclude."""
        ...

    def begun(self, array: str) -> bool:
        """Whether a task of an array runs."""
        ...

    def act(self, argv: Sequence[str]) -> None:
        """Run one of the table's commands. SlurmRefused: Slurm said no; SlurmUnreachable: it may have done it."""
        ...

    def rights(self) -> Rights:
        """Who we are to Slurm. Does not raise: what is not known is None."""
        ...

    def memory(self, job: str) -> Mapping[str, int]:
        """MiB that a job asks for, as MinMemoryNode or MinMemoryCPU; empty: not known."""
        ...

    def room(self, job: Job) -> Room:
        """What partitions, slurm.conf and accounting let this job have of memory."""
        ...


class _Brief(CommandClient):
    """Without the values for which this release's squeue has to be asked twice."""

    @property
    def _fields(self) -> FieldTable:
        return dataclasses.replace(super()._fields, squeue_short={})


class Commands:
    """`Slurm` over Slurm's own commands. `env` is asked for each time: the site file may name another place."""

    def __init__(self, env: Callable[[], Mapping[str, str]], whom: Whom) -> None:
        self._env = env
        self._whom = whom
        self._lookup = Lookup(seconds=ACT_SECONDS)
        self._clients: tuple[float, Mapping[str, str], CommandClient, CommandClient] | None = None

    def _client(self, *, nodes: bool) -> CommandClient:
        """Kept, so that Slurm's version is not asked for with each look."""
        env, now = self._env(), time.monotonic()
        kept = self._clients
        if kept is None or now - kept[0] > _SAME_VERSION or kept[1] != env:
            whole, brief = (kind(env, timeout=ACT_SECONDS) for kind in (CommandClient, _Brief))
            self._clients = kept = now, dict(env), whole, brief
        return kept[2] if nodes else kept[3]

    def job(self, job: str, *, nodes: bool = True, number: int | None = None) -> Job:
        """See `Slurm.job`."""
        client = self._client(nodes=nodes)
        if number is not None:
            with suppress(NoSuchJob):
                found = client.job(number)
                if found.shown_id == job:
                    return found
        return client.job(job)

    def jobs(self, jobs: Sequence[str]) -> tuple[Job, ...]:
        """See `Slurm.jobs`."""
        return self._client(nodes=False).jobs(ids=jobs)

    def begun(self, array: str) -> bool:
        """See `Slurm.begun`."""
        found = self.jobs([array])
        return any(job.state in (JobState.RUNNING, JobState.SUSPENDED) for job in found)

    def act(self, argv: Sequence[str]) -> None:
        """See `Slurm.act`."""
        # "read" for its environment, which leaves nothing to chance; no job inherits it here
        check(Runner(self._env(), timeout=ACT_SECONDS).read(argv))

    def rights(self) -> Rights:
        """See `Slurm.rights`."""
        runner = Runner(self._env(), timeout=ACT_SECONDS)
        try:
            shown = check(runner.read(["scontrol", "show", "config"])).stdout
            config = parse_config(shown)
        except SlurmError as error:
            return Rights(None, why=str(error), fix="see that slurmctld runs")
        cluster, slurm_uid = config.cluster, config.slurm_uid
        if self._whom.uid in (0, slurm_uid):
            return _as_slurm_user(self._whom, cluster, slurm_uid)
        found = _ACCOUNTING.search(shown)
        if found and found[1].strip().removeprefix("accounting_storage/") in ("none", "(null)", ""):
            return Rights(
                False,
                cluster,
                slurm_uid,
                "without slurmdbd Slurm knows no operators: only SlurmUser and root may act on others' jobs",
                "run gsub-act as SlurmUser: User= in the unit, and --as-slurm-user (docs/gsub-act.md)",
            )
        asked = ["sacctmgr", "--noheader", "--parsable2", "show", "user", "where"]
        try:
            level = check(
                runner.read([*asked, f"name={self._whom.name}", "format=AdminLevel"], daemon="slurmdbd")
            ).stdout.strip()
        except SlurmError as error:
            return Rights(None, cluster, slurm_uid, str(error), "see that slurmdbd runs")
        if level.lower() in _ENOUGH:
            return Rights(True, cluster, slurm_uid)
        known = f"has Slurm's level {level}" if level else "is not known to slurmdbd"
        change = f"modify user {self._whom.name} set" if level else f"add user {self._whom.name} account=root"
        return Rights(
            False,
            cluster,
            slurm_uid,
            f"user {self._whom.name} {known}, and changing others' jobs needs Operator",
            f"sacctmgr -i {change} adminlevel=Operator",
        )

    def memory(self, job: str) -> Mapping[str, int]:
        """See `Slurm.memory`."""
        runner = Runner(self._env(), timeout=ACT_SECONDS)
        done = check(runner.read(["scontrol", "--oneliner", "show", "job", valid_id(job)]), job_id=job)
        return {
            name: int(float(amount) * _UNITS[unit]) for name, amount, unit in _MEMORY.findall(done.stdout)
        }

    def room(self, job: Job) -> Room:
        """See `Slurm.room`."""
        return self._lookup.room(self._env(), job)


def _as_slurm_user(whom: Whom, cluster: str, slurm_uid: int | None) -> Rights:
    if whom.uid == 0:
        return Rights(
            False,
            cluster,
            slurm_uid,
            "gsub-act does not run as root",
            "give it a user of its own with Slurm's Operator level, or SlurmUser's (docs/gsub-act.md)",
        )
    if whom.as_slurm_user:
        return Rights(True, cluster, slurm_uid)
    return Rights(
        False,
        cluster,
        slurm_uid,
        f"{whom.name} is SlurmUser, who may do everything in Slurm",
        "run it as a user of its own, or say --as-slurm-user if that is what you want",
    )
