"""What gang makes of requests: a table for each kind of cluster, and what holds for all of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings

from site_configs.site_model import Policy, Site
from slurm_plugins.decide.context import Context, SlurmFacts
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Request, with_edits
from slurm_plugins.decide.shape import NotUnderstood, shape_of
from slurm_plugins.decide.stages.gang import Gang
from tests.properties import examples
from tests.unit.slurm_plugins.decide.cluster import (
    CLUSTERS,
    big,
    block,
    context,
    features,
    inventory,
    mig,
    mixed,
    nodes,
    partition,
    two_leaves,
    untyped,
)
from tests.unit.slurm_plugins.decide.strategies import requests
from tests.unit.slurm_plugins.decide.table import ID, Row, ask, grid, made

REPACK = {"GSUB_REPACK": "yes"}
KEPT: dict[str, int | str] = {}

TWO_LEAVES = [
    # GPUs in all
    Row("--gpus=1", KEPT),
    Row("--gpus=1 -n 1 -c 8", KEPT),
    Row("--gpus=1 -n 4", grid(1), "1 node x 1 GPU: the fewest nodes that hold 1 GPU"),
    Row("--gpus=4", grid(1), "1 node x 4 GPUs"),
    Row("--gpus=8", grid(1, whole=True), "it takes all 8 GPUs of its node"),
    Row("--gpus=16", grid(2, "gpu:8", whole=True), "the fewest nodes that hold 16 GPUs evenly"),
    Row("--gpus=12", grid(2, "gpu:6"), "else Slurm may give one node more GPUs than another"),
    Row("--gpus=20", grid(4, "gpu:5"), "4 nodes x 5 GPUs"),
    Row("--gpus=64", grid(8, "gpu:8", whole=True), "8 nodes x 8 GPUs"),
    Row("--gpus=13", KEPT, "13 GPUs do not divide evenly over nodes of 8 GPUs"),
    Row("--gpus=65", KEPT, "has no nodes that hold its GPUs"),
    Row("--gpus=72", KEPT, "has no nodes that hold its GPUs"),
    Row("--gpus=a100:16", grid(2, "gpu:a100:8", whole=True), "2 nodes x 8 GPUs"),
    Row("--gpus=v100:8", KEPT, "no nodes that hold its v100 GPUs"),
    Row("--gpus=a100:4,v100:4", KEPT, "several types of GPU"),
    # with tasks
    Row("--gpus=16 -n 16", grid(2, "gpu:8", 8, whole=True), "16 tasks on 2 nodes: the same number on each"),
    Row("--gpus=16 -n 2", grid(2, "gpu:8", 1, whole=True), "2 tasks on 2 nodes"),
    Row("--gpus=16 -n 4 -c 16", grid(2, "gpu:8", 2), "16 GPUs and 4 tasks evenly"),
    Row("--gpus=16 -n 16 --ntasks-per-socket=2", KEPT, "by socket, core or board"),
    Row("--gpus=16 -n 16 --ntasks-per-core=1", KEPT, "by socket, core or board"),
    Row("--gpus=4 --mincpus=100", KEPT, "none with the CPUs and memory"),
    Row("--gpus=16 -n 3", KEPT, "16 GPUs and 3 tasks do not divide evenly"),
    Row("--gpus=16 -n 1", KEPT, "16 GPUs and 1 task do not divide evenly"),
    Row("--gpus=4 -n 4", grid(1), "1 node x 4 GPUs"),
    Row("--gpus=8 --ntasks-per-node=8", grid(1, whole=True), "1 node x 8 GPUs"),
    Row("--gpus=16 -n 16 --ntasks-per-node=8", grid(2, "gpu:8", whole=True), "2 nodes x 8 GPUs"),
    Row("--gpus=16 -n 16 --ntasks-per-node=4", grid(4, "gpu:4"), "4 nodes x 4 GPUs"),
    # GPUs for each task
    Row("-n 16 --gpus-per-task=1", grid(2, each=8, whole=True), "16 GPUs and 16 tasks evenly"),
    Row("-n 4 --gpus-per-task=2", grid(1, whole=True), "1 node x 8 GPUs"),
    Row("-n 4 --gpus-per-task=1", grid(1), "the fewest nodes that hold 4 GPUs"),
    Row("-n 8 --gpus-per-task=3", grid(4, each=2), "4 nodes x 6 GPUs"),
    Row("-n 3 --gpus-per-task=8", grid(3, each=1, whole=True), "3 nodes x 8 GPUs"),
    Row("-n 2 --gpus-per-task=9", KEPT, "do not divide evenly"),
    Row("--gpus=8 --gpus-per-task=2", grid(1, whole=True), "1 node x 8 GPUs"),
    Row("-N 2 -n 4 --gpus-per-task=2", {"ntasks_per_node": 2}, "4 tasks on 2 nodes"),
    Row("-N 2 --ntasks-per-node=2 --gpus-per-task=2", KEPT),
    Row("-N 2 -n 5 --gpus-per-task=1", KEPT, "5 GPUs and 5 tasks do not divide evenly over 2 nodes"),
    # tasks for each GPU: neither tasks nor tasks on a node may be stated beside it
    Row("--gpus=16 --ntasks-per-gpu=1", grid(2, "gpu:8", whole=True), "2 nodes x 8 GPUs"),
    Row("--gpus=2 --ntasks-per-gpu=2", grid(1), "1 node x 2 GPUs"),
    Row("-n 4 --ntasks-per-gpu=2", grid(1), "1 node x 2 GPUs"),
    Row("-n 5 --ntasks-per-gpu=2", KEPT, "5 tasks are not a multiple of 2 for each GPU"),
    # GPUs on each node
    Row("--gpus-per-node=4", KEPT),
    Row("--gres=gpu:1", KEPT),
    Row("--gres=gpu:a100:2", KEPT),
    Row("--gres=gpu:8", {"shared": 0}, "it takes all 8 GPUs of its node"),
    Row("-N 2 --gpus-per-node=8", {"shared": 0}, "each of its nodes"),
    Row("-N 2 --gres=gpu:8 --ntasks-per-node=8", {"shared": 0}),
    Row("-N 2 --gres=gpu:4 -n 8", {"ntasks_per_node": 4}, "8 tasks on 2 nodes"),
    Row("-n 4 --gres=gpu:4", grid(1), "its 4 tasks fit on one node"),
    Row("-n 8 -c 16 --gres=gpu:4", KEPT, "its tasks need more than one node"),
    Row("-n 16 --ntasks-per-node=8 --gres=gpu:8", grid(2, whole=True), "16 tasks, 8 on each node"),
    Row("-n 9 --ntasks-per-node=8 --gres=gpu:8", KEPT, "9 tasks do not fill nodes of 8 tasks"),
    Row("--gpus=16 --gpus-per-node=8", {"shared": 0}),
    Row("--gpus=16 --gpus-per-node=5", KEPT, "16 GPUs in all are not 3 x 5"),
    Row("-N 3 --gpus=16 --gpus-per-node=8", KEPT, "16 GPUs in all are not 3 x 8"),
    # GPUs on each socket
    Row("-N 2 --gpus-per-socket=4 --sockets-per-node=2", {"ntasks_per_node": 2, "shared": 0}),
    Row("--gpus-per-socket=2 --sockets-per-node=2", KEPT),
    Row("--gpus-per-socket=2", KEPT, "open how many sockets"),
    # nodes stated: kept, and the GPUs spread evenly over them
    Row("-N 2 --gpus=4", {"gres": "gpu:2"}, "else Slurm may give one node more GPUs"),
    Row("-N 4 --gpus=16", {"gres": "gpu:4"}, "4 nodes x 4 GPUs"),
    Row("-N 4 --gpus=16 -n 16", {"gres": "gpu:4", "ntasks_per_node": 4}),
    Row("-N 1 --gpus=4", KEPT),
    Row("-N 1 --gpus=8", {"shared": 0}),
    Row("-N 3 --gpus=16", KEPT, "16 GPUs do not divide evenly over 3 nodes"),
    Row("-N 9 --gpus=18", KEPT, "has no nodes that hold its GPUs"),
    # ranges of nodes
    Row("-N 1-4 --gpus=16", grid(2, "gpu:8", whole=True), "2 nodes x 8 GPUs"),
    Row("-N 3-8 --gpus=16", grid(4, "gpu:4"), "4 nodes x 4 GPUs"),
    Row("-N 2-3 --gpus=8", grid(2, "gpu:4"), "2 nodes x 4 GPUs"),
    Row("-N 2-4 --gpus-per-node=8", KEPT, "any of them is even"),
    Row("-N 1-3 --gpus=40", KEPT, "no nodes that hold its GPUs"),
    # exclusive, shared, CPUs and memory
    Row("--exclusive --gpus=4", grid(1)),
    Row("--exclusive=user --gpus=8", grid(1)),
    Row("--oversubscribe --gpus=8", grid(1)),
    Row("--gpus=8 -c 8", grid(1), "1 node x 8 GPUs"),
    Row("--gpus=8 -n 8 -c 8", grid(1, whole=True), "all 8 GPUs"),
    Row("--gpus=8 --cpus-per-gpu=4", grid(1)),
    Row("--gpus=8 --cpus-per-gpu=8", grid(1, whole=True)),
    Row("--gpus=8 --cpus-per-gpu=16", grid(2, "gpu:4"), "2 nodes x 4 GPUs"),
    Row("--gpus=16 --cpus-per-gpu=16", grid(4, "gpu:4"), "4 nodes x 4 GPUs"),
    Row("--gpus=8 --mem=100G", grid(1, whole=True)),
    Row("--gpus=8 --mem=0", grid(1, whole=True)),
    Row("--gpus=8 --mem-per-gpu=60G", grid(1, whole=True)),
    Row("--gpus=8 --mem-per-gpu=100G", grid(2, "gpu:4"), "2 nodes x 4 GPUs"),
    Row("--gpus=8 --mem-per-cpu=64G", grid(1), "1 node x 8 GPUs"),
    Row("--gpus=8 --mem=600G", KEPT, "none with the CPUs and memory"),
    # arrays, other resources, several partitions, nodes by name
    Row("-a 0-99 --gpus=2", grid(1), "1 node x 2 GPUs"),
    Row("--gpus=16 --gres=nvme:1", grid(2, "nvme:1,gpu:8", whole=True)),
    Row("-p debug --gpus=4", grid(1)),
    Row("-p debug --gpus=16", KEPT, "has no nodes that hold its GPUs"),
    Row("-p gpu,debug --gpus=16", grid(2, "gpu:8", whole=True)),
    Row("-p nowhere --gpus=16", KEPT, "partition nowhere is not known here"),
    Row("-p cpu --gpus=4", KEPT, "no nodes that hold its GPUs"),
    Row("-n 64", KEPT),
    Row("-p cpu -n 256", KEPT),
    Row("-w n3 --gpus=4", grid(1)),
    Row("-w n[1-4] --gpus=16", grid(4, "gpu:4"), "4 nodes x 4 GPUs"),
    Row("-w n[1-4] --gpus=10", KEPT, "10 GPUs do not divide evenly over 4 nodes"),
    Row("-w n[1-4] -N 2 --gpus=16", KEPT, "different numbers of nodes"),
    Row("-w n[1-3] -n 4 --gres=gpu:4", KEPT, "more nodes were asked for than its tasks need"),
    Row("-w n1 -N 2 --gpus=16", {"gres": "gpu:8", "shared": 0}),
    Row("-w m1 --gpus=4", KEPT, "which nodes it may use is not known"),
    Row("-x n[1-4] --gpus=32", grid(4, "gpu:8", whole=True)),
    Row("-x n[1-4] --gpus=40", KEPT, "no nodes that hold"),
    Row("--reservation=maint --gpus=16", KEPT, "which nodes it may use is not known"),
    Row("-C nvlink --gpus=16", grid(2, "gpu:8", whole=True)),
    Row("-C fpga --gpus=16", KEPT, "no node fits its constraint"),
    Row("-C nvlink*2 --gpus=16", KEPT, "which nodes it may use is not known"),
    # stated shapes: kept unless asked
    Row("-N 4 --ntasks-per-node=2 --gpus-per-node=2", KEPT),
    Row("-N 4 --ntasks-per-node=2 --gpus-per-node=2", KEPT, env={"GSUB_REPACK": "no"}),
    Row(
        "-N 4 --ntasks-per-node=2 --gpus-per-node=2",
        grid(1, "gpu:8", 8, whole=True),
        "repacked from 4 nodes x 2 GPUs to 1 node x 8 GPUs",
        REPACK,
    ),
    Row(
        "-N 4 --ntasks-per-node=2 --gpus-per-node=2 --comment=gsub:repack",
        grid(1, "gpu:8", 8, whole=True),
        "the same 8 tasks on fewer nodes",
    ),
    Row(
        "-N 8 --ntasks-per-node=4 --gpus-per-node=4 --mem=100G",
        {**grid(4, "gpu:8", 8, whole=True), "min_mem_per_node": 204800},
        "the same memory in all, on fewer nodes",
        REPACK,
    ),
    Row("-N 2 --ntasks-per-node=4 --gpus-per-node=4 --mem=300G", KEPT, "", REPACK),
    Row("-N 4 --ntasks-per-node=2 --gpus-per-task=1", grid(1, each=8, whole=True), "repacked", REPACK),
    Row("-N 4 -n 8 --gpus=8", grid(1, whole=True), "repacked from 4 nodes to 1 node x 8 GPUs", REPACK),
    Row(
        "--gpus=16 --gpus-per-node=4 -n 16",
        grid(2, "gpu:8", 8, whole=True),
        "repacked from 4 nodes x 4",
        REPACK,
    ),
    Row("-N 4 --ntasks-per-node=2 --gpus-per-node=2 --mincpus=20", KEPT, "", REPACK),
    Row("-N 4 -n 16 --gpus=16", grid(2, "gpu:8", 8, whole=True), "repacked from 4 nodes", REPACK),
    Row("-N 4 --gpus-per-node=2", KEPT, "how many tasks then run on each node is not stated", REPACK),
    Row("-N 2 --ntasks-per-node=8 --gpus-per-node=8", {"shared": 0}, "", REPACK),
    Row("-N 2 -n 8 --ntasks-per-socket=2 --gpus=8", KEPT, "by socket, core or board", REPACK),
    Row("-N 4 --ntasks-per-node=2 --gpus-per-node=2 -w n[1-4]", KEPT, "", REPACK),
]

MIXED = [
    Row("--gpus=4", grid(1), "1 node x 4 GPUs"),
    Row("--gpus=8", grid(1, whole=True), "1 node x 8 GPUs"),
    Row("--gpus=32", grid(4, "gpu:8", whole=True)),
    Row("--gpus=40", grid(10, "gpu:4"), "10 nodes x 4 GPUs"),
    Row("--gpus=v100:8", grid(2, "gpu:v100:4", whole=True), "2 nodes x 4 GPUs"),
    Row("--gpus=a100:8", grid(1, whole=True)),
    Row("-p v100 --gpus=8", grid(2, "gpu:4", whole=True)),
    Row("-p v100,a100 --gpus=8", KEPT, "differ too much for one shape"),
    Row("-p v100,a100 --gpus=2", grid(1)),
    Row("-p v100,a100 -N 8 --gpus=32", {"gres": "gpu:4", "shared": 0}),
    Row("-C small --gpus=8", grid(2, "gpu:4", whole=True)),
    Row("-C big&ib --gpus=8", grid(1, whole=True)),
    Row("-C small|big --gpus=8", grid(1, whole=True)),
    Row("-C [small|big] --gpus=2", grid(1)),
    Row("-C [small|big] --gpus=8", KEPT, "differ too much for one shape"),
    Row("-C (small|big)&ib --gpus=32", grid(4, "gpu:8", whole=True)),
    Row("-C small&big|ib --gpus=8", KEPT, "which nodes it may use is not known"),
    Row("--gres=gpu:4", KEPT),
    Row("-C small --gres=gpu:4", {"shared": 0}, "all 4 GPUs"),
    Row("--gpus=8 --mem=500G", grid(1, whole=True)),
    Row("--gpus=8 -n 2 -c 16", grid(1)),
    Row("-N 2 --gpus=8 -C small", {"gres": "gpu:4", "shared": 0}),
]

UNTYPED = [
    Row("--gpus=16", grid(2, "gpu:8", whole=True), "2 nodes x 8 GPUs"),
    Row("--gpus=32", grid(4, "gpu:8", whole=True)),  # two of the nodes are drained, and may come back
    Row("--gpus=a100:8", KEPT, "no nodes that hold its a100 GPUs"),
]

MIG = [
    Row("--gres=gpu:1g.10gb:2", KEPT),
    Row("--gpus=1g.10gb:7", grid(1)),
    Row("--gpus=1g.10gb:14", grid(2, "gpu:1g.10gb:7")),
    Row("--gpus=3g.40gb:4", grid(2, "gpu:3g.40gb:2")),
    Row("--gres=gpu:1g.10gb:1,gpu:3g.40gb:1", KEPT, "several types of GPU"),
    Row("-n 4 --gpus-per-task=1g.10gb:1", grid(1)),
    Row("-p whole --gpus=16", grid(2, "gpu:8", whole=True)),
]

BLOCK = [
    Row("--gpus=32", grid(4, "gpu:8", whole=True)),
    Row("-n 64 --gpus-per-task=1 -c 24", grid(8, each=8, whole=True)),
    Row("-n 64 --gpus-per-task=1 -c 12", grid(8, each=8)),
]

FEATURES = [
    Row("--gpus=8", grid(2, "gpu:4", whole=True)),
    Row("-C [leaf1|leaf2] --gpus=16", grid(4, "gpu:4", whole=True)),
    Row("-C leaf1 --gpus=16", grid(4, "gpu:4", whole=True)),
    Row("-C [leaf1|leaf2] --gpus=20", KEPT, "no nodes that hold"),
    Row("--gpus=20", grid(5, "gpu:4", whole=True)),
]

TABLES = {
    "two-leaves": (two_leaves, TWO_LEAVES),
    "mixed": (mixed, MIXED),
    "untyped": (untyped, UNTYPED),
    "mig": (mig, MIG),
    "block": (block, BLOCK),
    "features": (features, FEATURES),
}
RELEASES = [(22, 5), (24, 11), (26, 5)]


def _name(release: object) -> str:
    return ".".join(f"{part:02}" for part in release) if isinstance(release, tuple) else str(release)


@pytest.mark.parametrize("release", RELEASES, ids=_name)
@pytest.mark.parametrize(
    ("table", "row"),
    [(table, row) for table, (_, rows) in TABLES.items() for row in rows],
    ids=lambda value: value if isinstance(value, str) else value.words,
)
def test_decision(table: str, row: Row, release: tuple[int, int]) -> None:
    row.check(TABLES[table][0](release), Gang())


@pytest.mark.parametrize("release", RELEASES, ids=_name)
def test_tasks_on_each_node_follow_the_nodes_where_their_sum_was_not_stated(release: tuple[int, int]) -> None:
    """22.05 does not tell sbatch's sum (8, as if for one node) from the user's -n 8; newer releases do."""
    here = two_leaves(release)
    if release < (24, 11):
        words = "16 GPUs and 8 tasks do not divide evenly over nodes of 8 GPUs and 8 tasks"
        Row("--gpus=16 --ntasks-per-node=8", KEPT, words).check(here, Gang())
    else:
        edits = grid(2, "gpu:8", whole=True)
        sent = ask("--gpus=16 --ntasks-per-node=8", release).num_tasks
        assert sent == (8 if release < (26, 5) else None)
        decision = Row("--gpus=16 --ntasks-per-node=8", {}).decide(here, Gang())
        assert made(decision) == (edits if sent is None else {**edits, "num_tasks": 16})
        assert decision.env.get("SLURM_NTASKS") == (None if sent is None else "16")
    Row("--gpus=16 -n 8 --ntasks-per-node=8", KEPT, "do not divide").check(here, Gang())


def test_a_site_may_repack_every_job_and_a_job_may_refuse() -> None:
    site = Site(cluster="test", policy=Policy(mode="enforce", repack=True))
    spread = "-N 4 --ntasks-per-node=2 --gpus-per-node=2"
    Row(spread, grid(1, "gpu:8", 8, whole=True), "repacked").check(two_leaves(site=site), Gang())
    Row(spread, KEPT, env={"GSUB_REPACK": "no"}).check(two_leaves(site=site), Gang())
    Row(f"{spread} --comment=gsub:repack=no", KEPT).check(two_leaves(site=site), Gang())


def test_nodes_that_are_up_come_before_larger_ones_that_are_not() -> None:
    up = mixed()
    down = mixed()
    pool = down.inventory.pools["gpu"]
    for kind in pool.kinds:
        if kind.gpus == 8:
            object.__setattr__(kind, "usable", 0)
    assert made(Row("--gpus=8", {}).decide(up, Gang()))["min_nodes"] == 1
    assert made(Row("--gpus=8", {}).decide(down, Gang()))["min_nodes"] == 2


def test_no_more_tasks_than_a_node_has_cores_for_a_job_of_one_thread_each() -> None:
    hosts = nodes("n[1-4]", {"": 8}, cpus=64, threads=2)
    here = context(inventory(hosts, [partition("gpu", "n[1-4]", default=True)]))
    Row("-n 64 --gpus=8", grid(1, whole=True)).check(here, Gang())
    Row("-n 64 --gpus=8 --threads-per-core=1", grid(2, "gpu:4", 32)).check(here, Gang())


@pytest.mark.parametrize(
    ("limits", "words", "edits"),
    [
        ({"min_nodes": 2}, "--gpus=8", grid(2, "gpu:4")),
        ({"max_nodes": 1}, "--gpus=16", KEPT),
        ({"max_cpus_per_node": 32}, "--gpus=8 -n 8 -c 8", grid(2, "gpu:4", 4)),
        ({"max_cpus_per_node": 32}, "--gpus=8", grid(1)),
        ({"max_memory_per_node": 200 << 30}, "--gpus=8 --mem-per-gpu=30G", grid(2, "gpu:4")),
        ({"default_cpus_per_gpu": 16}, "--gpus=8", grid(2, "gpu:4")),
        ({"default_memory_per_gpu": 100 << 30}, "--gpus=8", grid(2, "gpu:4")),
        ({"default_memory_per_cpu": 16 << 30}, "--gpus=8", grid(1)),  # exclusive would ask for 1 TiB
        ({"default_memory_per_node": 600 << 30}, "--gpus=8", KEPT),
    ],
    ids=str,
)
def test_what_a_partition_allows_and_gives_unasked_counts(
    limits: dict[str, int], words: str, edits: dict[str, int | str]
) -> None:
    hosts = nodes("n[1-4]", {"": 8})
    here = context(inventory(hosts, [partition("gpu", "n[1-4]", default=True, **limits)]))
    Row(words, edits).check(here, Gang())


def test_what_the_cluster_gives_unasked_counts_where_the_partition_is_silent() -> None:
    here = context(inventory(nodes("n[1-4]", {"": 8}), [partition("gpu", "n[1-4]", default=True)]))
    for facts, edits in (
        (SlurmFacts((22, 5), default_memory_per_cpu=1000), grid(1, whole=True)),
        (SlurmFacts((22, 5), default_memory_per_cpu=16_000), grid(1)),
        (SlurmFacts((22, 5), default_memory_per_node=600_000), KEPT),
    ):
        Row("--gpus=8", edits).check(dataclasses.replace(here, slurm=facts), Gang())


def test_salloc_and_srun_get_their_nodes_too() -> None:
    decision = Row("--gpus=16", {}).decide(two_leaves(), Gang(), batch=False)
    assert made(decision) == grid(2, "gpu:8", whole=True)
    assert decision.env == {}


def test_ten_thousand_nodes_of_one_kind_are_one_kind() -> None:
    here = big()
    Row("--gpus=80000", grid(10_000, "gpu:8", whole=True)).check(here, Gang())
    Row("--gpus=80001", KEPT, "no nodes that hold").check(here, Gang())
    Row("--gpus=79999", KEPT, "do not divide").check(here, Gang())
    Row("--gpus=13", KEPT, "do not divide").check(here, Gang())


# --- what holds for every request ------------------------------------------------------------------------------------

_any_request = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_CONTEXTS = {name: make() for name, make in CLUSTERS.items()}
_REPACKING = {
    name: make(site=Site(cluster="test", policy=Policy(mode="enforce", repack=True)))
    for name, make in CLUSTERS.items()
}
_STATED = (
    *("min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "cpus_per_task", "cpus_per_tres"),
    *("min_mem_per_node", "min_mem_per_cpu", "mem_per_tres", "tres_per_node", "shared"),
)


def _gang(request: Request, where: Context) -> Request:
    """The request as it is after gang."""
    decision = decide(request, where, decision_id=ID, stages=(Gang(),), mode="observe")
    assert not decision.failures, decision.failures
    return with_edits(request, decision.edits, decision.env)


@_any_request
@given(requests())
def test_the_gpus_in_all_never_change(request_: Request) -> None:
    before = shape_of(request_.job, request_.env or None)
    for contexts in (_CONTEXTS, _REPACKING):
        for where in contexts.values():
            after = shape_of(_gang(request_, where).job)
            if isinstance(before, NotUnderstood):
                assert after == before
            else:
                assert not isinstance(after, NotUnderstood)
                assert before.gpus in (None, after.gpus)
                assert before.tasks in (None, after.tasks)


@_any_request
@given(requests())
def test_what_was_stated_never_changes_without_repack(request_: Request) -> None:
    if request_.asks("repack"):
        return
    for where in _CONTEXTS.values():
        after = _gang(request_, where).job
        for name in _STATED:
            was, now = getattr(request_.job, name), getattr(after, name)
            if was == now:
                continue
            if name == "min_nodes" and was:
                assert was <= now <= (request_.job.max_nodes or now)
            elif name == "max_nodes" and was:
                assert (request_.job.min_nodes or 1) <= now <= was
            elif name == "tres_per_node" and was:
                others = {item.replace("gres:", "").replace("gres/", "") for item in was.split(",")}
                assert others <= {item.replace("gres:", "").replace("gres/", "") for item in now.split(",")}
            else:
                assert was is None or name in ("min_nodes", "max_nodes"), name


@_any_request
@given(requests())
def test_deciding_twice_is_deciding_once(request_: Request) -> None:
    shape = shape_of(request_.job)
    # "two nodes or more" becomes two nodes, which repack would take for stated, if it were ever asked again
    open_above = not isinstance(shape, NotUnderstood) and shape.nodes is None and bool(request_.job.min_nodes)
    for contexts in (_CONTEXTS,) if open_above else (_CONTEXTS, _REPACKING):
        for where in contexts.values():
            once = _gang(request_, where)
            assert _gang(once, where) == once


@_any_request
@given(requests())
def test_a_decided_shape_fits_the_nodes_of_the_partition(request_: Request) -> None:
    for contexts in (_CONTEXTS, _REPACKING):
        for where in contexts.values():
            decision = decide(request_, where, decision_id=ID, stages=(Gang(),))
            if "min_nodes" not in decision.edits:
                continue
            job = with_edits(request_, decision.edits).job
            shape = shape_of(job)
            assert not isinstance(shape, NotUnderstood)
            nodes, gpus = job.min_nodes, shape.gpus
            assert nodes and nodes == job.max_nodes and gpus and gpus % nodes == 0
            assert any(
                sum(kind.count for kind in pool.kinds if kind.gpus_of(shape.gpu_type) >= gpus // nodes)
                >= nodes
                for pool in where.inventory.pools_of(job.partition)
            )
