"""Clusters for tests of decisions, as the service would build them from what Slurm says.

    CLUSTERS["two-leaves"]()      # a Context: enforce, Slurm 22.05
    two_leaves(release=(25, 11), site=Site(cluster="c", policy=Policy("enforce", repack=True)))

============ =====================================================================================================
two-leaves   gpu (default): n[1-8], 8 x a100, 64 CPUs, 500G, leaf1 n[1-4], leaf2 n[5-8]; debug: n[1-2]; cpu: c[1-4]
mixed        gpu (default): s[1-8] 4 x v100 (feature small, ib), b[1-4] 8 x a100 (big, ib); v100 and a100 apart too
untyped      gpu (default): n[1-4], 8 GPUs without a type, half of them down
mig          gpu (default): m[1-4], 7 x 1g.10gb and 2 x 3g.40gb each; whole: w[1-2], 8 x a100
block        gpu (default): n[01-16], 8 x h200, blocks of 4
features     gpu (default): n[1-8], 4 x a100, features leaf1 and leaf2, no topology plugin
============ =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from site_configs.hostlist import expand, fold
from site_configs.site_model import Policy, Site
from site_configs.topology import Topologies, Topology
from slurm_plugins.client.values import Hosts, Node, NodeState, Partition, Tres
from slurm_plugins.decide.context import NOTHING_KNOWN, Context, Knowledge, SlurmFacts
from slurm_plugins.decide.inventory import Inventory, build

ENFORCE: Final = Site(cluster="test", policy=Policy(mode="enforce"))
DOWN: Final = frozenset({"DRAIN"})


def nodes(
    names: str,
    gpus: Mapping[str, int] | None = None,
    *,
    cpus: int = 64,
    memory_gib: int = 500,
    threads: int = 1,
    features: Sequence[str] = (),
    flags: frozenset[str] = frozenset(),
) -> list[Node]:
    """Idle nodes that are alike; `gpus` is type -> count, "" for GPUs without a type."""
    gres = Tres(tuple((f"gres/gpu:{kind}" if kind else "gres/gpu", n) for kind, n in (gpus or {}).items()))
    return [
        Node(
            name=name,
            state=NodeState.IDLE,
            flags=flags,
            cpus=cpus,
            cpus_effective=cpus,
            threads_per_core=threads,
            memory=memory_gib << 30,
            gres=gres,
            features=tuple(features),
            active_features=tuple(features),
        )
        for name in expand(names)
    ]


def partition(name: str, hosts: str, *, default: bool = False, **limits: int) -> Partition:
    """A partition that is up; limits as in `Partition`."""
    return Partition(name=name, state="UP", is_default=default, nodes=Hosts(hosts), **limits)  # type: ignore[arg-type]


def inventory(
    hosts: Iterable[Node],
    partitions: Iterable[Partition],
    topology: Topology | None = None,
    site: Site = ENFORCE,
) -> Inventory:
    """The snapshot of a cluster with one topology."""
    return build(hosts, partitions, site, Topologies({"": topology}, "") if topology else None)


def context(
    found: Inventory,
    *,
    plugin: str = "flat",
    release: tuple[int, int] = (22, 5),
    site: Site = ENFORCE,
    knowledge: Knowledge = NOTHING_KNOWN,
    max_switch_wait: int = 300,
) -> Context:
    """What a decision may know, on a cluster with that topology plugin."""
    return Context(site, found, SlurmFacts(release, max_switch_wait, plugin), knowledge)


def two_leaves(release: tuple[int, int] = (22, 5), site: Site = ENFORCE, **more: object) -> Context:
    """The development cluster's shape."""
    hosts = [*nodes("n[1-8]", {"a100": 8}, features=["nvlink"]), *nodes("c[1-4]", cpus=128, memory_gib=250)]
    parts = [
        partition("gpu", "n[1-8]", default=True, max_time=7 * 86400),
        partition("debug", "n[1-2]", max_time=3600, max_nodes=1),
        partition("cpu", "c[1-4]"),
    ]
    tree = Topology.tree(
        {"leaf1": expand("n[1-4],c[1-2]"), "leaf2": expand("n[5-8],c[3-4]")},
        {"leaf1": "spine", "leaf2": "spine"},
    )
    return context(inventory(hosts, parts, tree, site), plugin="tree", release=release, site=site, **more)  # type: ignore[arg-type]


