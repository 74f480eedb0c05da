"""How long a smoke run takes, and the line that tells its price before anything is submitted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gsub.briefly import briefly

if TYPE_CHECKING:
    from profiler.early import History
    from site_configs.site_model import Site

__all__ = ["BUDGET", "LEARNING", "SHORTEST", "history_of", "price_line", "seconds_of"]

BUDGET: Final = 0.5
"""Seconds that a submission may wait for the site's history."""

LEARNING: Final = 240.0
"""Seconds that a learning run has at least: three minutes for the curve, and what comes before the first step."""
SHORTEST: Final = 30.0
"""However short the real job's own limit is: less says nothing."""


def history_of(site: Site, gpus: int, *, budget: float = BUDGET) -> History | None:
    """When jobs like this failed at this site, as its service tells in `budget` seconds; None where it does not."""
    if not site.service.url:
        return None
    from profiler.early import History

    found: list[History] = []

    def look(until: float) -> list[str]:
        from gsub.service import of_site

        told = of_site(site, timeout=max(0.05, until - time.monotonic())).early(gpus)
        found.append(History.of(told.jobs, told.failed))
        return []

    briefly(look, budget)
    return found[0] if found else None


def seconds_of(
    site: Site, history: History | None, *, several: bool, learn: bool, limit: int | None
) -> float:
    """How long the script may run, in seconds: as long as the failures of this site want it, within the site's bound.

    Parameters
    ----------
    several: the real job has several GPUs. limit: the real job's time limit; None: not stated.
    """
    from profiler.early import smoke_time

    seconds = smoke_time(history, several=several)
    if learn:
        seconds = max(seconds, LEARNING)
    seconds = min(seconds, float(site.smoke.longest))
    least = min(SHORTEST, float(site.smoke.longest))
    return max(min(seconds, float(limit)) if limit else seconds, least)


def price_line(seconds: float, history: History | None, *, nodes: int, several: bool, learn: bool) -> str:
    """What it costs and why that is worth it; says so where the figure is Philly's and not the site's own.

    >>> price_line(240.0, None, nodes=1, several=True, learn=False)
    'smoke: 1 GPU x 4 min; of the jobs that fail, 55 % do so in their first 4 min (seen on Philly; none of our own yet)'
    """
    from profiler.early import price

    told = price(seconds, history, gpus=1, nodes=nodes, several=several)
    return f"smoke: {told}{'; it also finds how many CPUs the job can use' if learn else ''}"
