"""What placement relies on: topologies read as Slurm reads them, right distances and counts, errors with a line."""

from __future__ import annotations

import itertools
import math
import re
import time

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import assume, given
from hypothesis import strategies as st

from site_configs import topology_conf, topology_yaml
from site_configs.hostlist import MAX_NODES, HostlistError, expand, fold, natural
from site_configs.topology import Topologies, Topology, TopologyError, load_topologies

# --- hostlists --------------------------------------------------------------------------------------------------------

HOSTLISTS = {
    "n1": "n1",
    "n[1-3]": "n1 n2 n3",
    "n[1-3,7]": "n1 n2 n3 n7",
    "n[7,1-2]": "n7 n1 n2",
    "n[08-11]": "n08 n09 n10 n11",
    "n[098-101]": "n098 n099 n100 n101",
    "n[1-2]x[3-4]": "n1x3 n1x4 n2x3 n2x4",
    "n[1-2][3-4]": "n13 n14 n23 n24",
    "n[1-2]-ib0": "n1-ib0 n2-ib0",
    "a[1-2],b,c[5]": "a1 a2 b c5",
    "a1, a2 a3,,a4,": "a1 a2 a3 a4",
    "n[1,1],n1": "n1",
    "n[ 1 - 2 ]": None,
    "node-1.example.org": "node-1.example.org",
    "[1-3]": None,
    "n[1": None,
    "n1]": None,
    "n[[1]]": None,
    "n[]": None,
    "n[1-]": None,
    "n[a-c]": None,
    "n[3-1]": None,
    "n[1-4/2]": None,
    "n[1--2]": None,
    "@group": None,
    "n1&n2": None,
    "n1;rm": None,
    "n[1-999999999]": None,
    "n[1-99999999999999999999]": None,
    "n[1-70000]": None,
    "n[1-300]x[1-300]": None,
    "n[1-40000],m[1-40000]": None,
    "n\x00": None,
    "nœud1": None,
    "n[1-2": None,
}


@pytest.mark.parametrize(("text", "names"), HOSTLISTS.items())
def test_hostlists(text, names):
    if names is None:
        with pytest.raises(HostlistError) as caught:
            expand(text)
        assert len(str(caught.value)) < 200
    else:
        assert expand(text) == tuple(names.split())


def test_a_huge_hostlist_costs_nothing():
    start = time.perf_counter()
    for text in (
        "n[1-999999999]",
        "x[1-65000]" * 9,
        "n[" + "1-65000," * 9000 + "1]",
        ",".join(["n[1-60000]"] * 2000) + ",m[1-60000]",
    ):
        with pytest.raises(HostlistError):
            expand(text)
    assert time.perf_counter() - start < 5


def test_the_largest_hostlist_is_read():
    assert len(expand(f"n[1-{MAX_NODES}]")) == MAX_NODES


names = st.builds("{}{}".format, st.sampled_from(["n", "gpu-", "r1c"]), st.integers(0, 300))


@given(st.lists(names, min_size=1, max_size=40))
def test_what_is_folded_expands_to_itself(listed):
    assert set(expand(fold(listed))) == set(listed)
    assert fold(reversed(listed)) == fold(listed)


ranges = st.tuples(st.integers(0, 120), st.integers(0, 20)).map(lambda r: f"{r[0]:03}-{r[0] + r[1]:03}")


@given(st.lists(ranges, min_size=1, max_size=4), st.lists(ranges, min_size=1, max_size=2))
def test_expansion_agrees_with_clustershell(first, second):
    text = f"n[{','.join(first)}]x[{','.join(second)}]"
    assert set(expand(text)) == set(NodeSet(text, resolver=RESOLVER_NOGROUP))


@given(st.text(alphabet="n1-[],0 x@!&", max_size=30))
def test_no_text_breaks_expansion(text):
    try:
        assert len(expand(text)) <= MAX_NODES
    except HostlistError as error:
        assert error.problem


