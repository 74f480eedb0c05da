"""What changes may make of a job: no more than it would get without them, unless no limit and no charge speaks of it.

A job is compared with itself as its user asked for it, on each kind of node that it may get. A limit of one job
(MaxTRES) may be filled; one that jobs share, or that counts time (GrpTRES, MaxTRESPerUser, GrpTRESMins), is not taken
from at all; where the site charges by TRESBillingWeights, the charge stays. A proposal beyond that is clipped where it
is a size that can be smaller, else left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Change
from slurm_plugins.decide.edits import Value
from slurm_plugins.decide.ground import ground
from slurm_plugins.decide.inventory import Kind, Pool
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.shape import NotUnderstood, Shape, requested
from slurm_plugins.limits.billing import compute_billing
from slurm_plugins.limits.bounds import Bound, Holder, NotKnownError, find_bounds

__all__ = ["Allowance", "Demand", "compute_demand"]

_SIZES: Final = frozenset(
    {"cpus_per_task", "cpus_per_tres", "min_mem_per_node", "min_mem_per_cpu", "mem_per_tres"}
)
"""Fields whose value may be smaller than proposed and still be of use."""
_AMOUNTS: Final = _SIZES | {
    "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "shared", "gres", "min_cpus", "pn_min_cpus",
}  # fmt: skip
"""Fields that change how much a job gets."""
_SAME: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job gets on one kind of node, by TRES, memory in MiB: in all, and on its fullest node.

    `all_memory`: it asks for no memory, and gets all of its nodes'.
    """

    has: Mapping[str, float]
    on_node: Mapping[str, float]
    all_memory: bool = False


