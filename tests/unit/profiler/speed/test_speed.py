"""Speed over GPUs and placement: what the model promises, whatever was measured."""

import math
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speeds import BATCHES, TRUTHS, foretold, left_out
from profiler.scaling import MEASURED, points, typical
from profiler.speed import Point, SpeedModel, fit, light_profile
from profiler.spread import CLASSES, known_class, slowdown

placements = st.tuples(st.sampled_from(BATCHES), st.integers(1, 16), st.integers(1, 8))


@cache
def model_of(kind: str, *, training: bool = True, noise: float = 0.01) -> SpeedModel:
    rng = Random(kind)
    truth = TRUTHS[kind](rng)
    runs = light_profile(BATCHES, 4, 4)
    return fit(
        [Point(*run, truth(*run) * math.exp(rng.gauss(0, noise)), 12.0) for run in runs], training=training
    )


@pytest.mark.parametrize("kind", ["genie", "pollux"])
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_held_out_placements_are_foretold_within_five_per_cent(kind, noise):
    all_of = [foretold(kind, noise, seed) for seed in range(3)]
    assert sum(one.mean for one in all_of) / len(all_of) < 0.05
    assert sum(one.inside for one in all_of) / len(all_of) > 0.85
    assert all(one.width < 0.25 for one in all_of), "an interval that holds everything says nothing"
    assert {one.form for one in all_of} == {kind}


def test_a_truth_of_neither_form_makes_it_less_sure():
    right, wrong = foretold("genie", 0.005, 1), foretold("genie + latency", 0.005, 1)
    assert wrong.width > 2 * right.width
    assert wrong.inside > 0.8


def test_a_light_profile_is_light():
    runs = light_profile(BATCHES, 4, 4)
    assert len(runs) == len(set(runs)) < 25 < len(BATCHES) * 4 * 4 / 4
    assert {run[1:] for run in runs} >= {(1, 1), (1, 4), (4, 1), (4, 4)}
    assert light_profile([8], 1, 1) == [(8, 1, 1)]


def test_runs_on_one_gpu_alone_leave_the_others_unknown_but_not_impossible():
    model = fit([Point(batch, 1, 1, 100 * batch / (batch + 100)) for batch in BATCHES])
    _, low, high = model.rate(512)
    wide = model.rate(512, 4, 4)
    assert high / low < 1.2
    assert wide.high / wide.low > 1.5 * high / low


def test_one_run_is_enough_for_a_guess():
    rate, low, high = fit([Point(64, 1, 1, 100.0)]).rate(128, 1, 2)
    assert low < 100 and rate > 100 and high > 150


def test_measured_models_are_foretold_from_their_other_runs():
    errors, inside = left_out("inception3")
    assert sum(errors) / len(errors) < 0.05
    assert inside >= 0.8 * len(errors)


def test_typical_models_grow_as_they_were_measured():
    for name in MEASURED:
        assert typical(name).error < 0.1
        for one in points(name):
            assert typical(name).rate(*one.at).value == pytest.approx(one.rate, rel=0.2)


# --- limits and invariances


@given(placements, st.sampled_from(sorted(TRUTHS)))
def test_the_value_is_within_its_interval_and_more_confidence_is_wider(at, kind):
    narrow, wide = model_of(kind).rate(*at, confidence=0.5), model_of(kind).rate(*at, confidence=0.99)
    assert 0 < wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high
    assert wide.value == narrow.value


@given(placements, st.floats(0, 1e6))
def test_inference_does_not_communicate(at, _):
    batch, nodes, gpus = at
    count = nodes * gpus
    inference = model_of("genie", training=False)
    rate = inference.rate(*at).value
    assert rate == pytest.approx(inference.rate(batch, count, 1).value)
    assert rate == pytest.approx(count * inference.rate(batch / count, 1, 1).value)


@given(st.sampled_from(BATCHES), st.integers(2, 16), st.sampled_from(sorted(TRUTHS)))
def test_communication_only_costs(batch, count, kind):
    one = model_of(kind).rate(batch / count).value
    assert model_of(kind).rate(batch, 1, count).value <= count * one * (1 + 1e-9)
    assert model_of(kind).rate(batch, count, 1).value <= count * one * (1 + 1e-9)


