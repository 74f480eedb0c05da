"""Leaving out nodes that evidence speaks against.

What the evidence is, and whose, is the store's business (`Knowledge.avoid`); here is only how much a job may be kept
from: never more than a tenth of a partition, and never so much that it could not run on the nodes that are up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from site_configs.hostlist import MAX_NODES, HostlistError, expand, fold
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.eligible import Place
from slurm_plugins.decide.ground import Ground, ground
from slurm_plugins.decide.inventory import Kind, Pool
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
        chosen, left = _chosen(request, context, found)
        notes: tuple[Note, ...] = ()
        if left:
            text = f"{left} more should be avoided: a tenth of a partition is the most, and enough nodes must be left"
            notes = (Note(text, inputs={"avoided": len(chosen), "not_avoided": left}),)
        return _proposal(request, chosen, notes)


def to_avoid(request: Request, context: Context, found: Ground) -> frozenset[str]:
    """The nodes that this stage will leave out: those before it count without them."""
    return frozenset(_chosen(request, context, found)[0]) if _known(request, context) else frozenset()


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


def _chosen(request: Request, context: Context, found: Ground) -> tuple[dict[str, str], int]:
    """The nodes to leave out with their reasons, the worst first; and how many more should be, and are not."""
    pools = {place.pool.name: place.pool for place in found.places}
    wanted = {node: why for name in pools for node, why in context.knowledge.avoid(name).items()}
    required = {node for place in found.places for node in place.required}
    places = list(found)
    if request.job.prefer:
        # Slurm refuses a job whose --prefer no nodes could ever meet.
        preferred = ground(_as_constraint(request), context)
        if preferred is None:
            return {}, 0
        places += preferred
    rooms = [(place.pool.name, _room(found.shape, place, kinds, wanted)) for place, kinds in places]
    allowed = {name: pool.nodes // PART for name, pool in pools.items()}
    chosen: dict[str, str] = {}
    left = 0
    for node, why in wanted.items():
        among = {name for name, room in rooms if node in room.names}
        if not among or node in required:
            continue
        if all(room.can_lose(node) for _, room in rooms) and all(allowed[name] for name in among):
            chosen[node] = why
            for _, room in rooms:
                room.lose(node)
            for name in among:
                allowed[name] -= 1
        else:
            left += 1
    return chosen, left


def _as_constraint(request: Request) -> Request:
    job = msgspec.structs.replace(request.job, features=request.job.prefer, prefer=None)
    return msgspec.structs.replace(request, job=job)


def _room(shape: Shape, place: Place, kinds: tuple[Kind, ...], wanted: Mapping[str, str]) -> _Room:
    # Which nodes of a kind are up is not known, so each that is left out is taken for one that is.
    return _Room(
        {
            name: kind.gpus_of(shape.gpu_type)
            for kind in kinds
            for name in _names(place.pool, kind).intersection(wanted)
        },
        sum(kind.usable for kind in kinds) - (shape.nodes_low or 1),
        sum(kind.usable * kind.gpus_of(shape.gpu_type) for kind in kinds) - (shape.gpus or 0),
    )


def _names(pool: Pool, kind: Kind) -> frozenset[str]:
    if any(kind is own for own in pool.kinds):  # it lives as long as the pool: its id names it
        return pool.remember(("avoid_nodes", id(kind)), lambda: frozenset(kind.nodes))
    return frozenset(kind.nodes)


def _proposal(request: Request, chosen: Mapping[str, str], notes: tuple[Note, ...]) -> Proposal:
    stated = request.job.exc_nodes
    try:
        before = set(expand(stated, MAX_NODES)) if stated else set()
    except HostlistError:
        return Proposal(notes=notes)
    new = [node for node in chosen if node not in before]
    if not new:
        return Proposal(notes=notes)
    together = fold({*before, *new})
    if len(together) > _MAX_LIST:
        return Proposal(notes=(*notes, Note("the list of nodes to exclude would be too long for Slurm")))
    told = "; ".join(f"{node}: {chosen[node]}" for node in new[:_TOLD])
    if len(new) > _TOLD:
        told += f"; and {len(new) - _TOLD} more"
    return Proposal((Change("exc_nodes", stated or None, together, told),), notes)
