"""Retries and smoke runs over the same faults: what each may and may not change."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.early import SEEN, smoke_time
from site_configs.site_model import Resubmit
from slurm_plugins.replay.again import Courses, Kind
from slurm_plugins.replay.failing import KINDS, VERDICTS, Faults, Supposed, strike
from slurm_plugins.replay.remedies import lived
from slurm_plugins.replay.retrying import RETRIES, Retry, tried
from slurm_plugins.replay.smoking import SMOKES, Smoke, learned
from slurm_plugins.replay.values import Job, Trace
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Past, Switches
from tests.properties import examples

NONE = SMOKES["none"]


def trace_of(count: int, seed: int = 0) -> Trace:
    chance = Random(seed)
    return Trace.of(
        Job(
            number,
            30.0 * number,
            chance.choice((0.0, 1.0)) and 10 ** chance.uniform(1, 6),
            chance.choice((0, 1, 2, 8, 32)),
        )
        for number in range(count)
    )


def all_fail(count: int, *, gpus: int = 8, **columns: Any) -> tuple[Trace, Faults]:
    """Jobs that all fail after a minute for ever, or as `columns` say."""
    trace = Trace.of(Job(number, 60.0 * number, 7200.0, gpus) for number in range(count))
    faults = strike(trace, Supposed(rate=10.0), 1)
    assert len(faults) == count
    plain: dict[str, Any] = {
        "cause": np.full(count, KINDS.index("always")),
        "verdict": np.full(count, VERDICTS.index("import_error")),
        "confidence": np.full(count, 0.9),
        "seconds": np.full(count, 60.0),
        "reason": np.full(count, 13),
        "alone": np.ones(count, np.bool_),
        "needs": np.ones(count),
    }
    return trace, dataclasses.replace(faults, **plain | columns)


@pytest.fixture(scope="module")
def life():
    trace = trace_of(3000)
    faults = strike(trace, Supposed(rate=2.0), 5)
    return trace, faults, {name: tried(trace, faults, retry) for name, retry in RETRIES.items()}


pairs = [(retry, smoke) for retry in RETRIES for smoke in SMOKES]


@pytest.mark.parametrize(("retry", "smoke"), pairs)
def test_runs_and_bill_agree(life, retry, smoke):
    """No GPU-second is lost between the runs that the engine replays and the bill."""
    trace, faults, runs = life
    waits = np.random.default_rng(1).exponential(600, len(trace))
    made = lived(trace, faults, RETRIES[retry], SMOKES[smoke], waits=waits, runs=runs[retry])
    attempts, bill = made.attempts, made.bill
    row = np.repeat(np.arange(len(trace)), np.diff(attempts.offsets))
    held = attempts.work * np.where(attempts.gpus > 0, attempts.gpus, trace["gpus"][row])
    work = trace["work"] * trace["gpus"]
    well = np.ones(len(trace), np.bool_)
    well[faults.row] = False
    assert held[attempts.kept].sum() == pytest.approx(work[well].sum() + bill.rescued_work)
    lost = held[~attempts.kept].sum()
    if smoke == "race":  # only of held jobs; the others' run beside the real ones
        assert bill.failed <= lost <= bill.lost * (1 + 1e-9)
    else:
        assert lost == pytest.approx(bill.lost)
    assert np.bincount(row[attempts.kept], minlength=len(trace)).max() == 1
    last = attempts.offsets[1:][np.diff(attempts.offsets) > 0] - 1
    kept = np.flatnonzero(attempts.kept)
    assert np.isin(kept, last).all()  # nothing runs after it ended well
    assert bill.rescued <= bill.recoverable <= bill.struck == len(faults)
    assert (np.diff(attempts.offsets)[trace["work"] == 0] == 0).all()
    assert (attempts.work > 0).all()


def test_the_faults_are_nobodys_doing(life):
    """Common random numbers: what a policy meets first is the same for all, and no policy changes it."""
    trace, faults, runs = life
    before = {field.name: np.copy(getattr(faults, field.name)) for field in dataclasses.fields(Faults)}
    firsts = []
    for name, retry in RETRIES.items():
        made = tried(trace, faults, retry)
        assert all(
            np.array_equal(getattr(made, f), getattr(runs[name], f)) for f in ("fault", "seconds", "passed")
        )
        first = np.unique(made.fault, return_index=True)[1]
        firsts.append(made.seconds[first])
    assert all(np.array_equal(one, faults.seconds) for one in firsts)
    assert all(np.array_equal(value, getattr(faults, name)) for name, value in before.items())


@given(st.integers(0, 2**32), st.integers(0, 6))
@settings(max_examples=examples(25), deadline=None)
def test_more_retries_never_rescue_fewer(seed, times):
    trace = trace_of(150, seed % 7)
    faults = strike(trace, Supposed(rate=3.0), seed)
    fewer, more = (tried(trace, faults, Retry("x", "blind", count)) for count in (times, times + 1))
    assert set(fewer.fault[fewer.passed]) <= set(more.fault[more.passed])
    assert fewer.seconds[~fewer.passed].sum() <= more.seconds[~more.passed].sum() + 1e-6
    most = tried(trace, faults, RETRIES["knowing"])
    assert set(more.fault[more.passed]) <= set(most.fault[most.passed])


def test_who_knows_rescues_all_that_can_be(life):
    _, faults, runs = life
    found = runs["knowing"]
    assert set(found.fault[found.passed]) == set(np.flatnonzero(faults.recoverable))
    assert not runs["none"].passed.any()
    assert len(runs["none"].fault) == len(faults)


def test_gsub_wastes_less_than_three_of_everything_and_rescues_more_than_none(life):
    trace, faults, _ = life
    bills = {name: lived(trace, faults, retry).bill for name, retry in RETRIES.items()}
    assert bills["gsub"].repeats < bills["three"].repeats
    assert bills["none"].rescued == 0 < bills["gsub"].rescued <= bills["knowing"].rescued
    assert bills["none"].repeats == 0


def test_what_always_fails_is_tried_as_often_as_the_policy_says():
    trace, faults = all_fail(50)
    for name, attempts in (("none", 1), ("three", 4), ("gsub", 1), ("knowing", 1)):
        bill = lived(trace, faults, RETRIES[name]).bill
        assert (bill.failed_runs, bill.rescued) == (50 * attempts, 0)
        assert bill.failed == pytest.approx(50 * attempts * 60 * 8)
    counted = lived(trace, faults, RETRIES["philly"]).bill
    assert counted.failed_runs == 50 + faults.patience.sum()


def test_a_broken_node_is_left_by_gsub_and_by_chance_by_others():
    count = 400
    trace, faults = all_fail(
        count,
        cause=np.full(count, KINDS.index("node")),
        verdict=np.full(count, VERDICTS.index("gpu_hardware")),
    )
    assert lived(trace, faults, RETRIES["gsub"]).bill.repeats == 0
    assert lived(trace, faults, RETRIES["gsub"]).bill.rescued == count
    three = lived(trace, faults, RETRIES["three"]).bill
    assert three.rescued / count == pytest.approx(7 / 8, abs=0.06)


def test_memory_is_given_by_gsub_alone_and_only_what_a_node_has():
    count = 100
    needs = np.full(count, 2.0)
    columns: dict[str, Any] = {
        "cause": np.full(count, KINDS.index("memory")),
        "verdict": np.full(count, VERDICTS.index("cpu_oom")),
        "needs": needs,
    }
    trace, faults = all_fail(count, gpus=2, **columns)
    assert lived(trace, faults, RETRIES["three"]).bill.rescued == 0
    ours = lived(trace, faults, RETRIES["gsub"]).bill
    assert (ours.rescued, ours.failed_runs) == (count, 2 * count)  # 1.5 times is not enough, 2.25 is
    trace, faults = all_fail(count, gpus=8, **columns)
    assert lived(trace, faults, RETRIES["gsub"]).bill.failed_runs == count


def test_an_outage_is_waited_for():
    count = 200
    trace, faults = all_fail(
        count,
        cause=np.full(count, KINDS.index("outage")),
        verdict=np.full(count, VERDICTS.index("filesystem_error")),
        outage_s=np.full(count, 500.0),
    )
    ours, blind = (lived(trace, faults, RETRIES[name]) for name in ("gsub", "three"))
    # 2 min each to start, 1 min each to fail: the last of three comes after 480 s, gsub waits 210 s and more besides;
    # and gives up where three places that have no node in common have said the same
    assert blind.bill.rescued == 0
    assert count * 0.6 < ours.bill.rescued < count
    delays = ours.attempts.delay
    assert (delays[ours.attempts.offsets[:-1]] == 0).all()
    second = delays[ours.attempts.offsets[:-1] + 1]
    assert second.min() >= 30 and second.max() <= 60 and np.ptp(second) > 20


# --- the live plan ----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(VERDICTS),
    st.sampled_from([0.4, 0.8, 0.9]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.floats(1, 5e5)), min_size=1, max_size=8),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_course_is_answered_as_the_plan_answers_its_real_run_times(
    reason, confidence, nodes, known, course
):
    """Courses stand run times in for real ones by two words; the plan asked with the real ones says the same."""
    kind = Kind(reason, confidence, nodes, 4.0, known or nodes == 1)
    courses = Courses(Resubmit())
    past: list[Earlier] = []
    off: tuple[str, ...] = ()
    memory, longest, number = 32_768, 0.0, -1
    for nth, (back, seconds) in enumerate(course):
        place = 0 if back else nth
        long = seconds >= 3600 and seconds >= 2 * longest
        if nth == 0:
            place, number = 0, courses.first(kind, long=long)
        else:
            number = courses.after(number, back=back, long=long)
        longest = max(longest, seconds)
        names = tuple(f"n{place * nodes + one}" for one in range(nodes))
        mark = "" if reason == "no_signature" else "as ever"
        failure = Failure(reason, confidence, "explicit", "user", mark, names[0] if kind.known else "")
        attempt = Attempt(
            "c", 7, nth, "7", 1000, "FAILED", nodes=names, excluded=off,
            partition_nodes=tuple(f"n{one}" for one in range(200)), runtime_s=seconds, batch=True, requeue=True,
            memory=Memory(memory, "node", None, 4 * 32_768),
        )  # fmt: skip
        row = plan(
            attempt, failure, Past(tuple(past)), Switches("enforce"), Resubmit(), now=0.0, random=lambda: 1.0
        )
        step = courses.step(number)
        assert step.again == (row.state == "planned")
        if not step.again:
            return
        assert step.longest == row.delay_s
        off += row.avoid
        memory = row.memory_mib or memory
        assert step.memory == memory / 32_768
        assert step.leaves == ("n0" in off)
        past.append(Earlier(failure, names, row, seconds))


def test_an_ended_course_goes_on_nowhere():
    courses = Courses(Resubmit())
    number = courses.first(Kind("syntax_error", 0.9), long=False)
    with pytest.raises(ValueError, match="has ended"):
        courses.after(number, back=False, long=False)


def test_the_sites_own_table_is_obeyed():
    trace, faults = all_fail(30)
    lenient = Retry("lenient", "table", policy=Resubmit(actions=(("import_error", "once"),)))
    assert lived(trace, faults, lenient).bill.failed_runs == 60
    off = Retry("none of it", "table", policy=Resubmit(budget=0))
    assert lived(trace, faults, off).bill.failed_runs == 30


# --- smoke runs -------------------------------------------------------------------------------------------------------


def test_a_gate_ends_what_one_gpu_shows_and_costs_what_its_runs_last():
    trace, faults = all_fail(40)
    for way in ("gate", "race"):
        made = lived(trace, faults, RETRIES["three"], SMOKES[way], waits=np.full(40, 1e4))
        assert (made.bill.held, made.bill.failed, made.bill.rescued) == (40, 0.0, 0)
        assert made.bill.smoke == pytest.approx(40 * 60)
        assert made.attempts.gpus.tolist() == [1] * 40
        assert not made.attempts.kept.any()


@pytest.mark.parametrize(
    "unseen",
    [
        {"verdict": VERDICTS.index("cpu_oom")},
        {"verdict": VERDICTS.index("no_signature"), "confidence": 0.5},
        {"confidence": 0.7},
        {"seconds": 601.0},
        {"alone": False},
        {"cause": KINDS.index("node")},
    ],
)
def test_what_a_smoke_run_cannot_be_sure_of_holds_nothing(unseen):
    trace, faults = all_fail(20)
    columns: dict[str, Any] = {
        name: np.full(20, value, getattr(faults, name).dtype) for name, value in unseen.items()
    }
    faults = dataclasses.replace(faults, **columns)
    bill = lived(trace, faults, RETRIES["none"], SMOKES["gate"]).bill
    assert (bill.held, bill.failed_runs, bill.smoked) == (0, 20, 20)
    assert 20 * 60 <= bill.smoke <= 20 * 600


def test_every_reason_that_a_smoke_run_sees_holds_and_no_other():
    for number, name in enumerate(VERDICTS):
        trace, faults = all_fail(3, verdict=np.full(3, number))
        bill = lived(trace, faults, RETRIES["none"], SMOKES["gate"]).bill
        assert bill.held == (3 if name in SEEN else 0), name


def test_small_jobs_are_not_tried():
    trace, faults = all_fail(10, gpus=4)
    for above, held in ((3, 10), (4, 0)):
        bill = lived(trace, faults, RETRIES["none"], Smoke("x", "gate", above)).bill
        assert (bill.held, bill.smoked) == (held, held)


def test_a_race_ends_when_its_job_starts():
    trace, faults = all_fail(10)
    at_once = lived(trace, faults, RETRIES["none"], SMOKES["race"], waits=np.zeros(10)).bill
    assert (at_once.held, at_once.smoke) == (0, 0.0)
    soon = lived(trace, faults, RETRIES["none"], SMOKES["race"], waits=np.full(10, 40.0)).bill
    assert soon.held == 0
    assert soon.smoke == pytest.approx(10 * 30)
    never = lived(trace, faults, RETRIES["none"], SMOKES["race"], waits=np.full(10, np.nan)).bill
    assert never.held == 10
    for waits in (None, np.zeros(9)):
        with pytest.raises(ValueError, match="how long each job waits"):
            lived(trace, faults, RETRIES["none"], SMOKES["race"], waits=waits)


@given(st.integers(0, 2**32), st.floats(0, 1e4))
@settings(max_examples=20, deadline=None)
def test_a_longer_wait_never_lets_a_race_hold_fewer(seed, wait):
    trace = trace_of(150, seed % 5)
    faults = strike(trace, Supposed(rate=3.0), seed)
    shorter, longer = (
        lived(trace, faults, RETRIES["philly"], SMOKES["race"], waits=np.full(len(trace), one)).bill
        for one in (wait, wait * 2 + 1)
    )
    gate = lived(trace, faults, RETRIES["philly"], SMOKES["gate"]).bill
    assert shorter.held <= longer.held <= gate.held
    assert gate.failed <= longer.failed <= shorter.failed
    assert shorter.smoke <= longer.smoke <= gate.smoke * (1 + 1e-9)


def test_a_held_job_that_another_attempt_would_have_saved_is_told():
    trace, faults = all_fail(50, cause=np.full(50, KINDS.index("chance")))
    bill = lived(trace, faults, RETRIES["knowing"], SMOKES["gate"]).bill
    assert (bill.held, bill.held_wrongly, bill.rescued) == (50, 50, 0)


def test_the_length_of_a_smoke_run_is_learned_from_what_is_past():
    trace, faults = all_fail(5000, seconds=np.full(5000, 400.0))
    length = learned(trace, faults)
    assert (length[:1000] == smoke_time(several=True)).all()
    assert length[-1] > 400 > length[0]
    late = faults.row >= 1000
    other = dataclasses.replace(faults, seconds=np.where(late, 5.0, faults.seconds))
    assert np.array_equal(learned(trace, other)[:2000], length[:2000])
    assert learned(trace, other)[-1] < length[-1]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Retry("x", "blind", -1),
        lambda: Retry("x", "blind", 10_000),
        lambda: Smoke("x", "gate", -1),
        lambda: Smoke("x", "gate", seconds=0.0),
        lambda: Smoke("x", "gate", seconds=float("nan")),
    ],
)
def test_policies_that_are_none_are_refused(bad):
    with pytest.raises(ValueError):
        bad()


def test_by_chance_it_fails_after_a_time_of_its_own_and_never_after_its_work():
    count = 2000
    trace, faults = all_fail(count, cause=np.full(count, KINDS.index("chance")), reason=np.full(count, 1))
    runs = tried(trace, faults, RETRIES["three"])
    again = np.r_[False, runs.fault[1:] == runs.fault[:-1]] & ~runs.passed
    assert again.mean() == pytest.approx(0.1, abs=0.03)
    assert len(np.unique(runs.seconds[again])) > 100
    assert runs.seconds.max() <= 7200


def test_faults_of_another_trace_are_refused():
    with pytest.raises(ValueError, match="faults of 40 jobs for a trace of 41"):
        lived(trace_of(41), strike(trace_of(40)), RETRIES["none"])


def test_a_job_of_any_size_is_answered():
    trace = Trace.of([Job(1, 0.0, 7200.0, 10_000_000)])
    faults = strike(trace, Supposed(rate=10.0))
    assert len(tried(trace, faults, RETRIES["gsub"]).fault) >= 1


@pytest.mark.parametrize(("retry", "smoke"), pairs)
def test_no_jobs_no_bill(retry, smoke):
    trace = trace_of(0)
    made = lived(trace, strike(trace), RETRIES[retry], SMOKES[smoke], waits=np.zeros(0))
    assert made.attempts.offsets.tolist() == [0]
    assert made.bill.lost == 0
