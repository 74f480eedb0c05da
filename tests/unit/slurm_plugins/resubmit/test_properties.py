"""Whatever the facts are: no job is tried again too often, kept from starting, or made to wait too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.resubmissions import ACTIONS, Resubmission
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.hostlist import expand
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.elsewhere import cap
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past, Switches
from tests.properties import examples
from tests.unit.slurm_plugins.resubmit.made import NODES, NOW

_REASONS = st.sampled_from([*REASONS, "none", "of_another_release"])
_SOME_NODES = st.lists(st.sampled_from(NODES), max_size=8, unique=True).map(tuple)
_MIB = st.none() | st.integers(0, 2_000_000)
_SECONDS = st.none() | st.floats(0, 1e6)

failures = st.builds(
    Failure,
    reason=_REASONS,
    confidence=st.floats(0, 1),
    tier=st.sampled_from(["decisive", "explicit", "implicit", "cascade", "none"]),
    source=st.sampled_from(["root", "user"]),
    fingerprint=st.sampled_from(["", "a", "b"]),
    node=st.sampled_from(["", "n1", "n2", "elsewhere", "x" * 100]),
    progressed=st.sampled_from([None, True, False]),
    checkpoint=st.sampled_from(["", "c1", "c2"]),
    resumes=st.booleans(),
)
attempts = st.builds(
    Attempt,
    cluster=st.just("lab"),
    job_id=st.integers(1, 2**32 - 1),
    restarts=st.integers(0, 50),
    id=st.sampled_from(["12", "12_3", "12+1", "$(reboot)", "1" * 500]),
    uid=st.just(1000),
    state=st.sampled_from(
        ["FAILED", "PREEMPTED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "RUNNING", ""]
    ),
    nodes=_SOME_NODES,
    excluded=_SOME_NODES,
    partition_nodes=st.integers(0, len(NODES)).map(lambda count: NODES[:count]),
    runtime_s=_SECONDS,
    batch=st.sampled_from([None, True, True, False]),
    requeue=st.sampled_from([None, True, True, False]),
    whole_array=st.sampled_from([False, False, True]),
    het=st.sampled_from([False, False, True]),
    dependants=st.sampled_from([(), (), (), ("13",), None]),
    wishes=st.sampled_from([frozenset(), frozenset({"checkpoint"}), frozenset({"off"})]),
    memory=st.builds(
        Memory,
        asked_mib=_MIB,
        per=st.sampled_from(["", "node", "cpu"]),
        peak_mib=_MIB,
        most_mib=_MIB,
        cpus_per_node=st.none() | st.integers(0, 256),
    ),
)
policies = st.builds(
    lambda budget, more, first, longer, **rest: Resubmit(
        budget=budget,
        budget_most=budget + more,
        backoff=first,
        backoff_most=min(first + longer, 3600),
        **rest,
    ),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 3600),
    st.integers(0, 7200),
    enabled=st.booleans(),
    memory_factor=st.floats(1.05, 10),
    avoid_most=st.integers(0, 128),
    confidence=st.floats(0, 1),
    actions=st.lists(
        st.tuples(_REASONS, st.sampled_from(ACTIONS)), max_size=5, unique_by=lambda row: row[0]
    ).map(tuple),
)


def lived(
    endings: Sequence[tuple[Attempt, Failure]],
    policy: Resubmit,
    chance: float = 0.5,
    *,
    mode: str = "enforce",
) -> list[Resubmission]:
    """A job's life: each failure is planned with those before as its past, and each plan is carried out."""
    past: list[Earlier] = []
    rows: list[Resubmission] = []
    off: tuple[str, ...] = ()
    for restarts, (one, why) in enumerate(endings):
        at = replace(one, restarts=restarts, excluded=tuple(dict.fromkeys((*one.excluded, *off))))
        row = plan(
            at, why, Past(tuple(past)), Switches(mode, policy.enabled), policy, now=NOW, random=lambda: chance
        )
        rows.append(row)
        off = (*off, *row.avoid)
        if row.state == "planned":
            row = msgspec.structs.replace(row, state="done")
        past.append(Earlier(why, at.nodes, row, at.runtime_s))
    return rows


lives = st.lists(st.tuples(attempts, failures), min_size=1, max_size=7)


