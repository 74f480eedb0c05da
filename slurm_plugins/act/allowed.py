"""How much memory a job may be given: what is in the way of it. Pure.

Slurm checks no limit of memory for an operator, neither when he sets it nor afterwards: a job whose memory was set by
gsub-act is held to no limit of accounting on memory any more, in this attempt and all later ones, whatever its user
changes then (seen on 22.05.8, 24.11.5 and 26.05.5). So memory is set only where accounting has no such limit for the
job, where it stays within what partition and slurm.conf allow, and where it costs no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.values import Job
from slurm_plugins.limits.billing import compute_billing, parse_billing_rule, parse_weights
from slurm_plugins.limits.bounds import Bound, Holder, NotKnownError, find_bounds
from slurm_plugins.limits.lookup import Room

__all__ = ["PARTITION_LIMITS", "Need", "find_excess", "find_obstacle", "need_of"]

PARTITION_LIMITS: Final[Mapping[str, str]] = {
    "MaxMemPerNode": "the partition, else slurm.conf: on a node",
    "MaxMemPerCPU": "the partition, else slurm.conf: for each CPU of the job",
}
"""The limits of memory that are filled; who sets them and what they count. Documentation."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a job is to have: `each` MiB on each of `nodes`, or with `per_cpu` for each of `cpus`."""

    each: int
    per_cpu: bool
    nodes: int | None
    cpus: int | None

    def of(self, what: Literal["node", "cpu", "job"]) -> int:
        """MiB on its fullest node, for each of its CPUs, or in all. Raises NotKnownError.

        >>> [Need(1000, True, 2, 5).of(what) for what in ("node", "cpu", "job")]
        [3000, 1000, 5000]
        """
        if what == ("cpu" if self.per_cpu else "node"):
            return self.each
        if not self.nodes or not self.cpus:
            raise NotKnownError("it is not known how many nodes and CPUs the job is to have")
        if what == "node":
            return self.each * -(-self.cpus // self.nodes)
        if what == "cpu":
            return -(-self.each * self.nodes // self.cpus)
        return self.each * (self.cpus if self.per_cpu else self.nodes)


def need_of(job: Job, fields: Mapping[str, str]) -> Need | None:
    """What a job has in all once it has these fields; None where they set no memory."""
    for name, per_cpu in (("MinMemoryNode", False), ("MinMemoryCPU", True)):
        if name in fields:
            return Need(int(fields[name]), per_cpu, job.num_nodes, job.num_cpus)
    return None


def find_obstacle(job: Job, need: Need, room: Room) -> str:
    """Why the memory is not set; empty: it may be. Raises NotKnownError."""
    if why := _of_partitions(job, need, room):
        return why
    bound = next(_bounds(job, room), None)
    if bound is not None:
        return f"{bound}, and Slurm would hold the job to it no longer once gsub-act has set its memory"
    return _dearer(job, need, room)


def find_excess(job: Job, need: Need, room: Room) -> str:
    """Why a job that waits with memory that gsub-act set has more than it may; empty: it has not.

    Its user, or who set limits, has changed something since. Raises NotKnownError.
    """
    for bound in _bounds(job, room):
        wanted = need.of("node" if bound.of == "node" else "job")
        if wanted > bound.most:
            return f"{bound}, and the job would have {wanted} MiB"
    return _of_partitions(job, need, room)


def _of_partitions(job: Job, need: Need, room: Room) -> str:
    if room.biggest is None:
        raise NotKnownError(f"it is not known how much memory nodes of {job.partition} have")
    if need.of("node") > room.biggest:
        return f"more than a node of {job.partition} gives, {room.biggest} MiB"
    for name, whose, most, per_cpu in _limits_of_partitions(job, room):
        wanted = need.of("cpu" if per_cpu else "node")
        if wanted > most:
            would = f"it would be {wanted} MiB {'for a CPU' if per_cpu else 'on a node'}"
            return f"the limit {name} of {whose} is {most} MiB of memory, and {would}"
    return ""


def _limits_of_partitions(job: Job, room: Room) -> Iterator[tuple[str, str, int, bool]]:
    """Name, whose, MiB, and whether it is for each CPU."""
    told = {partition.name: partition for partition in room.partitions}
    for name in filter(None, job.partition.split(",")):
        partition = told.get(name)
        if partition is None:
            raise NotKnownError(f"Slurm does not tell of partition {name}, nor how much memory it allows")
        whose = f"partition {name}"
        per_node, per_cpu = (
            None if size is None else size >> 20
            for size in (partition.max_memory_per_node, partition.max_memory_per_cpu)
        )
        if per_node is None and per_cpu is None:
            # a partition's own limit takes the place of slurm.conf's
            whose, per_node, per_cpu = "slurm.conf", room.per_node, room.per_cpu
        if per_node is not None:
            yield "MaxMemPerNode", whose, per_node, False
        if per_cpu is not None:
            yield "MaxMemPerCPU", whose, per_cpu, True


def _bounds(job: Job, room: Room) -> Iterator[Bound]:
    """The limits of accounting on the job's memory."""
    if not room.enforced:
        return
    if room.associations is None:
        raise NotKnownError(
            f"it is not known what accounting lets the job have: {room.missing or 'not told'}"
        )
    if job.uid is None or not job.account:
        raise NotKnownError("it is not known of which user and account the job is, nor what they may have")
    if not job.qos:
        raise NotKnownError("it is not known which QOS the job has, nor what that allows")
    partitions = tuple((one.name, one.qos or "") for one in room.partitions)
    holder = Holder(job.uid, job.account, tuple(job.qos.split(",")), partitions)
    for bound in find_bounds(room.associations, holder):
        if bound.tres == "mem" and bound.of != "least":
            yield bound


def _dearer(job: Job, need: Need, room: Room) -> str:
    """Why it would cost more: memory is charged."""
    if not room.bills:
        return ""
    for partition in room.partitions:
        try:
            weights = parse_weights(partition.billing_weights)
        except SlurmFormatError:
            raise NotKnownError(f"what partition {partition.name} charges is not understood") from None
        if not weights:
            continue
        rest = {**dict(job.tres.items()), "cpu": job.num_cpus or 0, "node": job.num_nodes or 0}
        how = parse_billing_rule(room.priority_flags)
        charged, without = (compute_billing(weights, how, {**rest, "mem": mem}) for mem in (need.of("job"), 0))
        if charged > without:
            return f"partition {partition.name} charges for memory (TRESBillingWeights): it would cost its user more"
    return ""
