"""Slurm's two schedulers, worked out by hand: who starts now, and who does not for whose sake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from slurm_plugins.replay.backfill import Asking, Held, Now, Plan, cycle, look, soonest
from slurm_plugins.replay.slurm_nodes import Need, Places, State
from slurm_plugins.replay.slurm_rules import SlurmRules
from slurm_plugins.replay.values import Cluster, Nodes

AT = 60 * 30_000_000
"""A full minute: plans are rounded to those."""
RULES = SlurmRules(release=(24, 11))


def node(count: int = 1, queue: str = "") -> Need:
    """Whole nodes of one GPU."""
    return Need(count, 1, 1.0, 1.0, queue=queue)


def scene(nodes: int, running: Sequence[tuple[tuple[int, ...], int]], queues: tuple[str, ...] = ()) -> Now:
    """Nodes of one GPU; who runs where, and for how many more seconds by the limit. `queues`: one a node."""
    kinds = [Nodes(1, 1, 1.0, 1.0, partitions=frozenset({queue})) for queue in queues]
    places = Places(Cluster("hand", tuple(kinds) or (Nodes(nodes, 1, 1.0, 1.0),)))
    now = Now(places, places.idle(), np.zeros(nodes, np.bool_), [])
    for where, left in sorted(running, key=lambda row: row[1]):
        held = Held(AT + left, np.array(where), node(len(where)))
        now.state.take(held.nodes, held.need)
        now.held.append(held)
    return now


def asking(*jobs: tuple[int, int]) -> list[Asking]:
    """(nodes, limit) of who waits, in order."""
    return [Asking(row, node(count), limit, f"user{row}") for row, (count, limit) in enumerate(jobs)]


def started(now: Now, jobs: list[Asking], rules: SlurmRules = RULES) -> list[int]:
    """Rows that a cycle of backfill starts."""
    found: list[int] = []

    def start(row: int, nodes: np.ndarray) -> None:
        found.append(row)
        now.state.take(nodes, jobs[row].need)

    assert cycle(now, jobs, start, AT, rules) == len(found)
    return found


Running = Sequence[tuple[tuple[int, ...], int]]
HALF_BUSY: Running = [((0, 1), 600)]
CASES: dict[str, tuple[int, Running, list[tuple[int, int]], list[int]]] = {
    "nobody waits for nothing": (4, [], [(4, 60)], [0]),
    "a short one goes ahead of a wide one": (4, HALF_BUSY, [(4, 600), (2, 300)], [1]),
    "one that would put it off does not": (4, HALF_BUSY, [(4, 600), (2, 900)], []),
    "it would end in the minute in which the other starts": (4, HALF_BUSY, [(4, 600), (2, 600)], []),
    "one that needs none of its nodes may be long": (4, HALF_BUSY, [(3, 600), (1, 9000)], [1]),
    # the running job ends by its limit at 600, whatever it will really take
    "the plan goes by limits": (2, [((0,), 600)], [(2, 60), (1, 599)], [1]),
    "nor may the second in the queue be put off": (4, HALF_BUSY, [(3, 600), (4, 60), (1, 3000)], []),
    "who is later in the queue takes what is left": (
        4,
        HALF_BUSY,
        [(4, 60), (1, 60), (2, 60), (1, 60)],
        [1, 3],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_starts(name):
    nodes, running, jobs, expected = CASES[name]
    assert started(scene(nodes, running), asking(*jobs)) == expected


def test_easy_guards_the_first_alone():
    jobs = asking((3, 600), (4, 60), (1, 3000))
    assert started(scene(4, HALF_BUSY), jobs, replace(RULES, bf_reserve=1)) == [2]


@pytest.mark.parametrize(
    ("limit", "rules", "expected"),
    [(599, {}, [1]), (600, {}, []), (629, {}, []), (629, {"bf_resolution_s": 10}, [1])],
)
def test_a_place_begins_with_its_minute(limit, rules, expected):
    # the first could start at 630, and its place begins at 600
    now = scene(2, [((0,), 630)])
    assert started(now, asking((2, 60), (1, limit)), replace(RULES, **rules)) == expected


def test_releases_round_the_end_of_a_place_differently():
    # from 30 s on for 60 s: until 60 or until 120; so the second has its place at 60 or at 120
    for release, later in (((22, 5), 60), ((24, 11), 120)):
        plan = Plan(1, AT, AT + 86400, 60, release=release)
        plan.promise(np.array([0]), AT + 30, AT + 90)
        assert plan.free(np.ones(1, np.bool_), AT, AT + 60)[1] == AT + later


def test_jobs_and_users_are_tried_up_to_a_number():
    jobs = [Asking(row, node(), 60, "ann" if row < 3 else "ben") for row in range(4)]
    assert started(scene(4, []), jobs, replace(RULES, bf_max_job_test=2)) == [0, 1]
    assert started(scene(4, []), jobs, replace(RULES, bf_max_job_user=1)) == [0, 3]


def test_beyond_its_window_nothing_is_planned():
    jobs = asking((2, 600), (1, 600))
    now = scene(2, [((0,), 7200)])
    # the wide one could start in two hours: with a window of one it holds nobody up
    assert started(now, asking((2, 600), (1, 86400)), replace(RULES, bf_window_s=3600.0)) == [1]
    assert started(scene(2, [((0,), 300)]), jobs, replace(RULES, bf_window_s=3600.0)) == []


def test_a_node_that_is_cleaned_up_starts_nobody():
    now = scene(2, [])
    now.closed[0] = True
    jobs = asking((2, 60), (1, 60))
    assert started(now, jobs) == []  # the first gets its place in a second, on both
    rows: list[int] = []
    now = scene(2, [])
    now.closed[0] = True
    assert look(now, asking((1, 60)), lambda row, nodes: rows.extend(nodes.tolist()), 0) == 1
    assert rows == [1]


def test_the_main_loop_shuts_a_partition_and_its_nodes():
    now = scene(4, [((0,), 600)], ("a", "a", "b", "b"))
    waiting = [
        Asking(row, node(count, queue), 60)
        for row, (count, queue) in enumerate([(2, "a"), (1, "a"), (1, "b"), (2, "b"), (1, "b")])
    ]
    rows: list[int] = []

    def start(row: int, nodes: np.ndarray) -> None:
        rows.append(row)
        now.state.take(nodes, waiting[row].need)

    assert look(now, waiting, start, 0) == 1
    assert rows == [2]


def test_the_main_loop_looks_at_so_many():
    rows: list[int] = []
    look(scene(4, [((0, 1, 2), 60)]), asking((1, 60)), lambda row, _: rows.append(row), 100)
    assert rows == [0]
    rows.clear()
    queue = [Asking(row, node(2, "x"), 60) for row in range(5)] + [Asking(9, node(1, "y"), 60)]
    look(scene(4, [((0, 1, 2), 60)], ("x", "x", "x", "y")), queue, lambda row, _: rows.append(row), 3)
    assert rows == []


def test_ends_near_each_other_are_taken_together():
    # windows of 30 s and doubled: of ends at 10, 20 and 50 s the first look takes all three away
    now = scene(3, [((0,), 10), ((1,), 20), ((2,), 50)])
    assert soonest(now, node(), np.ones(3, np.bool_), AT) is not None
    when, nodes = soonest(now, node(), np.ones(3, np.bool_), AT) or (0, np.array([]))
    assert (when - AT, nodes.tolist()) == (50, [0])
    now = scene(2, [((0,), 10), ((1,), 500)])
    when, nodes = soonest(now, node(), np.ones(2, np.bool_), AT) or (0, np.array([]))
    assert (when - AT, nodes.tolist()) == (10, [0])


CHOICES = [
    # leaves of the free nodes, wanted, taken
    ((0, 0, 0, 1, 1), 2, [3, 4]),
    ((0, 0, 0, 1, 1), 1, [3]),
    ((0, 0, 0, 1, 1), 3, [0, 1, 2]),
    ((0, 0, 0, 1, 1), 4, [0, 1, 2, 3]),
    ((0, 0, 1, 1), 1, [0]),
    ((0, 1, 1, 2, 2, 2), 5, [1, 2, 3, 4, 5]),
    ((0, 0), 3, None),
]


@pytest.mark.parametrize(("leaves", "wanted", "expected"), CHOICES)
def test_the_leaf_that_just_holds_it_then_the_largest(leaves, wanted, expected):
    groups = tuple(Nodes(1, 1, 1.0, 1.0, leaf=f"leaf{leaf}") for leaf in leaves)
    places = Places(Cluster("hand", groups))
    found = places.choose(np.ones(len(leaves), np.bool_), node(wanted), places.idle())
    assert (None if found is None else found.tolist()) == expected


def chosen(places: Places, free: np.ndarray, need: Need, state: State) -> list[int]:
    """Nodes that are chosen; a test wants some."""
    found = places.choose(free, need, state)
    assert found is not None
    return list(map(int, found))


def test_without_a_tree_runs_of_nodes_count():
    places = Places(Cluster("hand", (Nodes(7, 1, 1.0, 1.0),)))
    free = np.array([True, True, True, False, True, True, False])
    assert chosen(places, free, node(2), places.idle()) == [4, 5]
    assert chosen(places, free, node(3), places.idle()) == [0, 1, 2]


def test_the_least_loaded_node():
    places = Places(Cluster("hand", (Nodes(3, 2, 2.0, 2.0),)), least_loaded=True)
    state = places.idle()
    state.take(np.array([0]), node())
    assert chosen(places, state.fits(node()), node(), state) == [1]


def test_from_26_05_on_a_job_of_one_node_takes_the_first():
    groups = tuple(Nodes(1, 1, 1.0, 1.0, leaf=f"leaf{leaf}") for leaf in (0, 0, 0, 1))
    for first_of_all, taken in ((False, [3]), (True, [0])):
        places = Places(Cluster("hand", groups), first_of_all=first_of_all)
        assert chosen(places, np.ones(4, np.bool_), node(), places.idle()) == taken


def test_from_26_05_on_only_who_holds_the_node_counts_for_when():
    # both ends are taken together; the node of the first is enough
    now = scene(2, [((0,), 10), ((1,), 20)])
    both = np.ones(2, np.bool_)
    for there, expected in ((False, 20), (True, 10)):
        when, nodes = soonest(now, node(), both, AT, there=there) or (0, np.array([]))
        assert (when - AT, nodes.tolist()) == (expected, [0])
