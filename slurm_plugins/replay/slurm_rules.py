"""What of slurm.conf decides who starts when: the multifactor priority and the two schedulers, as a value.

Defaults are Slurm's own (slurm.conf(5), 22.05 to 26.05). Read from a site's own file by `SlurmRules.parse`; shares of
the fair-share tree by `Shares.parse` from ``sshare -alP``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slurm_plugins.client import parse
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.install.slurm_conf import SlurmConf

__all__ = ["Partition", "Share", "Shares", "SlurmRules"]

DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as far as it decides on order."""

    job_factor: float = 1.0
    """PriorityJobFactor."""
    tier: int = 1
    """PriorityTier: jobs of a higher tier go first, whatever their priority."""
    most_s: float = math.inf
    """MaxTime."""
    default_s: float = math.inf
    """DefaultTime, of a job without a limit; inf: its MaxTime."""


@dataclass(frozen=True, slots=True)
class Share:
    """An association's part of its parent's: an account's where there is no user."""

    shares: float = 1.0
    usage: float = 0.0
    """RawUsage at the beginning: TRES-seconds, decayed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The fair-share tree, two levels deep: (account, user) -> its share; (account, "") is the account's own."""

    of: Mapping[tuple[str, str], Share] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Shares:
        """From ``sshare -alP``. Accounts below others count as if they were below root.

        >>> Shares.parse("Account|User|RawShares|RawUsage\\nroot|||0\\n lab||2|50\\n lab|ann|1|50").of["lab", "ann"]
        Share(shares=1.0, usage=50.0)

        Raises ValueError for a table without these columns, or a share that is no number.
        """
        head, *rows = [line.split("|") for line in text.splitlines() if line.strip()] or [[]]
        names = [name.strip().lower() for name in head]
        try:
            at = [names.index(name) for name in ("account", "user", "rawshares", "rawusage")]
        except ValueError:
            raise ValueError(
                "no table of sshare -alP: it wants Account, User, RawShares and RawUsage"
            ) from None
        found = {}
        for row in rows:
            account, user, shares, usage = (row[place].strip() if place < len(row) else "" for place in at)
            if account == "root" and not user:
                continue
            # "parent": no share of its own; what its siblings have comes nearest
            one = Share(1.0 if shares in ("parent", "") else float(shares), float(usage or 0))
            if not (0 <= one.shares < math.inf and 0 <= one.usage < math.inf):
                raise ValueError(f"sshare: {account} {user} has {shares} shares and {usage} of usage")
            found[account, user] = one
        return cls(found)


