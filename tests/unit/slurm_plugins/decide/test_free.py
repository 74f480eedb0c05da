"""Whether a job waits for GPUs that are lacking, or for some that lie together."""

from __future__ import annotations

import pytest

from slurm_plugins.client.parse import tres
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.states import JobState, NodeState
from slurm_plugins.client.values import Job, Node
from slurm_plugins.decide import free
from slurm_plugins.decide.free import Causes, cause, free_gpus, wants_nodes


def job(**changes: object) -> Job:
    known: dict[str, object] = {
        "id": 7,
        "name": "train",
        "user": "ada",
        "state": JobState.PENDING,
        "partition": "gpu",
        "priority": 100,
        "reason": "Resources",
        "num_nodes": 1,
        "gpus": 4,
    }
    return Job(**(known | changes))  # type: ignore[arg-type]


def node(name: str, used: int, **changes: object) -> Node:
    known: dict[str, object] = {
        "name": name,
        "state": NodeState.MIXED,
        "gres": tres("gres/gpu=8"),
        "tres": tres("cpu=64,gres/gpu=8"),
        "tres_allocated": tres(f"gres/gpu={used}"),
        "cpus_allocated": 1,
        "partitions": ("gpu",),
        "features": ("leaf1",),
    }
    return Node(**(known | changes))  # type: ignore[arg-type]


NODES = [node("n1", 6), node("n2", 7), node("n3", 8), node("n4", 0, flags=frozenset({"DRAIN"}))]


def test_free_and_all_gpus_of_each_node() -> None:
    assert free_gpus(job(), NODES) == ([2, 1, 0], [8, 8, 8, 8])


@pytest.mark.parametrize(
    ("changes", "free_ones"),
    [
        ({"partition": "cpu"}, []),
        ({"partition": "cpu,gpu"}, [2, 1, 0]),
        ({"excluded_nodes": Hosts("n[1-2]")}, [0]),
        ({"required_nodes": Hosts("n1")}, [2]),
        ({"required_nodes": Hosts("n1"), "num_nodes": 2}, [2, 1, 0]),  # and one more
        ({"required_nodes": Hosts("n[1-2]"), "num_nodes": 2}, [2, 1]),
        ({"features": "leaf1"}, [2, 1, 0]),
        ({"features": "leaf2"}, []),
        ({"features": "leaf2|leaf1"}, [2, 1, 0]),
        ({"features": "leaf1&("}, []),  # nothing is known of a constraint that is not understood
    ],
)
def test_only_nodes_that_suit_the_job_count(changes: dict[str, object], free_ones: list[int]) -> None:
    assert free_gpus(job(**changes), NODES)[0] == free_ones


def test_features_that_a_node_has_now_count_before_those_it_may_have() -> None:
    rebooted = node("n1", 6, features=("leaf1", "leaf2"), active_features=("leaf2",))
    assert free_gpus(job(features="leaf1"), [rebooted]) == ([], [])
    assert free_gpus(job(features="leaf2"), [rebooted]) == ([2], [8])


def test_gpus_are_those_of_the_type_that_is_asked_for() -> None:
    mixed = {"gres": tres("gres/gpu:a100=4,gres/gpu:v100=4")}
    known = node("n1", 0, tres_allocated=tres("gres/gpu=5,gres/gpu:a100=1,gres/gpu:v100=4"), **mixed)
    unknown = node("n2", 3, **mixed)  # which of them are held, this Slurm does not tell
    asked = job(tres_per_node=tres("gres/gpu:a100=2"))
    assert free_gpus(asked, [known, unknown]) == ([3, 1], [4, 4])
    assert free_gpus(job(tres_per_node=tres("gres/gpu:h100=1")), [known]) == ([], [])
    both = job(tres_per_node=tres("gres/gpu:a100=2,gres/gpu:v100=2"))
    assert free_gpus(both, [known]) == ([], [])


def test_a_slurm_that_does_not_count_gpus_makes_nothing_known() -> None:
    assert free_gpus(job(), [*NODES, node("n5", 0, tres=tres("cpu=64"), tres_allocated=tres("cpu=1"))]) == (
        [],
        [],
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": 3}, "locality"),
        ({"gpus": 4}, "resources"),
        ({"gpus": 1}, "locality"),
        ({"gpus": 3, "reason": "Priority"}, "priority"),
        ({"gpus": 3, "reason": "QOSMaxGRESPerUser"}, "limits"),
        ({"gpus": 3, "reason": "Dependency"}, "user"),
        ({"gpus": 8, "switches": 1}, "locality"),
        ({"gpus": None}, "resources"),
    ],
)
def test_as_many_gpus_as_it_asks_for_are_free_and_it_cannot_have_them(
    changes: dict[str, object], expected: str
) -> None:
    assert cause(job(**changes), NODES) == expected


def test_without_nodes_gpus_are_lacking() -> None:
    assert cause(job(gpus=1)) == "resources"


def test_nodes_are_asked_for_only_where_they_tell_more() -> None:
    assert wants_nodes(job())
    assert not wants_nodes(job(gpus=None))
    assert not wants_nodes(job(reason="Priority"))


def test_of_more_kinds_of_requests_than_are_held_against_the_nodes_gpus_count_as_lacking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(free, "_MOST", 2)
    causes = Causes(NODES)
    asked = [job(gpus=1), job(gpus=1, features="leaf1"), job(gpus=1, features="leaf1|leaf2"), job(gpus=3)]
    assert [causes.of(each) for each in asked] == ["locality", "locality", "resources", "locality"]
