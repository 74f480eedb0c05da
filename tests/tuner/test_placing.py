"""What TUNE promises: everyone runs, nobody below the proportional share, nothing handed out twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.placing import Placed, Request, fill, greedy, proportional, tune, tune_in_order
from slurm_plugins.tuner.values import PROFILES, V100, Curve, Shape, Share


@st.composite
def curves(draw):
    """Speeds that never fall with more CPUs or memory, 1 at the proportional share of V100 servers."""
    cpus, memory = (1.0, 2.0, 3.0, 5.0, 8.0, 24.0), (20.0, 62.5, 125.0, 250.0)
    steps = draw(st.lists(st.sampled_from([0, 1, 3]), min_size=24, max_size=24))
    rows: list[list[float]] = []
    for i in range(len(cpus)):
        row: list[float] = []
        for k in range(len(memory)):
            below = max(row[-1] if k else 0.0, rows[i - 1][k] if i else 0.0, 0.1)
            row.append(below + 0.1 * steps[4 * i + k])
        rows.append(row)
    return Curve(cpus, memory, tuple(tuple(v / rows[2][1] for v in row) for row in rows))


@st.composite
def queues(draw):
    servers = draw(st.integers(1, 6))
    free, requests = servers * V100.gpus, []
    for job in range(draw(st.integers(1, 50))):
        gpus = draw(st.sampled_from([1, 1, 1, 2, 3, 4, 8, 16]))
        if gpus <= free:
            free -= gpus
            shipped = st.sampled_from([p.curve for p in PROFILES.values()])
            requests.append(Request(job, gpus, draw(shipped | curves())))
    return servers, requests


def used(placed: dict[int, Placed], server: int) -> tuple[int, float, float]:
    mine = [(p.parts[server], p.share) for p in placed.values() if server in p.parts]
    return sum(g for g, _ in mine), sum(g * s.cpus for g, s in mine), sum(g * s.memory for g, s in mine)


@pytest.mark.parametrize("placing", [proportional, greedy, tune, tune_in_order, fill])
@given(queues())
@settings(max_examples=60, deadline=None)
def test_no_server_gives_more_than_it_has_and_every_gpu_asked_for_comes(placing, queue):
    servers, requests = queue
    placed = placing(requests, servers, V100)
    for server in range(servers):
        gpus, cpus, memory = used(placed, server)
        assert gpus <= V100.gpus
        assert cpus <= V100.cpus + 1e-3
        assert memory <= V100.memory + 1e-3
    for p in placed.values():
        assert sum(p.parts.values()) == p.request.gpus
        assert p.speed == pytest.approx(p.request.curve.speed(p.share))


@pytest.mark.parametrize("placing", [tune, tune_in_order, fill])
@given(queues())
@settings(max_examples=120, deadline=None)
def test_every_job_runs_and_none_below_proportional_speed(placing, queue):
    servers, requests = queue
    placed = placing(requests, servers, V100)
    assert set(placed) == {r.job for r in requests}
    for p in placed.values():
        assert p.speed >= p.request.curve.speed(V100.proportional) - 1e-9


@given(queues())
@settings(max_examples=60, deadline=None)
def test_fill_slows_nobody_that_tune_placed(queue):
    servers, requests = queue
    before, after = tune(requests, servers, V100), fill(requests, servers, V100)
    assert all(after[job].speed >= before[job].speed for job in before)


def test_donors_give_what_the_sensitive_take():
    """An alexnet is at its best with 12 CPUs: seven language jobs are as fast with one each, and none gets slower."""
    sensitive, easy = PROFILES["alexnet"].curve, PROFILES["gnmt"].curve
    requests = [Request(0, 1, sensitive)] + [Request(n, 1, easy) for n in range(1, 8)]
    speeds = [tune(requests, 1, V100)[n].speed for n in range(8)]
    assert speeds == [2.94, *[1.0] * 7]
    assert [p.speed for p in proportional(requests, 1, V100).values()] == [1.0] * 8


def test_a_late_job_takes_back_what_is_above_proportional():
    curve = PROFILES["res18"].curve
    placed = tune_in_order([Request(n, 1, curve) for n in range(8)], 1, V100)
    assert [placed[n].speed for n in range(8)] == [1.0] * 8


def test_greedy_leaves_gpus_idle_where_tune_does_not():
    requests = [Request(n, 1, PROFILES["alexnet"].curve) for n in range(8)]
    assert len(greedy(requests, 1, V100)) == 2
    assert len(tune(requests, 1, V100)) == 8


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(ValueError, match="more GPUs"):
        tune([Request(0, 9, PROFILES["gnmt"].curve)], 1, V100)


@pytest.mark.parametrize(
    ("name", "best", "speed"),
    [("alexnet", (12, 125), 2.94), ("res18", (9, 62.5), 2.4), ("m5", (6, 187.5), 2.5), ("gnmt", (1, 500 / 24), 1.0)],
)
def test_shipped_profiles_are_those_of_the_artifact(name, best, speed):
    curve = PROFILES[name].curve
    assert (curve.best(), curve.speed(curve.best())) == (Share(*best), speed)
    assert curve.speed(Shape(8, 24, 500).proportional) == 1.0


def test_a_ragged_curve_is_refused():
    with pytest.raises(ValueError, match="other speeds"):
        Curve((1, 2), (10,), ((1.0,),))
