"""Which nodes a request may use, and when that is not known."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.eligible import Constraint, Place, UnknownConstraintError, places
from slurm_plugins.decide.inventory import Inventory, Memory
from tests.unit.slurm_plugins.decide.cluster import big, features, mixed, two_leaves
from tests.unit.slurm_plugins.decide.table import Row, ask

A, B, AB, NONE = {"a"}, {"b"}, {"a", "b"}, set[str]()


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a", [A, AB]),
        ("a&b", [AB]),
        ("a|b", [A, B, AB]),
        ("(a|b)&a", [A, AB]),
        ("a & b", [AB]),
        ("(a)", [A, AB]),
        ("((a&b))|c", [AB, {"c"}]),
        ("[a|b]", [A, B, AB]),
        ("[a|b]&c", [{"a", "c"}, {"b", "c"}]),
        ("c&[a|b]", [{"a", "c"}, {"b", "c"}]),
    ],
)
def test_constraint(text: str, matches: list[set[str]]) -> None:
    constraint = Constraint.read(text)
    for node in (A, B, AB, NONE, {"c"}, {"a", "c"}, {"b", "c"}, {"a", "b", "c"}):
        if node in matches:
            assert constraint.sets(node), node
        elif not any(match <= node for match in matches):
            assert not constraint.sets(node), node


def test_brackets_part_the_nodes() -> None:
    constraint = Constraint.read("[a|b]")
    assert constraint.sets(A) == {0} and constraint.sets(B) == {1} and constraint.sets(AB) == {0, 1}


@pytest.mark.parametrize(
    "text",
    ["", "a*2", "[a*2&b*1]", "a&b|c", "a,b", "a:b", "!a", "(a", "a)", "[a", "[a&b]", "[a|b]|c", "[[a]]", "[a|b]&[c|d]",
     "([a|b])", "&a", "a&", "()", "a b", "(" * 30 + "a" + ")" * 30, "a&" * 600 + "a", "ä"],
)  # fmt: skip
def test_what_cannot_be_read_is_said_to_be_unknown(text: str) -> None:
    with pytest.raises(UnknownConstraintError):
        Constraint.read(text)


@given(st.text(alphabet="ab&|()[]*, ", max_size=30))
def test_every_constraint_is_read_or_unknown(text: str) -> None:
    try:
        constraint = Constraint.read(text)
    except UnknownConstraintError:
        return
    constraint.sets(AB)


def found(words: str, where: Context, **job: Any) -> list[tuple[str, int]] | None:
    """Partition and nodes of each place."""
    there = places(ask(words, **job), where.inventory)
    return None if there is None else [(place.pool.name, place.nodes) for place in there]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [("gpu", 12)]),
        ("-p v100", [("v100", 8)]),
        ("-p v100,a100", [("v100", 8), ("a100", 4)]),
        ("-p v100,gone", None),
        ("-C small", [("gpu", 8)]),
        ("-C small&big", []),
        ("-C [small|big]", [("gpu", 8), ("gpu", 4)]),
        ("-p v100 -C [small|big]", [("v100", 8)]),
        ("-C small*2", None),
        ("-x s[1-6]", [("gpu", 6)]),
        ("-x s[1-8] -C small", []),
        ("-x elsewhere", [("gpu", 12)]),
        ("-x s[1-", None),
        ("-w s[1-2]", [("gpu", 12)]),
        ("-w elsewhere", None),
        ("-w s1 -x s1", None),
        ("--reservation=maint", None),
    ],
)
def test_places(words: str, expected: list[tuple[str, int]] | None) -> None:
    assert found(words, mixed()) == expected
    assert found(words, mixed()) == expected  # remembered or not


def test_a_cluster_that_is_not_known_has_no_places() -> None:
    assert places(ask("-p nowhere"), two_leaves().inventory) is None


def test_nodes_that_were_excluded_are_not_counted_as_up() -> None:
    (place,) = places(ask("-x n[1-6]"), two_leaves().inventory) or ()
    (size,) = place.sizes()
    assert (size.count, size.usable, size.gpus) == (2, 2, 8)


def test_a_place_of_the_nodes_that_were_named() -> None:
    (place,) = places(ask("-w n[1-2]"), two_leaves().inventory) or ()
    assert [size.count for size in place.only_required().sizes()] == [2]
    assert place.nodes == 8


def test_sizes_are_by_type_and_largest_first() -> None:
    (place,) = places(ask(""), mixed().inventory) or ()
    assert [(size.gpus, size.count) for size in place.sizes()] == [(8, 4), (4, 8)]
    assert [(size.gpus, size.count) for size in place.sizes("v100")] == [(4, 8)]
    assert place.sizes("h100") == ()


def test_kinds_that_differ_only_in_features_are_one_size() -> None:
    (place,) = places(ask(""), features().inventory) or ()
    assert len(place.groups) == 1
    assert [(size.gpus, size.count) for size in place.sizes()] == [(4, 8)]


def test_a_question_is_answered_once_for_a_snapshot() -> None:
    inventory = big().inventory
    first, second = (places(ask("-C h100"), inventory) or () for _ in range(2))
    assert first[0] is second[0]
    assert isinstance(first[0], Place) and first[0].sizes() is second[0].sizes()
    excluding = places(ask("-x g00001"), inventory) or ()
    assert excluding[0].nodes == 9_999


def of_their_own(context: Context) -> Context:
    """The same cluster, each host with a feature that no other has."""
    (pool,) = context.inventory.pools.values()
    kinds = tuple(
        replace(kind, nodes=(name,), usable=1, features=kind.features | {f"host-{name}"})
        for kind in pool.kinds
        for name in kind.nodes
    )
    alone = replace(pool, kinds=kinds, _memory=Memory())
    return replace(context, inventory=Inventory(MappingProxyType({pool.name: alone}), pool.name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["--gpus=16", "-N 2 --gres=gpu:4 -n 8", "-N 4 --gpus-per-node=8 -C h100", "--gpus=16 -x g[00001-00100]",
     "-N 2 --gres=gpu:8 -w g00005,g00009", "--gpus=8 --mem=600G", "-N 3 --gpus=24 -w g00001 -x g00002"],
)  # fmt: skip
def test_a_feature_for_each_host_changes_no_decision_and_makes_no_more_groups(words: str) -> None:
    alike, alone = big(), of_their_own(big())
    (place,) = places(ask(words), alone.inventory) or ()
    assert len(place.groups) == 1
    one, other = (Row(words, {}).decide(context) for context in (alike, alone))
    assert one.changes and (one.changes, one.env, one.reject) == (other.changes, other.env, other.reject)


def test_lists_of_nodes_are_remembered_for_the_stages_of_a_job_and_not_for_ever() -> None:
    inventory = big().inventory
    asked = [ask(f"-x g{number:05}") for number in range(1, 30)]
    first = [places(job, inventory) or () for job in asked]
    assert (places(asked[-1], inventory) or ())[0] is first[-1][0]
    assert (places(asked[0], inventory) or ())[0] is not first[0][0]
