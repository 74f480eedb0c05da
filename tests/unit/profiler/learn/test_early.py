"""How long a smoke run takes: Philly's curve, and a site's own."""

from __future__ import annotations

import csv
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.early import TABLE7, History, merged, philly, price, smoke_time
from tests.paths import DATA

# Share (per cent) of failing trials that are dead after so many minutes: all, and those with several GPUs. Worked out
# from the paper's Table 7, log-linear between its percentiles, apart from this code.
DERIVED = [
    (0.5, 32, 35), (1, 39, 42), (2, 46, 49), (5, 54, 57), (10, 59, 63), (15, 67, 67), (20, 76, 70), (30, 79, 73),
    (60, 83, 77),
]  # fmt: skip


@pytest.mark.parametrize(("minutes", "all_", "several"), DERIVED)
def test_the_curve_of_table_7(minutes, all_, several):
    assert 100 * philly(60 * minutes) == pytest.approx(all_, abs=1)
    assert 100 * philly(60 * minutes, several=True) == pytest.approx(several, abs=1)


def test_the_table_is_whole():
    assert len(TABLE7) == 22
    assert sum(row.trials for row in TABLE7) == 39_776
    assert sum(row.several for row in TABLE7) == 7_598 + 6_149
    assert sum(row.many for row in TABLE7) == 6_149
    assert sum(row.jobs for row in TABLE7) == 17_581
    assert all(sum(row.gpus) == row.trials >= row.jobs for row in TABLE7)


def test_the_table_is_the_papers():
    with (DATA / "traces/philly_failures_table7.psv").open() as lines:
        for row, paper in zip(TABLE7, csv.DictReader(lines, delimiter="|"), strict=True):
            assert (row.name, row.trials) == (paper["reason"], int(paper["trials"]))
            assert row.several == int(paper["gpu2_4"]) + int(paper["gpu_gt4"])
            assert row.gpus == tuple(int(paper[name]) for name in ("gpu1", "gpu2_4", "gpu_gt4"))
            assert row.jobs == int(paper["jobs"])
            assert row.gpu_seconds / 60 == pytest.approx(float(paper["rtf_x_demand"]), rel=1e-4)
            minutes = [float(paper[f"rtf_p{share}_min"]) for share in (50, 90, 95)]
            assert [row.p50 / 60, row.p90 / 60, row.p95 / 60] == pytest.approx(minutes)


def test_it_moves_with_a_sites_own_history():
    """A site whose failures show themselves after 5 min comes to wait for them; one whose come at once, less."""
    late = [smoke_time(History.of(2 * n, [310.0] * n)) for n in (0, 10, 30, 100, 1000)]
    assert late == sorted(late) and late[0] == smoke_time() < 300 and late[-1] == 330
    soon = [smoke_time(History.of(2 * n, [20.0] * n)) for n in (0, 10, 1000)]
    assert soon == sorted(soon, reverse=True) and soon[-1] == 60


def test_a_sites_curve_converges_to_what_it_saw():
    own = History.of(5000, [40.0 * n for n in range(1, 1001)])
    for minutes in (1, 5, 60):
        assert own.share(60 * minutes) == pytest.approx(60 * minutes / 40_000, abs=0.05)


def test_slow_starters_are_given_their_start():
    assert smoke_time(start_up=100) == smoke_time() + 120
    assert smoke_time(start_up=1e9) == 600


def test_the_price_is_the_sites_own_where_it_has_one():
    few = History.of(19, [5.0] * 6)
    assert "Philly" in price(240, few)
    assert (
        price(240, History.of(20, [5.0] * 6))
        == "1 GPU x 4 min; 30 % of 20 jobs like this failed in their first 4 min"
    )
    assert price(150, nodes=2).startswith("2 GPUs x 2 min 30 s; ")


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6), max_size=200),
    st.integers(0, 1000),
    st.floats(0.01, 1),
    st.booleans(),
)
def test_a_smoke_time_is_between_one_minute_and_ten(failed, passed, most, several):
    history = History.of(len(failed) + passed, failed)
    time = smoke_time(history, several=several, most=most)
    assert 60 <= time <= 600 and time % 30 == 0
    if 60 < time < 600:
        assert history.share(time - 30, several=several) < most * history.share(3600, several=several)
        assert history.share(time, several=several) >= most * history.share(3600, several=several)
    shares = [history.share(seconds, several=several) for seconds in (0, 1, 10, 60, 600, 3600, 1e6)]
    assert all(0 <= low <= high <= 1 for low, high in pairwise(shares))


@pytest.mark.parametrize(("jobs", "failed"), [(1, [1.0, 2.0]), (3, [-1.0]), (3, [float("nan")])])
def test_what_is_no_history(jobs, failed):
    with pytest.raises(ValueError, match="no history"):
        History.of(jobs, failed)


def test_histories_add_up():
    assert merged([]) == History()
    assert merged([History.of(5, [3.0, 1.0]), History.of(1, [2.0])]) == History.of(6, [1.0, 2.0, 3.0])
