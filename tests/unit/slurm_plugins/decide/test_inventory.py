"""The snapshot that decisions rest on, from what Slurm says and the site file declares."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from site_configs.site_model import Partition as Declared
from site_configs.site_model import Policy, Site
from site_configs.topology import Topologies, Topology
from slurm_plugins.client.values import NodeState
from slurm_plugins.decide.inventory import EMPTY, build
from tests.unit.slurm_plugins.decide.cluster import DOWN, ENFORCE, inventory, nodes, partition


def site(**declared: Declared) -> Site:
    return Site(cluster="test", policy=Policy(mode="enforce"), partitions=declared)


def test_nodes_that_are_alike_are_one_kind() -> None:
    hosts = [*nodes("n[1-6]", {"a100": 8}), *nodes("n[7-8]", {"a100": 8}, cpus=128), *nodes("c1")]
    pool = inventory(hosts, [partition("gpu", "n[1-8]")]).pools["gpu"]
    assert [(kind.count, kind.cpus, kind.gpus) for kind in pool.kinds] == [(6, 64, 8), (2, 128, 8)]
    assert (pool.nodes, pool.gpus_per_node) == (8, 8)


def test_nodes_that_are_out_of_service_count_and_are_not_usable() -> None:
    hosts = [*nodes("n[1-3]", {"": 8}), *nodes("n4", {"": 8}, flags=DOWN)]
    hosts[0] = dataclasses.replace(hosts[0], state=NodeState.DOWN)
    (kind,) = inventory(hosts, [partition("gpu", "n[1-4]")]).pools["gpu"].kinds
    assert (kind.count, kind.usable) == (4, 2)


def test_the_site_file_names_a_type_that_gres_leaves_out() -> None:
    hosts = nodes("n1", {"": 8})
    found = inventory(hosts, [partition("gpu", "n1")], site=site(gpu=Declared("gpu", gpu_type="a100")))
    (kind,) = found.pools["gpu"].kinds
    assert kind.gpus_of("a100") == kind.gpus_of("") == 8 and kind.gpus_of("v100") == 0


def test_each_partition_has_its_own_topology_and_one_that_is_not_there_costs_nobody_else() -> None:
    hosts = nodes("n[1-4]", {"": 8})
    tree = Topology.tree({"leaf1": ["n1", "n2"], "leaf2": ["n3", "n4"]}, {}, name="tree")
    blocks = Topology.block({"b1": ["n1", "n2"]}, [2], name="blocks")
    declared = site(
        named=Declared("named", topology="blocks"),
        typo=Declared("typo", topology="bloks"),
        plain=Declared("plain"),
    )
    parts = [partition(name, "n[1-4]") for name in ("named", "typo", "plain", "unknown")]
    pools = build(hosts, parts, declared, Topologies({"tree": tree, "blocks": blocks}, "tree")).pools
    assert [pools[name].topology.kind for name in ("named", "typo", "plain", "unknown")] == [
        "block", "flat", "tree", "tree",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, None),
        ({"max_cpus_per_node": 48}, 48),
        ({"max_cpus_per_socket": 8}, 16),
        ({"max_cpus_per_node": 48, "max_cpus_per_socket": 8}, 16),
        ({"max_cpus_per_node": 12, "max_cpus_per_socket": 8}, 12),
    ],
)
def test_a_limit_of_a_socket_is_one_of_the_node(limits: dict[str, Any], most: int | None) -> None:
    hosts = [dataclasses.replace(node, sockets=2) for node in nodes("n[1-2]", {"": 8})]
    assert inventory(hosts, [partition("gpu", "n[1-2]", **limits)]).pools["gpu"].max_cpus_per_node == most


def test_partitions_by_name() -> None:
    found = inventory(nodes("n1"), [partition("a", "n1", default=True), partition("b", "n1", min_nodes=2)])
    assert [pool.name for pool in found.pools_of("a,b")] == ["a", "b"]
    assert [pool.name for pool in found.pools_of(None)] == ["a"]
    assert found.pools_of("a,c") == () and found.pool("c") is None
    assert found.pools["b"].min_nodes == 2
    assert found and not EMPTY and EMPTY.pools_of(None) == ()


def test_work_is_done_once_for_a_snapshot() -> None:
    calls: list[int] = []
    pool = inventory(nodes("n1"), [partition("a", "n1")], site=ENFORCE).pools["a"]
    assert [pool.remember("x", lambda: calls.append(1) or 7) for _ in range(3)] == [7, 7, 7]  # type: ignore[func-returns-value]
    assert len(calls) == 1


def test_what_users_choose_does_not_fill_the_memory() -> None:
    pool = inventory(nodes("n1"), [partition("a", "n1")]).pools["a"]
    for number in range(5000):
        assert pool.remember(("key", number), lambda number=number: number) == number  # type: ignore[misc]
    assert len(pool._memory) == 4096


def test_the_builder_gives_way() -> None:
    pauses: list[None] = []
    build(nodes("n[1-1000]"), [partition("a", "n[1-1000]")], ENFORCE, pause=lambda: pauses.append(None))
    assert len(pauses) == 3
