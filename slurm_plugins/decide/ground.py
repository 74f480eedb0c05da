"""What the stages after gang start from: the job's shape, the nodes that it may use, and the type of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from slurm_plugins.decide.alike import Group
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.eligible import Place, places
from slurm_plugins.decide.inventory import Kind, Pool
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.shape import NotUnderstood, Shape, requested

__all__ = ["Ground", "ground", "suits", "time_limit"]

_FOR_EVER: Final = 10 * 366 * 86400  # Slurm's INFINITE, as minutes, is far beyond


@dataclass(frozen=True, slots=True)
class Ground:
    """A job with GPUs of one type, or of any, that may run in at least one place, on nodes that suit it."""

    shape: Shape
    places: tuple[Place, ...]
    groups: tuple[tuple[Group, ...], ...]
    """For each place its nodes that suit the job."""
    gpu_type: str
    """The type that the job gets: what it asks for, or the only one that there is; else empty."""

    def __iter__(self) -> Iterator[tuple[Place, tuple[Group, ...]]]:
        return zip(self.places, self.groups, strict=True)


def ground(request: Request, context: Context) -> Ground | None:
    """What is certain about a job; None where something is not, and for a job without GPUs: change nothing then."""
    shape = requested(request)
    if isinstance(shape, NotUnderstood) or shape.types or not (shape.gpus or shape.gpus_per_node):
        return None
    found = places(request.job, context.inventory)
    if not found:
        return None
    groups = tuple(tuple(group for group in place.groups if suits(group, shape)) for place in found)
    if not all(groups):
        return None
    types = {name for suiting in groups for group in suiting for name, _ in group.gpu_types}
    gpu_type = shape.gpu_type or (types.pop() if len(types) == 1 else "")
    return Ground(shape, found, groups, gpu_type)


def suits(kind: Kind, shape: Shape) -> bool:
    """Whether a node of that kind can take a node's part of the job, as far as it is stated.

    CPUs or memory that Slurm did not tell (0) suit everything.
    """
    gpus = kind.gpus_of(shape.gpu_type)
    if gpus < (shape.gpus_per_node or shape.gpus_per_task or 1):
        return False
    if shape.nodes == 1 and shape.gpus and gpus < shape.gpus:
        return False
    cpus = (shape.cpus_per_task or 1) * (shape.tasks_per_node if shape.nodes and shape.tasks_per_node else 1)
    if shape.cpus_per_gpu:
        cpus = max(cpus, shape.cpus_per_gpu * (shape.gpus_per_node or 1))
    memory = max(
        shape.memory_per_node or 0,
        (shape.memory_per_cpu or 0) * cpus,
        (shape.memory_per_gpu or 0) * (shape.gpus_per_node or 1),
    )
    return (not kind.cpus or cpus <= kind.cpus) and (not kind.memory or memory <= kind.memory)


def time_limit(job: Job, pool: Pool) -> int | None:
    """Seconds that the job may run in a partition; None for without end."""
    limits = [pool.max_time]
    if job.time_limit:
        limits.append(job.time_limit * 60)
    elif pool.default_time:
        limits.append(pool.default_time)
    return min((limit for limit in limits if limit is not None and 0 < limit < _FOR_EVER), default=None)
