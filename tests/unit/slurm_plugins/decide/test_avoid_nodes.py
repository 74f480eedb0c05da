"""Nodes that evidence speaks against: left out, within a tenth, and never at the price of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.hostlist import expand
from site_configs.topology import Topology as Network
from slurm_plugins.decide.context import Context, Knowledge, Workload
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stages.avoid_nodes import AvoidNodes
from slurm_plugins.decide.stages.topology import Topology
from tests.unit.slurm_plugins.decide import cluster
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS, DOWN, big, nodes, partition


class Bad(Knowledge):
    """Partition -> nodes to avoid, the worst first."""

    def __init__(self, **bad: str) -> None:
        self.bad = {
            name: {node: f"3 Xid 79 on {node}" for node in hosts.split()} for name, hosts in bad.items()
        }

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return None

    def avoid(self, partition: str) -> Mapping[str, str]:
        return self.bad.get(partition, {})


def where(count: int = 40, bad: str = "n3", drained: int = 0, knowledge: Knowledge | None = None) -> Context:
    """n1, n2... of 8 GPUs, the last `drained` of them down; the partition `all` has them too."""
    hosts = nodes(f"n[1-{count - drained}]", {"a100": 8})
    if drained:
        hosts += nodes(f"n[{count - drained + 1}-{count}]", {"a100": 8}, flags=DOWN)
    parts = [partition("gpu", f"n[1-{count}]", default=True), partition("few", "n[1-10]")]
    return cluster.context(cluster.inventory(hosts, parts), knowledge=knowledge or Bad(gpu=bad, few=bad))


def decided(job: Job, context: Context) -> Any:
    decision = decide(
        Request(id=1, uid=1, job=job), context, decision_id="d-0", stages=[AvoidNodes()], mode="advise"
    )
    assert decision.failures == ()
    return decision


def excluded(job: Job, context: Context) -> object:
    return decided(job, context).edits.get("exc_nodes")


def on(count: int, **more: Any) -> Job:
    return Job(**{"min_nodes": count, "max_nodes": count, "tres_per_node": "gres:gpu:8", **more})


TABLE = {
    "one bad node": (on(2), where(), "n3"),
    "several": (on(2), where(bad="n3 n9 n4"), "n[3-4,9]"),
    "a tenth, the worst first": (on(2), where(bad="n9 n8 n7 n6 n5"), "n[6-9]"),
    "of nine nodes none": (on(1), where(9), None),
    "of ten one": (on(1), where(10, bad="n2 n3"), "n2"),
    "the job needs them all": (on(40), where(), None),
    "the job can spare one": (on(39), where(bad="n3 n4"), "n3"),
    "of those that are up it needs all": (on(30), where(drained=10), None),
    "GPUs in all": (Job(tres_per_job="gres:gpu:316"), where(bad="n3 n4"), None),
    "GPUs in all, one to spare": (Job(tres_per_job="gres:gpu:312"), where(bad="n3 n4"), "n3"),
    "the user's own --exclude stays": (on(2, exc_nodes="n[1-2]"), where(), "n[1-2],n3"),
    "excluded already": (on(2, exc_nodes="n[1-5]"), where(), None),
    "named by the user": (on(2, req_nodes="n3"), where(bad="n3 n4"), "n4"),
    "a node of another partition": (on(2), where(bad="x1"), None),
    "a job without GPUs": (Job(min_nodes=2, max_nodes=2), where(), None),
    "two partitions, a tenth of each": (on(2, partition="gpu,few"), where(bad="n3 n4 n12"), "n[3,12]"),
    "two partitions, one of which needs it": (on(10, partition="gpu,few"), where(bad="n3 n12"), "n12"),
    "a partition that nothing is known of": (on(2, partition="nowhere"), where(), None),
    "a reservation": (on(2, reservation="course"), where(), None),
    "nothing bad": (on(2), where(knowledge=Bad()), None),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    job, context, expected = TABLE[name]
    assert excluded(job, context) == expected


def test_the_user_reads_which_and_why():
    assert decided(on(2), where()).say == (
        "gsub would set --exclude=n3 (not stated before): n3: 3 Xid 79 on n3",
    )
    (line,) = decided(on(2), where(bad="n9 n8 n7 n6")).say
    assert line.endswith("n9: 3 Xid 79 on n9; n8: 3 Xid 79 on n8; n7: 3 Xid 79 on n7; and 1 more")


def test_explain_says_how_many_stay_in_and_why():
    (note,) = decided(on(2), where(bad="n9 n8 n7 n6 n5")).notes
    assert note.inputs == {"avoided": 4, "not_avoided": 1}
    assert note.text.startswith("1 more should be avoided")


def test_of_a_list_that_slurm_would_not_take_the_worst_are_sent():
    names = [f"g{i:05d}" for i in range(0, 2000, 2)]
    context = big(10_000)
    context = Context(context.site, context.inventory, context.slurm, Bad(gpu=" ".join(reversed(names))))
    decision = decided(on(2), context)
    sent = expand(decision.edits["exc_nodes"])
    assert 100 < len(sent) < 1000
    assert set(sent) == set(names[-len(sent) :])
    assert decision.notes[0].inputs["not_avoided"] == 1000 - len(sent)


def leaves(count: int, bad: str) -> Context:
    """Two leaves that only features name."""
    half = count // 2
    found = [
        *nodes(f"n[1-{half}]", {"a100": 8}, features=["leaf1"]),
        *nodes(f"n[{half + 1}-{count}]", {"a100": 8}, features=["leaf2"]),
    ]
    network = Network.from_features({host.name: host.features for host in found}, "leaf")
    return cluster.context(
        cluster.inventory(found, [partition("gpu", f"n[1-{count}]", default=True)], network),
        knowledge=Bad(gpu=bad),
    )


def test_a_leaf_that_is_too_small_without_them_is_not_wished_for():
    """Slurm would refuse a job that prefers what cannot be."""
    stages = [Topology(), AvoidNodes()]
    request = Request(id=1, uid=1, job=on(10, time_limit=6000))
    decision = decide(request, leaves(20, "n3"), decision_id="d-0", stages=stages, mode="advise")
    assert decision.edits == {"prefer": "leaf2", "exc_nodes": "n3"}


def test_nodes_that_a_preference_needs_stay():
    assert excluded(on(10, prefer="leaf1"), leaves(20, "n3")) is None
    assert excluded(on(10, prefer="leaf2"), leaves(20, "n3")) == "n3"
    assert excluded(on(2, prefer="leaf1&("), leaves(20, "n3")) is None


def test_switches_are_counted_without_them():
    names = [f"n{i}" for i in range(1, 41)]
    tree = Network.tree({"l1": names[:20], "l2": names[20:]}, {"l1": "s", "l2": "s"})
    found = cluster.inventory(
        nodes("n[1-40]", {"a100": 8}), [partition("gpu", "n[1-40]", default=True)], tree
    )
    stages = [Topology(), AvoidNodes()]
    for bad, expected in (
        ("n3", 1),
        ("n3 n23", None),
    ):  # 20 nodes: one leaf is whole; none is, and both hold any job
        context = cluster.context(found, plugin="tree", knowledge=Bad(gpu=bad))
        request = Request(id=1, uid=1, job=on(20, time_limit=6000))
        decision = decide(request, context, decision_id="d-0", stages=stages, mode="advise")
        assert decision.edits.get("req_switch") == expected


hosts = st.sampled_from([None, None, "n1", "n[1-3]", "n[1-7]", "b[", "n[2,5]", "s[1-3]"])
jobs = st.builds(
    Job,
    min_nodes=st.none() | st.integers(1, 9), max_nodes=st.none() | st.integers(1, 9),
    tres_per_node=st.sampled_from([None, "gres:gpu:8", "gres:gpu:4", "gres:gpu:1"]),
    tres_per_job=st.sampled_from([None, "gres:gpu:8", "gres:gpu:a100:40", "gres:gpu:3"]),
    features=st.sampled_from([None, "leaf1", "[leaf1|leaf2]", "ib"]), exc_nodes=hosts, req_nodes=hosts,
    partition=st.sampled_from([None, "gpu", "gpu,debug", "cpu"]),
)  # fmt: skip
bad = st.lists(st.sampled_from([f"{letter}{i}" for letter in "nsb" for i in range(1, 9)]), unique=True).map(
    " ".join
)


@given(jobs, bad, st.sampled_from(sorted(CLUSTERS)))
def test_whatever_is_asked_the_job_keeps_what_it_needs(job, names, name):
    made = CLUSTERS[name]()
    context = Context(made.site, made.inventory, made.slurm, Bad(gpu=names, debug=names))
    found = excluded(job, context)
    if found is None:
        return
    ours = set(expand(str(found))) - set(expand(job.exc_nodes) if job.exc_nodes else ())
    assert ours <= set(names.split())
    assert not ours & set(expand(job.req_nodes) if job.req_nodes else ())
    for pool in context.inventory.pools_of(job.partition):
        here = ours & {node for kind in pool.kinds for node in kind.nodes}
        assert len(here) <= pool.nodes // 10
        assert sum(kind.usable for kind in pool.kinds) - len(here) >= (job.min_nodes or 1)
