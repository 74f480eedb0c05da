"""The cluster that a trace is replayed on: from a site file, from Slurm, from a short text, or from the trace itself.

    a site file         its partitions' nodes; topology as it declares. Names it no nodes, the slurm.conf it names has
    slurm.conf          its NodeName and PartitionName lines, with what it includes (and a topology.conf beside it)
    scontrol -o show node   what it printed
    openb_nodes         Alibaba's nodes
    "64x8"              64 nodes with 8 GPUs each; "64x8:96c:512G/16": 96 CPUs, 512 GiB, 16 nodes a leaf switch

Partitions count where the trace knows them: where no queue of it is one, all jobs may use all nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from site_configs.hostlist import HostlistError, expand
from site_configs.site import SiteError, load_site
from site_configs.site_model import Partition, Site
from site_configs.topology import Topologies, Topology, TopologyError
from site_configs.units import parse_size
from slurm_plugins.client import inventory, parse
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.resources import Tres
from slurm_plugins.client.tables import scontrol_records
from slurm_plugins.install.host import LocalHost
from slurm_plugins.install.slurm_conf import with_included
from slurm_plugins.replay.traces.files import TraceError, lines
from slurm_plugins.replay.traces.openb import is_nodes, nodes_of
from slurm_plugins.replay.values import Cluster, Nodes, Trace

__all__ = ["Found", "alike", "cluster_of", "fitting", "inferred"]

_LEAST_CPUS: Final = 8.0
_LEAST_MIB: Final = 65_536.0
"""A GPU's CPUs and memory where nobody says: no job is held up by them that does not say what it needs."""
_BUSY: Final = 0.8
"""Of a cluster that is made up for a trace: how much of its GPU time the trace's work is."""
_NODE_TEXTS: Final = ("Reason", "Comment", "Extra")


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster, and what was supposed to get it."""

    cluster: Cluster
    notes: tuple[str, ...] = ()
    slurm_conf: str = ""
    """The text of a slurm.conf, where one was read, with what it includes: its weights and factors order the queue as
    Slurm does."""
    conf: Path | None = None
    """Where that slurm.conf is."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as Slurm or the site file has it; memory in MiB."""

    name: str
    gpus: int
    cpus: float
    memory: float
    gpu_type: str = ""
    partitions: frozenset[str] = frozenset()


def cluster_of(path: Path, seen: Cluster | None = None) -> Found:
    """The cluster that a file describes; `seen` are the nodes of a trace, for a site file that names none.

    Raises TraceError.
    """
    if path.suffix == ".toml":
        return _of_site(path, seen)
    if is_nodes(path):
        return Found(nodes_of(path))
    with lines(path) as found:
        text = "\n".join(found)
    if re.search(r"^NodeName=.*\bCPUTot=", text, re.MULTILINE):
        return Found(_grouped(path.stem, _of_scontrol(path, text), None))
    text = _with_included(path, text)
    if re.search(r"^\s*NodeName\s*=", text, re.MULTILINE | re.IGNORECASE):
        return _of_slurm_conf(path, text)
    raise TraceError(
        f"{path} describes no cluster",
        "name a site file (.toml), slurm.conf, or what 'scontrol -o show node' printed; or say --nodes 64x8",
    )


# --- a site file ----------------------------------------------------------------------------------------------------


