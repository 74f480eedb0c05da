"""Gang: an open shape is closed before Slurm spreads it.

Slurm gives ``--gpus=16`` to whichever nodes have a GPU free, ``-N 2 --gpus=4`` as 3 + 1, and ``-n 4 --gpus-per-task=1
-N 2`` as 3 + 1 tasks (seen on 22.05, 24.11 and 26.05). This stage says how many nodes and how many GPUs and tasks on
each, so that a job's ranks are alike and near each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from slurm_plugins.client.parse import names
from slurm_plugins.decide.edits import Value
from slurm_plugins.decide.eligible import Place, Size, places
from slurm_plugins.decide.shape import NotUnderstood, Shape, gpu_items, shape_of
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Context, Job, Note, Proposal, Request, Stage

__all__ = ["Gang", "Grid"]

_YES: Final = frozenset({"yes", "on", "true", "1"})
_NO: Final = frozenset({"no", "off", "false", "0"})
_SPREAD: Final = 2
"""An even shape may have up to so many times the nodes that the GPUs fill: 20 GPUs go to 4 nodes x 5, 13 to none."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A closed shape: nodes x GPUs, and tasks on each node (None: the job does not say how many tasks)."""

    nodes: int
    gpus: int
    tasks: int | None = None

    def __str__(self) -> str:
        return f"{_count(self.nodes, 'node')} x {_count(self.gpus, 'GPU')}"


class Gang(Stage):
    """G GPUs in all become n nodes x g GPUs: the fewest nodes that hold them evenly.

    - A job that fits on one node gets one node.
    - Tasks follow: where the number of tasks is stated, each node gets the same number.
    - What cannot be even (13 GPUs on nodes of 8) stays open, and so does what fits no node.
    - A job that takes all GPUs of its nodes gets the nodes to itself (--exclusive), unless it states fewer CPUs.
    - A stated shape is kept. With `policy.repack`, or for a job that says ``gsub:repack``, one that is spread over more
      nodes than its GPUs and tasks need is put together; ``gsub:repack=no`` forbids it.
    """

    name = "gang"

    def decide(self, request: Request, context: Context) -> Proposal:
        """See `Stage.decide`."""
        job = request.job
        shape = shape_of(job, request.env if request.batch else None)
        if isinstance(shape, NotUnderstood):
            return _left(shape.why)
        if shape.gpus == 0:
            return NO_PROPOSAL
        if shape.types:
            return _left("it asks for several types of GPU")
        where = places(job, context.inventory)
        if where is None:
            return _left("which nodes it may use is not known")
        if _may_repack(request, context) and (repacked := _repack(job, shape, where)) is not None:
            return repacked
        grid = _agreed(where, lambda place: _close(job, shape, place))
        if isinstance(grid, str):
            return _left(grid)
        changes = _shape_changes(job, shape, grid)
        return Proposal((*changes, *_whole_nodes(job, shape, grid, where)))


def _left(why: str) -> Proposal:
    return Proposal(notes=(Note(f"the shape is left as it is: {why}"),))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _agreed(where: tuple[Place, ...], plan: Callable[[Place], Grid | str]) -> Grid | str:
    """The one grid of all places that can hold the job, else why there is none."""
    found = [plan(place) for place in where]
    grids = {grid for grid in found if isinstance(grid, Grid)}
    if len(grids) == 1:
        return grids.pop()
    if grids:
        return "the nodes that it may use differ too much for one shape"
    return next((why for why in found if isinstance(why, str)), "no node fits its constraint")


# --- which grid ------------------------------------------------------------------------------------------------------


def _close(job: Job, shape: Shape, place: Place) -> Grid | str:
    """The closed form of `shape` on the nodes of one place; a shape that is closed already comes back as it is."""
    low, high = shape.nodes_low, shape.nodes_high
    if place.required:
        named = len(place.required)
        if (high is not None and high < named) or (shape.nodes is None and (low or 0) > named):
            return "-w and -N ask for different numbers of nodes"
        if shape.nodes is None or shape.nodes == named:
            place, low, high = place.only_required(), named, named
    if shape.gpus is None:
        return _close_per_node(job, shape, place)
    return _fewest(job, shape, place, low or 1, high)


