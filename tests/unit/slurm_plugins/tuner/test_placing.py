"""What TUNE promises: everyone runs, nobody below the proportional share, nothing handed out twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.placing import Cluster, Placed, Request, greedy, proportional, tune, tune_as_shipped
from slurm_plugins.tuner.values import PROFILES, V100, Curve, Shape, Share
from tests.properties import examples


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
def queues(draw, sizes=(1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 16)):
    servers = draw(st.integers(1, 6))
    free, requests = servers * V100.gpus, []
    for job in range(draw(st.integers(1, 50))):
        gpus = draw(st.sampled_from(sizes))
        if gpus <= free:
            free -= gpus
            shipped = st.sampled_from([p.curve for p in PROFILES.values()])
            requests.append(Request(job, gpus, draw(shipped | curves())))
    return servers, requests


def used(placed: dict[int, Placed], server: int) -> tuple[int, float, float]:
    mine = [(p.parts[server], p.share) for p in placed.values() if server in p.parts]
    return sum(g for g, _ in mine), sum(g * s.cpus for g, s in mine), sum(g * s.memory for g, s in mine)


def keeps_its_promises(placed: dict[int, Placed], requests: list[Request], servers: int) -> None:
    """Everyone runs, none below the proportional speed, and no server gives more than it has."""
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


@pytest.mark.parametrize("placing", [proportional, greedy, tune, tune_as_shipped])
@given(queues())
@settings(max_examples=examples(60), deadline=None)
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


@pytest.mark.parametrize("placing", [tune, tune_as_shipped])
@given(queues())
@settings(max_examples=examples(120), deadline=None)
def test_every_job_runs_and_none_below_proportional_speed(placing, queue):
    servers, requests = queue
    placed = placing(requests, servers, V100)
    assert set(placed) == {r.job for r in requests}
    for p in placed.values():
        assert p.speed >= p.request.curve.speed(V100.proportional) - 1e-9


WIDE = Curve((1.0, 3.0), (62.5, 125.0), ((0.5, 2.0), (1.0, 2.0)))
"""At its best with one CPU and much memory, so with less memory it needs more CPUs."""


@pytest.mark.parametrize("placing", [tune, tune_as_shipped])
def test_who_is_put_back_on_two_servers_oversells_neither(placing):
    """The last job's place is on one server; the job that is put back for it then wants 3 CPUs on the other too, where
    seven GPUs with 3.28 each leave 1."""
    curves = [
        Curve((3.0, 3.28), (20.0,), ((1.0,), (1.2,))),
        Curve((1.0,), (55.0,), ((1.0,),)),
        WIDE,
        Curve((3.0,), (62.5,), ((1.0,),)),
    ]
    requests = [
        Request(n, gpus, curve) for n, (gpus, curve) in enumerate(zip((7, 6, 2, 1), curves, strict=True))
    ]
    placed = placing(requests, 2, V100)
    assert len(placed[2].parts) == 2
    for server in range(2):
        assert used(placed, server)[1] <= V100.cpus + 1e-3


@given(st.lists(st.tuples(st.integers(1, 7), st.sampled_from([0, 1, 2, 3])), max_size=14), st.integers(1, 3))
@settings(max_examples=examples(150), deadline=None)
def test_curves_that_trade_cpus_for_memory_are_placed_like_others(jobs, servers):
    kinds = (
        WIDE,
        Curve((3.0, 3.28), (20.0,), ((1.0,), (1.2,))),
        Curve((1.0, 9.0), (20.0, 62.5), ((1.0, 1.0), (1.0, 3.0))),
        Curve((3.0, 4.0), (62.5, 70.0), ((1.0, 1.1), (1.2, 1.4))),
    )
    free, requests = servers * V100.gpus, []
    for n, (gpus, kind) in enumerate(jobs):
        if gpus <= free:
            free -= gpus
            requests.append(Request(n, gpus, kinds[kind]))
    for placing in (tune, tune_as_shipped):
        placed = placing(requests, servers, V100)
        assert set(placed) == {r.job for r in requests}
        for server in range(servers):
            assert used(placed, server)[1] <= V100.cpus + 1e-3
            assert used(placed, server)[2] <= V100.memory + 1e-3


def test_donors_give_what_the_sensitive_take():
    """An alexnet is at its best with 12 CPUs: seven language jobs are as fast with one each, and none gets slower."""
    sensitive, easy = PROFILES["alexnet"].curve, PROFILES["gnmt"].curve
    requests = [Request(0, 1, sensitive)] + [Request(n, 1, easy) for n in range(1, 8)]
    speeds = [tune(requests, 1, V100)[n].speed for n in range(8)]
    assert speeds == [2.94, *[1.0] * 7]
    assert [p.speed for p in proportional(requests, 1, V100).values()] == [1.0] * 8


def test_a_late_job_takes_back_what_is_above_proportional():
    curve = PROFILES["res18"].curve
    placed = tune_as_shipped([Request(n, 1, curve) for n in range(8)], 1, V100)
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
    [
        ("alexnet", (12, 125), 2.94),
        ("res18", (9, 62.5), 2.4),
        ("m5", (6, 187.5), 2.5),
        ("gnmt", (1, 500 / 24), 1.0),
    ],
)
def test_shipped_profiles_are_those_of_the_artifact(name, best, speed):
    curve = PROFILES[name].curve
    assert (curve.best(), curve.speed(curve.best())) == (Share(*best), speed)
    assert curve.speed(Shape(8, 24, 500).proportional) == 1.0


@pytest.mark.parametrize(
    ("cpus", "memory", "speeds"),
    [
        ((1, 2), (10,), ((1.0,),)),
        ((1, 2), (10,), ((1.0, 2.0), (1.0,))),
        ((2, 1), (10,), ((1.0,), (1.0,))),
        ((1,), (20, 10), ((1.0, 1.0),)),
        ((1, 1), (10,), ((1.0,), (1.0,))),
        ((), (10,), ()),
        ((-1,), (10,), ((1.0,),)),
        ((1,), (10,), ((-1.0,),)),
        ((1,), (10,), ((float("nan"),),)),
        ((1,), (10,), ((float("inf"),),)),
    ],
)
def test_what_is_no_curve_is_refused(cpus, memory, speeds):
    with pytest.raises(ValueError, match=r"curve|speed"):
        Curve(cpus, memory, speeds)


def test_a_curve_relative_to_a_share_is_1_there():
    curve = PROFILES["alexnet"].curve.relative(Share(5, 62.5))
    assert curve.speed(Share(5, 62.5)) == 1.0
    assert curve.speed(Share(12, 125)) == pytest.approx(2.94 / 1.53)
    with pytest.raises(ValueError, match="begins above"):
        PROFILES["alexnet"].curve.relative(Share(0.5, 62.5))


def test_a_job_of_several_gpus_takes_the_fewest_servers_and_shares_by_the_gpus_on_each():
    """Twelve GPUs on servers of which one has 3 in use: 8 on an empty one, and 4 where they leave least."""
    easy, whole = PROFILES["gnmt"].curve, PROFILES["res18"].curve
    requests = [Request(0, 12, whole), Request(1, 3, easy)]
    placed = tune_as_shipped(requests[::-1], 3, V100)
    assert placed[1].parts == {0: 3}
    assert sorted(placed[0].parts.values()) == [4, 8]
    assert placed[0].parts[0] == 4
    assert placed[0].share == V100.proportional


@pytest.mark.parametrize("gpus", [2, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("name", ["alexnet", "gnmt", "m5"])
def test_no_job_spans_more_servers_than_its_gpus_need_on_an_empty_cluster(gpus, name):
    placed = tune([Request(0, gpus, PROFILES[name].curve)], 4, V100)[0]
    assert len(placed.parts) == -(-gpus // 8)


def test_the_best_case_of_several_gpus_is_what_one_server_can_give():
    """Two alexnets' GPUs could use 12 CPUs each, as one could; four have 6 each of a server's 24, eight have 3."""
    best = [PROFILES["alexnet"].curve.two(gpus, V100).best.cpus for gpus in (1, 2, 4, 8, 16)]
    assert best == [12, 12, 6, 3, 3]


def test_sums_of_thirds_fill_a_server():
    """Three m5 leave 125 GB, which is six times 20.83 GB: nothing of it may be lost in rounding."""
    placed = tune(
        [Request(n, 1, PROFILES["m5"].curve) for n in range(2)]
        + [Request(n, 1, PROFILES["gnmt"].curve) for n in range(2, 8)],
        1,
        V100,
    )
    assert [placed[n].speed for n in range(8)] == [2.5, 2.5, *[1.0] * 6]


def reference_room(cluster: Cluster, gpus: int, share: Share) -> dict[int, int] | None:
    """The search as one would write it first: every server looked at."""
    fits = [(s.gpus, *s.left, i) for i, s in enumerate(cluster.servers) if s.most(share) >= gpus]
    return {min(fits)[3]: gpus} if fits else None


@given(queues(), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_the_index_of_servers_finds_what_a_search_of_all_finds(queue, data):
    servers, requests = queue
    cluster = Cluster(servers, V100)
    for request in requests:
        if cluster.placed and data.draw(st.booleans()):
            cluster.take(data.draw(st.sampled_from(sorted(cluster.placed))))
        two = cluster.two(request)
        share = data.draw(st.sampled_from([two.best, two.floor, V100.proportional]))
        found, expected = cluster.room(request.gpus, share), reference_room(cluster, request.gpus, share)
        assert (found == expected) if expected else (found is None or len(found) > 1)
        if found:
            cluster.put(request, found, share, 1.0)
