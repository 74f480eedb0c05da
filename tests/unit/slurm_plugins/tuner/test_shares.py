"""TUNE by curves: what TUNE promises, no less than TUNE sells, and nine tenths of the best there is."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.market import market
from slurm_plugins.tuner.placing import Request, tune, tune_as_shipped
from slurm_plugins.tuner.shares import best_shares, share_out, tune_by_curves
from slurm_plugins.tuner.values import PROFILES, V100, Curve, Shape
from tests.properties import examples
from tests.unit.slurm_plugins.tuner.test_market import random_mix, speeds
from tests.unit.slurm_plugins.tuner.test_placing import WIDE, keeps_its_promises, queues

SPANNING = queues((1, 2, 3, 5, 6, 7))
"""Of sizes that often go over two servers, beside others."""


@given(SPANNING)
@settings(max_examples=examples(150), deadline=None)
def test_every_job_runs_none_below_proportional_and_no_server_gives_more_than_it_has(queue):
    servers, requests = queue
    placed = tune_by_curves(requests, servers, V100)
    keeps_its_promises(placed, requests, servers)


@given(SPANNING)
@settings(max_examples=examples(150), deadline=None)
def test_jobs_stay_on_tunes_servers_and_have_no_less_speed_together(queue):
    servers, requests = queue
    placed = tune_by_curves(requests, servers, V100)
    seated = [placing(requests, servers, V100) for placing in (tune, tune_as_shipped)]
    assert {job: p.parts for job, p in placed.items()} in [
        {job: p.parts for job, p in each.items()} for each in seated
    ]
    assert all(speeds(placed) >= speeds(each) - 1e-9 for each in seated)


def test_what_is_left_beside_two_speeds_is_handed_out_by_curves():
    """Five gnmt leave 19 CPUs for three res18: 9 for one and nothing more, or 9, 5 and 5."""
    names = ["res18"] * 3 + ["gnmt"] * 5
    requests = [Request(n, 1, PROFILES[name].curve) for n, name in enumerate(names)]
    assert sorted(p.share.cpus for p in tune(requests, 1, V100).values())[-3:] == [3, 3, 9]
    assert sorted(p.share.cpus for p in tune_by_curves(requests, 1, V100).values())[-3:] == [5, 5, 9]


def test_who_spans_servers_gets_what_is_left_on_all_of_them():
    """Three GPUs of deepspeech leave 5 of a server's 14 CPUs: too few for a res18's best, enough for the step below."""
    shape = Shape(4, 14.0, 250.0)
    names = (("deepspeech", 3), ("deepspeech", 3), ("res18", 2))
    requests = [Request(n, gpus, PROFILES[name].curve) for n, (name, gpus) in enumerate(names)]
    placed = tune_by_curves(requests, 2, shape)
    assert placed[2].parts == {0: 1, 1: 1}
    assert (placed[2].share.cpus, placed[2].speed) == (5.0, 1.53)
    assert tune(requests, 2, shape)[2].speed == 1.0


def test_tunes_placing_stays_where_sharing_out_would_sell_less():
    """Who spans both servers gets what is left on both, here less than TUNE had for it."""
    names = (("mobilenet", 2), ("vae", 5), ("vae", 7), ("shufflenet", 2))
    requests = [Request(n, gpus, PROFILES[name].curve) for n, (name, gpus) in enumerate(names)]
    tuned = tune(requests, 2, V100)
    kinds = {r.job: r.curve.choices(r.gpus, V100) for r in requests}
    shared = share_out(requests, kinds, {job: p.parts for job, p in tuned.items()}, 2, V100)
    assert speeds(shared) == pytest.approx(5.3)
    assert speeds(tune_by_curves(requests, 2, V100)) == speeds(tuned) == pytest.approx(5.89)


@given(st.lists(st.tuples(st.sampled_from([1, 1, 2]), st.integers(0, 3)), min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_a_servers_shares_are_the_best_of_all_that_fit(jobs):
    """Also where a faster choice needs less of one resource than the slowest."""
    shape = Shape(6, 18.0, 375.0)
    kinds = tuple(
        (
            PROFILES["alexnet"].curve,
            PROFILES["m5"].curve,
            WIDE,
            Curve((1.0, 2.0), (20.0, 62.5), ((2.0, 2.0), (2.0, 2.5))),
        )[kind].choices(gpus, shape)
        for gpus, kind in sorted(jobs)
    )
    if sum(k.gpus for k in kinds) > shape.gpus:
        return
    chosen = best_shares(kinds, shape.cpus, shape.memory)
    best = max(
        sum(speed for _, speed in picked)
        for picked in itertools.product(*(k.points for k in kinds))
        if sum(k.gpus * s.cpus for k, (s, _) in zip(kinds, picked, strict=True)) <= shape.cpus
        and sum(k.gpus * s.memory for k, (s, _) in zip(kinds, picked, strict=True)) <= shape.memory
    )
    assert sum(k.points[at][1] for k, at in zip(kinds, chosen, strict=True)) == pytest.approx(best)


def test_a_server_without_memory_to_give_is_shared_out_by_cpus():
    shape = Shape(2, 8.0, 0.0)
    curve = Curve((4.0, 6.0), (0.0,), ((1.0,), (2.0,)))
    requests = [Request(n, 1, curve) for n in range(2)]
    assert speeds(market(requests, 1, shape)) == speeds(tune_by_curves(requests, 1, shape)) == 2.0
    assert speeds(market(requests[:1], 1, shape)) == 2.0


@pytest.mark.parametrize("seed", range(40))
def test_it_reaches_nine_tenths_of_opt(seed):
    from slurm_plugins.tuner.opt import opt

    servers = (1, 2, 4, 8, 16)[seed % 5]
    requests = random_mix(seed, servers)
    assert speeds(tune_by_curves(requests, servers, V100)) >= 0.9 * opt(requests, servers, V100).total


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(ValueError, match="ask for more GPUs than 1 x 8"):
        tune_by_curves([Request(0, 9, PROFILES["gnmt"].curve)], 1, V100)
