"""One step after another: whatever gsub-act answers and Slurm shows, a decision ends, and asks for one requeue only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.resubmissions import ENDED, Resubmission
from slurm_plugins.act.wire import Answer, parse_request
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.carrying_out import (
    PATIENCE,
    answered,
    prepared,
    refused,
    request_of,
    stopped,
    unanswered,
)

AT = 1_700_000_000.0


def row(**more: Any) -> Resubmission:
    values: dict[str, Any] = {
        "reason": "core_dump",
        "action": "once",
        "state": "planned",
        "at": AT,
        "why": "It may have been by chance: it is tried again once (1 of 1).",
        "due": AT,
        "step": "requeue",
        "shown": "12_3",
    } | more
    return Resubmission("lab", 15, 0, **values)


def job(state: JobState, restarts: int) -> Job:
    return Job(id=15, name="a", user="u", state=state, restarts=restarts)


answers = st.builds(
    Answer,
    id=st.just("r-12345678"),
    result=st.sampled_from(["done", "refused", "failed", "unknown"]),
    said=st.sampled_from(["", "too fast: again in 2 s", "the limit of QOS normal", "Access denied"]),
    again=st.sampled_from([None, None, 0.0, 2.0, 60.0, 1e9]),
)
jobs = st.none() | st.builds(job, st.sampled_from(list(JobState)), st.integers(0, 3))


@given(
    st.lists(st.tuples(st.one_of(answers, st.none()), jobs), min_size=1, max_size=80),
    st.booleans(),
    st.sampled_from([(), ("n1",)]),
)
@settings(deadline=None)
def test_every_decision_ends(
    said: list[tuple[Answer | None, Job | None]], held: bool, avoid: tuple[str, ...]
) -> None:
    one = row(step="requeuehold" if held else "requeue", avoid=avoid, exclude="n1" if avoid else "")
    now, requeued = AT, 0
    ids: dict[str, tuple[Any, ...]] = {}
    for turn in range(2000):
        if one.state in ENDED:
            break
        request = request_of(one)
        assert parse_request(msgspec.json.encode(request)) == request, "gsub-act understands it"
        same = (request.verb, tuple(request.fields.items()), one.failed)
        assert ids.setdefault(request.id, same) == same, "one id asks for one thing"
        answer, seen = said[turn % len(said)]
        before = one
        if answer is None:
            one = unanswered(one, "it is not there", 5.0, now)
        else:
            after = answered(one, answer, now)
            one = refused(one, answer, seen, now) if after is None else after
            if answer.result == "done" and before.step in ("requeue", "requeuehold"):
                requeued += 1
        assert one.due is None or now <= one.due <= now + 61 or one.state in ENDED
        now = max(now + 1, one.due or now)
    assert one.state in ENDED and requeued <= 1
    assert (one.stop == "") == (one.state == "done")
    assert one.state == "done" or one.why
    assert now - AT < PATIENCE + 300


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({}, {"StartTime": "now"}),
        ({"delay_s": 61.4}, {"StartTime": "now+61"}),
        ({"exclude": "n[1-2]"}, {"ExcNodeList": "n[1-2]", "StartTime": "now"}),
        ({"memory_mib": 4000, "memory_per": "node"}, {"MinMemoryNode": "4000", "StartTime": "now"}),
        ({"memory_mib": 4000, "memory_per": "cpu"}, {"MinMemoryCPU": "4000", "StartTime": "now"}),
    ],
)
def test_what_is_asked(more: dict[str, Any], fields: dict[str, str]) -> None:
    requeue, update = request_of(row(**more)), request_of(row(**more, state="requeued", step="update"))
    assert (requeue.verb, requeue.job, requeue.restarts) == ("requeue", "12_3", 0)
    assert requeue.fields == fields, "to be looked at before it is requeued"
    assert (update.verb, update.fields, update.restarts) == ("update", fields, 1)
    release = request_of(row(**more, state="requeued", step="release", held=True))
    assert (release.verb, release.fields, release.restarts) == ("release", {}, None)


@pytest.mark.parametrize(
    ("shown", "number"), [("12_3", 15), ("15_3", None), ("15", None), ("", None)]
)
def test_a_task_is_looked_at_by_its_own_number_and_not_by_its_arrays(shown: str, number: int | None) -> None:
    assert request_of(row(shown=shown)).number == number


def test_an_id_is_the_same_until_slurm_says_no() -> None:
    one = row()
    again = answered(one, Answer(id="r-12345678", result="unknown", again=5.0), AT)
    no = answered(one, Answer(id="r-12345678", result="failed", said="no"), AT)
    assert again is not None and no is not None
    assert request_of(again).id == request_of(one).id != request_of(no).id


def test_only_what_is_requeued_by_us_is_said_to_run_again() -> None:
    assert stopped(row(), "slurm", "no").why == "It was to be tried again, but is not: no."
    assert stopped(row(state="requeued", step="update"), "limit", "no").why.startswith(
        "It runs again, but not as"
    )
    assert stopped(row(), "moved_on", "it was queued again").why.startswith("Nothing is done")


@pytest.mark.parametrize(
    ("delay", "quick", "step", "wait"),
    [(120.0, True, "requeue", 0.0), (120.0, False, "requeue", 120.0), (5.0, True, "requeuehold", 0.0),
     (5.0, False, "requeuehold", 5.0), (1e6, False, "requeue", 3600.0)],
)  # fmt: skip
def test_slurms_own_delay_makes_the_way(delay: float, quick: bool, step: str, wait: float) -> None:
    one = prepared(row(), delay, quick=quick)
    assert (one.step, one.delay_s) == (step, wait)
    over = row(state="stopped", stop="never", step="")
    assert prepared(over, delay, quick=quick) == over