def mixed(release: tuple[int, int] = (22, 5), site: Site = ENFORCE, **more: object) -> Context:
    """Nodes of 4 old and of 8 new GPUs in one partition."""
    hosts = [
        *nodes("s[1-8]", {"v100": 4}, cpus=32, memory_gib=180, features=["small", "ib"]),
        *nodes("b[1-4]", {"a100": 8}, cpus=128, memory_gib=1000, features=["big", "ib"]),
    ]
    parts = [
        partition("gpu", "s[1-8],b[1-4]", default=True),
        partition("v100", "s[1-8]"),
        partition("a100", "b[1-4]"),
    ]
    tree = Topology.tree(
        {"leaf1": expand("s[1-8]"), "leaf2": expand("b[1-4]")}, {"leaf1": "spine", "leaf2": "spine"}
    )
    return context(inventory(hosts, parts, tree, site), plugin="tree", release=release, site=site, **more)  # type: ignore[arg-type]


def untyped(release: tuple[int, int] = (22, 5), site: Site = ENFORCE, **more: object) -> Context:
    """GPUs that slurm.conf gives no type; n[3-4] are drained."""
    hosts = [*nodes("n[1-2]", {"": 8}), *nodes("n[3-4]", {"": 8}, flags=DOWN)]
    parts = [partition("gpu", "n[1-4]", default=True)]
    return context(inventory(hosts, parts, None, site), release=release, site=site, **more)  # type: ignore[arg-type]


def mig(release: tuple[int, int] = (24, 11), site: Site = ENFORCE, **more: object) -> Context:
    """Instances of cut GPUs, and two nodes of whole ones."""
    hosts = [*nodes("m[1-4]", {"1g.10gb": 7, "3g.40gb": 2}), *nodes("w[1-2]", {"a100": 8})]
    parts = [partition("gpu", "m[1-4]", default=True), partition("whole", "w[1-2]")]
    return context(inventory(hosts, parts, None, site), release=release, site=site, **more)  # type: ignore[arg-type]


def block(release: tuple[int, int] = (25, 11), site: Site = ENFORCE, **more: object) -> Context:
    """Four blocks of four nodes."""
    names = expand("n[01-16]")
    hosts = nodes(fold(names), {"h200": 8}, cpus=192, memory_gib=2000)
    parts = [partition("gpu", "n[01-16]", default=True)]
    blocks = Topology.block({f"b{i + 1}": names[4 * i : 4 * i + 4] for i in range(4)}, [4, 8])
    return context(inventory(hosts, parts, blocks, site), plugin="block", release=release, site=site, **more)  # type: ignore[arg-type]


def features(release: tuple[int, int] = (22, 5), site: Site = ENFORCE, **more: object) -> Context:
    """Leaves that only features name."""
    hosts = [
        *nodes("n[1-4]", {"a100": 4}, features=["leaf1"]),
        *nodes("n[5-8]", {"a100": 4}, features=["leaf2"]),
    ]
    parts = [partition("gpu", "n[1-8]", default=True)]
    leaves = Topology.from_features({host.name: host.features for host in hosts}, "leaf")
    return context(inventory(hosts, parts, leaves, site), release=release, site=site, **more)  # type: ignore[arg-type]


def big(count: int = 10_000, release: tuple[int, int] = (24, 11), site: Site = ENFORCE) -> Context:
    """Many nodes of 8 GPUs under leaves of 32, with a feature for each leaf's row."""
    names = [f"g{i:05d}" for i in range(count)]
    leaves = {f"sw{i // 32}": names[i : i + 32] for i in range(0, count, 32)}
    tree = Topology.tree(leaves, dict.fromkeys(leaves, "spine"))
    hosts = nodes(fold(names), {"h100": 8}, cpus=128, memory_gib=1000, features=["h100"])
    parts = [partition("gpu", fold(names), default=True)]
    return context(inventory(hosts, parts, tree, site), plugin="tree", release=release, site=site)


CLUSTERS: Final[Mapping[str, Callable[..., Context]]] = {
    "two-leaves": two_leaves,
    "mixed": mixed,
    "untyped": untyped,
    "mig": mig,
    "block": block,
    "features": features,
}