def _of_site(path: Path, seen: Cluster | None) -> Found:
    try:
        site = load_site(path)
        declared = [_declared(site, partition) for partition in site.partitions.values() if partition.nodes]
        nodes = _merged(node for some in declared for node in some)
        topologies = site.topologies() if nodes or site.topology.file else None
    except SiteError as error:
        said = " = ".join(part for part in (error.key, error.value) if part)
        raise TraceError(
            f"{error.file}: {': '.join(filter(None, (said, error.problem)))}", error.remedy
        ) from error
    except TopologyError as error:
        raise TraceError(f"{error.file}:{error.line or ''} {error.problem}", error.remedy) from error
    conf = Path(site.slurm.conf) if site.slurm.conf else None
    text = _with_included(conf, _text(conf)) if conf is not None and conf.is_file() else ""
    leaf = _leaves(site, topologies)
    if nodes:
        return Found(_grouped(site.cluster, nodes, leaf), (), text, conf)
    if text and conf is not None:
        found = _of_slurm_conf(conf, text)
        named = _nodes_of(found.cluster)
        return Found(
            _grouped(site.cluster, named, leaf), (f"nodes are those of {conf}", *found.notes), text, conf
        )
    if seen is not None:
        return Found(
            _grouped(site.cluster, _nodes_of(seen), leaf),
            (
                "the site file names no nodes: they are those of the trace's jobs, as large as was in use at once",
            ),
            text,
            conf,
        )
    raise TraceError(
        f"{path} names no nodes, and neither does the trace",
        "state nodes and gpus_per_node of its partitions, or name slurm.conf with --cluster, or say --nodes 64x8",
    )


def _declared(site: Site, partition: Partition) -> list[_Node]:
    gpus = partition.gpus_per_node
    if gpus is None:
        raise TraceError(
            f"the site file does not say how many GPUs the nodes of partition {partition.name} have",
            "state gpus_per_node (cpus_per_node, memory_per_node) there, or name slurm.conf with --cluster",
        )
    cpus, memory = _at_least(gpus, partition.cpus_per_node or 0, partition.memory_per_node or 0)
    of = frozenset({partition.name})
    return [_Node(name, gpus, cpus, memory, partition.gpu_type, of) for name in partition.nodes]


def _leaves(site: Site, topologies: Topologies | None) -> Mapping[str, Topology]:
    """Partition -> its topology; "" -> the cluster's."""
    if topologies is None:
        return {}
    flat = Topology.flat()
    return {
        "": topologies.by_name.get(topologies.default, flat),
        **{
            name: topologies.by_name.get(partition.topology, flat)
            for name, partition in site.partitions.items()
            if partition.topology
        },
    }


# --- Slurm ----------------------------------------------------------------------------------------------------------

_LINE: Final = re.compile(
    r"^[ \t]*(NodeName|PartitionName|NodeSet)[ \t]*=[ \t]*(\S+)([^\n]*)", re.MULTILINE | re.IGNORECASE
)
_INCLUDE: Final = re.compile(r"^include\s", re.MULTILINE | re.IGNORECASE)
_PAIR: Final = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')


def _of_slurm_conf(path: Path, text: str) -> Found:
    """Nodes and partitions of the lines that name them; those named DEFAULT give values to what follows."""
    plain = re.sub(r"(?m)(?<!\\)#.*$", "", text)
    plain = re.sub(r"\\[ \t]*\r?\n", " ", plain)
    nodes: dict[str, _Node] = {}
    defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
    partitions: dict[str, str] = {}
    notes: list[str] = []
    for line in _LINE.finditer(plain):
        kind, name = line[1].lower(), line[2].strip('"')
        if kind == "nodeset":
            notes.append(f"NodeSet={name} in slurm.conf is not looked at")
            continue
        given = {pair[1].lower(): pair[2] or pair[3] or "" for pair in _PAIR.finditer(line[3])}
        values = {**defaults[kind], **given}
        if name.upper() == "DEFAULT":
            defaults[kind] = values
        elif kind == "partitionname":
            partitions[name] = values.get("nodes", "")
        elif values.get("state", "").upper() != "FUTURE":
            nodes.update((one, _conf_node(path, one, values)) for one in _expand(path, name))
    of: dict[str, set[str]] = {name: set() for name in nodes}
    for partition, listed in partitions.items():
        everyone = listed.upper() == "ALL"
        for name in nodes if everyone else _expand(path, listed) if listed else ():
            if name in of:
                of[name].add(partition)
    if not nodes:
        raise TraceError(
            f"{path}: no NodeName line names a node", "name the file that has them, or say --nodes 64x8"
        )
    topology = _topology_beside(path)
    cluster = re.search(r"^\s*ClusterName\s*=\s*(\S+)", plain, re.MULTILINE | re.IGNORECASE)
    made = [replace(node, partitions=frozenset(of[name])) for name, node in nodes.items()]
    leaf = {} if topology is None else {"": topology}
    return Found(_grouped(cluster[1].lower() if cluster else path.stem, made, leaf), tuple(notes), text, path)