def test_natural_order():
    assert sorted(["n10", "n2", "n1", "n02", "m", "n2x10", "n2x9"], key=natural) == [
        "m",
        "n1",
        "n02",
        "n2",
        "n2x9",
        "n2x10",
        "n10",
    ]


# --- topology.conf ----------------------------------------------------------------------------------------------------

TWO_LEVELS = (
    "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-8]\nSwitchName=spine Switches=leaf[1-2]\n"
)

VALID_CONF = {
    "two levels": TWO_LEVELS,
    "link speed": TWO_LEVELS.replace(" Nodes", " LinkSpeed=100 Nodes"),
    "case": TWO_LEVELS.replace("SwitchName", "SWITCHNAME").replace("Nodes=", "nodes="),
    "comments": "# the lab\n" + TWO_LEVELS.replace("\n", "  # says who\n") + "\n\n#SwitchName=x",
    "continuation": TWO_LEVELS.replace(" Nodes", " \\\n   Nodes"),
    "continuation before a comment": TWO_LEVELS.replace(" Nodes", " \\  # leaf\n Nodes"),
    "blanks around =": TWO_LEVELS.replace("=", " = "),
    "quotes": TWO_LEVELS.replace("n[5-8]", '"n[5-6], n7,n8"'),
    "children first": "\n".join(reversed(TWO_LEVELS.splitlines())),
    "CRLF": TWO_LEVELS.replace("\n", "\r\n"),
    "tabs": TWO_LEVELS.replace(" ", "\t"),
    "a newer key": TWO_LEVELS.replace(" Nodes", " Colour=blue Nodes"),
    "last line goes on": TWO_LEVELS.rstrip() + " \\",
}


@pytest.mark.parametrize("case", VALID_CONF)
def test_trees(case):
    topology = topology_conf.parse(VALID_CONF[case])
    assert topology == topology_conf.parse(TWO_LEVELS)
    assert topology.leaves == {"leaf1": frozenset(expand("n[1-4]")), "leaf2": frozenset(expand("n[5-8]"))}
    assert topology.parents == {"leaf1": "spine", "leaf2": "spine"}
    assert topology.nodes == expand("n[1-8]")
    assert str(topology) == "leaf1=n[1-4] leaf2=n[5-8]"


def test_leaves_and_nodes_come_in_natural_order():
    topology = topology_conf.parse(
        "SwitchName=s10 Nodes=n10,n9\nSwitchName=s2 Nodes=n2,n1\nSwitchName=top Switches=s2,s10"
    )
    assert list(topology.leaves) == ["s2", "s10"]
    assert topology.nodes == ("n1", "n2", "n9", "n10")
    assert topology.leaves_of(["n10", "n1", "n9", "elsewhere"]) == ("s2", "s10")


def test_include(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "topology.conf").write_text("Include more/leaves.conf\nSwitchName=spine Switches=leaf[1-2]\n")
    (tmp_path / "more" / "leaves.conf").write_text("include last.conf\n" + TWO_LEVELS.splitlines()[0])
    (tmp_path / "more" / "last.conf").write_text(TWO_LEVELS.splitlines()[1])
    assert load_topologies(tmp_path / "topology.conf").of() == topology_conf.parse(TWO_LEVELS)
    (tmp_path / "more" / "last.conf").write_text("\n\nSwitchName=leaf2 Nodes=n[")
    with pytest.raises(TopologyError, match=re.escape(f"{tmp_path}/more/last.conf:3: a bad hostlist")):
        load_topologies(tmp_path / "topology.conf")


@pytest.mark.parametrize("text", ["Include topology.conf", "Include a.conf", "Include nowhere.conf"])
def test_includes_that_lead_nowhere(tmp_path, text):
    (tmp_path / "topology.conf").write_text(f"{text}\n")
    (tmp_path / "a.conf").write_text("Include ./topology.conf\n")
    with pytest.raises(TopologyError, match=r"never ends|does not exist"):
        load_topologies(tmp_path / "topology.conf")


