"""What Slurm says, as values: typed, normalised over Slurm 22.05 to 26.05, immutable.

Units are the same everywhere: times are aware datetimes (UTC) or None, durations and limits seconds, memory bytes.
``None`` means that Slurm did not say; 0 and the empty string are things that Slurm said. For time limits None means
*unlimited*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

__all__ = [
    "AccountingRecord",
    "ExitStatus",
    "Hosts",
    "Job",
    "JobFlag",
    "JobState",
    "Node",
    "NodeState",
    "Partition",
    "StartEstimate",
    "Submission",
    "Tres",
]


class JobState(str, Enum):
    """The state of a job without its flags (slurm.h: enum job_states).

    ``UNKNOWN`` when the text forms show a flag in the state's place and the flag does not tell the state: a
    COMPLETING job has ended, but only slurmdbd or a later look says how.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    @property
    def ended(self) -> bool:
        """The attempt is over, well or badly."""
        return self not in _NOT_ENDED


_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


class JobFlag(str, Enum):
    """What Slurm adds to a state (slurm.h: JOB_STATE_FLAGS); the text forms show it *instead* of the state."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"


class NodeState(str, Enum):
    """The state of a node without its flags (slurm.h: enum node_states)."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    MIXED = "MIXED"
    DOWN = "DOWN"
    ERROR = "ERROR"
    FUTURE = "FUTURE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a batch script ended: exit code, and the signal that ended it (0 = none), as in sacct's ``3:0``."""

    code: int = 0
    signal: int = 0

    def __bool__(self) -> bool:
        """True when something was wrong, as with an exit status in C."""
        return bool(self.code or self.signal)

    def __str__(self) -> str:
        return f"{self.code}:{self.signal}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """A set of nodes as Slurm writes it; counts and names are worked out by ClusterShell when asked for.

    >>> hosts = Hosts("n[1-3],m7")
    >>> list(hosts), len(hosts), "n2" in hosts
    (['m7', 'n1', 'n2', 'n3'], 4, True)
    """

    expression: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The node names, sorted as ClusterShell sorts them (``n2`` before ``n10``)."""
        if not self.expression:
            return ()
        # Late: 28 ms, and most callers only print the expression.
        from ClusterShell.NodeSet import NodeSet

        return tuple(NodeSet(self.expression))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return bool(self.expression)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Tres(Mapping[str, int]):
    """Trackable resources: an immutable, hashable mapping of name to count, memory in bytes.

    Names are slurmdbd's: ``cpu``, ``mem``, ``node``, ``billing``, ``gres/gpu``, ``gres/gpu:a100``,
    ``license/matlab``. Made by `parse.tres`, which reads all the forms that Slurm writes.

    >>> Tres((("cpu", 4), ("gres/gpu:a100", 2))).gpus
    2
    """

    pairs: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        for key, count in self.pairs:
            if key == name:
                return count
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self.pairs) == dict(other)

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))

    def __repr__(self) -> str:
        return f"Tres({dict(self.pairs)!r})"

    @property
    def gpus(self) -> int | None:
        """GPUs of all types; None when no GPU is named."""
        if "gres/gpu" in self:
            return self["gres/gpu"]
        typed = [count for name, count in self.pairs if name.startswith("gres/gpu:")]
        return sum(typed) if typed else None

    @property
    def gpu_type(self) -> str | None:
        """The type of GPU when exactly one is named."""
        types = {name.partition(":")[2] for name, _ in self.pairs if name.startswith("gres/gpu:")}
        return types.pop() if len(types) == 1 else None

    @property
    def memory(self) -> int | None:
        """Bytes of memory in all."""
        return self.get("mem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as slurmctld holds it: its present attempt.

    ``start`` and ``end`` are facts when they lie in the past; for a pending job ``start`` is the scheduler's
    estimate, for a running one ``end`` is when its limit strikes. ``nodes`` is what it has (or had),
    ``scheduled_nodes`` what backfill plans. ``stdout`` and ``stderr`` are full paths with Slurm's % patterns
    expanded. Memory that was asked for is in ``tres.memory``. ``extra`` and ``submit_line`` are known from pyslurm
    only (and from accounting): None elsewhere.
    """

    id: int
    name: str
    user: str
    state: JobState
    state_text: str = ""
    flags: frozenset[JobFlag] = frozenset()
    reason: str | None = None
    uid: int | None = None
    group: str | None = None
    account: str | None = None
    qos: str | None = None
    partition: str = ""
    cluster: str | None = None
    priority: int | None = None
    nice: int = 0
    # identity in arrays and heterogeneous jobs; array_tasks is what a pending array has left ("3-5%2")
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_tasks: str | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    # how it ended, how often it started
    exit: ExitStatus = ExitStatus()
    derived_exit: ExitStatus = ExitStatus()
    restarts: int = 0
    requeue: bool | None = None
    batch: bool | None = None
    # times
    submitted: datetime | None = None
    eligible: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    deadline: datetime | None = None
    time_limit: int | None = None
    # place
    nodes: Hosts = Hosts()
    scheduled_nodes: Hosts = Hosts()
    required_nodes: Hosts = Hosts()
    excluded_nodes: Hosts = Hosts()
    batch_host: str | None = None
    reservation: str | None = None
    features: str | None = None
    prefer: str | None = None
    switches: int | None = None
    switches_wait: int | None = None
    exclusive: str | None = None
    # size
    num_nodes: int | None = None
    num_cpus: int | None = None
    num_tasks: int | None = None
    cpus_per_task: int | None = None
    tres: Tres = Tres()
    tres_per_job: Tres = Tres()
    tres_per_node: Tres = Tres()
    tres_per_socket: Tres = Tres()
    tres_per_task: Tres = Tres()
    cpus_per_gpu: int | None = None
    memory_per_gpu: int | None = None
    gpus: int | None = None
    licenses: str | None = None
    # what the user and the site wrote
    dependency: str | None = None
    comment: str | None = None
    admin_comment: str | None = None
    system_comment: str | None = None
    extra: str | None = None
    command: str | None = None
    submit_line: str | None = None
    work_dir: str | None = None
    stdout: str | None = None
    stderr: str | None = None

    @property
    def ended(self) -> bool:
        """Nothing of the script runs any more (a COMPLETING job has ended, its nodes are not free yet)."""
        return self.state.ended or JobFlag.COMPLETING in self.flags

    @property
    def held(self) -> bool:
        """Pending, and not to be started until released."""
        return self.state is JobState.PENDING and (self.priority == 0 or JobFlag.SPECIAL_EXIT in self.flags)

    @property
    def shown_id(self) -> str:
        """The id as users write it: ``7``, ``7_3`` (array task), ``7+1`` (component of a heterogeneous job)."""
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        if self.het_job_id is not None and self.het_offset is not None:
            return f"{self.het_job_id}+{self.het_offset}"
        return str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A compute node. ``memory`` is RealMemory, ``gpus`` those configured, the ``allocated_*`` what jobs hold now."""

    name: str
    state: NodeState
    state_text: str = ""
    flags: frozenset[str] = frozenset()
    address: str | None = None
    hostname: str | None = None
    slurm_version: str | None = None
    cpus: int | None = None
    cpus_effective: int | None = None
    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    memory: int | None = None
    memory_free: int | None = None
    load: float | None = None
    tres: Tres = Tres()
    gres: Tres = Tres()
    tres_allocated: Tres = Tres()
    cpus_allocated: int = 0
    memory_allocated: int = 0
    features: tuple[str, ...] = ()
    active_features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    weight: int | None = None
    reason: str | None = None
    reason_by: str | None = None
    reason_at: datetime | None = None
    comment: str | None = None
    extra: str | None = None
    booted: datetime | None = None
    slurmd_started: datetime | None = None
    last_busy: datetime | None = None

    @property
    def gpus(self) -> int:
        """GPUs configured (slurm.conf's Gres), whether or not accounting tracks them."""
        return self.gres.gpus or self.tres.gpus or 0

    @property
    def gpus_allocated(self) -> int | None:
        """GPUs that jobs hold; None where AccountingStorageTRES does not track gres/gpu and the node is not idle."""
        if self.tres_allocated.gpus is not None:
            return self.tres_allocated.gpus
        return 0 if not self.cpus_allocated or self.tres.gpus is not None or not self.gpus else None

    @property
    def available(self) -> bool:
        """Slurm may start jobs on it, now or when its present ones end."""
        return self.state in _USABLE and not self.flags & _UNUSABLE_FLAGS


_USABLE = frozenset({NodeState.IDLE, NodeState.ALLOCATED, NodeState.MIXED})
_UNUSABLE_FLAGS = frozenset(
    {
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "POWERING_DOWN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition. Limits are None where there is none; ``state`` is UP, DOWN, DRAIN or INACTIVE."""

    name: str
    state: str
    is_default: bool = False
    is_hidden: bool = False
    nodes: Hosts = Hosts()
    total_nodes: int | None = None
    total_cpus: int | None = None
    tres: Tres = Tres()
    max_time: int | None = None
    default_time: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    priority_tier: int | None = None
    preempt_mode: str | None = None
    oversubscribe: str | None = None
    exclusive: str | None = None
    qos: str | None = None
    grace_time: int | None = None
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    max_memory_per_cpu: int | None = None
    max_memory_per_node: int | None = None
    max_cpus_per_node: int | None = None
    default_cpus_per_gpu: int | None = None
    default_memory_per_gpu: int | None = None
    allow_accounts: tuple[str, ...] | None = None
    allow_groups: tuple[str, ...] | None = None
    allow_qos: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingRecord:
    """One attempt of a job, as slurmdbd holds it (a row of ``sacct -X -D``): a requeued job has several.

    ``attempt`` counts from 0 in the order of submission among the rows that were returned; it equals ``restarts`` where
    Slurm records that (24.11 and newer). ``elapsed``, ``suspended`` and ``planned`` (time in the queue) are seconds.
    """

    id: int
    name: str
    user: str
    state: JobState
    state_text: str = ""
    flags: frozenset[JobFlag] = frozenset()
    cancelled_by: int | None = None
    reason: str | None = None
    attempt: int = 0
    restarts: int | None = None
    uid: int | None = None
    group: str | None = None
    account: str | None = None
    qos: str | None = None
    partition: str = ""
    cluster: str | None = None
    priority: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_tasks: str | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    exit: ExitStatus = ExitStatus()
    derived_exit: ExitStatus = ExitStatus()
    submitted: datetime | None = None
    eligible: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    elapsed: int | None = None
    suspended: int | None = None
    planned: int | None = None
    time_limit: int | None = None
    nodes: Hosts = Hosts()
    num_nodes: int | None = None
    num_cpus: int | None = None
    tres_requested: Tres = Tres()
    tres: Tres = Tres()
    gpus: int | None = None
    features: str | None = None
    reservation: str | None = None
    failed_node: str | None = None
    scheduler_flags: tuple[str, ...] = ()
    comment: str | None = None
    admin_comment: str | None = None
    system_comment: str | None = None
    extra: str | None = None
    submit_line: str | None = None
    work_dir: str | None = None
    stdout: str | None = None
    stderr: str | None = None

    @property
    def ended(self) -> bool:
        """This attempt is over (a REQUEUED one has ended; its job has not)."""
        return self.state.ended or JobFlag.REQUEUED in self.flags


@dataclass(frozen=True, slots=True)
class Submission:
    """What sbatch said. ``job_id`` is None when it was told to say nothing (``--quiet``) or only asked
    (``--test-only``).
    """

    job_id: int | None
    cluster: str | None = None
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Answer of ``sbatch --test-only``: a lower bound, since Slurm only looks at the jobs that run now
    (job_scheduler.c).
    """

    start: datetime | None
    cpus: int | None = None
    nodes: Hosts = Hosts()
    partition: str | None = None
    text: str = ""
