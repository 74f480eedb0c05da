"""Whom evidence convicts: how much of it is needed, whose, for how long, and how many nodes may be avoided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.bad_nodes import DAY, REASONS, RULES, Charge, Vote, assess, avoided, day_of
from tests.properties import examples

NOW = 20_000 * DAY + DAY / 2
TODAY = day_of(NOW)
NODES = tuple(f"n{i}" for i in range(1, 41))
PARTITIONS = {"gpu": NODES}


def vote(node: str = "n1", uid: int | None = 1, days_ago: float = 0.0, **more: Any) -> Vote:
    """Each user, and each workload, fails at a time of its own, some minutes apart from the others."""
    values: dict[str, Any] = {"reason": "gpu_hardware", "source": "root", "workload": "train"} | more
    apart = 300.0 * ((uid or 0) % 50) + 130.0 * (
        sum(map(ord, values["workload"])) % 100 if "workload" in more else 0
    )
    at = more.pop("at", NOW - days_ago * DAY - apart)
    return Vote(node, values["reason"], values["source"], at, uid, values["workload"])


def users(*uids: int, node: str = "n1", **more: Any) -> list[Vote]:
    return [vote(node, uid, source="user", reason="cuda_init_failed", **more) for uid in uids]


def ran(count: int, nodes: Iterable[str] = NODES, days: int = 14) -> Mapping[tuple[int, str], int]:
    """So many workloads on each node on each of the last days."""
    return {(TODAY - day, node): count for day in range(days) for node in nodes}


def weighed(votes: Iterable[Vote], trials: Mapping[tuple[int, str], int] | None = None, **more: Any) -> Any:
    partitions = more.pop("partitions", PARTITIONS)
    return assess(votes, ran(1) if trials is None else trials, partitions, now=more.pop("now", NOW), **more)


def kept_off(
    votes: Iterable[Vote], trials: Mapping[tuple[int, str], int] | None = None, **more: Any
) -> list[str]:
    return [one.node for one in avoided(weighed(votes, trials, **more))]


def test_without_evidence_there_is_nothing_to_tell() -> None:
    assert weighed([]) == ()


@pytest.mark.parametrize(
    ("votes", "each", "convicted"),
    [
        # one failure may be chance
        ([vote()], 0, ""),
        ([vote()], 1, ""),
        # two workloads, or two days, with an Xid are none where little runs
        ([vote(), vote(uid=2)], 0, "root"),
        ([vote(), vote(workload="other")], 1, "root"),
        ([vote(), vote(days_ago=1)], 1, "root"),
        # ... and nothing strange where a lot does
        ([vote(), vote(uid=2)], 20, ""),
        ([vote(uid=uid) for uid in range(12)], 20, "root"),
        # the same user and workload on the same day is one vote, however often it failed
        ([vote(days_ago=0.0004 * i) for i in range(1000)], 1, ""),
        # of one user so many workloads a day count
        ([vote(workload=f"w{i}") for i in range(1000)], 20, ""),
        # what the node tells by itself counts, once a day, and not beside a job that tells of it
        ([vote(uid=None, workload=""), vote(uid=None, workload="", days_ago=1)], 1, "root"),
        ([vote(uid=None, workload=""), vote(uid=None, workload="", days_ago=0.1)], 1, ""),
        ([vote(), vote(uid=None, workload="")], 1, ""),
        # users' logs: of one nothing, of two nothing, of three it may
        (users(1), 1, ""),
        (users(1, 2), 1, ""),
        (users(1, 2, 3), 1, "user"),
        (users(1, 2, 3, days_ago=1) + users(1, 2, 3, days_ago=2) + users(1, 2, 3), 3, "user"),
        (users(1, 2, 3), 20, ""),
        # root's evidence and users' do not add up
        ([vote(reason="cuda_failure"), *users(2, 3)], 1, ""),
        # what no node causes
        ([vote(uid=uid, reason="import_error") for uid in range(50)], 1, ""),
        ([vote(uid=uid, reason="checkpoint_error") for uid in range(50)], 1, ""),
    ],
)
def test_how_much_it_takes(votes: list[Vote], each: int, convicted: str) -> None:
    found = weighed(votes, ran(each) if each else {})
    assert {one.by for one in found if one.node == "n1"} <= {convicted, ""}
    assert any(one.by == convicted for one in found) or not found
    assert [one.node for one in avoided(found)] == (["n1"] if convicted else [])


def test_what_fails_at_once_is_one_failure() -> None:
    """A node that goes down takes eight jobs with it, or a switch that restarts those of three users: that is once."""
    down = [vote(uid=uid, reason="node_failure", at=NOW - uid) for uid in range(1, 9)]
    blip = [vote(uid=uid, reason="nccl_error", source="user", at=NOW - 30 * uid) for uid in (1, 2, 3)]
    for votes, source in ((down, "root"), (blip, "user")):
        (found,) = weighed(votes, {})
        assert found.by == "" and not found.avoided
        evidence = getattr(found, source)
        assert (evidence.votes, evidence.users, evidence.weight) == (1, len(votes), 1.0)
    # ... and the next day again, or one after the other: that is not chance
    again = [vote(uid=uid, reason="node_failure", at=NOW - DAY - uid) for uid in range(1, 9)]
    assert kept_off([*down, *again], {}) == ["n1"]
    assert kept_off([vote(uid=uid, reason="node_failure", at=NOW - 150 * uid) for uid in range(1, 9)]) == [
        "n1"
    ]


def test_one_users_thousand_forged_logs_exclude_nothing() -> None:
    """By whatever names, on whatever days, on all nodes or on one."""
    for nodes in (NODES[:1], NODES):
        forged = [
            vote(node, 666, days_ago=i % 20, source="user", workload=f"w{i}", reason=reason)
            for i in range(1000)
            for node, reason in [(nodes[i % len(nodes)], sorted(REASONS)[i % len(REASONS)])]
        ]
        found = weighed(forged)
        assert found and not any(one.by or one.avoided for one in found)


def test_one_users_thousand_forged_logs_do_not_add_to_those_of_two_others() -> None:
    honest = users(1, 2)
    forged = [
        vote("n1", 666, days_ago=i % 5, source="user", workload=f"w{i}", reason="cuda_init_failed")
        for i in range(1000)
    ]
    busy = ran(20)
    assert weighed(honest, busy)[0].by == "" == weighed([*honest, *forged], busy)[0].by


@given(st.lists(st.tuples(st.sampled_from(NODES[:5]), st.integers(0, 19), st.text(max_size=3)), max_size=60))
def test_two_users_decide_nothing_whatever_they_write(forged: list[tuple[str, int, str]]) -> None:
    votes = [
        vote(node, 1000 + i % 2, days_ago, source="user", workload=workload)
        for i, (node, days_ago, workload) in enumerate(forged)
    ]
    assert kept_off(votes, {}) == []


def test_where_all_nodes_fail_none_is_to_blame() -> None:
    everywhere = [vote(node, uid, days_ago) for node in NODES for uid in (1, 2, 3) for days_ago in (0, 1, 2)]
    assert kept_off(everywhere) == []
    # a file server that is away takes no node out, and hides none that has more than that
    worse = [vote("n7", uid, days_ago, reason="gpu_hardware") for uid in range(9) for days_ago in range(6)]
    mounts = [vote(node, 1, reason="filesystem_error") for node in NODES]
    assert kept_off([*mounts, *worse]) == ["n7"]


def test_it_is_forgotten_by_halves() -> None:
    votes = [vote(uid=1), vote(uid=2)]
    fresh = weighed(votes, {})[0].root
    later = weighed(votes, {}, now=NOW + RULES.half_life * DAY)[0].root
    assert later.weight == pytest.approx(fresh.weight / 2) and later.probability < fresh.probability
    assert fresh.votes == later.votes == 2 and fresh.users == 2
    assert kept_off(votes, {}) == ["n1"]
    assert kept_off(votes, {}, now=NOW + RULES.half_life * DAY) == []
    assert weighed(votes, {}, now=NOW + RULES.window * DAY) == ()


def test_what_comes_from_the_future_is_no_evidence() -> None:
    assert weighed([vote(days_ago=-3), vote(days_ago=-400)]) == ()
    assert weighed([vote(days_ago=-0.2)])[0].root.weight == 1.0


def test_a_node_that_was_looked_after_begins_anew() -> None:
    votes = [vote(node, uid, days_ago) for node in ("n1", "n2") for uid in (1, 2) for days_ago in (2, 3)]
    assert kept_off(votes) == ["n1", "n2"]
    assert kept_off(votes, cleared={"n1": NOW - DAY}) == ["n2"]
    assert kept_off(votes, cleared={"n1": NOW - 2.5 * DAY}) == ["n2"]
    # ... and is suspected again by what comes after
    anew = [*votes, vote(uid=3, days_ago=0.1), vote(uid=4, days_ago=0.2)]
    assert set(kept_off(anew, cleared={"n1": NOW - DAY})) == {"n1", "n2"}
    assert {one.node: one.root.votes for one in weighed(anew, cleared={"n1": NOW - DAY})} == {
        "n1": 2,
        "n2": 4,
    }


def test_what_ran_there_before_it_was_looked_after_speaks_for_it_no_more() -> None:
    votes = [vote(uid=1), vote(uid=2)]
    assert kept_off(votes, ran(20)) == []
    assert kept_off(votes, ran(20), cleared={"n1": NOW - DAY / 2}) == []
    spread = {key: count for key, count in ran(20).items() if key[0] != TODAY}
    assert kept_off(votes, spread, cleared={"n1": NOW - DAY / 2}) == ["n1"]


@pytest.mark.parametrize(("size", "most"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (40, 4)])
def test_a_tenth_of_a_partition_at_most_the_worst_first(size: int, most: int) -> None:
    # n1 fails most, then n2, ...; the others run well, so that the rate of the rest stays low
    votes = [vote(f"n{i}", uid) for i in range(1, 8) for uid in range(2, 12 - i)]
    nodes = [f"n{i}" for i in range(1, size + 1)]
    trials = {**ran(60, [f"n{i}" for i in range(8, size + 1)]), **{(TODAY, f"n{i}"): 10 for i in range(1, 8)}}
    found = weighed(votes, trials, partitions={"gpu": nodes})
    assert [one.node for one in avoided(found)] == nodes[:most]
    if size == 40:
        assert [one.node for one in found if one.by and not one.avoided]  # the operator sees what is left


def test_a_node_is_judged_in_each_of_its_partitions() -> None:
    votes = [vote(uid=1), vote(uid=2)]
    parts = {"gpu": NODES, "small": NODES[:5], "elsewhere": [f"m{i}" for i in range(40)]}
    found = weighed(votes, partitions=parts)
    assert [(one.partition, one.avoided, one.by) for one in found] == [
        ("gpu", True, "root"),
        ("small", False, "root"),
    ]


def test_two_reasons_against_one_node_take_one_place() -> None:
    votes = [vote(uid=uid, reason=reason) for uid in (1, 2, 3) for reason in ("gpu_hardware", "node_failure")]
    votes += [vote("n2", uid) for uid in (1, 2, 3)]
    found = weighed(votes, partitions={"gpu": NODES[:20]})
    assert [one.node for one in avoided(found)] == ["n1", "n2"]
    assert sum(one.avoided for one in found) == 3


_votes = st.builds(
    Vote,
    st.sampled_from(NODES),
    st.sampled_from(sorted(REASONS)),
    st.sampled_from(["root", "user"]),
    st.floats(NOW - 25 * DAY, NOW + 2 * DAY),
    st.one_of(st.none(), st.integers(0, 6)),
    st.sampled_from(["", "a", "b", "c", "d"]),
)
_trials = st.dictionaries(
    st.tuples(st.integers(TODAY - 25, TODAY + 1), st.sampled_from(NODES)), st.integers(0, 50), max_size=60
)


@settings(max_examples=examples(300))
@given(
    st.lists(_votes, max_size=150),
    _trials,
    st.integers(0, 40),
    st.dictionaries(st.sampled_from(NODES), st.floats(0, NOW)),
)
def test_what_always_holds(
    votes: list[Vote], trials: dict[tuple[int, str], int], size: int, cleared: dict[str, float]
) -> None:
    partitions = {"gpu": NODES[:size], "all": NODES}
    found = assess(votes, trials, partitions, now=NOW, cleared=cleared)
    for name, nodes in partitions.items():
        off = [one for one in avoided(found) if one.partition == name]
        assert len({one.node for one in off}) == len(off) <= len(nodes) // RULES.part
        assert {one.node for one in off} <= set(nodes)
    for one in found:
        assert 0 <= one.root.probability <= 1 and 0 <= one.user.probability <= 1
        assert not one.avoided or one.by
        assert one.by != "root" or one.root.probability >= RULES.sure
        assert one.by != "user" or (one.user.users >= RULES.users and one.user.probability >= RULES.sure)
    # the order in which it is told says nothing
    assert assess(votes[::-1], trials, dict(reversed(partitions.items())), now=NOW, cleared=cleared) == found


@given(st.lists(_votes, max_size=80), _trials)
def test_what_users_say_changes_nothing_of_what_root_says(
    votes: list[Vote], trials: dict[tuple[int, str], int]
) -> None:
    def by_root(some: Iterable[Vote]) -> list[Charge]:
        return [one for one in assess(some, trials, PARTITIONS, now=NOW) if one.by == "root"]

    without = {
        (one.node, one.reason, one.root) for one in by_root(one for one in votes if one.source == "root")
    }
    assert {(one.node, one.reason, one.root) for one in by_root(votes)} == without
