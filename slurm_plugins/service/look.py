"""One look at Slurm: its configuration, nodes, partitions, and the jobs that decisions wait for.

What Slurm does not answer, or answers with nothing, is an error: an empty answer is not a fact, and gsubd keeps the
one before it. Runs as a process of its own (``python -m slurm_plugins.service.look``): a question on standard input,
a report on standard output.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from site_configs.site import parse_site
from site_configs.site_model import Site
from site_configs.topology import TopologyError
from slurm_plugins.client import client
from slurm_plugins.client.errors import SlurmError, SlurmFormatError, SlurmTimeout
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.purposes import SUBMISSIONS
from slurm_plugins.client.runner import Runner
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import Node, Partition
from slurm_plugins.decide.inventory import Inventory, build
from slurm_plugins.limits.lookup import read_associations
from slurm_plugins.limits.records import Associations
from slurm_plugins.service.answering import answer_questions
from slurm_plugins.service.patience import COMMAND_SECONDS
from slurm_plugins.service.slurm_config import SlurmConfig, read_config
from slurm_plugins.service.submitted import submissions
from slurm_plugins.service.wire import Question, Report, decode_question, encode_report

__all__ = ["Slurm", "gpus_by_state", "look", "slurm_environment"]

_AWAY = frozenset({NodeState.DOWN, NodeState.ERROR, NodeState.FUTURE, NodeState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Slurm:
    """How Slurm is reached: the client, who reads the configuration, and what the client could not read."""

    client: SlurmClient
    config: Callable[[], SlurmConfig]
    associations: Callable[[str], Associations]
    """The limits of accounting of a cluster."""
    unread: Unread = field(default_factory=Unread)
    queue: SlurmClient | None = None
    """The client for the queue, which may take longer than the rest; None: it is `client`."""

    @classmethod
    def here(cls, env: Mapping[str, str], site: Site, queue_seconds: float = COMMAND_SECONDS) -> Slurm:
        """Slurm as the site file says that it is read, in `env`; `queue_seconds` are those for the queue."""
        runner, unread = Runner(env, timeout=COMMAND_SECONDS), Unread()
        return cls(
            client(env, site.slurm.backend, timeout=COMMAND_SECONDS, unread=unread),
            lambda: read_config(runner),
            lambda cluster: read_associations(runner, cluster),
            unread,
            client(env, site.slurm.backend, timeout=queue_seconds, unread=unread),
        )


def look(slurm: Slurm, site: Site, question: Question) -> Report:
    """Ask Slurm what there is, and what was submitted. Never raises SlurmError: the report tells."""
    told, unread = _cluster(slurm, site, limits=question.limits), slurm.unread
    if question.jobs_since is not None:
        told = _jobs(slurm, question, told)
    return msgspec.structs.replace(told, unread=dict(unread.kinds), unread_example=unread.example)


def _jobs(slurm: Slurm, question: Question, told: Report) -> Report:
    """The report with the jobs that are asked for."""
    at, begun = time.time(), time.monotonic()
    try:
        found = submissions(
            (slurm.queue or slurm.client).jobs(user=question.uids, values=SUBMISSIONS)
        ).values()
    except SlurmError as error:
        late = isinstance(error, SlurmTimeout)
        return msgspec.structs.replace(told, jobs_error=str(error), queue_late=late)
    took = time.monotonic() - begun
    since = question.jobs_since or 0.0
    jobs = tuple(job for job in found if job.submitted >= since)
    return msgspec.structs.replace(told, jobs_at=at, jobs=jobs, queue_took=took)


def _cluster(slurm: Slurm, site: Site, *, limits: bool) -> Report:
    """Configuration and inventory; with `limits` those of accounting, too."""
    try:
        config = slurm.config()
        nodes = slurm.client.nodes()
        partitions = tuple(_with_limits_of_all(one, config) for one in slurm.client.partitions())
        if not nodes or not partitions:
            raise SlurmFormatError("no node or no partition is named", "")
    except SlurmError as error:
        return Report(error=str(error))
    inventory, trouble = _inventory(nodes, partitions, site)
    associations, limits_error = None, ""
    if limits and config.facts.limits_enforced:
        try:
            associations = slurm.associations(config.cluster)
        except SlurmError as error:
            limits_error = str(error)
    return Report(
        associations=associations,
        limits_error=limits_error,
        inventory=inventory,
        gpus=gpus_by_state(nodes),
        trouble=trouble,
        facts=config.facts,
        slurm_uid=config.slurm_uid,
    )


def _with_limits_of_all(partition: Partition, config: SlurmConfig) -> Partition:
    """A partition with slurm.conf's limits of memory, which hold where it has none of its own."""
    if partition.max_memory_per_node is not None or partition.max_memory_per_cpu is not None:
        return partition
    per_node, per_cpu = config.max_memory_per_node, config.max_memory_per_cpu
    return replace(
        partition,
        max_memory_per_node=None if per_node is None else per_node << 20,
        max_memory_per_cpu=None if per_cpu is None else per_cpu << 20,
    )


def gpus_by_state(nodes: Iterable[Node]) -> dict[str, int]:
    """GPUs that jobs hold (`allocated`), that a job could have now (`idle`), that an administrator keeps from jobs
    (`drained`), of nodes that are away (`down`), and `unknown`: Slurm does not say which of the node's jobs hold.
    """
    found = dict.fromkeys(("allocated", "idle", "drained", "down", "unknown"), 0)
    for node in nodes:
        held = node.gpus_allocated
        if node.state in _AWAY or "NOT_RESPONDING" in node.flags:
            found["down"] += node.gpus
        elif held is None:
            found["unknown"] += node.gpus
        else:
            found["allocated"] += held
            found["idle" if node.available else "drained"] += max(0, node.gpus - held)
    return found


def _inventory(
    nodes: tuple[Node, ...], partitions: tuple[Partition, ...], site: Site
) -> tuple[Inventory, str]:
    """The inventory; with a flat network, and a word about it, where the topology cannot be used."""
    features = {node.name: node.active_features or node.features for node in nodes}
    try:
        topologies = site.topologies(features, features)
    except TopologyError as error:
        return build(nodes, partitions, site, None), str(error)
    named = {partition.topology for partition in site.partitions.values() if partition.topology}
    unknown = ", ".join(sorted(named - topologies.by_name.keys()))
    trouble = (
        f"the site file names topologies that {site.topology.file} has not: {unknown}" if unknown else ""
    )
    return build(nodes, partitions, site, topologies), trouble


def slurm_environment(env: Mapping[str, str], site: Site) -> dict[str, str]:
    """The environment of Slurm's commands: where the site file says that Slurm is."""
    found = dict(env)
    if site.slurm.conf:
        found.setdefault("SLURM_CONF", site.slurm.conf)
    if site.slurm.bin:
        found["PATH"] = os.pathsep.join((site.slurm.bin, found.get("PATH", os.defpath)))
    return found


def answer(text: bytes) -> bytes:
    """Answer a question with a report, both as `slurm_plugins.service.wire` has them."""
    question = decode_question(text)
    site = parse_site(question.site, question.site_path) if question.site else Site(cluster="")
    slurm = Slurm.here(slurm_environment(os.environ, site), site, question.queue_seconds)
    return encode_report(look(slurm, site, question))


if __name__ == "__main__":
    sys.exit(answer_questions(answer))
