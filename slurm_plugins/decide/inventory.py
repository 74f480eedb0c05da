"""The cluster as the stages see it, partitions, kinds of nodes, leaves: a snapshot, built aside and swapped whole.

A cluster of 10,000 nodes has a handful of kinds of nodes, so stages work on `Pool.kinds`, and what is asked again and
again (how few leaves hold 4 nodes of 8 GPUs?) goes through `Pool.remember`.

>>> from slurm_plugins.client.values import Node, NodeState, Partition, Tres
>>> nodes = [Node(name=f"n{i}", state=NodeState.IDLE, cpus=64, memory=512 << 30, gres=Tres((("gres/gpu", 8),)))
...          for i in (1, 2)]
>>> from slurm_plugins.client.values import Hosts
>>> from site_configs.site import Site
>>> gpu = Partition(name="gpu", state="UP", is_default=True, nodes=Hosts("n[1-2]"))
>>> inventory = build(nodes, [gpu], Site(cluster="c"))
>>> pool = inventory.pool("gpu")
>>> pool.gpus_per_node, pool.kinds[0].count, pool.kinds[0].cpus
(8, 2, 64)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from site_configs.hostlist import expand
from site_configs.site_model import Site
from site_configs.topology import Topologies, Topology
from slurm_plugins.client.values import Node, Partition
from slurm_plugins.limits.billing import Weights, parse_weights

__all__ = ["EMPTY", "Inventory", "Kind", "Memory", "Pool", "build"]

T = TypeVar("T")
_MIB: Final = 1 << 20
_REMEMBERED: Final = 4096
_Like: TypeAlias = tuple[tuple[tuple[str, int], ...], int, int, frozenset[str]]


class Memory(dict[Hashable, Any]):
    """What was worked out once, 4096 answers at most."""

    def __call__(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, worked out where nothing is there for `key`."""
        try:
            found: T = self[key]
        except KeyError:
            found = work()
            if len(self) < _REMEMBERED:
                self[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that are alike: GPUs by type ("" where Gres names none), CPUs, memory in MiB, features.

    `count` are all of them, `usable` those that Slurm may start jobs on now or when their present ones end.
    """

    gpu_types: tuple[tuple[str, int], ...]
    cpus: int
    memory: int
    features: frozenset[str]
    nodes: tuple[str, ...] = field(repr=False)
    usable: int
    threads: int = 1
    """Threads of a core: Slurm gives out whole cores."""
    all_cpus: int = 0
    """CPUs with those that Slurm keeps to itself (CoreSpecCount), which a site may let jobs have by --core-spec=0."""

    @property
    def count(self) -> int:
        """Nodes of this kind, those that are down too."""
        return len(self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of one node, of all types."""
        return sum(count for _, count in self.gpu_types)

    def gpus_of(self, gpu_type: str) -> int:
        """GPUs of one node that a request for `gpu_type` may have; any type when it is empty."""
        if not gpu_type:
            return self.gpus
        return sum(count for name, count in self.gpu_types if name == gpu_type)


@dataclass(frozen=True, slots=True)
class Pool:
    """A partition: its kinds of nodes, how they hang together, what its jobs get unasked.

    Limits are None where there is none. Memory is MiB, times are seconds.
    """

    name: str
    is_default: bool = False
    kinds: tuple[Kind, ...] = ()
    topology: Topology = field(default_factory=Topology.flat)
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_time: int | None = None
    default_time: int | None = None
    default_cpus_per_gpu: int | None = None
    default_memory_per_gpu: int | None = None
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    max_memory_per_cpu: int | None = None
    max_memory_per_node: int | None = None
    max_cpus_per_node: int | None = None
    """For all jobs of the partition together, by MaxCPUsPerNode and MaxCPUsPerSocket."""
    qos: str = ""
    """The partition's own QOS; empty for none."""
    billing: Weights = ()
    """TRESBillingWeights; without them Slurm charges CPUs."""
    complete: bool = False
    """Slurm told of every node that it lists for the partition: what none of `kinds` has, it does not have."""
    _memory: Memory = field(default_factory=Memory, repr=False, compare=False)

    @property
    def gpus_per_node(self) -> int:
        """Most GPUs of one node; 0 where there are none."""
        return max((kind.gpus for kind in self.kinds), default=0)

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return sum(kind.count for kind in self.kinds)

    def remember(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, worked out once for this snapshot; `key` must name the stage and all that it
        depends on.

        Users choose some keys: what is beyond 4096 of them is worked out each time.
        """
        return self._memory(key, work)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All partitions at one moment. Empty: nothing is known, and no stage changes anything."""

    pools: Mapping[str, Pool] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    default: str = ""

    @property
    def bills(self) -> bool:
        """The site charges by weights, in one partition at least."""
        return any(pool.billing for pool in self.pools.values())

    def __bool__(self) -> bool:
        return bool(self.pools)

    def pool(self, name: str | None) -> Pool | None:
        """The partition of that name; the default one for None; None when Slurm has no such partition."""
        return self.pools.get(name or self.default)

    def pools_of(self, names: str | None) -> tuple[Pool, ...]:
        """The partitions of ``-p a,b``; empty when one of them is unknown."""
        found = [self.pool(name) for name in dict.fromkeys((names or self.default).split(","))]
        return tuple(pool for pool in found if pool is not None) if None not in found else ()


EMPTY: Final = Inventory()


def build(
    nodes: Iterable[Node],
    partitions: Iterable[Partition],
    site: Site,
    topologies: Topologies | None = None,
    *,
    pause: Callable[[], None] | None = None,
) -> Inventory:
    """The snapshot of what Slurm said, completed by what the site file declares where Slurm is silent.

    `topologies` None is a flat network. `pause` is called every few hundred nodes: a service thread gives way
    there.
    """
    by_name: dict[str, Node] = {node.name: node for node in nodes}
    pools: dict[str, Pool] = {}
    default = ""
    flat = Topology.flat()
    for partition in partitions:
        declared = site.partitions.get(partition.name)
        wanted = (
            expand(partition.nodes.expression) if partition.nodes else (declared.nodes if declared else ())
        )
        groups: dict[_Like, list[Node]] = {}
        for number, name in enumerate(wanted):
            if pause is not None and number % 256 == 255:
                pause()
            if (node := by_name.get(name)) is not None:
                groups.setdefault(_likeness(node, declared.gpu_type if declared else ""), []).append(node)
        complete = bool(partition.nodes) and all(name in by_name for name in wanted)
        kinds = tuple(
            Kind(
                *like,
                nodes=tuple(n.name for n in group),
                usable=sum(n.available for n in group),
                threads=max(n.threads_per_core or 1 for n in group),
                all_cpus=max(n.cpus or 0 for n in group),
            )
            for like, group in groups.items()
        )
        topology = flat
        if topologies is not None:
            # A name that topology.yaml does not have costs the partition its topology, not the cluster its snapshot.
            name = (declared.topology if declared else "") or topologies.default
            topology = topologies.by_name.get(name, flat)
        pools[partition.name] = Pool(
            partition.name,
            partition.is_default,
            kinds,
            topology,
            min_nodes=partition.min_nodes,
            max_nodes=partition.max_nodes,
            max_time=partition.max_time,
            default_time=partition.default_time,
            default_cpus_per_gpu=partition.default_cpus_per_gpu,
            default_memory_per_gpu=_mib(partition.default_memory_per_gpu),
            default_memory_per_cpu=_mib(partition.default_memory_per_cpu),
            default_memory_per_node=_mib(partition.default_memory_per_node),
            max_memory_per_cpu=_mib(partition.max_memory_per_cpu),
            max_memory_per_node=_mib(partition.max_memory_per_node),
            max_cpus_per_node=_max_cpus(partition, (by_name[name] for name in wanted if name in by_name)),
            qos=(partition.qos or "").lower(),
            billing=parse_weights(partition.billing_weights),
            complete=complete,
        )
        if partition.is_default:
            default = partition.name
    return Inventory(MappingProxyType(pools), default)


def _likeness(node: Node, gpu_type: str) -> _Like:
    """What makes two nodes alike: the first fields of a `Kind`."""
    features = frozenset(node.active_features or node.features)
    cpus = node.cpus_effective or node.cpus or 0
    memory = max((node.memory or 0) - (node.memory_reserved or 0), 0) // _MIB
    return _gpu_types(node, gpu_type), cpus, memory, features


def _max_cpus(partition: Partition, nodes: Iterable[Node]) -> int | None:
    """The most CPUs that jobs of the partition have on one of its nodes."""
    most, of_socket = partition.max_cpus_per_node, partition.max_cpus_per_socket
    if of_socket is None:
        return most
    sockets = min((node.sockets or 1 for node in nodes), default=1)
    return of_socket * sockets if most is None else min(most, of_socket * sockets)


def _mib(size: int | None) -> int | None:
    return None if size is None else size // _MIB


def _gpu_types(node: Node, fallback: str) -> tuple[tuple[str, int], ...]:
    """GPUs by type. slurm.conf may name some with a type and others without; `fallback` is the site file's
    word."""
    typed = {name.partition(":")[2]: n for name, n in node.gres.items() if name.startswith("gres/gpu:") and n}
    rest = node.gpus - sum(typed.values())
    if rest > 0:
        typed[fallback if fallback and fallback not in typed else ""] = rest
    return tuple(sorted(typed.items()))
