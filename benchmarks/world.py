"""A cluster of any size as gsubd holds it in memory, and workloads that its store knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from site_configs.site import parse_site
from site_configs.topology import Topologies, Topology
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Hosts, Node, Partition, Tres
from slurm_plugins.decide.context import NOTHING_KNOWN, Context, Curve, Knowledge, SlurmFacts, Workload
from slurm_plugins.decide.inventory import Inventory, build
from slurm_plugins.decide.request import Request

NODES_OF_A_LEAF = 32

Shape = Literal["tree", "block", "flat"]

SITE = """
cluster = "big"

[policy]
mode = "{mode}"
repack = {repack}
retune = "{retune}"

[locality]
slowdown = 1.3

[resources]
max_cpus_per_gpu = 24
max_memory_per_gpu = "200G"
"""


@dataclass(frozen=True)
class Known:
    """Workloads by job name: each with a curve, a run time and what spreading costs it."""

    by_name: Mapping[str, Workload]
    avoided: Mapping[str, str]

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        """What is known of the job of that name."""
        return self.by_name.get(request.job.name or "")

    def avoid(self, partition: str) -> Mapping[str, str]:
        """The same nodes in each partition."""
        return self.avoided


def known(count: int) -> Knowledge:
    """A store that has seen so many workloads, ``job-0`` and on; 0: nothing."""
    if not count:
        return NOTHING_KNOWN
    points = tuple((float(cpus), 1.0 - 0.4 / cpus) for cpus in (1, 2, 3, 4, 6, 8, 12, 16))
    return Known(
        {
            f"job-{n}": Workload(
                f"w-{n}",
                runs=3 + n % 40,
                slowdown=1.0 + n % 50 / 100,
                run_time=600 + 60 * (n % 2000),
                memory_peak=8_000 + n % 60_000,
                curve=Curve(points[: 2 + n % 7]),
            )
            for n in range(count)
        },
        {f"n{n:05}": "its GPU 3 fell off the bus twice this week" for n in range(1, 4)},
    )


def inventory(nodes: int, shape: Shape = "tree", *, site: str = "") -> Inventory:
    """Nodes ``n00001`` and on, of three kinds, under leaves of 32 (a tree of two levels), in three partitions.

    ``gpu`` (the default) holds all, ``a100`` the 8-GPU nodes of that type, ``mig`` those with slices.
    """
    names = [f"n{n:05}" for n in range(1, nodes + 1)]
    parts = {
        "h200": names[: nodes // 2],
        "a100": names[nodes // 2 : -(nodes // 10)],
        "mig": names[-(nodes // 10) :],
    }
    gres = {
        "h200": Tres((("gres/gpu", 8), ("gres/gpu:h200", 8))),
        "a100": Tres((("gres/gpu", 4), ("gres/gpu:a100", 4))),
        "mig": Tres((("gres/gpu", 14), ("gres/gpu:a100_1g.5gb", 14))),
    }
    found = [
        Node(
            name=name,
            state=NodeState.IDLE if n % 20 else NodeState.DOWN,
            cpus=128,
            cpus_effective=128,
            memory=(2000 if kind == "h200" else 500) << 30,
            gres=gres[kind],
            features=(kind, f"rack{n // NODES_OF_A_LEAF}"),
            active_features=(kind,),
        )
        for kind, members in parts.items()
        for n, name in enumerate(members)
    ]
    partitions = [
        Partition(
            name="gpu", state="UP", is_default=True, nodes=Hosts(f"n[00001-{nodes:05}]"), max_time=14 * 86400
        ),
        Partition(name="a100", state="UP", nodes=Hosts(",".join(parts["a100"])), default_cpus_per_gpu=8),
        Partition(
            name="mig", state="UP", nodes=Hosts(",".join(parts["mig"])), max_nodes=4, max_cpus_per_node=64
        ),
    ]
    return build(found, partitions, parse_site(site or site_text()), topologies(names, shape))


def topologies(names: list[str], shape: Shape) -> Topologies | None:
    """How the nodes hang together; None for a flat network."""
    leaves = {
        f"leaf{at // NODES_OF_A_LEAF}": names[at : at + NODES_OF_A_LEAF]
        for at in range(0, len(names), NODES_OF_A_LEAF)
    }
    if shape == "tree":
        found = Topology.tree(leaves, {leaf: f"spine{n // 16}" for n, leaf in enumerate(leaves)})
    elif shape == "block":
        found = Topology.block(leaves, (NODES_OF_A_LEAF, 4 * NODES_OF_A_LEAF))
    else:
        return None
    return Topologies({found.name: found}, found.name)


def site_text(mode: str = "enforce", *, repack: bool = False, retune: str = "lower") -> str:
    """A site file that lets the stages do what they can."""
    return SITE.format(mode=mode, repack=str(repack).lower(), retune=retune)


def context(
    nodes: int = 256,
    workloads: int = 0,
    *,
    shape: Shape = "tree",
    release: tuple[int, int] = (24, 11),
    site: str = "",
) -> Context:
    """All that a decision may know."""
    text = site or site_text()
    return Context(
        parse_site(text),
        inventory(nodes, shape, site=text),
        SlurmFacts(release, topology_plugin=shape),
        known(workloads),
    )
