"""What Slurm says, as values: typed, normalised over Slurm 22.05 to 26.05, immutable.

Units are the same everywhere: times are aware datetimes (UTC) or None, durations and limits seconds, memory bytes.
``None`` means that Slurm did not say; 0 and the empty string are things that Slurm said. For time limits None means
*unlimited*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from .resources import NO_HOSTS, NO_TRES, Hosts, Tres
from .states import EXIT_ZERO, ExitStatus, JobFlag, JobState, NodeState
from .submission import Submission

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as slurmctld holds it: its present attempt.

    ``start`` and ``end`` are facts when they lie in the past; for a pending job ``start`` is the scheduler's
    estimate, for a running one ``end`` is when its limit strikes. ``nodes`` is what it has (or had),
    ``scheduled_nodes`` what backfill plans. ``stdout`` and ``stderr`` are full paths with Slurm's % patterns
    expanded. Memory that was asked for is in ``tres.memory``. ``extra`` and ``submit_line`` are known from pyslurm
    only (and from accounting): None elsewhere.

    A job that was read with some of its values (`SlurmClient.jobs`) has those alone: another one raises AttributeError.
    """

    id: int
    name: str
    user: str
    state: JobState
    state_text: str = ""
    flags: frozenset[JobFlag] = frozenset()
    reason: str | None = None
    uid: int | None = None
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
    exit: ExitStatus = EXIT_ZERO
    derived_exit: ExitStatus = EXIT_ZERO
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
    nodes: Hosts = NO_HOSTS
    scheduled_nodes: Hosts = NO_HOSTS
    required_nodes: Hosts = NO_HOSTS
    excluded_nodes: Hosts = NO_HOSTS
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
    tres: Tres = NO_TRES
    tres_per_job: Tres = NO_TRES
    tres_per_node: Tres = NO_TRES
    tres_per_socket: Tres = NO_TRES
    tres_per_task: Tres = NO_TRES
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

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Job:
        """Make a job of which these values are known, and no others."""
        made = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made

    @property
    def known(self) -> dict[str, object]:
        """The values that it was read with."""
        names = (one.name for one in fields(self))
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def __getattr__(self, name: str) -> object:
        # Python comes here for what an object lacks. What was not read must not pass for what Slurm left out.
        raise AttributeError(f"{name!r} is no value that this job was read with")

    def __repr__(self) -> str:
        return f"Job({', '.join(f'{name}={value!r}' for name, value in self.known.items())})"

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
        return _shown_id(self)

    @property
    def gpu_count(self) -> int | None:
        """The GPUs it has, else those that it asks for; None when Slurm names none."""
        return self.gpus if self.gpus is not None else self.tres.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A compute node.

    ``memory`` is RealMemory, ``memory_reserved`` what of it is kept from jobs (MemSpecLimit), ``gpus`` those
    configured, the ``allocated_*`` what jobs hold now.
    """

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
    memory_reserved: int | None = None
    memory_free: int | None = None
    load: float | None = None
    tres: Tres = NO_TRES
    gres: Tres = NO_TRES
    tres_allocated: Tres = NO_TRES
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
    nodes: Hosts = NO_HOSTS
    total_nodes: int | None = None
    total_cpus: int | None = None
    tres: Tres = NO_TRES
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
    max_cpus_per_socket: int | None = None
    default_cpus_per_gpu: int | None = None
    default_memory_per_gpu: int | None = None
    billing_weights: str | None = None
    """TRESBillingWeights as Slurm writes it (slurm_plugins.limits.billing reads it)."""
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
    exit: ExitStatus = EXIT_ZERO
    derived_exit: ExitStatus = EXIT_ZERO
    submitted: datetime | None = None
    eligible: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    elapsed: int | None = None
    suspended: int | None = None
    planned: int | None = None
    time_limit: int | None = None
    nodes: Hosts = NO_HOSTS
    num_nodes: int | None = None
    num_cpus: int | None = None
    tres_requested: Tres = NO_TRES
    tres: Tres = NO_TRES
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
        """This attempt is over, and its end and exit code are known (a REQUEUED one has ended; its job has not).

        slurmdbd 22.05 shows a final state up to seconds before the end and the exit code that belong to it [measured].
        """
        return self.end is not None and (self.state.ended or JobFlag.REQUEUED in self.flags)

    @property
    def shown_id(self) -> str:
        """The id as users write it, see `Job.shown_id`."""
        return _shown_id(self)


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Answer of ``sbatch --test-only``: a lower bound, since Slurm only looks at the jobs that run now
    (job_scheduler.c).
    """

    start: datetime | None
    cpus: int | None = None
    nodes: Hosts = NO_HOSTS
    partition: str | None = None
    text: str = ""


def _shown_id(job: Job | AccountingRecord) -> str:
    if job.array_job_id is not None and job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    if job.het_job_id is not None and job.het_offset is not None:
        return f"{job.het_job_id}+{job.het_offset}"
    return str(job.id)