def _with_included(path: Path, text: str) -> str:
    """A slurm.conf's text with what it includes: nodes and schedulers may stand there. Raises TraceError."""
    if not _INCLUDE.search(text):
        return text
    whole, problems = with_included(LocalHost(), path, text.encode(errors="surrogateescape"))
    if problems:
        raise TraceError(
            problems[0],
            "copy what slurm.conf includes to where it says, or take the Include line out of a copy",
        )
    return whole.decode(errors="surrogateescape")


def _conf_node(path: Path, name: str, values: Mapping[str, str]) -> _Node:
    def number(key: str, otherwise: int) -> int:
        word = values.get(key, "")
        if word and not (word.isascii() and word.isdigit()):
            raise TraceError(f"{path}: NodeName={name}: {key}={word} is no number")
        return int(word) if word else otherwise

    try:
        gres = parse.tres(values.get("gres", ""))
    except SlurmFormatError as error:
        raise TraceError(f"{path}: NodeName={name}: Gres={values['gres']}: {error}") from error
    cores = number("sockets", 1) * number("corespersocket", 1) * number("threadspercore", 1)
    cpus = number("cpus", cores) - number("corespeccount", 0) * number("threadspercore", 1)
    memory = number("realmemory", 1) - number("memspeclimit", 0)
    return _Node(name, gres.gpus or 0, float(max(cpus, 1)), float(max(memory, 1)), _type(gres))


def _of_scontrol(path: Path, text: str) -> list[_Node]:
    try:
        found = [inventory.node(row) for row in scontrol_records(text, "NodeName", _NODE_TEXTS)]
    except (SlurmFormatError, KeyError) as error:
        raise TraceError(f"{path}: {error}", "print it anew: scontrol -o show node") from error
    mib = 1 << 20
    return [
        _Node(
            node.name,
            node.gpus,
            float(node.cpus_effective or node.cpus or 1),
            max((node.memory or 0) - (node.memory_reserved or 0), mib) / mib,
            _type(node.gres),
            frozenset(node.partitions),
        )
        for node in found
    ]


def _type(gres: Tres) -> str:
    return gres.gpu_type or ""


def _topology_beside(path: Path) -> Topology | None:
    from site_configs.topology import load_topologies

    for name in ("topology.yaml", "topology.conf"):
        beside = path.with_name(name)
        if beside.is_file():
            try:
                return load_topologies(beside).of()
            except TopologyError as error:
                raise TraceError(f"{error.file}:{error.line or ''} {error.problem}", error.remedy) from error
    return None


