"""Refusing what can never run, with the sentence that helps.

Slurm refuses some of these itself ("Requested node configuration is not available"), and leaves others waiting without
end. A refusal costs a job, so it must be certain: it goes by what nodes are made of, those that are down too, and only
where Slurm told of all of a partition's nodes. Limits that a QOS may lift are told, not enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from profiler.counting import count
from site_configs.units import format_duration, format_size
from slurm_plugins.decide.alike import Group, groups_of
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.inventory import Inventory, Pool
from slurm_plugins.decide.shape import NotUnderstood, Shape, requested
from slurm_plugins.decide.stage import NO_PROPOSAL, Job, Note, Proposal, Request, Stage

__all__ = ["NODE_CONFIG_UNAVAILABLE", "Limits"]

NODE_CONFIG_UNAVAILABLE: Final = 2014
"""ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE of slurm_errno.h: "Requested node configuration is not available".

By this number slurmctld itself refuses what the rules below refuse, in each release, where it does not let it wait."""

_FOR_EVER: Final = 10 * 366 * 86400


class Limits(Stage):
    """What can never run is refused: more GPUs, CPUs or memory than any node has, more nodes than there are.

    - Of several partitions, none must be able to run it; of a job that names none, no partition of the cluster.
    - Nothing is said where it is not certain: a reservation, a partition of which Slurm hides nodes (cloud), several
      types of GPU.
    - Beyond the partition's MaxTime or MaxNodes the job is not refused but told, since its QOS may allow more.
    """

    name = "limits"

    def decide(self, request: Request, context: Context) -> Proposal:
        """See `Stage.decide`."""
        job, inventory = request.job, context.inventory
        shape = requested(request)
        if isinstance(shape, NotUnderstood) or shape.types or not (shape.gpus or shape.gpus_per_node):
            return NO_PROPOSAL
        stated = inventory.pools_of(job.partition)
        if not stated or job.reservation:
            return NO_PROPOSAL
        # A site's own plugin may send a job that names no partition to any of them.
        possible = stated if job.partition else tuple(inventory.pools.values())
        tracked = bool(context.slurm.memory_tracked)
        # Where it names none, the default one is told of, which the user knows: first, since mostly it can run it.
        first = _refusal(_Case(job, shape, stated[0], inventory, tracked))
        if first and all(_refusal(_Case(job, shape, pool, inventory, tracked)) for pool in possible):
            return Proposal(reject=first, error=NODE_CONFIG_UNAVAILABLE)
        return Proposal(notes=tuple(_told(job, shape, stated)))


@dataclass(frozen=True, slots=True)
class _Case:
    """A job and one partition."""

    job: Job
    shape: Shape
    pool: Pool
    inventory: Inventory
    memory_tracked: bool

    @property
    def where(self) -> str:
        return f"partition {self.pool.name}"

    @property
    def groups(self) -> tuple[Group, ...]:
        """All of its nodes."""
        return groups_of(self.pool)

    @property
    def per_node(self) -> int:
        """GPUs that one node must have."""
        shape = self.shape
        if shape.gpus_per_node is None and shape.nodes == 1:
            return shape.gpus or 1
        return shape.gpus_per_node or shape.gpus_per_task or 1

    @property
    def asked(self) -> str:
        """``--gpus-per-node=a100:8``'s value without the count."""
        return f"{self.shape.gpu_type} GPUs" if self.shape.gpu_type else "GPUs"

    def has(self, nodes: int, gpus: int) -> bool:
        """So many nodes of so many GPUs each."""
        there = (group.count for group in self.groups if group.gpus_of(self.shape.gpu_type) >= gpus)
        return sum(there) >= nodes

    def having(self) -> Iterator[Group]:
        """Nodes that have the GPUs."""
        return (group for group in self.groups if group.gpus_of(self.shape.gpu_type) >= self.per_node)


def _refusal(case: _Case) -> str | None:
    if not case.pool.complete or any(not group.cpus or not group.memory for group in case.groups):
        return None
    if case.shape.gpu_type and "" in _types(case.pool):  # a node that names no type may have that one
        return None
    for rule in _RULES:
        if (refusal := rule(case)) is not None:
            return "gsub: " + refusal
    return None


# --- what can never run ---------------------------------------------------------------------------------------------


def _type(case: _Case) -> str | None:
    wanted, there = case.shape.gpu_type, _types(case.pool)
    if not wanted or wanted in there:
        return None
    has = f"it has {_listed(there)}" if there else "it has no GPUs"
    elsewhere = [pool.name for pool in case.inventory.pools.values() if wanted in _types(pool)]
    helps = f"Partitions that have them: {_listed(elsewhere)}." if elsewhere else ""
    if not helps and there:
        helps = f"No partition has them. Ask for gpu:{there[0]}, or leave the type out."
    return _lines(f"{case.where} has no GPUs of type {wanted}: {has}", helps)