def _close_per_node(job: Job, shape: Shape, place: Place) -> Grid | str:
    """GPUs on each node are stated, and how many nodes is open: as many as the tasks need, when that is certain."""
    per_node, tasks, each = shape.gpus_per_node, shape.tasks, shape.tasks_per_node
    if per_node is None or tasks is None or shape.nodes_high is not None:
        return "a range of nodes was asked for, and any of them is even"
    if each is not None and tasks % each:
        return f"{tasks} tasks do not fill nodes of {each} tasks"
    nodes = 1 if each is None else tasks // each
    if nodes < (shape.nodes_low or 1):
        return "more nodes were asked for than its tasks need"
    grid = Grid(nodes, per_node, tasks // nodes)
    if _room(job, shape, place, grid):
        return grid
    if each is None:
        return "its tasks need more than one node, and how many is open"
    return _no_room(shape, place)


def _fewest(job: Job, shape: Shape, place: Place, low: int, high: int | None) -> Grid | str:
    """The fewest nodes, `low` to `high`, that hold the GPUs and tasks evenly."""
    gpus, tasks = shape.gpus or 0, shape.tasks
    sizes = place.sizes(shape.gpu_type)
    if not sizes:
        return _no_room(shape, place)
    fewest = max(-(-gpus // sizes[0].gpus), low)
    most = min(_SPREAD * fewest, place.nodes, place.pool.max_nodes or place.nodes)
    if high is not None:
        most = min(most, high)
    grids = []
    for nodes in range(fewest, most + 1):
        if gpus % nodes or (tasks is not None and tasks % nodes):
            continue
        grid = Grid(nodes, gpus // nodes, shape.tasks_per_node if tasks is None else tasks // nodes)
        if shape.tasks_per_node in (None, grid.tasks) and shape.gpus_per_node in (None, grid.gpus):
            grids.append(grid)
    # Nodes that are up come first; when they cannot hold it, those that may come back.
    for now in (True, False):
        for grid in grids:
            if _room(job, shape, place, grid, now=now):
                return grid
    if fewest > most:
        return _no_room(shape, place)
    if grids:
        return f"partition {place.pool.name} has too few nodes for it, or none with the CPUs and memory"
    even = _count(gpus, "GPU") if tasks is None else f"{_count(gpus, 'GPU')} and {_count(tasks, 'task')}"
    on = f"{_count(low, 'node')}" if low == high else f"nodes of {_up_to(sizes)}"
    if shape.tasks_per_node is not None:
        on += f" and {_count(shape.tasks_per_node, 'task')}"
    return f"{even} do not divide evenly over {on}"


def _up_to(sizes: tuple[Size, ...]) -> str:
    most = sizes[0].gpus
    return _count(most, "GPU") if all(size.gpus == most for size in sizes) else f"up to {_count(most, 'GPU')}"


def _no_room(shape: Shape, place: Place) -> str:
    kind = f" {shape.gpu_type}" if shape.gpu_type else ""
    return f"partition {place.pool.name} has no nodes that hold its{kind} GPUs"


def _room(job: Job, shape: Shape, place: Place, grid: Grid, *, now: bool = False) -> bool:
    """Whether the place has so many nodes of that size; `now`: of those that are up."""
    if grid.nodes > (place.pool.max_nodes or grid.nodes):
        return False
    fit = _fit(job, shape, place, grid)
    return sum(size.usable if now else size.count for size in fit) >= grid.nodes


def _fit(job: Job, shape: Shape, place: Place, grid: Grid) -> list[Size]:
    """The sizes of nodes that hold one node's share of the grid, by GPUs, CPUs and memory."""
    cpus = max(_cpus(shape, place, grid), job.pn_min_cpus or 0)
    memory = _memory(shape, place, grid, cpus)
    return [
        size
        for size in place.sizes(shape.gpu_type)
        if size.gpus >= grid.gpus and size.cpus >= cpus and size.memory >= memory
    ]


def _cpus(shape: Shape, place: Place, grid: Grid) -> int:
    """CPUs on each node, as Slurm would count them."""
    tasks = grid.tasks or 1
    if shape.cpus_per_task is not None:
        return shape.cpus_per_task * tasks
    per_gpu = shape.cpus_per_gpu or place.pool.default_cpus_per_gpu or 0
    return max(per_gpu * grid.gpus, tasks)


def _memory(shape: Shape, place: Place, grid: Grid, cpus: int) -> int:
    """MiB on each node: what is stated, else the partition's default."""
    if shape.memory_per_node is not None:
        return shape.memory_per_node
    if shape.memory_per_gpu is not None:
        return shape.memory_per_gpu * grid.gpus
    if shape.memory_per_cpu is not None:
        return shape.memory_per_cpu * cpus
    pool = place.pool
    if pool.default_memory_per_gpu is not None:
        return pool.default_memory_per_gpu * grid.gpus
    if pool.default_memory_per_node is not None:
        return pool.default_memory_per_node
    return (pool.default_memory_per_cpu or 0) * cpus


# --- what changes ----------------------------------------------------------------------------------------------------


def _shape_changes(job: Job, shape: Shape, grid: Grid) -> tuple[Change, ...]:
    """The edits that turn what is open into the grid; none where Slurm would do the same unasked."""
    changes: list[Change] = []
    if shape.nodes is None:
        changes += _node_changes(job, grid, _why_nodes(shape, grid))
    if grid.nodes > 1:
        if shape.gpus_per_node is None and shape.gpus_per_task is None:
            why = f"{grid}: else Slurm may give one node more GPUs than another"
            changes += _gres_change(job, shape, grid, why)
        if shape.tasks is not None and shape.tasks_per_node is None and shape.tasks_per_gpu is None:
            why = f"{shape.tasks} tasks on {grid.nodes} nodes: the same number on each"
            changes.append(Change("ntasks_per_node", None, shape.tasks // grid.nodes, why))
        if shape.tasks is None and grid.tasks is not None and job.num_tasks is not None:
            every = grid.tasks * grid.nodes
            changes.append(
                Change("num_tasks", None, every, f"{grid.tasks} tasks on each of {grid.nodes} nodes")
            )
    return tuple(changes)


def _why_nodes(shape: Shape, grid: Grid) -> str:
    if shape.gpus is None and grid.nodes == 1:
        return f"its {_count(shape.tasks or 1, 'task')} fit on one node"
    if shape.gpus is None:
        return f"{shape.tasks} tasks, {grid.tasks} on each node"
    held = _count(grid.nodes * grid.gpus, "GPU")
    if shape.tasks is not None and grid.nodes > 1:
        held += f" and {_count(shape.tasks, 'task')}"
    return f"{grid}: the fewest nodes that hold {held}{'' if grid.nodes == 1 else ' evenly'}"


def _node_changes(job: Job, grid: Grid, why: str) -> list[Change]:
    changes: list[Change] = []
    for name, before in (("min_nodes", job.min_nodes), ("max_nodes", job.max_nodes)):
        if before != grid.nodes:
            changes.append(Change(name, before or None, grid.nodes, "" if changes else why))
    return changes


def _gres_change(job: Job, shape: Shape, grid: Grid, why: str) -> list[Change]:
    """GPUs for each node, beside what else the request wants of each node (``--gres=nvme:1``)."""
    others = [item.removeprefix("gres:").removeprefix("gres/") for item in _not_gpus(job.tres_per_node)]
    gpu = f"gpu:{shape.gpu_type}:{grid.gpus}" if shape.gpu_type else f"gpu:{grid.gpus}"
    return [Change("gres", job.tres_per_node or None, ",".join([*others, gpu]), why)]


def _not_gpus(text: str | None) -> list[str]:
    return [item for item in names(text or "") if not gpu_items(item)]


def _whole_nodes(job: Job, shape: Shape, grid: Grid, where: tuple[Place, ...]) -> tuple[Change, ...]:
    """--exclusive for a job that leaves no GPU of its nodes to others."""
    if job.shared is not None or not where:
        return ()
    for place in where:
        fit = _fit(job, shape, place, grid)
        if not _room(job, shape, place, grid):
            continue  # Slurm cannot put it there
        cpus_limit = place.pool.max_cpus_per_node
        for size in fit:
            if size.all_gpus != grid.gpus or (cpus_limit is not None and cpus_limit < size.cpus):
                return ()
            if shape.cpus_stated and _cpus(shape, place, grid) < size.cpus:
                return ()
            # Memory by the CPU grows with the node's CPUs: it must still fit.
            if _memory(shape, place, grid, size.cpus) > size.memory:
                return ()
    every = "the GPU" if grid.gpus == 1 else f"all {grid.gpus} GPUs"
    its = "its node" if grid.nodes == 1 else "each of its nodes"
    return (Change("shared", None, 0, f"it takes {every} of {its}"),)


# --- repack ----------------------------------------------------------------------------------------------------------


def _may_repack(request: Request, context: Context) -> bool:
    wish = request.asks("repack")
    return wish in _YES or (wish not in _NO and context.site.policy.repack)


def _repack(job: Job, shape: Shape, where: tuple[Place, ...]) -> Proposal | None:
    """The same GPUs and tasks on fewer nodes than stated; None where that is not to be had or not certain.

    Only with a stated number of tasks: a script that starts its own processes on each node (torchrun) has the shape
    written into it.
    """
    stated, gpus, tasks = shape.nodes, shape.gpus, shape.tasks
    if stated is None or stated == 1 or gpus is None or not shape.nodes_stated:
        return None
    per_part = (job.ntasks_per_socket, job.ntasks_per_core, job.ntasks_per_board, job.tres_per_socket)
    if job.req_nodes or any(per_part) or shape.tasks_per_gpu is not None:
        return None
    if job.pn_min_cpus not in (None, 0, shape.cpus_per_task):
        return None
    memory = shape.memory_per_node

    def plan(place: Place) -> Grid | str:
        for nodes in range(1, stated):
            # A node that takes the place of several needs their memory.
            share = None if memory is None else -(-memory * stated // nodes)
            open_shape = replace(shape, gpus_per_node=None, tasks_per_node=None, memory_per_node=share)
            found = _fewest(job, open_shape, place, nodes, nodes)
            if isinstance(found, Grid):
                return found
        return "it is on as few nodes as hold it"

    grid = _agreed(where, plan)
    if isinstance(grid, str):
        return None
    if tasks is None:
        why = f"{grid} would hold it, and how many tasks then run on each node is not stated"
        return Proposal(notes=(Note(f"not repacked: {why}"),))
    was = f"{stated} nodes" if shape.gpus_per_node is None else str(Grid(stated, shape.gpus_per_node))
    changes = _node_changes(job, grid, f"repacked from {was} to {grid}: fewer nodes hold its {gpus} GPUs")
    if shape.gpus_per_task is None and (shape.gpus_per_node is not None or grid.nodes > 1):
        changes += _gres_change(job, shape, grid, f"the same {gpus} GPUs on fewer nodes")
    if shape.tasks_per_node is not None or grid.nodes > 1:
        before: Value | None = shape.tasks_per_node
        why = f"the same {tasks} tasks on fewer nodes"
        changes.append(Change("ntasks_per_node", before, tasks // grid.nodes, why))
    if memory:
        share = -(-memory * stated // grid.nodes)
        changes.append(Change("min_mem_per_node", memory, share, "the same memory in all, on fewer nodes"))
        shape = replace(shape, memory_per_node=share)
    shape = replace(shape, gpus_per_node=grid.gpus)
    return Proposal((*changes, *_whole_nodes(job, shape, grid, where)))
