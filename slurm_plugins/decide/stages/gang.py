"""Gang: an open shape is closed before Slurm spreads it.

Slurm gives ``--gpus=16`` to whichever nodes have a GPU free, ``-N 2 --gpus=4`` as 3 + 1, and ``-n 4 --gpus-per-task=1
-N 2`` as 3 + 1 tasks (seen on 22.05, 24.11 and 26.05). This stage says how many nodes and how many GPUs and tasks on
each, so that a job's ranks are alike and near each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.counting import count
from slurm_plugins.client.parse import names
from slurm_plugins.decide.edits import Value
from slurm_plugins.decide.eligible import Place, places
from slurm_plugins.decide.grid import (
    Ask,
    Grid,
    agreed,
    close,
    cpus_needed,
    fewest,
    fit,
    has_room,
    memory_needed,
)
from slurm_plugins.decide.shape import NotUnderstood, gpu_items, requested
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Context, Job, Note, Proposal, Request, Stage

__all__ = ["Gang"]

_YES: Final = frozenset({"yes", "on", "true", "1"})
_NO: Final = frozenset({"no", "off", "false", "0"})


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
        shape = requested(request)
        if isinstance(shape, NotUnderstood):
            return _left(shape.why)
        if shape.gpus == 0:
            return NO_PROPOSAL
        if shape.types:
            return _left("it asks for several types of GPU")
        if job.ntasks_per_socket or job.ntasks_per_core or job.ntasks_per_board:
            return _left("its tasks are counted by socket, core or board")
        where = places(job, context.inventory)
        if where is None:
            return _left("which nodes it may use is not known")
        ask = Ask(job, shape, context.slurm)
        if _may_repack(request, context) and (repacked := _repack(ask, where)) is not None:
            return repacked
        grid = agreed(where, lambda place: close(ask, place))
        if isinstance(grid, str):
            return _left(grid)
        return Proposal((*_shape_changes(ask, grid), *_whole_nodes(ask, grid, where)))


def _left(why: str) -> Proposal:
    return Proposal(notes=(Note(f"the shape is left as it is: {why}"),))


# --- what changes ----------------------------------------------------------------------------------------------------


def _shape_changes(ask: Ask, grid: Grid) -> tuple[Change, ...]:
    """The edits that turn what is open into the grid; none where Slurm would do the same unasked."""
    job, shape = ask.job, ask.shape
    changes: list[Change] = []
    if shape.nodes is None:
        changes += _node_changes(job, grid, _why_nodes(ask, grid))
    if grid.nodes > 1:
        if shape.gpus_per_node is None and shape.gpus_per_task is None:
            why = f"{grid}: else Slurm may give one node more GPUs than another"
            changes.append(_gres_change(ask, grid, why))
        if shape.tasks is not None and shape.tasks_per_node is None and shape.tasks_per_gpu is None:
            why = f"{count(shape.tasks, 'task')} on {count(grid.nodes, 'node')}: the same number on each"
            changes.append(Change("ntasks_per_node", None, shape.tasks // grid.nodes, why))
        if shape.tasks is None and grid.tasks is not None and job.num_tasks is not None:
            why = f"{count(grid.tasks, 'task')} on each of {count(grid.nodes, 'node')}"
            changes.append(Change("num_tasks", None, grid.tasks * grid.nodes, why))
    return tuple(changes)


def _why_nodes(ask: Ask, grid: Grid) -> str:
    shape = ask.shape
    if shape.gpus is None and grid.nodes == 1:
        return f"its {count(shape.tasks or 1, 'task')} fit on one node"
    if shape.gpus is None:
        return f"{shape.tasks} tasks, {grid.tasks} on each node"
    held = count(grid.nodes * grid.gpus, "GPU")
    if shape.tasks is not None and grid.nodes > 1:
        held += f" and {count(shape.tasks, 'task')}"
    return f"{grid}: the fewest nodes that hold {held}{'' if grid.nodes == 1 else ' evenly'}"


def _node_changes(job: Job, grid: Grid, why: str) -> list[Change]:
    changes: list[Change] = []
    for name, before in (("min_nodes", job.min_nodes), ("max_nodes", job.max_nodes)):
        if before != grid.nodes:
            changes.append(Change(name, before or None, grid.nodes, "" if changes else why))
    return changes


def _gres_change(ask: Ask, grid: Grid, why: str) -> Change:
    """GPUs for each node, beside what else the request wants of each node (``--gres=nvme:1``)."""
    stated, kind = ask.job.tres_per_node, ask.shape.gpu_type
    others = [item.removeprefix("gres:").removeprefix("gres/") for item in _not_gpus(stated)]
    gpu = f"gpu:{kind}:{grid.gpus}" if kind else f"gpu:{grid.gpus}"
    return Change("gres", stated or None, ",".join([*others, gpu]), why)


def _not_gpus(text: str | None) -> list[str]:
    return [item for item in names(text or "") if not gpu_items(item)]


def _whole_nodes(ask: Ask, grid: Grid, where: tuple[Place, ...]) -> tuple[Change, ...]:
    """--exclusive for a job that leaves no GPU of its nodes to others, where nothing speaks against it."""
    if ask.job.shared is not None:
        return ()
    for place in where:
        if not has_room(ask, place, grid):
            continue  # Slurm cannot put it there
        cpus_limit = place.pool.max_cpus_per_node
        for size in fit(ask, place, grid):
            if size.all_gpus != grid.gpus or (cpus_limit is not None and cpus_limit < size.cpus):
                return ()
            if ask.shape.cpus_stated and cpus_needed(ask, place, grid) < size.cpus:
                return ()
            # Memory by the CPU grows with the node's CPUs: it must still fit.
            if memory_needed(ask, place, grid, size.cpus) > size.memory:
                return ()
    every = "the GPU" if grid.gpus == 1 else f"all {grid.gpus} GPUs"
    its = "its node" if grid.nodes == 1 else "each of its nodes"
    return (Change("shared", None, 0, f"it takes {every} of {its}"),)


# --- repack ----------------------------------------------------------------------------------------------------------


def _may_repack(request: Request, context: Context) -> bool:
    wish = request.asks("repack")
    return wish in _YES or (wish not in _NO and context.site.policy.repack)


def _repack(ask: Ask, where: tuple[Place, ...]) -> Proposal | None:
    """The same GPUs and tasks on fewer nodes than stated; None where that is not to be had or not certain.

    Only with a stated number of tasks: a script that starts its own processes on each node (torchrun) has the shape
    written into it.
    """
    job, shape = ask.job, ask.shape
    stated, tasks, memory = shape.nodes, shape.tasks, shape.memory_per_node
    if stated is None or stated == 1 or not shape.gpus:
        return None
    if job.req_nodes or job.tres_per_socket or shape.tasks_per_gpu is not None:
        return None
    if job.pn_min_cpus not in (None, 0, shape.cpus_per_task):
        return None

    def on(nodes: int) -> Ask:
        # A node that takes the place of several needs their memory.
        share = None if memory is None else -(-memory * stated // nodes)
        return replace(
            ask, shape=replace(shape, gpus_per_node=None, tasks_per_node=None, memory_per_node=share)
        )

    def plan(place: Place) -> Grid | str:
        grids = (fewest(on(nodes), place, nodes, nodes) for nodes in range(1, stated))
        return next((grid for grid in grids if isinstance(grid, Grid)), "it is on as few nodes as hold it")

    grid = agreed(where, plan)
    if isinstance(grid, str):
        return None
    if tasks is None:
        why = f"{grid} would hold it, and how many tasks then run on each node is not stated"
        return Proposal(notes=(Note(f"not repacked: {why}"),))
    was = f"{stated} nodes" if shape.gpus_per_node is None else str(Grid(stated, shape.gpus_per_node))
    changes = _node_changes(
        job, grid, f"repacked from {was} to {grid}: fewer nodes hold its {shape.gpus} GPUs"
    )
    if shape.gpus_per_task is None and (shape.gpus_per_node is not None or grid.nodes > 1):
        changes.append(_gres_change(ask, grid, f"the same {shape.gpus} GPUs on fewer nodes"))
    if shape.tasks_per_node is not None or grid.nodes > 1:
        before: Value | None = shape.tasks_per_node
        why = f"the same {tasks} tasks on fewer nodes"
        changes.append(Change("ntasks_per_node", before, tasks // grid.nodes, why))
    packed = on(grid.nodes)
    if memory and packed.shape.memory_per_node:
        why = "the same memory in all, on fewer nodes"
        changes.append(Change("min_mem_per_node", memory, packed.shape.memory_per_node, why))
    return Proposal((*changes, *_whole_nodes(packed, grid, where)))
