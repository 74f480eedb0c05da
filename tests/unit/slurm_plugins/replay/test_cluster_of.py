"""The cluster that a trace is replayed on: site files, Slurm's own, short texts, and what is supposed without any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from site_configs.site import load_site
from slurm_plugins.replay.cluster_of import Found, alike, cluster_of, fitting, inferred
from slurm_plugins.replay.slurm_rules import SlurmRules
from slurm_plugins.replay.traces import TraceError
from slurm_plugins.replay.values import Cluster, Job, Nodes, Trace
from tests.paths import REPOSITORY

EXAMPLES = REPOSITORY / "site_configs/examples"


def shape(cluster: Cluster) -> list[tuple[object, ...]]:
    return [
        (n.count, n.gpus, n.cpus, n.memory, n.gpu_type, n.leaf, sorted(n.partitions)) for n in cluster.nodes
    ]


def test_a_site_file_names_nodes_partitions_and_leaves():
    found = cluster_of(EXAMPLES / "small-lab.toml")
    assert found.cluster.name == "lab" and found.cluster.gpus == 64 and found.notes == ()
    assert shape(found.cluster)[0][:5] == (2, 8, 64.0, 512000.0, "a100")
    assert {tuple(sorted(n.partitions)) for n in found.cluster.nodes} == {("debug", "gpu"), ("gpu",)}
    topology = load_site(EXAMPLES / "small-lab.toml").topologies().of()
    for group in found.cluster.nodes:
        assert {topology.leaf_of(name) for name in group.names} == {group.leaf}


def test_each_partition_has_its_own_topology():
    cluster = cluster_of(EXAMPLES / "university.toml").cluster
    assert sum(n.count for n in cluster.nodes) == 16 + 24 + 16 + 64
    assert cluster.gpus == 16 * 4 + 24 * 8 + 16 * 8
    racks = {n.leaf for n in cluster.nodes if "h200" in n.partitions}
    assert len(racks) > 1 and "" not in racks


@pytest.mark.parametrize("name", ["small-lab", "university"])
def test_slurm_conf_says_the_same_as_the_site_file(name):
    site, conf = (cluster_of(EXAMPLES / one).cluster for one in (f"{name}.toml", f"{name}/slurm.conf"))
    assert (site.gpus, site.name) == (conf.gpus, conf.name)
    where = [
        {node: (g.gpus, g.cpus, g.partitions) for g in one.nodes for node in g.names} for one in (site, conf)
    ]
    cpu_only = {node for node, (gpus, *_) in where[1].items() if not gpus}
    for node, (gpus, cpus, partitions) in where[1].items():
        assert where[0][node][0] == gpus and where[0][node][2] == partitions
        assert node in cpu_only or where[0][node][1] == cpus


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_what_scontrol_printed(tmp_path, release):
    recorded = json.loads((REPOSITORY / "tests/data/slurm" / release / "nodes.json").read_text())
    path = tmp_path / "nodes.txt"
    path.write_text(next(one["stdout"] for one in recorded if "node" in one["argv"]))
    cluster = cluster_of(path).cluster
    assert cluster.gpus == 64 and all("gpu" in n.partitions for n in cluster.nodes)
    assert {n.memory for n in cluster.nodes} <= {512000.0, 510976.0}


def test_lines_of_slurm_conf(tmp_path):
    path = tmp_path / "slurm.conf"
    path.write_text(
        "ClusterName=Lab # ours\n"
        "NodeName=DEFAULT CPUs=96 RealMemory=500000\n"
        "nodename=n[1-3] \\\n  Gres=gpu:a100:4,gpu:v100:2 MemSpecLimit=1000\n"
        "NodeName=n4 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 CPUs=32 Gres=gpu:8 # Gres=gpu:1\n"
        "#NodeName=n5 Gres=gpu:8\n"
        "NodeName=cloud[1-9] State=FUTURE\n"
        "PartitionName=DEFAULT MaxTime=1\nPartitionName=all Nodes=ALL\nPartitionName=big Nodes=n4,gone\n"
    )
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n")
    found = cluster_of(path)
    assert shape(found.cluster) == [
        (2, 6, 96.0, 499000.0, "", "a", ["all"]),
        (1, 6, 96.0, 499000.0, "", "b", ["all"]),
        (1, 8, 32.0, 500000.0, "", "b", ["all", "big"]),
    ]
    assert found.cluster.name == "lab" and "NodeName=n4" in found.slurm_conf


NODES = "NodeName=n[1-4] CPUs=8 RealMemory=1000 Gres=gpu:2\nPartitionName=gpu Nodes=n[1-4]\n"


def including(tmp_path: Path, text: str, **files: str) -> Path:
    """A slurm.conf of that text beside files of those names."""
    (tmp_path / "more").mkdir(exist_ok=True)
    for name, content in files.items():
        (tmp_path / name.replace("__", "/").replace("_", ".")).write_text(content)
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    return path


def test_what_slurm_conf_includes_is_part_of_it(tmp_path):
    """As Slurm: a name is of the folder of the file that includes it, whatever follows the last line of a file."""
    path = including(
        tmp_path,
        "ClusterName=Lab\nInclude sched.conf\ninclude more/%c.conf # nodes\nKillWait=7\n",
        sched_conf="SchedulerType=sched/builtin",
        more__lab_conf="Include nodes.conf\nPartitionName=gpu Nodes=n[1-4] \\",
        more__nodes_conf="NodeName=n[1-4] CPUs=8 \\\n  RealMemory=1000 Gres=gpu:2\n",
    )
    for named in (path, site(tmp_path, '[slurm]\nconf = "slurm.conf"\n')):
        found = cluster_of(named)
        assert [(n.count, n.gpus, n.partitions) for n in found.cluster.nodes] == [(4, 2, frozenset({"gpu"}))]
        rules = SlurmRules.parse(found.slurm_conf)
        assert not rules.backfill and rules.kill_wait_s == 7 and set(rules.partitions) == {"gpu"}


def test_a_comment_and_a_continued_line_include_nothing(tmp_path):
    path = including(tmp_path, f"{NODES}# Include gone\nPartitionName=all \\\nInclude=no Nodes=n1\n")
    assert cluster_of(path).slurm_conf == path.read_text().rstrip("\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{NODES}Include gone.conf\n", "slurm.conf line 3: .*gone.conf is not there"),
        (f"{NODES}Include more\n", "no regular file"),
        (f"{NODES}Include slurm.conf\n", "include each other"),
        (f"{NODES}{'Include slurm.conf' + chr(10) + 'Include slurm.conf' + chr(10)}", "include each other"),
        (f"{NODES}{('Include empty.conf' + chr(10)) * 1001}", "more than 1000 files"),
        (f"Include %c.conf\n{NODES}", "comes before ClusterName"),
        ("Include empty.conf\n", "describes no cluster"),
    ],
)
def test_what_cannot_be_included_is_told(tmp_path, text, why):
    path = including(tmp_path, text, empty_conf="")
    with pytest.raises(TraceError, match=why):
        cluster_of(path)


@pytest.mark.parametrize(
    ("text", "gpus", "groups"),
    [
        ("64x8", 512, 1),
        ("321x2+180x8/24", 2082, 9),
        ("2x4:32c:256G", 8, 1),
        ("1X1:8C:64g", 1, 1),
        ("3x0", 0, 1),
    ],
)
def test_short_texts(text, gpus, groups):
    cluster = alike(text)
    assert (cluster.gpus, len(cluster.nodes)) == (gpus, groups)
    assert len({n.leaf for n in cluster.nodes}) == groups


@pytest.mark.parametrize(
    "text", ["", "8", "x8", "8x", "0x8", "8x8/0", "8x8:9", "8x8:9q", "-1x8", "8x8+", "9999999x8"]
)
def test_texts_that_are_no_nodes(text):
    with pytest.raises(TraceError):
        alike(text)


def site(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text('cluster = "c"\n' + text)
    return path


def test_a_site_file_without_nodes(tmp_path):
    bare = site(tmp_path, "")
    with pytest.raises(TraceError, match="names no nodes"):
        cluster_of(bare)
    seen = Cluster("seen", (Nodes(2, 4, 32, 1000, names=("n1", "n2")),))
    found = cluster_of(bare, seen)
    assert found.cluster.gpus == 8 and "names no nodes" in found.notes[0]
    conf = tmp_path / "slurm.conf"
    conf.write_text("NodeName=n[1-4] CPUs=8 RealMemory=1000 Gres=gpu:2\n")
    (tmp_path / "topo.conf").write_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n")
    named = site(tmp_path, '[slurm]\nconf = "slurm.conf"\n[topology]\nfile = "topo.conf"\n')
    found = cluster_of(named, seen)
    assert [(n.count, n.gpus, n.leaf) for n in found.cluster.nodes] == [(2, 2, "a"), (2, 2, "b")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "x"),
        ('[partitions.a]\nnodes = "n[1-2]"', "how many GPUs"),
        ('[topology]\nfile = "no.conf"', "no.conf"),
        ("[[", "TOML"),
    ],
)
def test_site_files_that_cannot_be_used(tmp_path, text, why):
    with pytest.raises(TraceError) as told:
        cluster_of(site(tmp_path, text))
    assert why in f"{told.value.problem} {told.value.remedy}"


@pytest.mark.parametrize(
    "text",
    ["", "hello", "NodeName=n[1-", "NodeName=n1 CPUs=x", "NodeName=n1 Gres=gpu:=4,!", "NodeName=DEFAULT"],
)
def test_files_that_describe_no_cluster(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError):
        cluster_of(path)


def test_partitions_bind_only_who_knows_them():
    cluster = Cluster("c", (Nodes(2, 8, 64, 1000, partitions=frozenset({"gpu"})),))
    gpu, other = Job(1, 0.0, 1.0, queue="gpu"), Job(2, 0.0, 1.0, queue="11cb48")
    assert fitting(cluster, Trace.of([gpu])) == Found(cluster)
    found = fitting(cluster, Trace.of([other]))
    assert found.cluster.nodes[0].partitions == frozenset() and "all jobs may use all nodes" in found.notes[0]
    found = fitting(cluster, Trace.of([gpu, other]))
    assert found.cluster == cluster and found.notes[0].startswith("1 jobs")


def test_a_cluster_is_made_up_for_a_trace_that_tells_of_none():
    trace = Trace.of([Job(n, n * 10.0, 1000.0, gpus=4) for n in range(1000)])
    found = inferred(trace)
    assert found.cluster.gpus == pytest.approx(4 * 1000 / 10 / 0.8, rel=0.05) and "supposed" in found.notes[0]
    assert inferred(Trace.of([Job(1, 0.0, 1.0, gpus=64)])).cluster.gpus >= 64
