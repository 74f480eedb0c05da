"""Where a job could run: of its partition's nodes those that are what its own were, as far as it may ask for that.

A partition may have nodes of several kinds. What exactly a job asks for (an expression of features, GPUs of a type)
only Slurm can weigh; a node that has all that one of its own had would do as well, and that can be seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from slurm_plugins.client.values import Node

__all__ = ["alike"]

_FEATURE: Final = re.compile(r"[A-Za-z0-9_.=-]+")


def alike(
    names: Sequence[str], nodes: Mapping[str, Node], ran_on: Sequence[str], features: str | None = None
) -> tuple[str, ...]:
    """Those of `names` that have no less than one of the nodes it ran on; all where nothing is known of those.

    CPUs, memory, GPUs and other GRES are compared, and of the features those that the job's --constraint names: others
    (a rack, a switch) tell nodes apart that do the same.

    >>> from slurm_plugins.client.states import NodeState
    >>> sizes = {"n1": 64, "n2": 32, "n3": 64}
    >>> nodes = {name: Node(name=name, state=NodeState.IDLE, memory=memory) for name, memory in sizes.items()}
    >>> alike(("n1", "n2", "n3"), nodes, ("n1",)), alike(("n1", "n2", "n3"), nodes, ("n2",))
    (('n1', 'n3'), ('n1', 'n2', 'n3'))
    """
    kinds = [nodes[name] for name in dict.fromkeys(ran_on) if name in nodes]
    if not kinds:
        return tuple(names)
    asked = frozenset(_FEATURE.findall(features or ""))
    return tuple(
        name for name in names if name in nodes and any(_has_all(nodes[name], kind, asked) for kind in kinds)
    )


def _has_all(node: Node, kind: Node, asked: frozenset[str]) -> bool:
    if node.name == kind.name:
        return True
    if (node.cpus or 0) < (kind.cpus or 0) or (node.memory or 0) < (kind.memory or 0):
        return False
    if any(node.gres.get(name, 0) < count for name, count in kind.gres.items()):
        return False
    return (asked & _features(kind)) <= _features(node)


def _features(node: Node) -> frozenset[str]:
    return frozenset(node.features) | frozenset(node.active_features)
