"""Which jobs to stop so that another gets a place: tried on a copy of the room first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_plugins.replay.desk import Desk
from slurm_plugins.replay.needs import Level, Need, Parts

__all__ = ["victims"]


def victims(
    desk: Desk, need: Need, level: Level, candidates: Sequence[int], held: Iterable[Parts] = ()
) -> list[int]:
    """The first of the candidates that make room for a need, less those that do not help; empty: all do not.

    `held` are places that whoever has the need holds already.
    """
    held = list(held)
    free = desk.room.free_for(need) + sum(gpus for parts in held for _, gpus in parts)
    if free + sum(desk.need[other].gpus for other in candidates) < need.gpus:
        return []
    trial = desk.room.copy()
    for parts in held:
        trial.give(parts, need)
    taken: list[int] = []
    for other in candidates:
        trial.give(desk.where[other], desk.need[other])
        taken.append(other)
        free += desk.need[other].gpus
        if free >= need.gpus and trial.find(need, level) is not None:
            break
    else:
        return []
    for other in taken[:-1]:
        trial.take(desk.where[other], desk.need[other])
        if trial.find(need, level) is None:
            trial.give(desk.where[other], desk.need[other])
        else:
            taken = [kept for kept in taken if kept != other]
    return taken
