"""When a waiting job's memory may be set: where no limit of accounting holds for it, and it costs no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.act.allowed import PARTITION_LIMITS, Need, find_excess, find_obstacle, need_of
from slurm_plugins.client.values import Job, Partition, Tres
from slurm_plugins.limits.bounds import LIMITS, NotKnownError
from slurm_plugins.limits.lookup import Room
from slurm_plugins.limits.records import Association, Associations, Limits, Qos
from tests.unit.slurm_plugins.act.fakes import pending

GPU, DEBUG = Partition(name="gpu", state="UP"), Partition(name="debug", state="UP")


def told(account: Limits | None = None, **qos: Limits) -> Associations:
    """User 1001 in account lab, and QOS normal without a limit."""
    return Associations.of(
        [
            Association("root", None, "", ""),
            Association("lab", None, "", "root", limits=account or Limits()),
            Association("lab", 1001, "", "", "user1"),
        ],
        [Qos(name, limits, whole=True) for name, limits in {"normal": Limits(), **qos}.items()],
    )


TIGHT = told(tight=Limits(per_job={"mem": 4000}))
ROOM = Room((GPU,), 512000, enforced=True, associations=TIGHT)


def user1(**fields: Any) -> Job:
    return pending(7, **({"uid": 1001} | fields))


def said(job: Job, each: int, room: Room = ROOM) -> str:
    """What a job is told that is to have so many MiB on each node."""
    need = need_of(job, {"MinMemoryNode": str(each)})
    assert need is not None
    return find_obstacle(job, need, room)


def accounting(account: Limits | None = None, **qos: Limits) -> Room:
    return replace(ROOM, associations=told(account, **qos))


def partition(**limits: int) -> Room:
    """Partition gpu has these limits, MiB."""
    bytes_: dict[str, Any] = {name: most << 20 for name, most in limits.items()}
    return replace(ROOM, partitions=(replace(GPU, **bytes_),))


def charging(weights: str, flags: str = "") -> Room:
    return replace(
        ROOM, partitions=(replace(GPU, billing_weights=weights),), bills=True, priority_flags=flags
    )


WIDE = user1(num_nodes=4, num_cpus=4)
ROWS = [
    ("no limit", user1(), 6500, ROOM, ""),
    ("a limit of CPUs", user1(), 6500, accounting(Limits(per_job={"cpu": 1})), ""),
    ("the QOS's for a job", user1(qos="tight"), 4001, ROOM, "MaxTRESPerJob of QOS tight"),
    ("within it too", user1(qos="tight"), 1, ROOM, "hold the job to it no longer"),
    ("an account's, for a node", user1(), 1, accounting(Limits(per_node={"mem": 9})), "MaxTRESPerNode of account lab"),
    ("an account's, in all", user1(), 1, accounting(Limits(shared={"GrpTRES": {"mem": 9}})), "GrpTRES of account lab"),
    ("minutes", user1(), 1, accounting(normal=Limits(shared={"GrpTRESMins": {"mem": 9}})), "GrpTRESMins of QOS normal"),
    ("the least", user1(), 1, accounting(normal=Limits(least={"mem": 9})), ""),
    ("the partition's", user1(), 3001, partition(max_memory_per_node=3000), "MaxMemPerNode of partition gpu"),
    ("the partition's for a CPU", WIDE, 1001, partition(max_memory_per_cpu=1000), "MaxMemPerCPU of partition gpu"),
    ("just within this", WIDE, 1000, partition(max_memory_per_cpu=1000), ""),
    ("slurm.conf's for a node", user1(), 3001, replace(ROOM, per_node=3000), "MaxMemPerNode of slurm.conf is 3000"),
    ("slurm.conf's for a CPU", user1(), 3001, replace(ROOM, per_cpu=3000), "MaxMemPerCPU of slurm.conf is 3000"),
    ("a partition's takes its place", user1(), 3001, replace(partition(max_memory_per_node=4000), per_node=3000), ""),
    ("the biggest node", user1(), 512001, ROOM, "more than a node of gpu gives, 512000 MiB"),
    ("nothing is enforced", user1(qos="tight"), 400000, replace(ROOM, enforced=False), ""),
    ("memory is charged", user1(), 1, charging("Mem=0.25G"), "partition gpu charges for memory"),
    ("GPUs are", user1(), 1, charging("GRES/gpu=1"), ""),
    ("the most is charged", user1(num_cpus=4), 4096, charging("CPU=1,Mem=1G", "MAX_TRES"), ""),
    ("and memory is that", user1(num_cpus=4), 4097, charging("CPU=1,Mem=1G", "MAX_TRES"), "charges for memory"),
]  # fmt: skip


@pytest.mark.case("A1")
@pytest.mark.parametrize(
    ("job", "each", "room", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_each_limit_is_obeyed_and_named(job: Job, each: int, room: Room, words: str) -> None:
    assert (
        not words
        or words.split(maxsplit=1)[0] not in {*LIMITS, *PARTITION_LIMITS}
        or f"the limit {words}" in said(job, each, room)
    )
    found = said(job, each, room)
    assert words in found and bool(found) == bool(words), found


UNKNOWN = [
    (user1(), replace(ROOM, associations=None, missing="Slurm's answer was not understood"), "what accounting lets"),
    (user1(qos=None), ROOM, "which QOS"),
    (user1(qos="gone"), ROOM, "QOS gone"),
    (user1(account=None), ROOM, "which user and account"),
    (user1(account="gone"), ROOM, "account gone"),
    (user1(uid=1002), ROOM, "account lab allows its user"),
    (user1(partition="gone"), replace(ROOM, partitions=()), "partition gone"),
    (user1(num_nodes=None), partition(max_memory_per_cpu=1000), "how many nodes"),
    (user1(), charging("?"), "charges is not understood"),
]  # fmt: skip


@pytest.mark.parametrize(("job", "room", "words"), UNKNOWN, ids=[row[2] for row in UNKNOWN])
def test_what_is_not_known_is_named(job: Job, room: Room, words: str) -> None:
    with pytest.raises(NotKnownError, match=words):
        said(job, 100, room)


@pytest.mark.case("A1")
@pytest.mark.parametrize(
    ("job", "room", "words"),
    [
        (user1(), ROOM, ""),
        (user1(num_nodes=400), ROOM, ""),
        (user1(qos="tight"), ROOM, ""),
        (user1(qos="tight", num_nodes=2), ROOM, "MaxTRESPerJob of QOS tight is 3.9G of memory"),
        (user1(num_nodes=2), accounting(Limits(shared={"GrpTRES": {"mem": 5000}})), "GrpTRES of account lab"),
        (user1(), partition(max_memory_per_node=2000), "MaxMemPerNode"),
    ],
)
def test_a_job_that_grew_while_it_waited_is_seen(job: Job, room: Room, words: str) -> None:
    found = find_excess(job, Need(3000, False, job.num_nodes, job.num_cpus), room)
    assert bool(found) == bool(words)
    assert words.split(" is ", maxsplit=1)[0] in found


@given(
    each=st.integers(1, 10**6), per_cpu=st.booleans(), nodes=st.integers(1, 100), more=st.integers(0, 1000)
)
def test_a_job_has_as_much_as_its_nodes_and_cpus_have(
    each: int, per_cpu: bool, nodes: int, more: int
) -> None:
    need = Need(each, per_cpu, nodes, nodes + more)
    assert need.of("node") <= need.of("job") <= need.of("node") * nodes
    assert need.of("cpu") * (nodes + more) >= need.of("job") >= need.of("cpu")


def test_gpus_are_charged_as_before() -> None:
    """MAX_TRES: what the GPUs cost is more than its memory."""
    job = user1(tres=Tres((("gres/gpu", 4),)))
    assert not said(job, 4096, charging("Mem=1G,GRES/gpu=2", "MAX_TRES"))
