"""The CPUs that a workload can use, found from noisy steps. All throughputs here are simulated."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.curves import Curve, Point, fit, knee
from profiler.sensitivity import Budget, Done, Probe, limit, plan
from tests.properties import examples
from tests.unit.profiler.learn.simulated import Job, learn, saturating

DRAWS = 200


def drawn(seed: int) -> tuple[float, Job]:
    draw = random.Random(seed)
    place = draw.randint(3, 24) if seed % 2 else draw.uniform(3, 24)
    noise, top = draw.uniform(0.02, 0.08), 1 / draw.uniform(0.05, 0.3)
    return place, Job(saturating(place, top), draw, noise)


@pytest.mark.slow
def test_the_knee_is_found_within_one_cpu_in_three_minutes():
    off: Counter[int] = Counter()
    points: Counter[int] = Counter()
    longest, least, good = 0.0, 1.0, 0
    for seed in range(DRAWS):
        place, job = drawn(seed)
        done, asked = learn(job)
        off[done.knee - math.ceil(place)] += 1
        points[len(asked)] += 1
        longest = max(longest, job.clock + len(asked) * Budget().settling)
        least = min(least, done.knee / place)
        good += done.knee / place >= 0.97
    print(
        f"\n{DRAWS} knees of 3 to 24: off by {sorted(off.items())}; points {sorted(points.items())}; "
        f"at most {longest:.0f} s; throughput there at least {least:.3f} of the best, "
        f"0.97 or more {good} times"
    )
    assert sum(count for by, count in off.items() if abs(by) <= 1) >= 0.95 * DRAWS
    assert max(points) <= Budget().points
    assert longest < 180
    assert good >= 0.98 * DRAWS and least >= 0.9


def bent(place: float, power: float) -> Callable[[float], float]:
    return lambda cpus: 5 * min(1.0, (cpus / place) ** power)


@pytest.mark.parametrize("power", [0.8, 0.9])
def test_cpus_that_help_less_and_less(power):
    near = 0
    for seed in range(20):
        draw = random.Random(seed)
        place = draw.uniform(3, 24)
        done, _ = learn(Job(bent(place, power), draw))
        near += abs(done.knee - math.ceil(place)) <= 1
    assert near >= 19


SHIPPED = {
    # papers: throughput at CPUs for each GPU, over that at 3, of the profiles that Synergy ships (V100)
    "alexnet": ({1: 0.3, 2: 0.66, 3: 1, 4: 1.25, 5: 1.53, 6: 1.75, 9: 2, 12: 2.94}, 12),
    "res18": ({1: 0.37, 2: 0.72, 3: 1, 4: 1.3, 5: 1.53, 6: 1.75, 9: 2.4}, 9),
    "mobilenet": ({1: 0.37, 2: 0.72, 3: 1, 4: 1.3, 5: 1.49, 6: 1.55}, 6),
    "res50": ({1: 0.4, 2: 0.74, 3: 1, 4: 1.15}, 4),
    "deepspeech": ({1: 0.3, 2: 0.66, 3: 1}, 3),
    "bert": ({1: 1.0}, 1),
}


@pytest.mark.parametrize("model", SHIPPED)
def test_the_shapes_that_synergy_ships(model):
    table, place = SHIPPED[model]

    def rate(cpus: float) -> float:
        low = max(count for count in table if count <= cpus)
        high = min((count for count in table if count >= cpus), default=low)
        share = (cpus - low) / (high - low) if high > low else 0.0
        return 4 * (table[low] * (1 - share) + table[high] * share)

    for seed in range(3):
        done, _ = learn(Job(rate, random.Random(seed)), cap=24)
        assert abs(done.knee - place) <= 1
        assert rate(done.knee) >= 0.95 * rate(24)


def test_it_starts_at_the_cap_twice_and_halves_while_within_a_tenth():
    _, asked = learn(Job(saturating(5, 8), random.Random(1), noise=0.02))
    assert [probe.cpus for probe in asked][:5] == [32, 32, 16, 8, 4]
    assert [probe.why for probe in asked][:3] == ["warm-up", "the most CPUs", "half as many"]


def test_the_warm_up_does_not_count():
    points = tuple(Point(cpus, min(cpus, 6.0), 0.03, 80, 10) for cpus in (32, 16, 8, 4, 6, 5))
    slow = plan((Point(32, 0.5, 0.01, 5, 10), *points), 32)
    quick = plan((Point(32, 6.0, 0.01, 5, 10), *points), 32)
    assert isinstance(slow, Done) and isinstance(quick, Done)
    assert slow.knee == quick.knee == 6


def test_a_job_of_several_gpus_is_given_the_same_for_each():
    job = Job(lambda cpus: 6 * min(1.0, cpus / 4 / 5), random.Random(3))
    done, asked = learn(job, cap=64, gpus=4)
    assert all(probe.cpus % 4 == 0 for probe in asked)
    assert abs(done.knee - 5) <= 1


def test_a_job_that_uses_all_there_is_says_so():
    done, _ = learn(Job(saturating(60, 8), random.Random(4)), cap=24)
    assert done.knee == 24 and done.curve.open_end
    assert limit(done.curve, workers=24).kind == "cap"


def test_a_job_that_needs_no_cpus_goes_down_to_the_floor():
    done, asked = learn(Job(saturating(0.5, 8), random.Random(5)))
    assert (done.knee, done.why) == (1, "floor")
    assert len(asked) <= 8


def test_a_floor_is_not_gone_below():
    done: tuple[Point, ...] = ()
    while isinstance(step := plan(done, 32, 1, 6), Probe):
        assert step.cpus >= 6
        done += (Point(step.cpus, 5.0, 0.03, 50, 10),)
    assert (step.knee, step.why) == (6, "floor")


def test_slow_steps_use_up_the_time_and_say_that_it_is_not_sure():
    done, asked = learn(Job(saturating(20, 0.5), random.Random(6), noise=0.08))
    assert done.why == "time" and len(asked) < 8


@given(
    rates=st.lists(st.floats(1e-6, 1e6), min_size=20, max_size=20),
    errors=st.lists(st.floats(0, 10), min_size=20, max_size=20),
    cap=st.integers(1, 256),
    gpus=st.integers(1, 8),
    floor=st.integers(1, 256),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_measured_it_ends_within_its_budget(rates, errors, cap, gpus, floor):
    if gpus > cap or floor > cap:
        with pytest.raises(ValueError, match="cannot try"):
            plan((), cap, gpus, floor)
        return
    done: tuple[Point, ...] = ()
    while isinstance(step := plan(done, cap, gpus, floor), Probe):
        assert step.cpus % gpus == 0 and gpus <= step.cpus <= cap
        rate = rates[len(done)]
        done += (Point(step.cpus, rate, rate * errors[len(done)], 30, step.seconds),)
    assert len(done) <= Budget().points
    assert sum(point.seconds + 1 for point in done) <= 180
    assert 1 <= step.knee <= cap // gpus


@given(
    points=st.lists(
        st.builds(Point, st.integers(1, 128), st.floats(1e-3, 1e6), st.floats(0, 1e3)),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_a_curve_never_falls(points):
    curve = fit(points)
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(curve.rates))
    assert curve.cpus[0] <= knee(curve) <= curve.cpus[-1]
    assert all(map(math.isfinite, (*curve.rates, curve.top, curve.error, curve.knee, curve.spread)))


def flat_from(place: float) -> Curve:
    return fit([Point(cpus, min(cpus, place), 0.02) for cpus in (32, 16, 12, 8, 7, 6, 4, 2)])


LIMITS = [
    (flat_from(8), {"workers": 8}, "workers"),
    (flat_from(8), {"workers": 8, "gpu_busy": 40.0}, "workers"),
    (flat_from(8), {"workers": 7, "gpu_busy": 40.0}, "workers"),  # and the training loop
    (flat_from(8), {"workers": 8, "gpu_busy": 97.0}, "gpu"),
    (flat_from(8), {"workers": 16, "gpu_busy": 97.0}, "gpu"),
    (flat_from(8), {"workers": 16, "gpu_busy": 50.0}, "unknown"),
    (flat_from(8), {"workers": 4, "gpu_busy": 50.0}, "unknown"),
    (flat_from(8), {}, "unknown"),
    (flat_from(64), {"workers": 32}, "cap"),
]


@pytest.mark.parametrize(("curve", "facts", "kind"), LIMITS)
def test_what_is_the_limit(curve, facts, kind):
    found = limit(curve, **facts)
    assert found.kind == kind
    assert ("num_workers=" in found.text) == (kind == "workers")


def test_one_count_says_nothing_of_the_limit():
    found = limit(fit([Point(2, 50.0, 0.2)]))
    assert found.kind == "unknown" and "nothing but 2 CPUs" in found.text


def test_one_cpu_is_not_told_as_several() -> None:
    flat = Curve((1, 2, 4), (10.0, 10.0, 10.0), 10.0, 0.01, 1.0, 0.2, "saturating")
    assert "more than 1 CPU for each GPU is not used" in limit(flat, workers=1).text
    assert "from 1 CPU on" in limit(flat, gpu_busy=97).text
    assert "flat from 1 CPU for each GPU on" in limit(flat).text
