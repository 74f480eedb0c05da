"""When a smoke job ends because its GPU is the last one that a waiting job lacks."""

from __future__ import annotations

import dataclasses

import pytest

from gsub.smoke.making_way import in_the_way, limited, room
from slurm_plugins.client.parse import hosts, tres
from slurm_plugins.client.values import Job, JobState, Node, NodeState

SMOKE = 7


def job(number: int, state: JobState, gpus: int, *, on: str = "", nodes: int = 1, **more: str) -> Job:
    name = more.get("name", "train")
    return Job(
        id=number,
        name=name,
        user="ada",
        state=state,
        reason=more.get("reason", "Resources"),
        partition="gpu",
        nodes=hosts(on),
        num_nodes=nodes,
        gpus=gpus,
    )


def node(name: str, taken: int, state: NodeState = NodeState.MIXED) -> Node:
    return Node(
        name=name,
        state=state,
        gres=tres("gres/gpu=8"),
        tres=tres("cpu=64,gres/gpu=8"),
        tres_allocated=tres(f"cpu=8,gres/gpu={taken}"),
        cpus_allocated=8,
        partitions=("gpu",),
    )


OURS = job(SMOKE, JobState.RUNNING, 1, on="n1", name="smoke-a")
OTHER = job(8, JobState.RUNNING, 1, on="n1", name="smoke-b")
WAITS = job(5, JobState.PENDING, 16, nodes=2)
FAR = job(9, JobState.PENDING, 16, nodes=2, reason="Priority")


@pytest.mark.parametrize(
    ("jobs", "nodes", "found"),
    [
        pytest.param([OURS, WAITS], [node("n1", 1), node("n2", 0)], 5, id="the last GPU"),
        pytest.param([OURS, WAITS], [node("n1", 2), node("n2", 0)], 0, id="another's GPU too"),
        pytest.param([OURS, OTHER, WAITS], [node("n1", 2), node("n2", 0)], 5, id="two smokes"),
        pytest.param([OURS, WAITS], [node("n1", 1), node("n2", 3)], 0, id="the other node is taken"),
        pytest.param([OURS, WAITS], [node("n1", 1), node("n2", 0), node("n3", 0)], 0, id="room elsewhere"),
        pytest.param([OURS, FAR], [node("n1", 1), node("n2", 0)], 0, id="not its turn"),
        pytest.param([OURS, WAITS], [node("n1", 1), node("n2", 0, NodeState.DOWN)], 0, id="a node is down"),
        pytest.param([OURS], [node("n1", 1), node("n2", 0)], 0, id="nobody waits"),
    ],
)
def test_who_waits_for_what_a_smoke_job_holds(jobs: list[Job], nodes: list[Node], found: int) -> None:
    assert in_the_way(SMOKE, jobs, nodes) == found


def test_what_slurm_does_not_count_is_not_in_the_way() -> None:
    untold = Node(
        name="n1", state=NodeState.MIXED, gres=tres("gres/gpu=8"), cpus_allocated=8, partitions=("gpu",)
    )
    assert in_the_way(SMOKE, [OURS, WAITS], [untold, node("n2", 0)]) == 0


HELD = dataclasses.replace(WAITS, priority=0)


@pytest.mark.parametrize(
    ("jobs", "taken", "found"),
    [
        pytest.param([OURS, WAITS], 1, True, id="all but ours is free"),
        pytest.param([OURS, FAR], 1, True, id="whatever it waits for"),
        pytest.param([OURS, OTHER, WAITS], 2, True, id="two smokes"),
        pytest.param([OURS, WAITS], 2, False, id="another's GPU too"),
        pytest.param([OURS, job(5, JobState.PENDING, 4)], 1, False, id="it has room as it is"),
        pytest.param([OURS, job(5, JobState.PENDING, 4)], 5, True, id="it is small"),
        pytest.param([OURS, HELD], 1, False, id="held"),
        pytest.param([OURS, job(5, JobState.PENDING, 8, name="smoke-b")], 1, False, id="a smoke job waits"),
        pytest.param([OURS, job(5, JobState.PENDING, 0)], 1, False, id="no GPUs"),
        pytest.param([OURS], 1, False, id="nobody waits"),
    ],
)
def test_whether_a_node_would_do_without_the_smoke_jobs(jobs: list[Job], taken: int, found: bool) -> None:
    assert room(jobs, {"n1": (8, taken)}) is found
    assert room(jobs, {"n2": (8, taken), "n1": (8, taken)}) is found
    assert not room(jobs, {})


@pytest.mark.parametrize(
    "reason", ["QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser", "AssocMaxJobsLimit", "AssocGrpGRES"]
)
def test_a_limit_of_the_user_that_only_smoke_jobs_use_up(reason: str) -> None:
    waits = job(5, JobState.PENDING, 16, nodes=2, reason=reason)
    assert limited([OURS, OTHER, waits]) == 5
    assert limited([OURS, job(6, JobState.RUNNING, 8), waits]) == 0  # it may be that one
    assert limited([waits]) == limited([OURS, WAITS]) == limited([OURS, FAR]) == 0
    assert limited([OURS, job(5, JobState.PENDING, 1, reason="QOSMaxGRESPerJob")]) == 0  # never starts
