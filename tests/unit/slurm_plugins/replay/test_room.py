"""The two rooms against each other, and against looking at every node."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.replay.needs import Level, Needs
from slurm_plugins.replay.room import Room
from slurm_plugins.replay.values import Cluster, Job, Nodes, Trace
from slurm_plugins.replay.vectors import Vectors
from tests.properties import examples
from tests.unit.slurm_plugins.replay.strategies import clusters, traces
from tests.unit.slurm_plugins.replay.test_invariants import PACKINGS, QUICK


@settings(QUICK, max_examples=examples(80))
@given(traces(), clusters(), PACKINGS, st.sampled_from(Level), st.randoms(use_true_random=False))
def test_bits_and_vectors_find_a_place_for_the_same_needs(trace, cluster, packing, level, random):
    bits, vectors = Room(cluster, packing), Vectors(cluster, packing)
    needs = Needs(trace, cluster)
    needs.settle(bits.copy())
    taken = []
    for number in needs.of.tolist():
        need = needs.listed[number]
        if need.why:
            continue
        parts, same = bits.find(need, level), vectors.find(need, level)
        assert (parts is None) == (same is None)
        assert bits.fits(need, level) == (parts is not None)
        if parts is not None:
            assert sum(gpus for _, gpus in parts) == need.gpus
            assert len({node for node, _ in parts}) == len(parts)
            assert bits.leaves(parts) == vectors.leaves(parts)
            if level == Level.COMPACT:
                assert len(parts) == need.nodes
                assert bits.leaves(parts) <= need.leaves
            assert bits.holds(parts, need)
            assert vectors.holds(parts, need)
            bits.take(parts, need)
            vectors.take(parts, need)
            taken.append((parts, need))
        if taken and random.random() < 0.4:
            parts, need = taken.pop(random.randrange(len(taken)))
            bits.give(parts, need)
            vectors.give(parts, need)
        assert (bits.free_gpus, bits.largest()) == (vectors.free_gpus, vectors.largest())
        assert [bits.most_on(n, need) for n in range(bits.nodes)] == [
            vectors.most_on(n, need) for n in range(bits.nodes)
        ]
    for parts, need in taken:
        bits.give(parts, need)
        vectors.give(parts, need)
    assert vars(bits) == vars(Room(cluster, packing)) | {
        "_able": bits._able, "held_cpus": bits.held_cpus, "held_memory": bits.held_memory
    }  # fmt: skip


@settings(QUICK, max_examples=examples(60))
@given(traces((1, 2, 4, 8, 16)), clusters(), st.randoms(use_true_random=False))
def test_compact_is_found_where_there_is_one(trace, cluster, random):
    """Against trying all sets of nodes."""
    room, needs = Room(cluster), Needs(trace, cluster)
    needs.settle(room.copy())
    leaf = [group.leaf for group in cluster.nodes for _ in range(group.count)]
    for node, gpus in enumerate(group.gpus for group in cluster.nodes for _ in range(group.count)):
        if held := random.randrange(gpus + 1):
            room.take(((node, held),), needs.listed[0])
    free = [room.most_on(node, needs.listed[0]) for node in range(room.nodes)]
    for need in needs.listed:
        if need.why or need.uneven:
            continue
        able = [node for node in range(room.nodes) if free[node] >= need.each]
        there = any(
            len({leaf[node] for node in chosen}) <= need.leaves for chosen in combinations(able, need.nodes)
        )
        assert (room.find(need, Level.COMPACT) is not None) == there


def test_packing_chooses_the_fullest_the_emptiest_and_philly_the_emptiest_rack():
    cluster = Cluster("two", (Nodes(2, 8, 8, 8, leaf="a"), Nodes(2, 8, 8, 8, leaf="b")))
    trace = Trace.of([Job(1, 0.0, 1.0), Job(2, 0.0, 1.0, gpus=2)])
    for kind in (Room, Vectors):
        for packing, one, two in (("pack", 0, 0), ("spread", 3, 3)):
            room, needs = kind(cluster, packing), Needs(trace, cluster)
            needs.settle(room.copy())
            for node, gpus in ((0, 5), (1, 3), (2, 3)):
                room.take(((node, gpus),), needs.listed[1])
            assert room.find(needs.listed[0], Level.ANY) == ((one, 1),)
            assert room.find(needs.listed[1], Level.ANY) == ((two, 2),)
    for kind in (Room, Vectors):
        room, needs = kind(cluster, "rank"), Needs(trace, cluster)
        needs.settle(room.copy())
        for node, gpus in ((0, 5), (2, 4), (3, 3)):
            room.take(((node, gpus),), needs.listed[1])
        # leaf a has 11 free and leaf b 9; the emptiest node of a is its second
        assert room.find(needs.listed[1], Level.COMPACT) == ((1, 2),)
        assert room.find(needs.listed[0], Level.COMPACT) == ((0, 1),)