def _expand(path: Path, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistError as error:
        raise TraceError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    with lines(path) as found:
        return "\n".join(found)


# --- without a file -------------------------------------------------------------------------------------------------

_SHORT: Final = re.compile(
    r"(\d{1,6})x(\d{1,3})(?::(\d{1,5})c)?(?::(\d+(?:\.\d+)?[KMGTP]))?(?:/(\d{1,5}))?", re.IGNORECASE
)


def alike(text: str) -> Cluster:
    """Nodes of a short text; kinds of nodes are joined by "+".

    >>> [(n.count, n.gpus, n.cpus, n.leaf) for n in alike("3x8:96c/2+1x2").nodes]
    [(2, 8, 96.0, 'leaf1'), (1, 8, 96.0, 'leaf2'), (1, 2, 16.0, 'leaf3')]

    Raises TraceError.
    """
    made: list[Nodes] = []
    for part in text.split("+"):
        found = _SHORT.fullmatch(part.strip())
        if found is None or not int(found[1]) or not int(found[5] or 1):
            raise TraceError(
                f"{part or text!r} are no nodes",
                "write COUNTxGPUS, like 64x8, 64x8:96c:512G or 64x8/16 (16 a leaf)",
            )
        count, gpus = int(found[1]), int(found[2])
        cpus, memory = _at_least(gpus, int(found[3] or 0), parse_size(found[4]) if found[4] else 0)
        size = int(found[5] or count)
        for first in range(0, count, size):
            leaf = f"leaf{len(made) + 1}"
            made.append(Nodes(min(size, count - first), gpus, cpus, memory, leaf=leaf))
    return Cluster(text, tuple(made))


def inferred(trace: Trace) -> Found:
    """A cluster for a trace that tells of none: alike nodes of 8 GPUs, of which its work keeps 80 % busy.

    At least as many as its largest job needs.
    """
    work = float((trace["work"] * trace["gpus"]).sum())
    arrival = trace["arrival"]
    span = max(float(arrival.max() - arrival.min()), float(trace["work"].max()))
    gpus = max(work / span / _BUSY, float(trace["gpus"].max()), 1.0)
    count = math.ceil(gpus / 8)
    cpus, memory = _at_least(8, 0, 0)
    cpus, memory = max(cpus, float(trace["cpus"].max())), max(memory, float(trace["memory"].max()))
    return Found(
        Cluster("made up", (Nodes(count, 8, cpus, memory),)),
        (
            f"the trace tells nothing of its cluster: {count:,} nodes of 8 GPUs are supposed, which it would keep "
            f"{work / span / count / 8:.0%} busy; waits are worth little until you say --nodes or --cluster",
        ),
    )


def fitting(cluster: Cluster, trace: Trace) -> Found:
    """The cluster as this trace can use it: partitions that the trace does not know bind nobody."""
    known = {partition for group in cluster.nodes for partition in group.partitions}
    queues = set(trace.words.get("queue", ())) - {""}
    if not known or not queues:
        return Found(cluster)
    if not known & queues:
        nodes = tuple(replace(group, partitions=frozenset()) for group in cluster.nodes)
        few = ", ".join(sorted(queues)[:3])
        return Found(
            replace(cluster, nodes=nodes),
            (f"no queue of the trace ({few}...) is a partition of the cluster: all jobs may use all nodes",),
        )
    lost = sorted(queues - known)
    if not lost:
        return Found(cluster)
    jobs = int(sum((trace.text("queue") == name).sum() for name in lost))
    return Found(
        cluster, (f"{jobs:,} jobs are of partitions without nodes in the cluster: {', '.join(lost[:5])}",)
    )


# --- pieces ---------------------------------------------------------------------------------------------------------


def _at_least(gpus: int, cpus: float, memory: float) -> tuple[float, float]:
    """CPUs and MiB of a node of which they may not be stated."""
    return float(cpus or max(gpus, 1) * _LEAST_CPUS), float(memory or max(gpus, 1) * _LEAST_MIB)


def _merged(nodes: Iterable[_Node]) -> list[_Node]:
    """Each node once, with all of its partitions."""
    made: dict[str, _Node] = {}
    for node in nodes:
        before = made.get(node.name)
        made[node.name] = (
            node if before is None else replace(before, partitions=before.partitions | node.partitions)
        )
    return list(made.values())


def _nodes_of(cluster: Cluster) -> list[_Node]:
    return [
        _Node(name, group.gpus, group.cpus, group.memory, group.gpu_type, group.partitions)
        for group in cluster.nodes
        for name in group.names
    ]


def _grouped(name: str, nodes: Sequence[_Node], leaves: Mapping[str, Topology] | None) -> Cluster:
    """Neighbours that are alike and under one leaf are a group; the order of the nodes stays, for Slurm goes by it."""

    def leaf(node: _Node) -> str:
        for partition in (*sorted(node.partitions), ""):
            topology = (leaves or {}).get(partition)
            if topology is not None and (found := topology.leaf_of(node.name)) is not None:
                return found
        return ""

    def kind(node: _Node) -> tuple[object, ...]:
        return node.gpus, node.cpus, node.memory, node.gpu_type, leaf(node), sorted(node.partitions)

    made = []
    for _, some in groupby(nodes, key=kind):
        group = list(some)
        one = group[0]
        names = tuple(node.name for node in group)
        made.append(
            Nodes(len(group), one.gpus, one.cpus, one.memory, one.gpu_type, leaf(one), one.partitions, names)
        )
    return Cluster(name, tuple(made))