def test_blocks():
    text = (
        "".join(f"BlockName=b{i} Nodes=n[{4 * i - 3}-{4 * i}]\n" for i in range(1, 9)) + "BlockSizes=4,8,16"
    )
    topology = topology_conf.parse(text)
    assert (topology.kind, topology.block_sizes, len(topology.leaves)) == ("block", (4, 8, 16), 8)
    near = [topology.distance("n1", node) for node in ("n1", "n4", "n5", "n9", "n16", "n17", "n32")]
    assert near == [0, 1, 3, 5, 5, 7, 7]
    assert topology_conf.parse("BlockName=b1 Nodes=n1").block_sizes == ()


def test_rings():
    topology = topology_conf.parse("RingName=r0 Nodes=n[01-08]\nRingName=r1 Nodes=n[09-16]")
    assert (topology.kind, topology.distance("n01", "n08"), topology.distance("n01", "n09")) == (
        "ring",
        1,
        math.inf,
    )


INVALID_CONF = [
    ("", ["the topology is empty"]),
    ("# nothing\n\n", ["the topology is empty"]),
    ("SwitchName=s1 Nodes=n[1-", ["t.conf:1:", "bad hostlist", "brackets"]),
    ("\n\nSwitchName=s1 Nodes=n[4-1]", ["t.conf:3:", "runs backwards", "SwitchName=s1 Nodes=n[4-1]"]),
    ("SwitchName=s1 Nodes=n[1-999999999]", ["t.conf:1:", "n[1-999999999]", "more than 65536 names"]),
    ("SwitchName=s1 Nodes=n[a-b]", ["'a-b' is not a range"]),
    ("SwitchName=s1 Nodes=@all", ["'@' cannot stand in a node name"]),
    ("SwitchName=s1", ["neither nodes nor child switches"]),
    ("SwitchName=s1 LinkSpeed=5", ["neither nodes nor child switches"]),
    (
        "SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n2 Switches=s1",
        ["t.conf:2:", "both nodes and child switches"],
    ),
    ("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2", ["t.conf:2:", "s1 is defined twice, first in line 1"]),
    (
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[2-3]",
        ["t.conf:2:", "n2 is under two leaves, s1 and s2"],
    ),
    (
        "SwitchName=leaf1 Nodes=n1\nSwitchName=top Switches=leaf[1-2]",
        ["t.conf:2:", "leaf2 is not defined", "did you mean leaf1"],
    ),
    (
        "SwitchName=s1 Nodes=n1\nSwitchName=a Switches=s1\nSwitchName=b Switches=s1",
        ["t.conf:3:", "s1 is under two switches, a and b"],
    ),
    ("SwitchName=a Switches=b\nSwitchName=b Switches=a", ["form a circle", "a -> b"]),
    ("SwitchName=a Switches=a", ["t.conf:1:", "circle", "a -> a"]),
    (
        "SwitchName=s1 Nodes=n1\nSwitchName=a Switches=c\nSwitchName=b Switches=a\nSwitchName=c Switches=b",
        ["circle"],
    ),
    ("SwitchName=s[1-2] Nodes=n1", ["cannot name a switch"]),
    ("SwitchName= Nodes=n1", ["'Nodes=n1' cannot name a switch"]),
    ("SwitchName=s1 Nodes=", ["Nodes= has no value"]),
    ("SwitchName=s1 Nodes=n1 Nodes=n2", ["Nodes stands twice"]),
    ("SwitchName=s1 Node=n1", ["node= is no key", "did you mean nodes"]),
    ("SwitchNames=s1 Nodes=n1", ["a line cannot start with switchnames", "did you mean switchname"]),
    ("Nodes=n1 SwitchName=s1", ["a line cannot start with nodes"]),
    ("SwitchName=s1 Nodes=n1 oops", ["t.conf:1:", "'oops' is not Key=Value"]),
    ("SwitchName s1", ["'SwitchName' is not Key=Value"]),
    ("<html>", ["'<html>' is not Key=Value"]),
    ("SwitchName=s1 Nodes=n1\nBlockName=b1 Nodes=n2", ["t.conf:2:", "BlockName in a file of SwitchName"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=4,12", ["t.conf:2:", "12 is not 4 times 2"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=8,4", ["4 is not 8 times"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=four", ["'four' is not a block size"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=0", ["'0' is not a block size"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=4,,8", ["'' is not a block size"]),
    ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=" + "9" * 5000, ["is not a block size"]),
    ("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n2", ["t.conf:2:", "n2 is under two leaves"]),
    ("BlockSizes=4", ["BlockSizes without a block"]),
    ("RingName=r0 Nodes=n[1-17]", ["ring r0 has 17 nodes, Slurm takes 16"]),
    ("SwitchName=s1 \\\n\\\n Nodes=n[1", ["t.conf:1:", "brackets"]),
]


@pytest.mark.parametrize(("text", "parts"), INVALID_CONF, ids=[text[:50] for text, _ in INVALID_CONF])
def test_bad_topology_conf(text, parts):
    with pytest.raises(TopologyError) as caught:
        topology_conf.parse(text, "t.conf")
    check(caught.value, ["t.conf", *parts])


def check(error: TopologyError, parts: list[str]) -> None:
    message = str(error)
    for part in parts:
        assert part in message
    lines = message.splitlines()
    assert len(lines) <= 3, "where and what, the faulty line, the remedy"
    assert all(line.isprintable() and len(line) < 250 for line in lines)
    assert error.remedy == lines[-1]


# --- topology.yaml ----------------------------------------------------------------------------------------------------

MANUAL = """
---
- topology: topo1
  cluster_default: true
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]
      - switch: s2
        nodes: node[03-04]
- topology: topo2
  cluster_default: false
  block:
    block_sizes:
      - 4
      - 16
    blocks:
      - block: b1
        nodes: node[01-04]
      - block: b2
        nodes: node[05-08]
      - block: b3
        nodes: node[09-12]
      - block: b4
        nodes: node[13-16]
- topology: topo3
  cluster_default: false
  flat: true
- topology: topo3a
  cluster_default: false
  flat:
    alpha_step_rank: true
- topology: topo4
  cluster_default: false
  ring:
    rings:
      - ring: ring0
        nodes: node[01-08]
      - ring: ring1
        nodes: node[09-16]
- topology: topo5
  cluster_default: false
  torus3d:
    toruses:
      - name: pod1
        dims:
          x: 4
          y: 4
          z: 2
        nodes: node[01-32]
        placements:
          - dims:
              x: 2
              y: 2
              z: 1
"""
"""The example of topology.yaml(5), Slurm 26.05."""


def test_the_example_of_the_man_page():
    read = topology_yaml.parse(MANUAL, nodes=expand("node[01-32]"))
    kinds = {name: topology.kind for name, topology in read.by_name.items()}
    assert kinds == {
        "topo1": "tree",
        "topo2": "block",
        "topo3": "flat",
        "topo3a": "flat",
        "topo4": "ring",
        "topo5": "torus3d",
    }
    assert read.default == "topo1"
    assert read.of() is read.of("topo1")
    assert read.of().distance("node01", "node04") == 3
    assert read.of("topo2").block_sizes == (4, 16)
    assert len(read.of("topo3")) == len(read.of("topo5")) == 32
    assert read.of("topo4").distance("node01", "node09") == math.inf
    with pytest.raises(KeyError):
        read.of("topo9")


def test_yaml_and_conf_say_the_same():
    text = "- topology: x\n  tree: {switches: [{switch: leaf1, nodes: 'n[1-4]'}, "
    text += "{switch: leaf2, nodes: ['n[5-6]', n7, n8]}, {switch: spine, children: 'leaf[1-2]'}]}"
    tree, conf = topology_yaml.parse(text).of(), topology_conf.parse(TWO_LEVELS)
    assert (tree.leaves, tree.parents, tree.name) == (conf.leaves, conf.parents, "x")


def test_the_first_topology_is_the_default_when_none_says_so():
    assert topology_yaml.parse("- {topology: a, flat: true}\n- {topology: b, flat: true}").default == "a"
    assert (
        topology_yaml.parse(
            "- {topology: a, flat: true}\n- {topology: b, cluster_default: true, flat: true}"
        ).default
        == "b"
    )


def test_a_torus_by_regions():
    text = "- topology: t\n  torus3d:\n    toruses:\n"
    text += "      - {name: p, dims: {x: 2, y: 1, z: 1}, regions: [{nodes: n1}, {nodes: n2}]}"
    assert topology_yaml.parse(text).of().nodes == ("n1", "n2")


def test_a_switch_may_wait_for_dynamic_nodes():
    text = "- topology: t\n  tree:\n    switches:\n"
    text += "      [{switch: s1, nodes: n1}, {switch: s2}, {switch: top, children: 's[1-2]'}]"
    topology = topology_yaml.parse(text).of()
    assert topology.leaves["s2"] == frozenset()
    assert topology.fewest_leaves({"n1": 8}, gpus=8) == 1


TREE = "- topology: t\n  tree:\n    switches:\n"
BLOCK = "- topology: t\n  block:\n    blocks: [{block: b1, nodes: n1}]\n"

INVALID_YAML = [
    ("", ["the topology is empty"]),
    ("[]", ["the topology is empty"]),
    ("SwitchName=s1 Nodes=n1", ["t.yaml:1:", "a list of topologies is expected"]),
    ("topology: x", ["a list of topologies is expected"]),
    ("- topology: [", ["t.yaml:", "not YAML"]),
    ("- topology: a\n\tflat: true", ["t.yaml:2:", "not YAML"]),
    ("- {topology: a, flat: true}\n---\n- {topology: b, flat: true}", ["not YAML"]),
    ("- &a {topology: a, flat: true}\n- *a", ["t.yaml:2:", "alias"]),
    ("- flat: true", ["a topology without a name"]),
    ("- topology: t", ["topology t has no type", "tree, block, flat"]),
    ("- {topology: t, flat: true, tree: {}}", ["has both tree and flat"]),
    ("- {topology: t, flat: true}\n- {topology: t, flat: true}", ["t.yaml:2:", "t is defined twice"]),
    ("- {topology: t, flat: maybe}", ["'maybe' is neither true nor false"]),
    ("- {topology: t, flat: false}", ["flat: false"]),
    ("- {topology: t, tre: {}}", ["tre is no key", "did you mean tree"]),
    ("- {topology: t, tree: {}}", ["tree lists no switches"]),
    ("- {topology: t, tree: [a]}", ["keys and values are expected"]),
    ("- {topology: t, topology: u, flat: true}", ["topology stands twice"]),
    (TREE + "      - nodes: n1", ["t.yaml:4:", "a switch without a name"]),
    (TREE + "      - switch: s1\n        node: n1", ["t.yaml:5:", "node is no key", "did you mean nodes"]),
    (TREE + "      - switch: s1\n        nodes: n[1-", ["t.yaml:4:", "bad hostlist"]),
    (TREE + "      - switch: s1\n        nodes: {a: b}", ["t.yaml:5:", "one word is expected"]),
    (TREE + "      - {switch: s1, nodes: n1}\n      - {switch: s2, nodes: n1}", ["t.yaml:5:", "two leaves"]),
    (TREE + "      - {switch: s1, children: s2}", ["s2 is not defined"]),
    (TREE + "      - {switch: s1, children: s2}\n      - {switch: s2, children: s1}", ["circle"]),
    (TREE + "      switch: s1", ["a list of switches is expected"]),
    (BLOCK + "    block_sizes: [4, 5]", ["t.yaml:4:", "5 is not 4 times"]),
    (BLOCK + "    block_sizes: 4", ["a list of block sizes is expected"]),
    (BLOCK + "    block_sizes: [x]", ["'x' is not a block size"]),
    ("- {topology: t, ring: {rings: [{ring: r, nodes: 'n[1-20]'}]}}", ["20 nodes, Slurm takes 16"]),
    ("- " * 20_000 + "x", [""]),
    ("[" * 20_000, [""]),
]


@pytest.mark.parametrize(("text", "parts"), INVALID_YAML, ids=[text[-50:] for text, _ in INVALID_YAML])
def test_bad_topology_yaml(text, parts):
    with pytest.raises(TopologyError) as caught:
        topology_yaml.parse(text, "t.yaml")
    check(caught.value, ["t.yaml", *parts])


@pytest.mark.parametrize("name", ["topology.conf", "topology.yaml"])
def test_unreadable_files(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(TopologyError, match=r"cannot be read: No such file"):
        load_topologies(path)
    path.write_bytes(b"\n\xff")
    with pytest.raises(TopologyError, match=r"not UTF-8 text \(line 2\)") as caught:
        load_topologies(path)
    check(caught.value, [str(path)])


# --- features and flat ------------------------------------------------------------------------------------------------


def test_features():
    features = {f"n{i}": ["a100", f"leaf{(i + 3) // 4}"] for i in range(1, 9)}
    topology = Topology.from_features(features)
    assert topology.leaves == topology_conf.parse(TWO_LEVELS).leaves
    assert [topology.distance("n1", n) for n in ("n1", "n4", "n5")] == [0, 1, 3]


@pytest.mark.parametrize(
    ("features", "parts"),
    [
        ({"n1": ["a100"]}, ["node n1 has no feature that names a leaf", '"leaf"']),
        ({"n1": ["leaf"]}, ["no feature that names a leaf"]),
        ({"n1": ["leaf1", "a100", "leaf2"]}, ["two features", "leaf1 and leaf2", "leaf1,a100,leaf2"]),
    ],
)
def test_bad_features(features, parts):
    with pytest.raises(TopologyError) as caught:
        Topology.from_features(features)
    check(caught.value, parts)


def test_flat():
    known, unknown = Topology.flat(["n1", "n2"]), Topology.flat()
    assert known.distance("n1", "n2") == unknown.distance("n1", "n2") == 1
    assert (
        known.fewest_leaves({"n1": 8, "n2": 8}, gpus=16)
        == unknown.fewest_leaves({"n1": 8, "n2": 8}, gpus=16)
        == 1
    )
    assert unknown.fewest_leaves({"n1": 8}, nodes=1, gpus_per_node=9) is None
    assert bool(unknown)


# --- invariants -------------------------------------------------------------------------------------------------------


@st.composite
def trees(draw, levels: int = 3) -> Topology:
    """Forests of switches of uneven depth, with up to four nodes under a leaf."""
    count = draw(st.integers(1, 7))
    leaves = {f"leaf{i}": [f"n{i}-{j}" for j in range(draw(st.integers(0, 4)))] for i in range(count)}
    parents: dict[str, str] = {}
    below = list(leaves)
    for level in range(levels):
        above = [f"s{level}-{draw(st.integers(0, 2))}" for _ in below]
        joins = [draw(st.booleans()) for _ in below]
        parents.update({b: a for b, a, join in zip(below, above, joins, strict=True) if join})
        below = sorted({parents.get(b, b) for b in below})
    return Topology.tree(leaves, parents)


@given(trees())
def test_distance_is_a_metric(topology):
    nodes = topology.nodes[:9]
    for a, b in itertools.product(nodes, nodes):
        assert topology.distance(a, b) == topology.distance(b, a)
        assert (topology.distance(a, b) == 0) == (a == b)
        assert (topology.distance(a, b) <= 1) == (topology.leaf_of(a) == topology.leaf_of(b))
        for c in nodes:
            assert topology.distance(a, c) <= topology.distance(a, b) + topology.distance(b, c)


@given(trees())
def test_leaves_partition_the_nodes_and_fabrics_the_leaves(topology):
    assert sorted(itertools.chain(*topology.leaves.values())) == sorted(topology.nodes)
    assert sorted(itertools.chain(*topology.fabrics)) == sorted(topology.leaves)
    assert all(node in topology.leaves[topology.leaf_of(node)] for node in topology.nodes)
    for a, b in itertools.combinations(topology.nodes[:8], 2):
        together = any({topology.leaf_of(a), topology.leaf_of(b)} <= fabric for fabric in topology.fabrics)
        assert together == (topology.distance(a, b) < math.inf)


@given(trees(), st.data())
def test_fewest_leaves_against_brute_force(topology, data):
    free = {node: data.draw(st.integers(0, 8)) for node in topology.nodes}
    each = data.draw(st.integers(1, 8))
    need = data.draw(st.integers(1, 60))

    def brute(room: dict[str, int]) -> int | None:
        for k in range(1, len(topology.leaves) + 1):
            for fabric in topology.fabrics:
                if any(
                    sum(room[leaf] for leaf in some) >= need for some in itertools.combinations(fabric, k)
                ):
                    return k
        return None

    gpus = {leaf: sum(free[n] for n in nodes) for leaf, nodes in topology.leaves.items()}
    fits = {leaf: sum(free[n] >= each for n in nodes) for leaf, nodes in topology.leaves.items()}
    assert topology.fewest_leaves(free, gpus=need) == brute(gpus)
    assert topology.fewest_leaves(free, nodes=need, gpus_per_node=each) == brute(fits)


@given(trees())
def test_a_tree_survives_being_written_as_topology_conf(topology):
    assume(all(topology.leaves.values()))
    children: dict[str, list[str]] = {}
    for child, parent in topology.parents.items():
        children.setdefault(parent, []).append(child)
    lines = [f"SwitchName={leaf} Nodes={fold(nodes)}" for leaf, nodes in topology.leaves.items()]
    lines += [f"SwitchName={switch} Switches={fold(below)}" for switch, below in children.items()]
    assert topology_conf.parse("\n".join(lines)) == topology


@pytest.mark.parametrize(
    "shape", [{}, {"gpus": 0}, {"nodes": 2}, {"gpus": 1, "nodes": 1, "gpus_per_node": 1}, {"gpus": -1}]
)
def test_a_job_of_no_shape_is_refused(shape):
    with pytest.raises(ValueError, match="shape of a job"):
        Topology.flat(["n1"]).fewest_leaves({"n1": 8}, **shape)


def test_unknown_nodes():
    topology = topology_conf.parse(TWO_LEVELS)
    assert topology.leaf_of("x") is None
    assert topology.distance("n1", "x") == topology.distance("y", "x") == math.inf
    assert topology.distance("x", "x") == 0
    assert "x" not in topology
    assert "n1" in topology
    assert topology.fewest_leaves({"x": 100}, gpus=1) is None


def test_a_job_does_not_span_two_fabrics():
    topology = topology_conf.parse("SwitchName=a Nodes=a[1-2]\nSwitchName=b Nodes=b[1-3]")
    free = dict.fromkeys(topology.nodes, 8)
    assert len(topology.fabrics) == 2
    assert topology.distance("a1", "b1") == math.inf
    assert topology.fewest_leaves(free, gpus=24) == 1
    assert topology.fewest_leaves(free, gpus=32) is None


def test_a_topology_cannot_contradict_itself():
    with pytest.raises(TopologyError, match="two leaves"):
        Topology.tree({"a": ["n1"], "b": ["n1"]}, {})
    with pytest.raises(TopologyError, match="circle"):
        Topology.tree({"a": ["n1"]}, {"a": "b", "b": "a"})


def test_topologies_are_values():
    one, two = topology_conf.parse(TWO_LEVELS), topology_conf.parse(TWO_LEVELS)
    assert one == two
    assert hash(one) == hash(two)
    assert Topologies({"": one}, "") == Topologies({"": two}, "")


def test_a_large_cluster_is_read_quickly():
    leaves = [f"SwitchName=leaf{i} Nodes=n[{16 * i}-{16 * i + 15}]" for i in range(1000)]
    start = time.process_time()
    topology = topology_conf.parse("\n".join([*leaves, "SwitchName=spine Switches=leaf[0-999]"]))
    free = dict.fromkeys(topology.nodes, 8)
    assert topology.fewest_leaves(free, gpus=16 * 8 * 10) == 10
    assert time.process_time() - start < 30  # a second; minutes where each node is looked for among all
