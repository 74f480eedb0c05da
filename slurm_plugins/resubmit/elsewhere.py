"""Other nodes: which ones a job is kept off after it failed, so that it can still start.

And the proof that it is not the nodes: the same evidence on three of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from site_configs.hostlist import fold
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.budget import is_ours
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Past

__all__ = ["MOST_EXCLUDED", "PLACES", "Elsewhere", "cap", "elsewhere", "same_evidence"]

PLACES: Final = 3
"""As many places that have no node in common show that it is not the nodes."""
MOST_EXCLUDED: Final = 256
"""Nodes that a job may exclude, as gsub-act takes them."""
_LONGEST: Final = 1024
"""Characters of `Resubmission.exclude`."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The nodes to be kept off from now on besides those before; without any, why ("" where nothing is amiss)."""

    avoid: tuple[str, ...] = ()
    why: str = ""


def suspects(nodes: tuple[str, ...], node: str) -> tuple[str, ...]:
    """Where it failed: the node that failed first, else the only one. Of several nobody knows which.

    A node that it did not run on is none: who writes the log could name any.
    """
    if node in nodes:
        return (node,)
    return nodes if len(nodes) == 1 else ()


def cap(partition_nodes: int, policy: Resubmit) -> int:
    """How many nodes gsub may keep a job off by itself: a tenth of the partition, never more than half of it.

    Two in small ones: less could not show the same evidence on a third.

    >>> [cap(nodes, Resubmit()) for nodes in (1, 2, 3, 4, 8, 50, 1000)]
    [0, 1, 1, 2, 2, 5, 8]
    """
    return min(max(partition_nodes // 10, PLACES - 1), partition_nodes // 2, policy.avoid_most)


def elsewhere(attempt: Attempt, failure: Failure, past: Past, policy: Resubmit) -> Elsewhere:
    """The nodes to keep off. It can start all the same: as many as it ran on are left of its partition."""
    found = tuple(node for node in suspects(attempt.nodes, failure.node) if node not in attempt.excluded)
    if not attempt.nodes:
        return Elsewhere(why="where it ran is not known")
    if not suspects(attempt.nodes, failure.node):
        return Elsewhere(why="which of its nodes failed is not known")
    if not found:
        return Elsewhere()
    if not set(found).isdisjoint(attempt.required):
        return Elsewhere(why="it asks for that node itself (--nodelist)")
    partition = frozenset(attempt.partition_nodes)
    if not partition:
        return Elsewhere(why="which nodes it could run on is not known")
    ours = {node for row in past.attempts if row.resubmission and is_ours(row.resubmission)
            for node in row.resubmission.avoid}  # fmt: skip
    if len(ours | set(found)) > cap(len(partition), policy):
        return Elsewhere(why="it is kept off as many nodes as gsub may keep it off")
    excluded = set(attempt.excluded) | set(found)
    if len(partition - excluded) < max(1, len(attempt.nodes)):
        return Elsewhere(why="without these nodes too few would be left for it")
    if len(excluded) > MOST_EXCLUDED or len(fold(excluded)) > _LONGEST:
        return Elsewhere(why="it excludes as many nodes as it can")
    return Elsewhere(found)


def same_evidence(
    attempt: Attempt, failure: Failure, earlier: Sequence[Earlier], mark: Callable[[Failure], str]
) -> tuple[tuple[str, ...], ...]:
    """The places, of which no two share a node, where the same evidence was seen: this attempt's, then others.

    `mark` is what makes evidence the same; "" is none. A place is the node that failed, or all of an attempt's where
    that is not known. Empty without evidence or nodes.
    """
    here = suspects(attempt.nodes, failure.node) or attempt.nodes
    if not mark(failure) or not here:
        return ()
    places = [here]
    taken = set(here)
    for one in reversed(earlier):
        if mark(one.failure) != mark(failure):
            continue
        there = suspects(one.nodes, one.failure.node) or one.nodes
        if there and taken.isdisjoint(there):
            places.append(there)
            taken.update(there)
    return tuple(places)
