"""Leaving out nodes that evidence speaks against.

What the evidence is, and whose, is the store's business (`Knowledge.avoid`); here is only how much a job may be kept
from: never more than a tenth of a partition, and never so much that it could not run on the nodes that are up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from site_configs.hostlist import fold
from slurm_plugins.decide.alike import Group
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.ground import Ground, ground
from slurm_plugins.decide.shape import Shape
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Note, Proposal, Request, Stage

__all__ = ["PART", "AvoidNodes", "to_avoid"]

PART: Final = 10
"""At most one node in so many of a partition is avoided; a partition with fewer nodes avoids none."""
_MAX_LIST: Final = 1000  # characters: edits.EDITS
_TOLD: Final = 3  # reasons in full


class AvoidNodes(Stage):
    """Nodes that evidence speaks against are excluded, a tenth of a partition at most.

    - The user's own --exclude is kept, ours is added to it; nodes of --nodelist are never excluded.
    - As many nodes as the job needs stay, of those that are up.
    """

    name = "avoid_nodes"

    def decide(self, request: Request, context: Context) -> Proposal:
        """See `Stage.decide`."""
        if not _known(request, context) or (found := ground(request, context)) is None:
            return NO_PROPOSAL
        choice = _chosen(request, context, found)
        chosen, left = choice.nodes, choice.left
        notes: tuple[Note, ...] = ()
        if left:
            text = f"{left} more should be avoided: too many for a partition, the job, or the list that Slurm takes"
            notes = (Note(text, inputs={"avoided": len(chosen), "not_avoided": left}),)
        if not chosen:
            return Proposal(notes=notes)
        why = {
            node: why
            for place in found.places
            for node, why in context.knowledge.avoid(place.pool.name).items()
        }
        told = "; ".join(f"{node}: {why[node]}" for node in chosen[:_TOLD])
        if len(chosen) > _TOLD:
            told += f"; and {len(chosen) - _TOLD} more"
        return Proposal((Change("exc_nodes", request.job.exc_nodes or None, choice.listed, told),), notes)


def to_avoid(request: Request, context: Context, found: Ground) -> frozenset[str]:
    """The nodes that this stage will leave out: those before it count without them."""
    return frozenset(_chosen(request, context, found).nodes) if _known(request, context) else frozenset()


def _known(request: Request, context: Context) -> bool:
    return any(
        context.knowledge.avoid(pool.name) for pool in context.inventory.pools_of(request.job.partition)
    )


@dataclass(slots=True)
class _Room:
    """How many nodes and GPUs a place can still lose."""

    names: Mapping[str, int]  # node -> GPUs
    nodes: int
    gpus: int

    def can_lose(self, node: str) -> bool:
        return node not in self.names or (self.nodes >= 1 and self.gpus >= self.names[node])

    def lose(self, node: str) -> None:
        if node in self.names:
            self.nodes -= 1
            self.gpus -= self.names[node]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The nodes to leave out, the worst first, as a list for Slurm; and how many more should be, and are not."""

    nodes: tuple[str, ...] = ()
    listed: str = ""
    left: int = 0


def _chosen(request: Request, context: Context, found: Ground) -> _Choice:
    pools = {place.pool.name: place.pool for place in found.places}
    wanted = tuple(dict.fromkeys(node for name in pools for node in context.knowledge.avoid(name)))
    job = request.job
    asked = (job.partition, job.features, job.prefer, job.req_nodes, job.exc_nodes)
    # Most jobs ask for the same few shapes: folding a hundred names costs more than all else here.
    return found.places[0].pool.remember(
        ("avoid_nodes", found.shape, asked, wanted), lambda: _choice(request, context, found, wanted)
    )


def _choice(request: Request, context: Context, found: Ground, wanted: Sequence[str]) -> _Choice:
    required = {node for place in found.places for node in place.required}
    places = list(found)
    if request.job.prefer:
        # Slurm refuses a job whose --prefer no nodes could ever meet.
        preferred = ground(_as_constraint(request), context)
        if preferred is None:
            return _Choice()
        places += preferred
    rooms = [(place.pool.name, _room(found.shape, groups, wanted)) for place, groups in places]
    allowed = {place.pool.name: place.pool.nodes // PART for place in found.places}
    chosen: list[str] = []
    left = 0
    for node in wanted:
        among = {name for name, room in rooms if node in room.names}
        if not among or node in required:
            continue
        if all(room.can_lose(node) for _, room in rooms) and all(allowed[name] for name in among):
            chosen.append(node)
            for _, room in rooms:
                room.lose(node)
            for name in among:
                allowed[name] -= 1
        else:
            left += 1
    fitting = _fitting(request.job.exc_nodes, chosen)
    nodes = tuple(chosen[:fitting])
    return _Choice(nodes, _together(request.job.exc_nodes, nodes), left + len(chosen) - fitting)


def _fitting(stated: str | None, chosen: Sequence[str]) -> int:
    """How many of the nodes, the worst first, fit the list that Slurm takes."""
    low, high = 0, len(chosen)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_together(stated, chosen[:middle])) <= _MAX_LIST:
            low = middle
        else:
            high = middle - 1
    return low


def _together(stated: str | None, chosen: Iterable[str]) -> str:
    """--exclude with the user's nodes and ours. Theirs as they wrote them: folding thousands takes its time."""
    return ",".join([*(stated or "").split(), *filter(None, [fold(chosen)])])


def _as_constraint(request: Request) -> Request:
    job = msgspec.structs.replace(request.job, features=request.job.prefer, prefer=None)
    return msgspec.structs.replace(request, job=job)


def _room(shape: Shape, groups: tuple[Group, ...], wanted: Sequence[str]) -> _Room:
    # Which nodes of a group are up is not known, so each that is left out is taken for one that is.
    return _Room(
        {name: group.gpus_of(shape.gpu_type) for group in groups for name in group.among(wanted)},
        sum(group.usable for group in groups) - (shape.nodes_low or 1),
        sum(group.usable * group.gpus_of(shape.gpu_type) for group in groups) - (shape.gpus or 0),
    )
