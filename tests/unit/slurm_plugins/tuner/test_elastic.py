"""Tiresias's queues with R1 and R2: bounds, capacity, order, and that a run does all the work and no more."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.elastic import SUPPOSED, wish
from slurm_plugins.tuner.elastic import ELASTIC, TIRESIAS, Rules, Wish, allot, compact, expand, granted
from slurm_plugins.tuner.queues import STOP_FREE, STOP_RESUME, Costs, Job, Queues, live
from tests.properties import examples

FREE = Costs(0.0, 0.0, 0.0)
RULES = {"tiresias": TIRESIAS, "r1": Rules(expand=False), "r2": Rules(compact=False), "both": ELASTIC}


def wishing(asked: int, least: int = 0, most: int = 0, power: float = 0.8) -> Wish:
    """Speed grows with a power of GPUs."""
    most = most or asked
    return Wish(asked, least or asked, most, tuple(n**power for n in range(most + 1)))


@st.composite
def wishes(draw):
    asked = draw(st.integers(1, 16))
    least, most = draw(st.integers(1, asked)), draw(st.integers(asked, 32))
    # speeds that never fall, and grow by at most one a GPU
    steps = draw(st.lists(st.floats(0, 1), min_size=most - 1, max_size=most - 1))
    speeds = [0.0, 1.0]
    for step in steps:
        speeds.append(speeds[-1] + step)
    return Wish(asked, least, most, tuple(speeds))


queues = st.lists(wishes(), max_size=30)


def parted(found: list[Wish]) -> tuple[list[int], list[int], dict[int, Wish]]:
    half = len(found) // 2
    return list(range(half)), list(range(half, len(found))), dict(enumerate(found))


def test_each_gets_what_it_asked_for_in_order_and_who_fits_passes():
    asked = {0: wishing(4), 1: wishing(8), 2: wishing(2)}
    assert granted([0, 1, 2], asked, 6) == ({0: 4, 2: 2}, 0)
    assert allot([1], [0, 2], asked, 10, TIRESIAS) == {1: 8, 2: 2}


def test_r1_acts_when_more_than_ten_wait_and_on_the_lower_queue_alone():
    asked = {0: wishing(4, 1), 1: wishing(4, 1), **{n: wishing(1) for n in range(2, 14)}}
    waiting = list(range(2, 12))
    rules = Rules(expand=False)
    upper_first = allot([0], [1, *waiting], asked, 8, rules)
    assert upper_first == {0: 4, 1: 4}, "ten wait"
    assert allot([0], [1, *waiting, 12], asked, 8, rules) == {0: 4, 1: 1, 2: 1, 3: 1, 4: 1}
    assert compact(given := {0: 4, 1: 1}, asked) == 3
    assert given == {0: 1, 1: 1}


def test_r2_gives_each_gpu_where_it_speeds_up_most():
    steep, flat = wishing(1, 1, 8, 0.9), wishing(1, 1, 8, 0.3)
    given = {0: 1, 1: 1}
    assert expand(given, [], {0: flat, 1: steep}, 3) == 0
    assert given == {0: 1, 1: 4}
    level = Wish(1, 1, 3, (0.0, 1.0, 1.0, 1.0))
    given = {0: 1}
    assert expand(given, [], {0: level}, 5) == 5, "no gain, no GPU"


def test_r2_starts_who_waits_before_it_speeds_up_who_runs():
    given = {0: 1}
    expand(given, [1, 2], {0: wishing(1, 1, 8), 1: wishing(1), 2: wishing(8, 4, 8, 0.5)}, 2)
    assert given == {0: 2, 1: 1}, "the least of job 2 does not fit"


@given(queues, st.integers(0, 40), st.sampled_from(sorted(RULES)))
def test_bounds_and_capacity_hold_under_all_rules(found, gpus, name):
    upper, lower, asked = parted(found)
    given_ = allot(upper, lower, asked, gpus, RULES[name])
    assert sum(given_.values()) <= gpus
    for job, count in given_.items():
        assert asked[job].least <= count <= asked[job].most
        if name == "tiresias":
            assert count == asked[job].asked
        if name == "r1":
            assert count <= asked[job].asked
    assert allot(upper, lower, asked, gpus, RULES[name]) == given_


@given(queues, st.integers(0, 40))
def test_no_gpu_is_left_that_somebody_gains_from(found, gpus):
    upper, lower, asked = parted(found)
    given_ = allot(upper, lower, asked, gpus)
    left = gpus - sum(given_.values())
    for job, one in asked.items():
        if job not in given_:
            assert one.least > left
        elif left:
            assert one.gains[given_[job]] <= 0


@given(queues, st.integers(1, 40))
def test_r2_never_takes_from_who_has_what_it_asked_for(found, gpus):
    upper, lower, asked = parted(found)
    plain, more = (allot(upper, lower, asked, gpus, RULES[name]) for name in ("tiresias", "r2"))
    assert all(more[job] >= count for job, count in plain.items())


jobs = st.lists(st.tuples(wishes(), st.floats(0, 20_000), st.floats(1, 20_000)), min_size=1, max_size=20).map(
    lambda rows: [Job(number, arrival, work, one) for number, (one, arrival, work) in enumerate(rows)]
)


@settings(max_examples=examples(60), deadline=None)
@given(jobs, st.sampled_from(sorted(RULES)), st.sampled_from([FREE, STOP_RESUME, STOP_FREE]), st.booleans())
def test_every_job_ends_with_its_work_done(found, name, costs, executed):
    lived = live(found, 32, RULES[name], costs, queues=Queues(executed=executed))
    assert set(lived.ended) == {one.job for one in found}
    # work is seconds on what was asked for; each GPU adds at most what the first does
    for one in found:
        fastest = one.wish.speedup[one.wish.most] / one.wish.speedup[one.wish.asked]
        assert lived.ended[one.job] - one.arrival >= one.work / fastest * (1 - 1e-6)
    assert lived.gpu_seconds <= 32 * (max(lived.ended.values()) - min(j.arrival for j in found)) * (1 + 1e-9)
    if name == "tiresias":
        assert lived.changes == 0
        done = sum(one.work * one.wish.asked for one in found)
        assert lived.gpu_seconds >= done * (1 - 1e-6)
        if costs is FREE:
            assert lived.gpu_seconds == pytest.approx(done, rel=1e-5), "no work is lost, none is done twice"


def test_alone_a_job_takes_its_work():
    lived = live([Job(1, 5.0, 1000.0, wishing(4))], 8, TIRESIAS, STOP_RESUME)
    assert lived.ended == {1: pytest.approx(1005.0)}
    assert (lived.stops, lived.changes, lived.lost) == (0, 0, 0)


def test_a_lone_job_grows_at_once_with_r2():
    lived = live([Job(1, 0.0, 1000.0, wishing(2, 1, 8, 1.0))], 8, Rules(), STOP_FREE)
    assert lived.ended[1] == pytest.approx(250.0)


def test_a_long_job_falls_and_makes_room_for_a_new_one():
    long, new = Job(1, 0.0, 10_000.0, wishing(1)), Job(2, 7200.0, 600.0, wishing(1))
    lived = live([long, new], 1, TIRESIAS, STOP_RESUME)
    assert lived.ended[2] == pytest.approx(7800.0), "who has had least goes first"
    assert lived.ended[1] == pytest.approx(10_630.0), "and the long one pays for its start"
    assert lived.stops == 1


def test_who_waits_eight_times_as_long_as_it_ran_rises():
    # the second keeps the GPU from the first by its place in the upper queue, until it falls too
    first = Job(1, 0.0, 4000.0, wishing(1))
    stream = [Job(2 + n, 3700.0 + 1000.0 * n, 1000.0, wishing(1)) for n in range(60)]
    lived = live([first, *stream], 1, TIRESIAS, FREE)
    never = live([first, *stream], 1, TIRESIAS, FREE, queues=Queues(promote=math.inf))
    assert lived.ended[1] < 3700 + 8 * 3700 + 2000 < never.ended[1]


def test_a_change_of_size_costs_what_it_costs():
    wide = Job(1, 0.0, 1000.0, wishing(4, 1, 8, 1.0))
    late = Job(2, 100.0, 100.0, wishing(4))
    ends = {
        costs: live([wide, late], 8, Rules(), costs, queues=Queues(every=0.0)).ended[1]
        for costs in (FREE, STOP_FREE, STOP_RESUME)
    }
    assert ends[FREE] == pytest.approx(550.0)
    assert ends[STOP_FREE] == pytest.approx(551.0), "one second to grow back"
    assert ends[STOP_RESUME] > ends[STOP_FREE] + 30


@pytest.mark.parametrize(
    "bounds",
    [(0, 0, 1, 2), (2, 3, 4, 5), (4, 1, 2, 3), (1, 1, 2, 2)],
    ids=["none", "least", "most", "speeds"],
)
def test_a_wish_that_cannot_be_is_refused(bounds):
    asked, least, most, speeds = bounds
    with pytest.raises(ValueError, match="GPUs"):
        Wish(asked, least, most, (0.0,) * speeds)


def test_a_job_larger_than_the_cluster_is_refused():
    with pytest.raises(ValueError, match="asks for 16 of 8 GPUs"):
        live([Job(1, 0.0, 1.0, wishing(16))], 8)


@given(st.sampled_from(["vgg16", "bert", "deepspeech2"]), st.sampled_from([1, 2, 8, 12, 64]))
def test_wishes_of_measured_models_never_fall(model, asked):
    one = wish(model, asked, SUPPOSED, 128)
    assert one.speedup[:2] == (0.0, 1.0)
    assert list(one.speedup) == sorted(one.speedup)
    assert one.speedup[asked] <= asked
