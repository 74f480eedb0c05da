"""Keeping a job's nodes near each other: within the fewest leaves that can hold it, for as long as that is worth.

The intent, "within k leaves, waiting at most t", becomes what the cluster's Slurm has:

========== ============================================================================================================
tree       --switches=k@t. Slurm waits for t at most, then takes any nodes (sbatch(1)).
block      Slurm itself keeps a job within its blocks, without end: a job up to one block needs nothing. One that fills
           whole blocks gets --segment, so that it waits for k blocks anywhere and not for neighbours (25.11 and newer:
           Lua cannot set it before).
features   --prefer=[leaf1|leaf2]: all nodes from one leaf when it has them free, else any nodes at once. As a
           --constraint the job would wait for its leaf without end. For jobs that fit one leaf.
others     nothing: in a flat network all nodes are equally near, in a ring or torus Slurm sees to it.
========== ============================================================================================================

How these behave was seen on 22.05.8, 24.11.5 and 26.05.5; block on 26.05.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from site_configs.hostlist import natural
from site_configs.topology import Topology as Network
from slurm_plugins.decide.alike import Group
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.eligible import Place
from slurm_plugins.decide.ground import Ground, ground, time_limit
from slurm_plugins.decide.inventory import Pool
from slurm_plugins.decide.shape import NotUnderstood, Shape, requested
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Job, Note, Proposal, Request, Stage
from slurm_plugins.decide.stages.avoid_nodes import to_avoid
from slurm_plugins.decide.worth import Worth, spoken, worth_of_waiting

__all__ = ["Intent", "Topology", "intent"]

_SEGMENT_IN_LUA: Final = (25, 11)
_SEVERAL_TOPOLOGIES: Final = (25, 5)
_MAX_PREFER: Final = 1000  # characters: edits.EDITS


@dataclass(frozen=True, slots=True)
class Intent:
    """Within `leaves` of the `of` leaves that the job could use. `holding` are those that can hold all of it."""

    leaves: int
    of: int
    holding: tuple[str, ...] = ()

    @property
    def binds(self) -> bool:
        """Some way to place the job takes more leaves."""
        return self.leaves < self.of


class Topology(Stage):
    """Jobs of several nodes are kept under the fewest leaf switches, for as long as that is worth the wait."""

    name = "topology"

    def decide(self, request: Request, context: Context) -> Proposal:
        """One intent and its worth for each partition that the job may go to; set only where they agree."""
        shape = requested(request)
        if (
            isinstance(shape, NotUnderstood)
            or shape.nodes == 1
            or (found := ground(request, context)) is None
        ):
            return NO_PROPOSAL
        without = to_avoid(request, context, found)
        answers = [_compiled(request, context, found, (place, groups), without) for place, groups in found]
        if any(answer.changes != answers[0].changes for answer in answers):
            why = "the partitions or constraints that it may go by differ in what keeps its nodes together"
            return Proposal(notes=(Note(f"not kept within leaf switches: {why}"),))
        return answers[0]


def intent(
    shape: Shape, place: Place, groups: tuple[Group, ...], without: frozenset[str] = frozenset()
) -> Intent | None:
    """The fewest leaves that could ever hold the job, down nodes counted; None where no number of them can.

    `without` are nodes that the job will not get. With a range of nodes the job may grow to the most that it allows, as
    long as there are as many. The k is `Topology.fewest_leaves`, worked out from counts for each leaf: a cluster has
    thousands of nodes, and tens of leaves.
    """
    asked = (shape.gpu_type, shape.gpus, shape.gpus_per_node, shape.nodes_low, shape.nodes_high)
    # The place keeps its groups for as long as it is there: their ids name them.
    key = ("topology", "intent", tuple(map(id, groups)), asked, without)
    return place.remember(key, lambda: _intent(shape, place, groups, without))


def _intent(shape: Shape, place: Place, groups: tuple[Group, ...], without: frozenset[str]) -> Intent | None:
    pool = place.pool
    if len(place.required) >= (shape.nodes_low or 1):
        return None  # -w says where
    rooms = _rooms(pool, shape.gpu_type, groups, without)
    fewest: int | None = None
    for nodes in (shape.nodes_high, shape.nodes_low):
        if fewest is None and nodes:
            fewest = _fewest(pool, rooms, nodes, lambda room: room.nodes)
    if shape.gpus and not shape.gpus_per_node:
        by_gpus = _fewest(pool, rooms, shape.gpus, lambda room: room.gpus)
        fewest = max(fewest or 1, by_gpus) if by_gpus is not None else None
    if fewest is None:
        return None
    if place.required:
        return Intent(max(fewest, len(pool.topology.leaves_of(place.required))), len(rooms))
    need, gpus = shape.nodes_high or shape.nodes_low or 1, 0 if shape.gpus_per_node else shape.gpus or 0
    holding = (leaf for leaf, room in rooms.items() if room.nodes >= need and room.gpus >= gpus)
    return Intent(fewest, len(rooms), tuple(sorted(holding, key=natural)))


@dataclass(slots=True)
class _Room:
    """What a leaf has for the job."""

    nodes: int = 0
    gpus: int = 0


def _rooms(pool: Pool, gpu_type: str, groups: tuple[Group, ...], without: frozenset[str]) -> dict[str, _Room]:
    rooms: dict[str, _Room] = {}
    for group in groups:
        gpus = group.gpus_of(gpu_type)
        for leaf, nodes in _leaves(pool.topology, group).items():
            room = rooms.setdefault(leaf, _Room())
            room.nodes += nodes
            room.gpus += nodes * gpus
        for name in group.among(without) if without else ():
            if (leaf_of := pool.topology.leaf_of(name)) is not None:
                rooms[leaf_of].nodes -= 1
                rooms[leaf_of].gpus -= gpus
    return {leaf: room for leaf, room in rooms.items() if room.nodes}


def _leaves(topology: Network, group: Group) -> Mapping[str, int]:
    """Leaf -> how many nodes of that group are under it."""
    return group.remember(("topology", "leaves"), lambda: _leaves_of(topology, group))


def _leaves_of(topology: Network, group: Group) -> Mapping[str, int]:
    if group.whole is None or len(group.missing) > group.count:
        return _counted(topology, group.nodes)
    left = Counter(_leaves(topology, group.whole))
    left.subtract(_counted(topology, group.missing))
    return {leaf: count for leaf, count in left.items() if count}


def _counted(topology: Network, names: Iterable[str]) -> Mapping[str, int]:
    return Counter(leaf for name in names if (leaf := topology.leaf_of(name)) is not None)


def _fewest(pool: Pool, rooms: Mapping[str, _Room], need: int, holds: Callable[[_Room], int]) -> int | None:
    """As `Topology.fewest_leaves`: the largest leaves of one fabric first."""
    fabrics = pool.remember(("topology", "fabrics"), lambda: pool.topology.fabrics)
    answers = []
    for fabric in fabrics:
        left = need
        sizes = sorted((holds(room) for leaf, room in rooms.items() if leaf in fabric), reverse=True)
        for k, size in enumerate(sizes, start=1):
            left -= size
            if left <= 0:
                answers.append(k)
                break
    return min(answers, default=None)


def _compiled(
    request: Request,
    context: Context,
    found: Ground,
    where: tuple[Place, tuple[Group, ...]],
    without: frozenset[str],
) -> Proposal:
    place, groups = where
    topology = place.pool.topology
    compiler = _COMPILERS.get(topology.kind)
    if compiler is None:
        return NO_PROPOSAL
    wanted = intent(found.shape, place, groups, without)
    if wanted is None:
        return NO_PROPOSAL
    worth = worth_of_waiting(
        context.knowledge.workload(request, found.gpu_type),
        context.site.partition(place.pool.name).locality,
        time_limit=time_limit(request.job, place.pool),
        max_switch_wait=context.slurm.max_switch_wait if topology.kind == "tree" else None,
    )
    case = _Case(request.job, context, found.shape, topology, wanted, worth)
    return compiler(case)


# --- what each kind of network takes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    """A job, its intent, and what that is worth, in one place."""

    job: Job
    context: Context
    shape: Shape
    topology: Network
    intent: Intent
    worth: Worth

    @property
    def what(self) -> str:
        if self.shape.nodes:
            return f"{self.shape.nodes} nodes"
        return f"{self.shape.gpus} GPUs" if self.shape.gpus else f"up to {self.shape.nodes_high} nodes"

    def note(self, text: str, *, advice: bool = False) -> Proposal:
        inputs = {**self.worth.inputs, "leaves": self.intent.leaves, "leaves_usable": self.intent.of}
        return Proposal(notes=(Note(text, inputs=inputs, advice=advice),))

    def changed(self, text: str, *changes: Change) -> Proposal:
        return Proposal(changes, self.note(text).notes)

    @property
    def worthless(self) -> str:
        return f"not worth a wait to keep its nodes together: {self.worth.formula}"


def _tree(case: _Case) -> Proposal:
    job, k = case.job, case.intent.leaves
    if case.context.slurm.topology_plugin == "flat" and case.context.slurm.release < _SEVERAL_TOPOLOGIES:
        return case.note("the site file declares leaf switches, but Slurm has no topology plugin for them")
    if job.req_switch:
        return _stated_switches(case)
    if not case.intent.binds:
        return NO_PROPOSAL
    if not case.worth.wait:
        return case.note(case.worthless)
    switches = "1 leaf switch" if k == 1 else f"{k} leaf switches"
    reason = (
        f"{case.what} fit under {switches}, and being together is worth a wait of up to "
        f"{spoken(case.worth.wait)}: {case.worth.formula}"
    )
    return case.changed(
        f"within {switches}, waiting at most {spoken(case.worth.wait)}: {case.worth.formula}",
        Change("req_switch", None, k, reason),
        Change("wait4switch", job.wait4switch, case.worth.wait),
    )


def _stated_switches(case: _Case) -> Proposal:
    """The user's own --switches stays; what Slurm makes of it is said where that is something else."""
    stated, wait, bound = case.job.req_switch or 0, case.job.wait4switch, case.context.slurm.max_switch_wait
    notes: list[Note] = []
    if stated < case.intent.leaves:
        notes += case.note(
            f"--switches={stated} cannot be met: {case.what} take at least {case.intent.leaves} leaf switches, "
            "and the wait for it is in vain",
            advice=True,
        ).notes
    if wait is not None and wait > bound:
        notes += case.note(
            f"Slurm waits {spoken(bound)} for --switches at most (max_switch_wait), not {spoken(wait)}",
            advice=True,
        ).notes
    return Proposal(notes=tuple(notes)) or NO_PROPOSAL


