"""Series: means a step, holes, and bounded columns that keep the sum whatever their length."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.series import LIMIT, Series, SeriesState

# pieces (start, end, value) -> column; steps of a second
COLUMNS = [
    ([], ()),
    ([(0, 3, 7)], (7, 7, 7)),
    ([(0.5, 1.5, 4)], (4, 4)),
    ([(0, 0.5, 0), (0.5, 1, 100)], (50,)),
    ([(2, 3, 5)], (None, None, 5)),
    ([(0, 1, None), (1, 2, 5)], (None, 5)),
    ([(-5, 1, 3)], (3,)),
    ([(1, 1, 3), (2, 1, 3)], ()),
]


@pytest.mark.parametrize(("pieces", "expected"), COLUMNS)
def test_columns(pieces: list[tuple[float, float, float | None]], expected: tuple[float | None, ...]) -> None:
    series = Series()
    for start, end, value in pieces:
        series.add("u", start, end, value)
    assert (series.step, series.column("u")) == (1.0, expected)


def test_a_long_series_has_longer_steps_and_not_more_of_them() -> None:
    series = Series()
    for second in range(100_000):
        series.add("u", second, second + 1, 40.0 if second < 50_000 else 80.0)
    column = series.column("u")
    assert (series.step, len(column)) == (512.0, math.ceil(100_000 / 512))
    assert column[0] == 40 and column[-1] == 80 and len(column) <= LIMIT


def test_one_look_far_ahead_is_a_hole_and_quick() -> None:
    series = Series()
    series.add("u", 0, 1, 10)
    series.add("u", 1e9, 1e9 + 1, 20)
    column = series.column("u")
    assert len(column) <= LIMIT and column[0] == 10 and column[-1] == 20 and set(column[1:-1]) == {None}


def test_columns_are_equally_long() -> None:
    series = Series()
    series.add("u", 0, 5, 1)
    series.add("p", 0, 2, 1)
    assert series.column("p") == (1, 1, None, None, None)
    assert series.column("nothing") == (None,) * 5


_pieces = st.lists(
    st.tuples(st.floats(0, 900), st.floats(0.001, 900), st.none() | st.floats(0, 1e6)), max_size=30
)


@given(_pieces)
@settings(deadline=None)
def test_the_sum_is_kept(pieces: list[tuple[float, float, float | None]]) -> None:
    series, wanted, at = Series(), 0.0, 0.0
    for pause, length, value in pieces:
        start, at = at + pause, at + pause + length
        series.add("u", start, at, value)
        wanted += (value or 0.0) * length
    column = series._columns.get("u")
    assert sum(column.totals if column else ()) == pytest.approx(wanted, rel=1e-4, abs=1e-2)
    assert len(series.column("u")) <= LIMIT
    assert not any(value is not None and math.isnan(value) for value in series.column("u"))


@given(_pieces, st.integers(0, 30))
@settings(deadline=None)
def test_a_restart_anywhere_changes_nothing(
    pieces: list[tuple[float, float, float | None]], cut: int
) -> None:
    whole, split, at = Series(), Series(), 0.0
    for number, (pause, length, value) in enumerate(pieces):
        if number == cut:
            kept = msgspec.json.decode(msgspec.json.encode(split.state()), type=SeriesState)
            split = Series(kept)
        start, at = at + pause, at + pause + length
        whole.add("u", start, at, value)
        split.add("u", start, at, value)
    assert (whole.step, whole.column("u", 9)) == (split.step, split.column("u", 9))


def test_what_is_kept_of_eight_gpus_over_a_day_is_small() -> None:
    series = Series()
    for look in range(8640):
        for gpu in range(8):
            for name, value in (("u", 97.0 + look % 3), ("m", 7e10), ("p", 380.0 + look % 7)):
                series.add(f"{name}{gpu}", look * 10, look * 10 + 10, value)
    assert len(msgspec.json.encode(series.state())) < 64 * 1024
