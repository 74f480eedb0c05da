"""Quotas that nobody wrote down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.replay.quotas import quotas
from slurm_plugins.replay.values import Job, Trace

WORKS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.floats(1, 1e6), st.integers(0, 64)), min_size=1, max_size=30
)


@given(WORKS, st.integers(6, 3000), st.sampled_from(["demand", "even"]))
def test_shares_add_up_and_everybody_has_one(works, gpus, text):
    trace = Trace.of([Job(n, 0.0, work, gpus=size, queue=name) for n, (name, work, size) in enumerate(works)])
    made = quotas(text, trace, gpus)
    assert set(made) == set(trace.words["queue"]) and min(made.values()) >= 1
    assert gpus <= sum(made.values()) <= gpus + len(made)
    if text == "even":
        assert max(made.values()) - min(made.values()) <= 1


def test_who_holds_more_may_count_on_more():
    trace = Trace.of([Job(1, 0.0, 100.0, gpus=6, queue="big"), Job(2, 0.0, 100.0, gpus=2, queue="small")])
    assert quotas("demand", trace, 64) == {"big": 48, "small": 16}
    assert quotas("big=60,small=4", trace, 64) == {"big": 60, "small": 4}
