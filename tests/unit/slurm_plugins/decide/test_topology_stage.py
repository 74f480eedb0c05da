"""How few leaves a job is kept within, how long that may take, and what it becomes on each kind of network."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.hostlist import expand
from site_configs.site_model import Locality, Partition, Policy, Site
from site_configs.topology import Topology as Network
from slurm_plugins.decide.context import Context, Knowledge, Workload
from slurm_plugins.decide.ground import ground
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stages.topology import Topology, intent
from tests.unit.slurm_plugins.decide import cluster
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS, ENFORCE, big, nodes, partition

HOUR = 60  # minutes, as Slurm has --time
LONG: dict[str, Any] = {"time_limit": 48 * HOUR}


class Known(Knowledge):
    """One workload, whoever asks."""

    def __init__(self, **known: Any) -> None:
        self.known = Workload("k", runs=5, **known)

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return self.known

    def avoid(self, partition: str) -> dict[str, str]:
        return {}


def on(nodes_: int, gpus: int = 8, **more: Any) -> Job:
    """A job whose shape is closed."""
    return Job(
        **{**LONG, "min_nodes": nodes_, "max_nodes": nodes_, "tres_per_node": f"gres:gpu:{gpus}", **more}
    )


def decided(job: Job, where: Context) -> Any:
    decision = decide(
        Request(id=1, uid=1, job=job), where, decision_id="d-0", stages=[Topology()], mode="advise"
    )
    assert decision.failures == ()
    return decision


def edits(job: Job, where: Context) -> dict[str, object]:
    return dict(decided(job, where).edits)


def switches(k: int, wait: int) -> dict[str, object]:
    return {"req_switch": k, "wait4switch": wait}


TREE = {
    "two nodes fit under one leaf": (on(2), switches(1, 300)),
    "four are a whole leaf": (on(4), switches(1, 300)),
    "five take both leaves, as any five do": (on(5), {}),
    "one node is near itself": (on(1), {}),
    "a job without GPUs": (Job(min_nodes=4, max_nodes=4, **LONG), {}),
    "GPUs in all, nodes open": (Job(tres_per_job="gres:gpu:13", **LONG), switches(1, 300)),
    "more than a leaf, nodes open": (Job(tres_per_job="gres:gpu:40", **LONG), {}),
    "a range is kept within the leaves of its most": (on(2, max_nodes=4), switches(1, 300)),
    "a range beyond one leaf": (on(2, max_nodes=6), {}),
    "a short job waits no longer than it loses": (on(2, time_limit=20), switches(1, 180)),
    "a very short job does not wait": (on(2, time_limit=5), {}),
    "a type that is there": (on(2, tres_per_node="gres:gpu:a100:8"), switches(1, 300)),
    "a type that is not": (on(2, tres_per_node="gres:gpu:h100:8"), {}),
    "the user's own --switches": (on(2, req_switch=2, wait4switch=60), {}),
    "a partition of one leaf": (on(2, partition="debug"), {}),
    "partitions that differ": (on(2, partition="gpu,debug"), {}),
    "an unknown partition": (on(2, partition="nowhere"), {}),
    "a reservation": (on(2, reservation="course"), {}),
    "the nodes are all named": (on(2, req_nodes="n[1,5]"), {}),
    "named nodes under two leaves": (on(3, req_nodes="n[1,5]"), {}),
    "a named node and one more": (on(2, req_nodes="n1"), switches(1, 300)),
    "excluded nodes leave one leaf": (on(2, exc_nodes="n[1-4]"), {}),
    "excluded nodes leave no leaf for four": (on(4, exc_nodes="n[1,5]"), {}),
    "a constraint that all meet": (on(2, features="nvlink"), switches(1, 300)),
    "a constraint that gsub cannot read": (on(2, features="[nvlink*2&ib*2]"), {}),
    "an array, each task by itself": (on(2, array_inx="0-9"), switches(1, 300)),
    "a shape that contradicts itself": (on(2, tres_per_job="gres:gpu:9"), {}),
}


@pytest.mark.parametrize("name", TREE)
def test_a_tree_gets_switches_and_a_wait(name):
    job, expected = TREE[name]
    assert edits(job, CLUSTERS["two-leaves"]()) == expected


def test_the_user_reads_what_it_is_worth_and_why():
    (line,) = decided(on(2), CLUSTERS["two-leaves"]()).say
    assert line == (
        "gsub would set --switches=1 (not stated before): 2 nodes fit under 1 leaf switch, and being together is worth "
        "a wait of up to 5 min: (1.15 - 1) x 4 h = 36 min, cut to 5 min by max_switch_wait"
    )


def test_explain_has_the_inputs_and_their_sources():
    where = CLUSTERS["two-leaves"](knowledge=Known(slowdown=1.5, run_time=7200), max_switch_wait=7200)
    (note,) = decided(on(2), where).notes
    assert note.inputs["slowdown"] == 1.5 and note.inputs["slowdown_source"] == "workload"
    assert note.inputs["run_time"] == 7200 and note.inputs["runs"] == 5
    assert (note.inputs["worth"], note.inputs["wait"]) == (3600, 1800)
    assert (note.inputs["leaves"], note.inputs["leaves_usable"]) == (1, 2)


def test_a_workload_that_does_not_mind_is_left_alone_and_explain_says_so():
    decision = decided(on(2), CLUSTERS["two-leaves"](knowledge=Known(slowdown=1.0)))
    assert decision.edits == {}
    assert decision.say == ()
    assert "not worth a wait" in decision.notes[0].text
    assert decision.notes[0].inputs["slowdown"] == 1.0


def test_the_partitions_own_locality_counts():
    quick = Partition("gpu", locality=Locality(2.0, 3600, 90))
    site = Site(cluster="t", policy=Policy("enforce"), partitions={"gpu": quick})
    assert edits(on(2), CLUSTERS["two-leaves"](site=site)) == switches(1, 90)


def test_a_stated_wait_beyond_slurms_own_is_told():
    decision = decided(on(2, req_switch=1, wait4switch=7200), CLUSTERS["two-leaves"]())
    assert decision.edits == {}
    assert decision.say == ("gsub: Slurm waits 5 min for --switches at most (max_switch_wait), not 2 h",)


def test_a_stated_number_of_switches_that_cannot_be_met_is_told():
    three = Network.tree({f"l{i}": expand(f"n[{2 * i + 1}-{2 * i + 2}]") for i in range(4)}, dict.fromkeys(
        ("l0", "l1", "l2", "l3"), "spine"))  # fmt: skip
    found = cluster.inventory(nodes("n[1-8]", {"a100": 8}), [partition("gpu", "n[1-8]", default=True)], three)
    where = cluster.context(found, plugin="tree")
    (line,) = decided(on(4, req_switch=1), where).say
    assert "--switches=1 cannot be met: 4 nodes take at least 2 leaf switches" in line
    assert edits(on(4), where) == switches(2, 300)
    assert edits(on(3), where) == switches(2, 300)
    assert decided(on(4, req_switch=2), where).say == ()
    assert "8 nodes take at least 4" in decided(on(8, req_switch=3), where).say[0]
    assert decided(on(8, req_switch=4), where).say == ()


def test_kinds_of_nodes_that_the_job_cannot_use_do_not_count():
    where = CLUSTERS["mixed"]()
    assert edits(on(2, 8), where) == {}  # nodes of 8 are under one leaf
    assert edits(on(2, 4), where) == switches(1, 300)
    assert edits(on(2, 4, min_mem_per_node=400 * 1024), where) == {}  # only the big ones have it


def test_leaf_switches_of_the_site_file_alone_are_no_use():
    decision = decided(on(2), cluster.two_leaves().__class__(ENFORCE, cluster.two_leaves().inventory))
    assert decision.edits == {}
    assert "no topology plugin" in decision.notes[0].text


@pytest.mark.parametrize(
    ("count", "release", "segment"),
    [
        (1, (25, 11), None),
        (4, (25, 11), None),
        (6, (25, 11), None),
        (8, (25, 11), 4),
        (16, (26, 5), None),  # all nodes that there are
        (8, (24, 11), None),
    ],
)
def test_blocks_get_segments_where_they_free_a_job_from_neighbours(count, release, segment):
    found = edits(on(count), cluster.block(release))
    assert found == ({} if segment is None else {"segment_size": segment})


def test_a_segment_that_this_slurm_cannot_take_from_gsub_is_named():
    (note,) = decided(on(8), cluster.block((24, 11))).notes
    assert "--segment=4" in note.text and "25.11" in note.text


def test_a_stated_segment_stays():
    assert edits(on(8, segment_size=2), cluster.block((26, 5))) == {}


def test_segments_never_make_slurm_wait_for_more_than_it_would():
    """8 of an aggregate of 16: Slurm may take 3 + 3 + 2 there, whole blocks would be asking for more."""
    names = expand("n[01-32]")
    blocks = Network.block({f"b{i}": names[4 * i : 4 * i + 4] for i in range(8)}, [4, 16])
    found = cluster.inventory(
        nodes("n[01-32]", {"h200": 8}), [partition("gpu", "n[01-32]", default=True)], blocks
    )
    where = cluster.context(found, plugin="block", release=(26, 5))
    assert edits(on(8), where) == {}
    assert edits(on(16), where) == {"segment_size": 4}
    assert edits(on(32), where) == {}  # all that there is


FEATURES = {
    "two nodes": (on(2, 4), "[leaf1|leaf2]"),
    "a whole leaf": (on(4, 4), "[leaf1|leaf2]"),
    "more than a leaf": (on(5, 4), None),
    "one node": (on(1, 4), None),
    "GPUs in all": (Job(tres_per_job="gres:gpu:10", **LONG), "[leaf1|leaf2]"),
    "only one leaf has room": (on(4, 4, exc_nodes="n1"), "leaf2"),
    "no leaf has room": (on(4, 4, exc_nodes="n[1,5]"), None),
    "its own constraint": (on(2, 4, features="leaf1"), None),
    "another constraint": (on(2, 4, features="[leaf1|leaf2]"), None),
    "its own --prefer": (on(2, 4, prefer="leaf2"), None),
    "its own nodes": (on(2, 4, req_nodes="n1"), None),
    "a short job": (on(2, 4, time_limit=5), None),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_get_a_wish_for_one_leaf_never_a_demand(name):
    job, expected = FEATURES[name]
    assert edits(job, CLUSTERS["features"]()) == ({} if expected is None else {"prefer": expected})


@pytest.mark.parametrize("name", ["untyped", "mig"])
def test_a_flat_network_has_nothing_to_say(name):
    decision = decided(on(2, 2), CLUSTERS[name]())
    assert (decision.edits, decision.notes) == ({}, ())


def test_a_second_look_changes_nothing():
    where = CLUSTERS["two-leaves"]()
    assert edits(on(2, req_switch=1, wait4switch=300), where) == {}


def test_ten_thousand_nodes_are_counted_once():
    """What a decision works out is kept by the leaf, and not for each job."""
    where = big()
    assert edits(on(16), where) == switches(1, 300)
    pool = where.inventory.pool(None)
    assert pool is not None
    before = len(pool._memory)
    assert edits(on(64), where) == switches(2, 300)
    assert edits(on(64, exc_nodes="g[00001-00003]"), where) == switches(2, 300)
    assert edits(Job(tres_per_job="gres:gpu:999", **LONG), where) == switches(4, 300)
    assert len(pool._memory) <= before + 4  # an intent for each shape


tops = st.lists(st.integers(0, 3), min_size=1, max_size=12)  # node -> its leaf


@given(tops, tops, st.integers(1, 14), st.integers(1, 4), st.booleans(), st.sets(st.integers(0, 11)))
def test_counts_by_the_leaf_are_those_of_the_topology(leaf_of, sizes, need, fabrics, by_gpus, gone):
    """The k is `Topology.fewest_leaves`, over what the job may use."""
    gpus = [1 + sizes[i % len(sizes)] for i in range(len(leaf_of))]
    leaves: dict[str, list[str]] = {}
    for i, leaf in enumerate(leaf_of):
        leaves.setdefault(f"l{leaf}", []).append(f"n{i}")
    network = Network.tree(leaves, {leaf: f"s{i % fabrics}" for i, leaf in enumerate(leaves)})
    hosts = [host for i, count in enumerate(gpus) for host in nodes(f"n{i}", {"a100": count})]
    found = cluster.inventory(hosts, [partition("gpu", f"n[0-{len(gpus) - 1}]", default=True)], network)
    excluded = ",".join(f"n{i}" for i in sorted(gone) if i < len(gpus)) or None
    asked: Any = {"tres_per_job": f"gres:gpu:{need}"} if by_gpus else {"min_nodes": need, "max_nodes": need}
    job = Job(**{"tres_per_node": None if by_gpus else "gres:gpu:2", "exc_nodes": excluded, **asked})
    request = Request(id=1, uid=1, job=job)
    standing = ground(request, cluster.context(found, plugin="tree"))
    free = {f"n{i}": count for i, count in enumerate(gpus) if i not in gone and (by_gpus or count >= 2)}
    expected = network.fewest_leaves(free, gpus=need) if by_gpus else network.fewest_leaves(
        free, nodes=need, gpus_per_node=2)  # fmt: skip
    if standing is None:
        assert not free
        return
    ((place, kinds),) = standing
    got = intent(standing.shape, place, kinds)
    assert (got and got.leaves) == expected
    whole = ground(
        Request(id=1, uid=1, job=Job(**{**asked, "tres_per_node": job.tres_per_node})), cluster.context(found)
    )
    assert whole is not None
    ((place, kinds),) = whole
    without = intent(whole.shape, place, kinds, frozenset(f"n{i}" for i in gone))
    assert (without and without.leaves) == expected


counts = st.none() | st.integers(0, 40)
texts = st.sampled_from(
    [None, "gres:gpu:8", "gres/gpu:4", "gres:gpu:a100:2", "gres:gpu:v100:4", "gres:gpu:1", "x"]
)
jobs = st.builds(
    Job,
    min_nodes=counts, max_nodes=counts, num_tasks=counts, ntasks_per_node=counts, cpus_per_task=counts,
    tres_per_node=texts, tres_per_job=texts, tres_per_task=texts,
    time_limit=st.none() | st.integers(0, 1 << 32), req_switch=st.none() | st.integers(0, 9), wait4switch=counts,
    features=st.sampled_from([None, "leaf1", "[leaf1|leaf2]", "ib&(", "nvlink"]),
    prefer=st.sampled_from([None, None, "leaf1"]),
    req_nodes=st.sampled_from([None, None, "n1", "n[1-3]", "b["]),
    exc_nodes=st.sampled_from([None, None, "n1", "n[1-7]", "s[1-8]"]),
    partition=st.sampled_from([None, "gpu", "gpu,debug", "v100,a100"]),
)  # fmt: skip


@given(jobs, st.sampled_from(sorted(CLUSTERS)))
def test_whatever_is_asked_what_was_stated_stays_and_no_bound_is_passed(job, name):
    where = CLUSTERS[name]()
    decision = decided(job, where)
    found = decision.edits
    assert found.get("wait4switch", 0) <= where.slurm.max_switch_wait
    for field in ("req_switch", "prefer", "features"):
        assert field not in found or not getattr(job, field)
    assert not {"req_nodes", "exc_nodes", "min_nodes", "features"} & set(found)
