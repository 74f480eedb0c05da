"""The cells of an audit's tables as people read them. Plain text; imports no pandas."""

from __future__ import annotations

from math import isnan
from typing import Any, Final

from profiler.wording import NOT_KNOWN, amount, percent, plain, span

__all__ = ["CAUSES", "UNITS", "cell", "head"]

UNITS: Final = {"h": "_hours", "%": "_percent", "s": "_s"}
"""How a column ends whose values have this unit."""
CAUSES: Final = {
    "priority": "fair share, priority",
    "locality": "fragmentation, locality",
    "limits": "limits of account or QOS",
    "user": "dependency, begin time, hold",
    NOT_KNOWN: "not known",
}
"""Words for what attempts wait for; the others (`profiler.waits.CAUSES`) are words as they are."""
_HEADS: Final = {
    "gpu_hours": "GPU-hours",
    "gpu_hours_percent": "share",
    "attempts_percent": "of attempts",
    "wasted_hours_percent": "share",
    "wasted_percent": "of own",
    "wait_hours_percent": "share",
    "run_s_percent": "share of it",
    "gpus": "GPUs",
    "gpus_1": "1 GPU",
    "gpus_2_4": "2-4",
    "gpus_over_4": "over 4",
    "gpus_mean": "GPUs held",
    "utilisation_p50_percent": "median",
    "over_10_min_percent": "over 10 min",
    "idle_hours": "never used h",
}


def head(column: str) -> str:
    """A column's name as a person reads it.

    >>> head("wait_s_p50"), head("passed_percent"), head("gpu_hours")
    ('wait p50', 'passed', 'GPU-hours')
    """
    if column in _HEADS:
        return _HEADS[column]
    words = column.removesuffix("_percent").replace("_s_", " ").replace("_hours", " h")
    return words.replace("_", " ")


def cell(column: str, value: Any) -> str:  # noqa: ANN401 - of any column
    """A value as a person reads it, by what its column holds (its name says it).

    >>> cell("gpu_hours", 1234.56), cell("x_percent", 12.3), cell("wait_s_p50", 90), cell("user", "a[b]")
    ('1,234.6', '12 %', '1 min 30 s', 'a[b]')
    """
    if isinstance(value, str):
        return CAUSES.get(value, plain(value, 40)) if column == "cause" else plain(value, 40)
    if value is None or value != value or (isinstance(value, float) and isnan(value)):  # noqa: PLR0124 - NaT too
        return NOT_KNOWN
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d"))
    if column.endswith("_hours"):
        return f"{value:,.1f}" if value >= 0.05 or not value else "<0.1"
    if column.endswith("_percent"):
        return percent(float(value))
    if column.endswith("_s") or "_s_" in column:
        return span(float(value))
    if column.endswith("_mean"):
        return amount(float(value))
    return f"{value:,.0f}"