@settings(max_examples=examples(100), deadline=None)
@given(lives, policies)
def test_never_more_often_than_in_its_life(endings, policy):
    rows = lived(endings, policy)
    assert sum(row.state == "planned" for row in rows) <= policy.budget_most
    assert all(1 <= row.nth <= row.budget for row in rows if row.state == "planned")


@settings(max_examples=examples(100), deadline=None)
@given(attempts, failures, policies, st.integers(0, 12))
def test_never_more_often_than_the_budget_without_progress(one, why, policy, times):
    """The same failure over and over, which brings nothing new."""
    why = replace(why, source="user", progressed=False, checkpoint="c1")
    rows = lived([(replace(one, state="FAILED"), why)] * (times + 1), policy)
    # the first attempt's own checkpoint is news; nothing after it is
    assert sum(row.state == "planned" for row in rows) <= policy.budget


@settings(max_examples=examples(100), deadline=None)
@given(lives, policies)
def test_a_job_can_always_start(endings, policy):
    avoided: set[str] = set()
    for (one, _), row in zip(endings, lived(endings, policy), strict=True):
        avoided |= set(row.avoid)
        if not row.avoid:
            assert not row.exclude
            continue
        excluded = set(expand(row.exclude))
        assert set(one.excluded) | set(row.avoid) <= excluded, "what its user excludes stays"
        assert len(set(one.partition_nodes) - excluded) >= max(1, len(one.nodes))
        assert set(row.avoid) <= set(one.nodes), "only where it ran"
        assert len(avoided) <= cap(len(one.partition_nodes), policy) or not row.avoid


@settings(max_examples=examples(100), deadline=None)
@given(lives, policies, st.floats(0, 1))
def test_no_wait_is_longer_than_the_site_says(endings, policy, chance):
    for row in lived(endings, policy, chance):
        assert 0 <= row.delay_s <= policy.backoff_most <= 3600
        assert row.state == "planned" or row.delay_s == 0


@settings(max_examples=examples(100), deadline=None)
@given(lives, policies)
def test_never_is_never_unless_the_site_says_so(endings, policy):
    said = dict(policy.actions)
    for (one, why), row in zip(endings, lived(endings, policy), strict=True):
        if one.state == "CANCELLED":
            assert row.state == "stopped"
        sure = why.confidence >= policy.confidence
        if why.reason in REASONS and sure and said.get(why.reason, REASONS[why.reason].retry) == "never":
            assert row.state == "stopped"


@settings(max_examples=examples(60), deadline=None)
@given(lives, policies)
def test_memory_grows_and_fits(endings, policy):
    for (one, _), row in zip(endings, lived(endings, policy), strict=True):
        if row.memory_mib is None:
            continue
        memory = one.memory
        assert memory.asked_mib is not None
        assert memory.most_mib is not None
        parts = memory.cpus_per_node or 1 if row.memory_per == "cpu" else 1
        assert memory.asked_mib < row.memory_mib <= memory.most_mib // parts


@settings(max_examples=examples(60), deadline=None)
@given(lives, policies, st.floats(0, 1))
def test_the_same_facts_and_chances_make_the_same_row(endings, policy, chance):
    rows = lived(endings, policy, chance)
    assert lived(endings, policy, chance) == rows
    for row in rows:
        assert msgspec.json.decode(msgspec.json.encode(row), type=Resubmission) == row


@settings(max_examples=examples(60), deadline=None)
@given(lives, policies, st.sampled_from(["observe", "advise", "unheard of"]))
def test_nothing_is_done_where_nothing_is_enforced(endings, policy, mode):
    for row in lived(endings, policy, mode=mode):
        assert row.state == "stopped"
        assert row.step == ""


@settings(max_examples=examples(60), deadline=None)
@given(lives, policies)
def test_nothing_is_done_to_what_must_be_left_alone(endings, policy):
    for (one, _), row in zip(endings, lived(endings, policy), strict=True):
        alone = (
            one.het or one.whole_array or one.batch is False or one.requeue is False or one.dependants != ()
        )
        if alone or "off" in one.wishes or not policy.enabled or one.state == "RUNNING":
            assert row.state == "stopped"
            assert row.why
