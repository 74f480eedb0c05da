"""GPUs that are free for a pending job, and what it waits for by them. Pure: Slurm's jobs and nodes in, words out.

Slurm names one reason of each pending job; "Resources" does not tell whether GPUs are lacking or only lie apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from profiler.answers import FreeGpus
from slurm_plugins.client.causes import cause as by_reason
from slurm_plugins.client.values import Job, Node
from slurm_plugins.decide.eligible import Constraint, UnknownConstraintError

__all__ = ["Causes", "cause", "free_gpus", "sum_free_gpus", "wants_nodes"]

_MOST: Final = 256
"""Kinds of requests of one look that are held against the nodes; of more, GPUs that lie apart count as lacking."""


def wants_nodes(job: Job) -> bool:
    """Whether the nodes tell more of what a pending job waits for than its reason does."""
    return by_reason(job) == "resources" and (job.gpu_count or 0) > 0


def cause(job: Job, nodes: Sequence[Node] = ()) -> str:
    """What a pending job waits for: one of `slurm_plugins.client.causes.CAUSES`, by the reason that Slurm names.

    Resources count as locality where as many GPUs as it asks for are free on nodes that suit it (`free_gpus`), and it
    cannot have them; without `nodes` that is not known.
    """
    return Causes(nodes).of(job)


class Causes:
    """`cause` of many jobs on the same nodes: those that ask for the same are held against them once."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self._nodes = nodes
        self._rooms: dict[tuple[object, ...], FreeGpus | None] = {}

    def of(self, job: Job) -> str:
        """See `cause`."""
        if not wants_nodes(job):
            return by_reason(job)
        key = _kind(job)
        if key not in self._rooms and len(self._rooms) < _MOST:
            self._rooms[key] = sum_free_gpus(job, self._nodes)
        room = self._rooms.get(key)
        return "locality" if room is not None and 0 < (job.gpu_count or 0) <= room.free else "resources"

    def room(self, job: Job) -> FreeGpus | None:
        """The free GPUs for a job, where one that asks for the same was held against the nodes; else None."""
        return self._rooms.get(_kind(job)) if job.gpu_count else None


def _kind(job: Job) -> tuple[object, ...]:
    places = (job.excluded_nodes.expression, job.required_nodes.expression, job.num_nodes)
    return (job.partition, job.features, *places, *sorted(_types(job)))


def sum_free_gpus(job: Job, nodes: Sequence[Node]) -> FreeGpus | None:
    """The free GPUs for a job (`free_gpus`) in sum; None where they are not known."""
    free, every = free_gpus(job, nodes)
    if not every:
        return None
    return FreeGpus(sum(free), sum(every), max(free, default=0), len(every) - len(free))


def free_gpus(job: Job, nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """The free GPUs of each node that is up, and all GPUs of each node; none: not known.

    Of the nodes of a job's partitions that have its features and that it does not exclude; of those that it names (-w)
    alone, where these are all that it wants; of its type of GPU.
    """
    types, suits = _types(job), _suits(job.features)
    if len(types) > 1 or suits is None:
        return [], []
    kind = types.pop() if types else ""
    mine, excluded = set(job.partition.split(",")), set(job.excluded_nodes)
    required = set(job.required_nodes)
    only = required if len(required) >= (job.num_nodes or 1) else frozenset[str]()
    free, every = [], []
    for node in nodes:
        gpus = node.gres.get(kind, 0) if kind else node.gpus
        if not gpus or not mine & set(node.partitions) or node.name in excluded:
            continue
        if only and node.name not in only:
            continue
        if not suits(node.active_features or node.features):
            continue
        every.append(gpus)
        if node.available:
            if node.gpus_allocated is None:
                return [], []
            # Where Slurm does not tell them by type, all that are held may be of this one
            free.append(max(0, gpus - node.tres_allocated.get(kind, node.gpus_allocated)))
    return free, every


def _types(job: Job) -> set[str]:
    asked = (job.tres_per_job, job.tres_per_node, job.tres_per_socket, job.tres_per_task, job.tres)
    return {name for tres in asked for name in tres if name.startswith("gres/gpu:")}


def _suits(features: str | None) -> Callable[[Sequence[str]], bool] | None:
    """Whether a node with such features may be one of a job's; None for a constraint that is not understood."""
    if not features:
        return lambda _: True
    try:
        constraint = Constraint.read(features)
    except UnknownConstraintError:
        return None
    return lambda there: bool(constraint.sets(there))