def compute_demand(request: Request, context: Context, pool: Pool, kind: Kind) -> Demand | None:
    """What Slurm would give a request on nodes of that kind; None where that cannot be said."""
    shape, job = requested(request), request.job
    if isinstance(shape, NotUnderstood):
        return None
    most_gpus = max(kind.gpus_of(shape.gpu_type), 1)
    nodes = shape.nodes_low or -(-(shape.gpus or 1) // (shape.gpus_per_node or most_gpus))
    if shape.tasks and shape.tasks_per_node:
        nodes = max(nodes, -(-shape.tasks // shape.tasks_per_node))
    gpus_node = shape.gpus_per_node or -(-(shape.gpus or 0) // nodes)
    gpus = shape.gpus or gpus_node * nodes
    tasks = shape.tasks or nodes * (shape.tasks_per_node or 1)
    if shape.exclusive:
        gpus_node, gpus = kind.gpus, kind.gpus * nodes
        cpus_node, cpus = kind.cpus, kind.cpus * nodes
    else:
        each = shape.cpus_per_gpu or (None if shape.tasks_per_gpu else pool.default_cpus_per_gpu) or 0
        cpus = tasks * shape.cpus_per_task if shape.cpus_per_task else max(each * gpus, tasks)
        cpus = max(cpus, job.min_cpus or 0, (job.pn_min_cpus or 0) * nodes)
        cpus_node = -(-cpus // nodes)
        cpus_node += -cpus_node % kind.threads  # Slurm gives out whole cores
        cpus = max(cpus, cpus_node if nodes == 1 else cpus + -cpus % kind.threads)
    memory, per_cpu = _memory(shape, context, pool, gpus_node)
    all_memory = memory is None and per_cpu is None and not shape.memory_stated
    if per_cpu is not None:
        memory_node, in_all = per_cpu * cpus_node, per_cpu * cpus
    else:
        memory_node = memory or kind.memory
        in_all = memory_node * nodes
    gpu_type = shape.gpu_type or (kind.gpu_types[0][0] if len(kind.gpu_types) == 1 else "")
    has: dict[str, float] = {"cpu": cpus, "mem": in_all, "node": nodes, "gres/gpu": gpus}
    on_node: dict[str, float] = {"cpu": cpus_node, "mem": memory_node, "gres/gpu": gpus_node}
    if gpu_type:
        has[f"gres/gpu:{gpu_type}"], on_node[f"gres/gpu:{gpu_type}"] = gpus, gpus_node
    has["billing"] = compute_billing(pool.billing, context.slurm.billed, has)
    return Demand(has, on_node, all_memory)


def _memory(shape: Shape, context: Context, pool: Pool, gpus: int) -> tuple[int | None, int | None]:
    """MiB on a node, or for each CPU; neither: all of the node's."""
    if shape.memory_per_node is not None:
        return shape.memory_per_node or None, None
    if shape.memory_per_gpu is not None:
        return shape.memory_per_gpu * gpus, None
    if shape.memory_per_cpu is not None:
        return None, shape.memory_per_cpu
    if pool.default_memory_per_gpu is not None:
        return pool.default_memory_per_gpu * gpus, None
    per_cpu, per_node = pool.default_memory_per_cpu, pool.default_memory_per_node
    if per_cpu is None and per_node is None:
        per_cpu, per_node = context.slurm.default_memory_per_cpu, context.slurm.default_memory_per_node
    return per_node, per_cpu


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits and charges of one request.

    `before` is what it gets unchanged, on each kind of node. `unknown` is why its limits are not known.
    """

    context: Context
    bounds: tuple[Bound, ...] = ()
    before: tuple[tuple[Pool, Kind, Demand | None], ...] = ()
    unknown: str = ""
    bills: bool = False

    @classmethod
    def of(cls, request: Request, context: Context) -> Allowance | None:
        """None where nothing limits the job and nothing is charged: most often."""
        bills, enforced = context.inventory.bills, context.slurm.limits_enforced
        if not bills and not enforced:
            return None
        bounds: tuple[Bound, ...] = ()
        unknown = ""
        if enforced:
            try:
                bounds = _bounds(request, context)
            except NotKnownError as error:
                unknown = str(error)
        if not bounds and not unknown and not bills:
            return None
        found = ground(request, context)
        before = tuple(
            (place.pool, kind, compute_demand(request, context, place.pool, kind))
            for place, kinds in found or ()
            for kind in kinds
        )
        return cls(context, bounds, before, unknown, bills)

    def find_obstacle(self, request: Request) -> str:
        """Why a request may not become this, in half a sentence; empty: it may."""
        if not self.before:
            return self.unknown or "what it gets without a change is not known, and limits hold for it"
        for pool, kind, before in self.before:
            after = compute_demand(request, self.context, pool, kind)
            if before is None or after is None:
                return "how much it gets is not known, and limits hold for it"
            if why := self._find_excess(before, after):
                return why
        return ""

    def _find_excess(self, before: Demand, after: Demand) -> str:
        if self.unknown and any(after.has[tres] > had * _SAME for tres, had in before.has.items()):
            return self.unknown
        for bound in self.bounds:
            on_node = bound.of == "node"
            had = (before.on_node if on_node else before.has).get(bound.tres)
            gets = (after.on_node if on_node else after.has).get(bound.tres)
            if had is None or gets is None:
                continue
            more = gets > had * _SAME
            if bound.of == "shared" and more:
                return f"{bound}, and it is shared or counts time"
            is_open = bound.tres == "mem" and before.all_memory
            if bound.of in ("job", "node") and gets > bound.most and (more or is_open):
                return str(bound)
            if bound.of == "least" and gets < min(bound.most, had):
                return str(bound)
        if self.bills and after.has["billing"] > before.has["billing"] * _SAME:
            return (
                f"it would be charged {after.has['billing']:.6g} a minute (billing), "
                f"and is charged {before.has['billing']:.6g} without it"
            )
        return ""

    def fit(
        self, changes: tuple[Change, ...], after: Callable[[tuple[Change, ...]], Request]
    ) -> tuple[tuple[Change, ...], tuple[tuple[Change, Change | None, str], ...]]:
        """What of the changes may be made, and each that may not with what is made in its place and why.

        `after` gives the request with some of them.
        """
        if not any(change.field in _AMOUNTS for change in changes):
            return changes, ()
        why = self.find_obstacle(after(changes))
        if not why:
            return changes, ()
        without = tuple(change for change in changes if change.field != "shared")
        if len(without) < len(changes) and (not without or not self.find_obstacle(after(without))):
            (whole,) = (change for change in changes if change.field == "shared")
            return without, ((whole, None, why),)
        if any(change.field not in _SIZES for change in changes):
            return (), tuple((change, None, why) for change in changes if change.reason)
        kept: tuple[Change, ...] = ()
        missed = []
        for change in changes:
            why = self.find_obstacle(after((*kept, change)))
            if not why:
                kept = (*kept, change)
                continue
            smaller = self._largest(change, kept, after, why)
            missed.append((change, smaller, why))
            if smaller is not None:
                kept = (*kept, smaller)
        return kept, tuple(missed)

    def _largest(
        self,
        change: Change,
        kept: tuple[Change, ...],
        after: Callable[[tuple[Change, ...]], Request],
        why: str,
    ) -> Change | None:
        """The change with the largest value that may be made; None where that is no more than it gets anyway."""
        low, high = 0, _number(change.after)
        while high - low > 1:
            middle = (low + high) // 2
            if self.find_obstacle(after((*kept, _with(change, middle)))):
                high = middle
            else:
                low = middle
        if not low:
            return None
        reason = f"{change.reason}; no more than this, since {why}" if change.reason else ""
        smaller = replace(_with(change, low), reason=reason)
        memory = change.field not in ("cpus_per_task", "cpus_per_tres")
        tres = "mem" if memory else "cpu"
        unchanged, changed = after(kept), after((*kept, smaller))
        for pool, kind, before in self.before:
            if memory and before is not None and before.all_memory:
                return smaller
            was, gets = (compute_demand(one, self.context, pool, kind) for one in (unchanged, changed))
            if was is not None and gets is not None and gets.has[tres] > was.has[tres]:
                return smaller
        return None


def _bounds(request: Request, context: Context) -> tuple[Bound, ...]:
    told, job = context.associations, request.job
    if told is None:
        raise NotKnownError("the limits of accounting are not known yet")
    account = job.account or job.default_account or told.default_accounts.get(request.uid, "")
    if not account:
        raise NotKnownError("it is not known which account the job is of")
    partitions = tuple((pool.name, pool.qos) for pool in context.inventory.pools_of(job.partition))
    return find_bounds(told, Holder(request.uid, account, tuple((job.qos or "").split(",")), partitions))


def _number(value: Value) -> int:
    """``gres:gpu:8`` -> 8."""
    return value if isinstance(value, int) else int(re.split("[:=]", value)[-1])


def _with(change: Change, number: int) -> Change:
    value = change.after
    if isinstance(value, int):
        return replace(change, after=number)
    return replace(change, after=re.sub(r"\d+$", str(number), value))
