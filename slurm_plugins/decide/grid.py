"""Closed shapes: n nodes x g GPUs, and whether a partition has nodes that hold them.

>>> str(Grid(2, 8, tasks=8))
'2 nodes x 8 GPUs'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from profiler.counting import count
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.decide.eligible import Place, Size
from slurm_plugins.decide.request import Job
from slurm_plugins.decide.shape import Shape

__all__ = [
    "Ask",
    "Grid",
    "agreed",
    "close",
    "cpus_needed",
    "fewest",
    "fit",
    "has_room",
    "memory_needed",
]

_SPREAD: Final = 2
"""An even shape may have up to so many times the nodes that the GPUs fill: 20 GPUs go to 4 nodes x 5, 13 to none."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A closed shape: nodes x GPUs, and tasks on each node (None: the job does not say how many tasks)."""

    nodes: int
    gpus: int
    tasks: int | None = None

    def __str__(self) -> str:
        return f"{count(self.nodes, 'node')} x {count(self.gpus, 'GPU')}"


@dataclass(frozen=True, slots=True)
class Ask:
    """A job, its shape, and what Slurm gives unasked."""

    job: Job
    shape: Shape
    slurm: SlurmFacts


def agreed(where: tuple[Place, ...], plan: Callable[[Place], Grid | str]) -> Grid | str:
    """The one grid of all places that can hold the job, else why there is none."""
    found = [plan(place) for place in where]
    grids = {grid for grid in found if isinstance(grid, Grid)}
    if len(grids) == 1:
        return grids.pop()
    if grids:
        return "the nodes that it may use differ too much for one shape"
    return next((why for why in found if isinstance(why, str)), "no node fits its constraint")


def close(ask: Ask, place: Place) -> Grid | str:
    """The closed form of a shape on the nodes of one place, or why there is none.

    A shape that is closed already comes back as it is.
    """
    shape = ask.shape
    low, high = shape.nodes_low, shape.nodes_high
    if place.required:
        named = len(place.required)
        if (high is not None and high < named) or (shape.nodes is None and (low or 0) > named):
            return "-w and -N ask for different numbers of nodes"
        if shape.nodes is None or shape.nodes == named:
            place, low, high = place.only_required(), named, named
    if shape.gpus is None:
        return _by_tasks(ask, place)
    return fewest(ask, place, max(low or 1, place.pool.min_nodes or 1), high)


