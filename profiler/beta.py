"""The beta distribution's tail, without a library for statistics: what a rate is likely to be after some trials.

The regularised incomplete beta function I_x(a, b) by its continued fraction, evaluated by Lentz's method as in Press
et al., Numerical Recipes (3rd ed.), section 6.4. Good to some 12 digits for the parameters of counts.
"""

from __future__ import annotations

from math import exp, isfinite, lgamma, log, log1p
from typing import Final

__all__ = ["cumulative", "tail"]

_STEPS: Final = 10_000
_CLOSE: Final = 1e-14
_TINY: Final = 1e-300


def cumulative(x: float, a: float, b: float) -> float:
    """I_x(a, b): how likely a rate is to be at most `x`, where it is distributed as Beta(a, b).

    Raises ValueError unless a, b > 0 and all three are finite.

    >>> round(cumulative(0.25, 1, 1), 12), round(cumulative(0.5, 2, 3), 12)
    (0.25, 0.6875)
    """
    _check(x, a, b)
    share, below = _share(x, a, b)
    return share if below else 1.0 - share


def tail(x: float, a: float, b: float) -> float:
    """How likely the rate is to be above `x`: 1 - I_x(a, b), exact where that is small, too.

    Raises ValueError as `cumulative`.

    >>> round(tail(0.5, 1, 1), 12)
    0.5
    """
    _check(x, a, b)
    share, below = _share(x, a, b)
    return 1.0 - share if below else share


def _check(x: float, a: float, b: float) -> None:
    if not (a > 0 and b > 0 and isfinite(a) and isfinite(b) and isfinite(x)):
        raise ValueError(f"no beta distribution: x={x!r}, a={a!r}, b={b!r}")


def _share(x: float, a: float, b: float) -> tuple[float, bool]:
    """What lies below `x` (True), or what lies above it: the one of the two whose fraction converges fast."""
    if x <= 0:
        return 0.0, True
    if x >= 1:
        return 0.0, False
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return min(1.0, front * _fraction(x, a, b) / a), True
    return min(1.0, front * _fraction(1 - x, b, a) / b), False


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b)."""
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _apart(1.0 + even * d)
        c = _apart(1.0 + even / c)
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / _apart(1.0 + odd * d)
        c = _apart(1.0 + odd / c)
        step = d * c
        value *= step
        if abs(step - 1.0) < _CLOSE:
            break
    return value


def _apart(value: float) -> float:
    """Not zero: it is divided by."""
    return value if abs(value) > _TINY else _TINY