@dataclass(frozen=True, slots=True)
class SlurmRules:
    """Weights, factors and intervals. Times are seconds."""

    # Priority (priority/multifactor)
    age: float = 0.0
    fairshare: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: Mapping[str, float] = field(default_factory=dict)
    """PriorityWeightTRES: cpu, mem, node, gres/gpu -> weight."""
    multifactor: bool = True
    """False: priority/basic, the order of submission."""
    max_age_s: float = 7 * DAY
    half_life_s: float = 7 * DAY
    calc_s: float = 300.0
    """PriorityCalcPeriod: usage and the priority of all that wait are worked out anew every so often, and only then."""
    calc_at: float = math.nan
    """One moment at which that was done, seconds since 1970 (slurmctld's start); nan: not known."""
    favor_small: bool = False
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    qos_priority: Mapping[str, float] = field(default_factory=dict)
    """QOS -> Priority, from ``sacctmgr show qos``."""
    shares: Shares = Shares()
    as_recorded: bool = True
    """These are the rules by which the trace was made: what its columns do not tell of a job's priority (nice, a site's
    factor) is taken from the priority that was recorded. False: other rules are tried, and it stays untold."""
    # Schedulers
    sched_s: float = 60.0
    """sched_interval: how often the main scheduler looks at the whole queue."""
    batch_delay_s: float = 3.0
    """batch_sched_delay: how long after its last look the main scheduler waits with the next, at least."""
    tick_s: float = 1.0
    """slurmctld looks once in so many seconds whether there is something to schedule."""
    depth: int = 100
    """default_queue_depth: jobs that the main scheduler tries at an event."""
    backfill: bool = True
    bf_interval_s: float = 30.0
    bf_window_s: float = DAY
    bf_resolution_s: int = 60
    bf_max_job_test: int = 500
    bf_max_job_user: int = 0
    bf_reserve: int = 0
    """Jobs that get a reservation in a cycle of backfill; 0: all that are tested, as Slurm does. 1: plain EASY."""
    release: tuple[int, int] = (24, 11)
    """Slurm's release. Backfill of 22.05 rounds the end of what it promises down to its resolution, that of 24.11 and
    26.05 up, and it looks for another time in another order; what of those between does was not seen."""
    over_limit_s: float = 0.0
    """OverTimeLimit: a job ends so long after its limit; inf: never."""
    kill_wait_s: float = 30.0
    completing_s: float = 0.0
    """How long a node that a job has left starts no other: epilog, and what an end costs besides."""
    launch_s: float = 0.0
    """Between a start in the books and the job's own first second: prolog and launch."""
    topology: bool | None = None
    """Nodes by leaf switch (topology/tree); None: where the cluster has more than one leaf."""
    least_loaded: bool = False
    """CR_LLN."""

    @classmethod
    def parse(cls, text: str, *, qos: str = "", sshare: str = "") -> SlurmRules:
        """From the text of a slurm.conf and, optional, of ``sacctmgr -P show qos`` and of ``sshare -alP``.

        The release is told by a line ``SLURM_VERSION = 22.05.8``, as ``scontrol show config`` has it.

        >>> SlurmRules.parse("PriorityWeightAge=10\\nSchedulerParameters=bf_interval=5").bf_interval_s
        5.0

        Raises ValueError, with the key, for a value that cannot be read.
        """
        conf = SlurmConf.parse(text.encode(errors="surrogateescape"))
        given: dict[str, Any] = {}
        for key, (name, read) in _KEYS.items():
            value = conf.value(key)
            if value is not None and value != "(null)":
                given[name] = _read(key, value, read)
        given |= _scheduler(conf.value("SchedulerParameters") or "")
        flags = (conf.value("PriorityFlags") or "").lower().split(",")
        if "small_relative_to_time" in flags:
            raise ValueError("PriorityFlags=SMALL_RELATIVE_TO_TIME is not modelled")
        given["multifactor"] = (conf.value("PriorityType") or "priority/basic").endswith("multifactor")
        given["backfill"] = (conf.value("SchedulerType") or "sched/backfill").endswith("backfill")
        given["partitions"] = _partitions(text)
        given["least_loaded"] = "CR_LLN" in (conf.value("SelectTypeParameters") or "").upper()
        plugin = conf.value("TopologyPlugin")
        if plugin is not None:
            given["topology"] = plugin.endswith("tree")
        version = re.match(r"(\d{2})\.(\d{2})", conf.value("SLURM_VERSION") or "")
        if version:
            given["release"] = int(version[1]), int(version[2])
        if qos:
            given["qos_priority"] = _qos(qos)
        if sshare:
            given["shares"] = Shares.parse(sshare)
        return cls(**given)

    def of(self, queue: str) -> Partition:
        """A partition of that name; one that slurm.conf does not have is like any."""
        return self.partitions.get(queue, Partition())


