"""OPT against every choice tried by hand, and as a bound of TUNE."""

import itertools
import random

import pytest

from slurm_plugins.tuner.market import market
from slurm_plugins.tuner.opt import opt, spread, whole
from slurm_plugins.tuner.placing import Request, tune
from slurm_plugins.tuner.values import PROFILES, V100, Shape


def mix(seed: int, servers: int) -> list[Request]:
    rng = random.Random(seed)
    names = list(PROFILES)
    return [Request(n, 1, PROFILES[rng.choice(names)].curve) for n in range(servers * V100.gpus)]


@pytest.mark.parametrize(
    "names", [("alexnet", "m5", "gnmt"), ("res18", "res50", "mobilenet"), ("m5", "m5", "vae")]
)
def test_it_is_the_best_of_all_choices(names):
    shape = Shape(3, 9, 187.5)
    requests = [Request(n, 1, PROFILES[name].curve) for n, name in enumerate(names)]
    best = max(
        sum(speed for _, speed in chosen)
        for chosen in itertools.product(*(r.curve.points for r in requests))
        if sum(s.cpus for s, _ in chosen) <= shape.cpus
        and sum(s.memory for s, _ in chosen) <= shape.memory
        and all(speed >= 1 for _, speed in chosen)
    )
    assert opt(requests, 1, shape).total == pytest.approx(best)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_beats_it_and_tune_is_no_less_than_proportional(seed):
    requests = mix(seed, 4)
    best = opt(requests, 4, V100)
    tuned = sum(p.speed for p in tune(requests, 4, V100).values())
    assert len(requests) - 1e-6 <= tuned <= best.total + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_the_ideal_spreads_over_servers_and_few_jobs_are_split(seed):
    requests = mix(seed, 4)
    parts = spread(requests, opt(requests, 4, V100), 4, V100)
    assert parts is not None
    assert all(sum(p.values()) == pytest.approx(1) for p in parts.values())
    assert sum(len(p) > 1 for p in parts.values()) <= 3 * 4


def test_shares_that_do_not_fit_have_no_spread():
    requests = mix(1, 4)
    assert spread(requests, opt(requests, 4, V100), 3, V100) is None


def test_whole_jobs_on_servers_are_bounded_by_one_big_machine_and_bound_what_is_placed():
    """A gnmt on all of a server leaves CPUs that a big machine would hand to the others."""
    gnmt, res18 = PROFILES["gnmt"].curve, PROFILES["res18"].curve
    requests = [Request(0, 8, gnmt), *(Request(n, 1, res18) for n in range(1, 9))]
    # eight res18 share 24 CPUs: three each, or four and two at a loss
    assert whole(requests, 2, V100) == pytest.approx(9.0)
    assert opt(requests, 2, V100).total == pytest.approx(1 + 8 * 1.53)


@pytest.mark.parametrize("seed", range(4))
def test_with_single_gpus_whole_jobs_lie_between_market_and_the_big_machine(seed):
    requests = mix(seed, 1)
    best = whole(requests, 1, V100)
    assert sum(p.speed for p in market(requests, 1, V100).values()) == pytest.approx(best)
    assert best <= opt(requests, 1, V100).total + 1e-6


def test_whole_jobs_must_fit():
    with pytest.raises(ValueError, match="more than one server"):
        whole([Request(0, 9, PROFILES["gnmt"].curve)], 2, V100)
    with pytest.raises(ValueError, match="do not fit"):
        whole([Request(n, 5, PROFILES["gnmt"].curve) for n in range(2)], 1, V100)
