"""TUNE by curves: what TUNE promises, no less than TUNE sells, and nine tenths of the best there is."""

import pytest
from hypothesis import given, settings

from slurm_plugins.tuner.placing import Request, tune
from slurm_plugins.tuner.shares import tune_by_curves
from slurm_plugins.tuner.values import PROFILES, V100, Shape
from tests.tuner.test_market import random_mix, speeds
from tests.tuner.test_placing import queues, used


@given(queues())
@settings(max_examples=60, deadline=None)
def test_every_job_runs_none_below_proportional_and_no_server_gives_more_than_it_has(queue):
    servers, requests = queue
    placed = tune_by_curves(requests, servers, V100)
    assert set(placed) == {r.job for r in requests}
    for p in placed.values():
        assert sum(p.parts.values()) == p.request.gpus
        assert p.speed == pytest.approx(p.request.curve.speed(p.share))
        assert p.speed >= p.request.curve.speed(V100.proportional) - 1e-9
    for server in range(servers):
        gpus, cpus, memory = used(placed, server)
        assert gpus <= V100.gpus
        assert cpus <= V100.cpus + 1e-3
        assert memory <= V100.memory + 1e-3


@given(queues())
@settings(max_examples=60, deadline=None)
def test_jobs_stay_on_tunes_servers_and_have_no_less_speed_together(queue):
    servers, requests = queue
    placed, tuned = tune_by_curves(requests, servers, V100), tune(requests, servers, V100)
    assert {job: p.parts for job, p in placed.items()} == {job: p.parts for job, p in tuned.items()}
    assert speeds(placed) >= speeds(tuned) - 1e-9


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


@pytest.mark.parametrize("seed", range(40))
def test_it_reaches_nine_tenths_of_opt(seed):
    pytest.importorskip("scipy")
    from slurm_plugins.tuner.opt import opt

    servers = (1, 2, 4, 8, 16)[seed % 5]
    requests = random_mix(seed, servers)
    assert speeds(tune_by_curves(requests, servers, V100)) >= 0.9 * opt(requests, servers, V100).total


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(ValueError, match="ask for more GPUs than 1 x 8"):
        tune_by_curves([Request(0, 9, PROFILES["gnmt"].curve)], 1, V100)