def _seconds(text: str) -> float:
    """Slurm's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours..."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    return float(parse.time_limit(text) or 0)


def _minutes(text: str) -> float:
    return math.inf if text.upper() in ("UNLIMITED", "INFINITE", "-1") else 60.0 * float(text)


def _yes(text: str) -> bool:
    return text.upper() in ("YES", "1", "TRUE", "UP")


def _weights(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in re.split(r"[,;]", text) if part]
    return {name.strip().lower(): float(value) for name, _, value in pairs}


_KEYS: Final[Mapping[str, tuple[str, Any]]] = {
    "PriorityWeightAge": ("age", float),
    "PriorityWeightFairshare": ("fairshare", float),
    "PriorityWeightJobSize": ("job_size", float),
    "PriorityWeightPartition": ("partition", float),
    "PriorityWeightQOS": ("qos", float),
    "PriorityWeightTRES": ("tres", _weights),
    "PriorityMaxAge": ("max_age_s", _seconds),
    "PriorityDecayHalfLife": ("half_life_s", _seconds),
    "PriorityCalcPeriod": ("calc_s", _seconds),
    "PriorityFavorSmall": ("favor_small", _yes),
    "OverTimeLimit": ("over_limit_s", _minutes),
    "KillWait": ("kill_wait_s", float),
}
_PARAMETERS: Final[Mapping[str, tuple[str, Any]]] = {
    "sched_interval": ("sched_s", float),
    "batch_sched_delay": ("batch_delay_s", float),
    "default_queue_depth": ("depth", int),
    "bf_interval": ("bf_interval_s", float),
    "bf_window": ("bf_window_s", _minutes),
    "bf_resolution": ("bf_resolution_s", int),
    "bf_max_job_test": ("bf_max_job_test", int),
    "bf_max_job_user": ("bf_max_job_user", int),
}


_PARTITION_KEYS: Final[Mapping[str, tuple[str, Any]]] = {
    "PriorityJobFactor": ("job_factor", float),
    "PriorityTier": ("tier", int),
    "MaxTime": ("most_s", _seconds),
    "DefaultTime": ("default_s", _seconds),
}
_PARTITION: Final = re.compile(r"^[ \t]*PartitionName=(\S+)([^\n#]*)", re.MULTILINE | re.IGNORECASE)


def _read(key: str, value: str, read: Any) -> Any:  # noqa: ANN401 - by the table
    try:
        found = read(value)
    except (ValueError, SlurmFormatError):
        raise ValueError(f"{key}={value}: not understood") from None
    if isinstance(found, int | float) and (math.isnan(found) or found < 0):
        raise ValueError(f"{key}={value}: less than nothing")
    return found


def _scheduler(text: str) -> dict[str, Any]:
    given = {}
    for word in text.split(","):
        key, equals, value = word.strip().partition("=")
        if equals and key in _PARAMETERS:
            name, read = _PARAMETERS[key]
            given[name] = _read(key, value, read)
    for name in ("bf_interval_s", "bf_resolution_s"):
        if given.get(name, 1) <= 0:
            raise ValueError(f"SchedulerParameters={text}: {name.removesuffix('_s')} is nothing")
    return given


def _partitions(text: str) -> dict[str, Partition]:
    """The lines that describe partitions; those named DEFAULT give the values of what follows them."""
    found: dict[str, Partition] = {}
    default = Partition()
    for line in _PARTITION.finditer(re.sub(r"\\\r?\n", " ", text)):
        given = {key.lower(): value for key, value in re.findall(r"(\w+)=(\S+)", line[2])}
        values = {
            name: _read(f"PartitionName={line[1]} {key}", given[key.lower()], read)
            for key, (name, read) in _PARTITION_KEYS.items()
            if key.lower() in given
        }
        one = replace(default, **values)
        if line[1].upper() == "DEFAULT":
            default = one
        else:
            found[line[1]] = one
    return found


def _qos(text: str) -> dict[str, float]:
    """QOS -> Priority of ``sacctmgr -P show qos``."""
    head, *rows = [line.split("|") for line in text.splitlines() if line.strip()] or [[]]
    names = [name.strip().lower() for name in head]
    if "name" not in names or "priority" not in names:
        raise ValueError("no table of sacctmgr -P show qos: it wants Name and Priority")
    name, priority = names.index("name"), names.index("priority")
    return {row[name]: float(row[priority] or 0) for row in rows if len(row) > max(name, priority)}