@given(placements, st.floats(1, 1e5))
def test_latency_is_linear_in_iterations_with_the_start_before_it(at, iterations):
    model = model_of("genie")
    once, twice = (model.latency(at[0], i, *at[1:]).value for i in (iterations, 2 * iterations))
    assert model.startup == (12, 12, 12)
    assert twice - 12 == pytest.approx(2 * (once - 12))
    found = model.latency(at[0], iterations, *at[1:])
    assert 12 <= found.low <= found.value <= found.high


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.01, 100), st.floats(0.1, 10))
def test_a_fit_depends_neither_on_order_nor_on_units(rng, faster, larger):
    truth = TRUTHS["pollux"](Random(3))
    runs = [Point(*run, truth(*run)) for run in light_profile(BATCHES[::3], 2, 4)]
    shuffled = [
        Point(p.batch * larger, p.nodes, p.gpus, p.rate * faster) for p in rng.sample(runs, len(runs))
    ]
    model, other = fit(runs), fit(shuffled)
    for at in ((512, 1, 3), (64, 2, 2), (1536, 2, 4)):
        expected = model.rate(*at)
        found = other.rate(at[0] * larger, *at[1:])
        assert [v / faster for v in found] == pytest.approx(list(expected), rel=5e-3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(placements, st.floats(1e-6, 1e9)), min_size=1, max_size=8))
def test_any_runs_give_a_finite_model(rows):
    model = fit([Point(batch, nodes, gpus, rate) for (batch, nodes, gpus), rate in rows])
    for value in (*model.rate(64, 1, 1), *model.rate(1536, 4, 8)):
        assert math.isfinite(value) and value > 0
    assert sum(model.weights) == pytest.approx(1)


@pytest.mark.parametrize(
    "wrong",
    [(0, 1, 1, 1.0), (math.nan, 1, 1, 1.0), (math.inf, 1, 1, 1.0), (1, 0, 1, 1.0), (1, 1, 0, 1.0)]
    + [(1, 1, 1, rate) for rate in (0.0, -1.0, math.inf, math.nan)]
    + [(1, 1, 1, 1.0, startup) for startup in (-1.0, math.inf)],
)
def test_what_no_run_can_be_is_refused(wrong: Any):
    with pytest.raises(ValueError, match=r"a batch of|a run"):
        Point(*wrong)


def test_nothing_cannot_be_fitted():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([])
    with pytest.raises(ValueError, match="a batch of"):
        model_of("genie").rate(64, 0, 1)
    with pytest.raises(ValueError, match="a confidence of"):
        model_of("genie").rate(64, confidence=1.0)
    with pytest.raises(ValueError, match="iterations"):
        model_of("genie").latency(64, math.nan)
    with pytest.raises(ValueError, match="nodes of 0"):
        model_of("genie").slowdown(64, 1, 1, 0)


def test_a_models_own_slowdown_is_one_where_it_is_compact():
    model = model_of("pollux")
    assert model.slowdown(1536, 1, 4, 4) == 1
    assert model.slowdown(1536, 4, 1, 4) > 1
    assert model.slowdown(1536, 4, 2, 4) >= 1


# --- classes


def test_the_published_tables_are_answered_as_they_are():
    assert slowdown("alexnet", 8, 4) == pytest.approx(1 / 0.268)
    assert slowdown("vgg19", 4, 2) == pytest.approx(1 / 0.576)
    assert slowdown("ResNet50", 8, 2) == pytest.approx(1 / 0.948)
    assert slowdown("what is this", 2, 2) == pytest.approx(114.8 / 98.0)
    assert slowdown("", 16, 4) == pytest.approx(43.66 / 40.94)
    assert known_class("MobileNet-V2") == "mobilenet_v2"


@given(
    st.sampled_from(CLASSES), st.integers(1, 512), st.integers(1, 64), st.integers(1, 8), st.integers(1, 16)
)
def test_spreading_never_helps_and_more_of_it_costs_more(name, gpus, nodes, leaves, size):
    here = slowdown(name, gpus, nodes, leaves, gpus_a_node=size)
    assert 1 <= here < 50
    assert here <= slowdown(name, gpus, nodes + 1, leaves, gpus_a_node=size) + 1e-9
    assert here <= slowdown(name, gpus, nodes, leaves + 1, gpus_a_node=size) + 1e-9
    assert slowdown(name, gpus, -(-gpus // size), gpus_a_node=size) == 1
    assert slowdown(name, 1, nodes, leaves) == 1


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_no_nodes_or_gpus_are_refused(counts):
    with pytest.raises(ValueError, match="GPUs on"):
        slowdown("", *counts)