def _by_tasks(ask: Ask, place: Place) -> Grid | str:
    """GPUs on each node are stated, and how many nodes is open: as many as the tasks need, when that is certain."""
    per_node, tasks, each = ask.shape.gpus_per_node, ask.shape.tasks, ask.shape.tasks_per_node
    if per_node is None or tasks is None or ask.shape.nodes_high is not None:
        return "a range of nodes was asked for, and any of them is even"
    if each is not None and tasks % each:
        return f"{tasks} tasks do not fill nodes of {each} tasks"
    nodes = 1 if each is None else tasks // each
    if nodes < max(ask.shape.nodes_low or 1, place.pool.min_nodes or 1):
        return "more nodes were asked for than its tasks need"
    grid = Grid(nodes, per_node, tasks // nodes)
    if has_room(ask, place, grid):
        return grid
    if each is None:
        return "its tasks need more than one node, and how many is open"
    return _no_room(ask, place)


def fewest(ask: Ask, place: Place, low: int, high: int | None) -> Grid | str:
    """The fewest nodes, `low` to `high`, that hold the GPUs and tasks evenly, or why there are none."""
    shape = ask.shape
    gpus, tasks = shape.gpus or 0, shape.tasks
    sizes = place.sizes(shape.gpu_type)
    if not sizes:
        return _no_room(ask, place)
    least = max(-(-gpus // sizes[0].gpus), low)
    there = sum(size.count for size in sizes)
    most = min(_SPREAD * least, there, place.pool.max_nodes or there)
    if high is not None:
        most = min(most, high)
    grids = []
    for nodes in range(least, most + 1):
        if gpus % nodes or (tasks is not None and tasks % nodes):
            continue
        grid = Grid(nodes, gpus // nodes, shape.tasks_per_node if tasks is None else tasks // nodes)
        if shape.tasks_per_node in (None, grid.tasks) and shape.gpus_per_node in (None, grid.gpus):
            grids.append(grid)
    # Nodes that are up come first; when they cannot hold it, those that may come back.
    for now in (True, False):
        for grid in grids:
            if has_room(ask, place, grid, now=now):
                return grid
    if least > most:
        return _no_room(ask, place)
    if grids:
        return f"partition {place.pool.name} has too few nodes for it, or none with the CPUs and memory"
    return _uneven(shape, sizes, low if low == high else None)


def _uneven(shape: Shape, sizes: tuple[Size, ...], nodes: int | None) -> str:
    what = count(shape.gpus or 0, "GPU")
    if shape.tasks is not None:
        what += f" and {count(shape.tasks, 'task')}"
    most = count(sizes[0].gpus, "GPU")
    mixed = any(size.gpus != sizes[0].gpus for size in sizes)
    over = count(nodes, "node") if nodes else f"nodes of {'up to ' if mixed else ''}{most}"
    if shape.tasks_per_node is not None:
        over += f" and {count(shape.tasks_per_node, 'task')}"
    return f"{what} do not divide evenly over {over}"


def _no_room(ask: Ask, place: Place) -> str:
    kind = f" {ask.shape.gpu_type}" if ask.shape.gpu_type else ""
    return f"partition {place.pool.name} has no nodes that hold its{kind} GPUs"


def has_room(ask: Ask, place: Place, grid: Grid, *, now: bool = False) -> bool:
    """Whether the place has so many nodes of that size; `now`: of those that are up."""
    pool = place.pool
    if not (pool.min_nodes or 1) <= grid.nodes <= (pool.max_nodes or grid.nodes):
        return False
    return sum(size.usable if now else size.count for size in fit(ask, place, grid)) >= grid.nodes


def fit(ask: Ask, place: Place, grid: Grid) -> list[Size]:
    """The sizes of nodes that hold one node's share of the grid, by GPUs, CPUs and memory."""
    pool = place.pool
    cpus = max(cpus_needed(ask, place, grid), ask.job.pn_min_cpus or 0)
    memory = memory_needed(ask, place, grid, cpus)
    if memory > (pool.max_memory_per_node or memory) or cpus > (pool.max_cpus_per_node or cpus):
        return []
    threads = ask.job.threads_per_core or 0
    return [
        size
        for size in place.sizes(ask.shape.gpu_type)
        if size.gpus >= grid.gpus and size.usable_cpus(threads) >= cpus and size.memory >= memory
    ]


def cpus_needed(ask: Ask, place: Place, grid: Grid) -> int:
    """CPUs on each node, as Slurm would count them."""
    shape, tasks = ask.shape, grid.tasks or 1
    if shape.cpus_per_task is not None:
        return shape.cpus_per_task * tasks
    per_gpu = shape.cpus_per_gpu or place.pool.default_cpus_per_gpu or 0
    return max(per_gpu * grid.gpus, tasks)


def memory_needed(ask: Ask, place: Place, grid: Grid, cpus: int) -> int:
    """MiB on each node: what is stated, else the partition's default, else the cluster's."""
    shape, pool, slurm = ask.shape, place.pool, ask.slurm
    if shape.memory_per_node is not None:
        return shape.memory_per_node
    if shape.memory_per_gpu is not None:
        return shape.memory_per_gpu * grid.gpus
    if shape.memory_per_cpu is not None:
        return shape.memory_per_cpu * cpus
    if pool.default_memory_per_gpu is not None:
        return pool.default_memory_per_gpu * grid.gpus
    per_cpu, per_node = pool.default_memory_per_cpu, pool.default_memory_per_node
    if per_cpu is None and per_node is None:
        per_cpu, per_node = slurm.default_memory_per_cpu, slurm.default_memory_per_node
    return per_node if per_node is not None else (per_cpu or 0) * cpus
