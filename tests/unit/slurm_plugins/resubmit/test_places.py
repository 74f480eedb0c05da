"""A job is kept off a node only where others of its kind are left."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_plugins.client.resources import Tres
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Node
from slurm_plugins.resubmit.places import alike


def node(name: str, gpus: int = 8, kind: str = "a100", cpus: int = 64, **given: Any) -> Node:
    gres = Tres((("gres/gpu", gpus), (f"gres/gpu:{kind}", gpus))) if gpus else Tres()
    return Node(name=name, state=NodeState.IDLE, cpus=cpus, memory=512 << 30, gres=gres, **given)


NODES = {
    one.name: one
    for one in (
        node("a1", features=("leaf1", "ib")),
        node("a2", features=("leaf2", "ib")),
        node("a3", features=("leaf2",)),
        node("v1", kind="v100", features=("leaf1", "ib")),
        node("big", gpus=16, cpus=128, features=("leaf3", "ib")),
        node("few", gpus=4, features=("leaf1", "ib")),
        node("old", cpus=32, features=("leaf1", "ib")),
        node("bare", gpus=0, features=("leaf1", "ib")),
    )
}
ALL = tuple(NODES)


@pytest.mark.parametrize(
    ("ran_on", "features", "found"),
    [
        (("a1",), None, {"a1", "a2", "a3", "big"}),
        (("a1",), "ib", {"a1", "a2", "big"}),
        (("a1",), "ib&(leaf1|leaf2)", {"a1"}),
        (("a3",), "ib|leaf2", {"a2", "a3"}),
        (("v1",), None, {"v1"}),
        (("big",), None, {"big"}),
        (("bare",), None, set(ALL) - {"old"}),
        (("a1", "v1"), None, {"a1", "a2", "a3", "big", "v1"}),
        (("gone",), None, set(ALL)),
        ((), "ib", set(ALL)),
    ],
)
def test_alike(ran_on, features, found):
    assert set(alike(ALL, NODES, ran_on, features)) == found


def test_only_nodes_that_are_offered_and_known():
    assert alike(("a2", "unknown"), NODES, ("a1",)) == ("a2",)
    assert alike((), NODES, ("a1",)) == ()