def _block(case: _Case) -> Proposal:
    nodes, sizes, k = case.shape.nodes, case.topology.block_sizes, case.intent.leaves
    if case.job.segment_size or not case.intent.binds or not sizes or not nodes or k < 2:
        return NO_PROPOSAL
    # Only where it takes away from what Slurm asks for by itself: whole blocks, of which the smallest aggregate that
    # holds the job has no more. Elsewhere segments would make a job wait, without end, that Slurm would have started.
    whole = nodes == k * sizes[0]
    if len(sizes) < 2 or not whole or not (nodes in sizes or nodes % sizes[-1] == 0):
        return NO_PROPOSAL
    if case.context.slurm.release < _SEGMENT_IN_LUA:
        return case.note(
            f"--segment={sizes[0]} would let it start on any {k} whole blocks: gsub can set that from Slurm 25.11 on"
        )
    reason = f"{nodes} nodes are {k} whole blocks: any {k} will do, they need not be neighbours"
    return case.changed(reason, Change("segment_size", None, sizes[0], reason))


def _features(case: _Case) -> Proposal:
    job, leaves = case.job, case.intent.holding
    if not case.intent.binds:
        return NO_PROPOSAL
    if job.features or job.prefer or job.req_nodes:
        return case.note(
            "its own --constraint, --prefer or --nodelist stays, without a wish for one leaf beside it"
        )
    if case.intent.leaves > 1 or not leaves:
        return case.note(f"{case.what} fit no single leaf, and features cannot ask for {case.intent.leaves}")
    if not case.worth.wait:
        return case.note(case.worthless)
    wish = f"[{'|'.join(leaves)}]" if len(leaves) > 1 else leaves[0]
    if len(wish) > _MAX_PREFER:
        return case.note("there are too many leaves to name them in --prefer")
    reason = f"{case.what} fit into one leaf; where none is free now, Slurm takes any nodes at once"
    return case.changed(f"one leaf is preferred: {case.worth.formula}", Change("prefer", None, wish, reason))


_COMPILERS: Final[Mapping[str, Callable[[_Case], Proposal]]] = {
    "tree": _tree,
    "block": _block,
    "features": _features,
}
