"""The beta distribution against values that are known otherwise."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.beta import cumulative, tail


@pytest.mark.parametrize(
    ("x", "a", "b", "value"),
    [
        # closed forms
        (0.3, 1, 1, 0.3),
        (0.3, 4, 1, 0.3**4),
        (0.3, 1, 4, 1 - 0.7**4),
        (0.5, 7.5, 7.5, 0.5),
        # arcsine distribution: 2/pi * asin(sqrt(x))
        (0.25, 0.5, 0.5, 1 / 3),
        (0.75, 0.5, 0.5, 2 / 3),
        # Abramowitz and Stegun, 26.5: polynomials by hand
        (0.5, 2, 3, 0.6875),
        (0.1, 2, 2, 0.028),
        (0.9, 2, 2, 0.972),
        (0.015, 2, 28, 1 - sum(comb(29, k) * 0.015**k * 0.985 ** (29 - k) for k in range(2))),
        (0.0, 2, 3, 0.0),
        (-1.0, 2, 3, 0.0),
        (1.0, 2, 3, 1.0),
    ],
)
def test_known_values(x: float, a: float, b: float, value: float) -> None:
    assert cumulative(x, a, b) == pytest.approx(value, abs=1e-12)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.001, 0.999))
def test_it_is_the_sum_of_the_binomial(a: int, b: int, x: float) -> None:
    n = a + b - 1
    total = sum(comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert cumulative(x, a, b) == pytest.approx(total, abs=1e-10)


@given(st.floats(0.01, 5000), st.floats(0.01, 5000), st.floats(0, 1))
def test_both_tails_make_one(a: float, b: float, x: float) -> None:
    assert 0 <= cumulative(x, a, b) <= 1
    assert cumulative(x, a, b) + tail(x, a, b) == pytest.approx(1, abs=1e-9)


@given(st.floats(0.05, 500), st.floats(0.05, 500), st.floats(0, 1), st.floats(0, 1))
def test_it_grows(a: float, b: float, x: float, y: float) -> None:
    low, high = sorted((x, y))
    assert cumulative(low, a, b) <= cumulative(high, a, b) + 1e-12


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))])
def test_what_is_no_distribution(a: float, b: float) -> None:
    with pytest.raises(ValueError, match="no beta"):
        cumulative(0.5, a, b)