def _gpus_on_a_node(case: _Case) -> str | None:
    most = max((group.gpus_of(case.shape.gpu_type) for group in case.groups), default=0)
    if case.per_node <= most:
        return None
    if not most:
        elsewhere = [
            pool.name for pool in case.inventory.pools.values() if pool.gpus_per_node >= case.per_node
        ]
        helps = f"Partitions that have nodes with {case.per_node}: {_listed(elsewhere)}." if elsewhere else ""
        return _lines(f"no node of {case.where} has {case.asked}", helps)
    helps = f"Ask for at most {most}."
    gpus = 0 if case.shape.gpus_per_task else case.shape.gpus or 0
    even = (
        nodes
        for nodes in range(2, case.pool.nodes + 1)
        if gpus % nodes == 0 and case.has(nodes, gpus // nodes)
    )
    if gpus and (nodes := next(even, 0)):
        helps = f"The same {gpus} GPUs on {nodes} nodes: --nodes={nodes} --gpus-per-node={gpus // nodes}"
    return _lines(f"no node of {case.where} has {case.per_node} {case.asked}: the most is {most}", helps)


def _nodes(case: _Case) -> str | None:
    there = sum(group.count for group in case.having())
    wanted = case.shape.nodes_low or 1
    if wanted <= there:
        return None
    having = f"with {case.per_node} {case.asked}" if case.per_node > 1 or case.shape.gpu_type else "with GPUs"
    return _lines(
        f"{case.where} has {count(there, 'node')} {having}, and the job asks for {wanted}",
        f"Ask for at most {there}.",
    )


def _gpus_in_all(case: _Case) -> str | None:
    there = sum(group.gpus_of(case.shape.gpu_type) * group.count for group in case.groups)
    if (case.shape.gpus or 0) <= there:
        return None
    return _lines(
        f"{case.where} has {there} {case.asked} in all, and the job asks for {case.shape.gpus}",
        f"Ask for at most {there}.",
    )


def _memory(case: _Case) -> str | None:
    if (
        not case.memory_tracked
    ):  # Slurm may then let jobs have what MemSpecLimit keeps, and refuses more by itself
        return None
    shape = case.shape
    each = shape.gpus_per_node or 1
    wanted = max(
        shape.memory_per_node or 0,
        (shape.memory_per_gpu or 0) * each,
        # What is beyond MaxMemPerCPU Slurm makes up by CPUs, and a task may share its CPUs with others.
        shape.memory_per_cpu or 0,
    )
    most = max(group.memory for group in case.having())
    if wanted <= most:
        return None
    return _lines(
        f"no node of {case.where} with its GPUs has {format_size(wanted)} of memory for jobs: the most is "
        f"{format_size(most)}",
        f"Ask for at most --mem={format_size(most)}.",
    )


def _cpus(case: _Case) -> str | None:
    job, shape = case.job, case.shape
    wanted = max(job.pn_min_cpus or 0, (shape.cpus_per_gpu or 0) * (shape.gpus_per_node or 1))
    each = shape.cpus_per_task or 0
    if (job.min_cpus or 0) >= each:  # else the job overcommits (-O): its tasks share CPUs
        wanted = max(wanted, each)
    most = max(max(group.cpus, group.all_cpus) for group in case.having())
    if wanted <= most:
        return None
    return _lines(
        f"no node of {case.where} with its GPUs has {count(wanted, 'CPU')}: the most is {most}",
        f"Ask for at most {most}.",
    )


_RULES: Final[tuple[Callable[[_Case], str | None], ...]] = (
    _type,
    _gpus_on_a_node,
    _nodes,
    _gpus_in_all,
    _memory,
    _cpus,
)
"""In this order: `_memory` and `_cpus` rest on there being nodes that have the GPUs."""


def _types(pool: Pool) -> list[str]:
    return sorted({name for group in groups_of(pool) for name, _ in group.gpu_types})


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _lines(what: str, helps: str) -> str:
    return f"{what}.\n{helps}" if helps else f"{what}."


# --- what may never run ---------------------------------------------------------------------------------------------


def _told(job: Job, shape: Shape, pools: tuple[Pool, ...]) -> Iterator[Note]:
    """Limits of the partition that keep a job waiting unless its QOS lifts them; of several partitions, all must."""
    wanted = (job.time_min or job.time_limit or 0) * 60
    if 0 < wanted < _FOR_EVER and all(pool.max_time is not None and wanted > pool.max_time for pool in pools):
        most = max(pool.max_time or 0 for pool in pools)
        yield Note(
            f"{format_duration(wanted)} is more than the {format_duration(most)} that {_named(pools)} allows: {_WAITS}",
            advice=True,
        )
    nodes = shape.nodes_low or 1
    if all(pool.max_nodes is not None and nodes > pool.max_nodes for pool in pools):
        most = max(pool.max_nodes or 0 for pool in pools)
        yield Note(
            f"{nodes} nodes are more than the {most} that {_named(pools)} allows: {_WAITS}",
            advice=True,
        )


_WAITS: Final = "unless its QOS allows more, the job would wait without end"


def _named(pools: tuple[Pool, ...]) -> str:
    return "partition " + " or ".join(pool.name for pool in pools[:3])
