"""What keeping a job together is worth: how long it may wait for nodes that are near each other.

    t = (slowdown when spread - 1) x expected run time

A job that would run 15 % longer when spread and runs for 4 h loses 36 min by being spread: waiting up to 36 min for a
compact place cannot cost it more than it saves. The site's `locality.max_wait` and, where Slurm does the waiting, its
max_switch_wait (slurm.conf(5), SchedulerParameters) bound it.

>>> from site_configs.site_model import Locality
>>> worth = worth_of_waiting(None, Locality(), time_limit=2 * 3600, max_switch_wait=300)
>>> worth.wanted, worth.wait, worth.clipped_by
(1080, 300, 'max_switch_wait')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from site_configs.site_model import Locality
from site_configs.units import format_duration
from slurm_plugins.decide.context import Workload

__all__ = ["SHORTEST", "Worth", "worth_of_waiting"]

SHORTEST: Final = 60
"""Seconds. Slurm looks at its queue at least this often (sched_interval): a shorter wait is no wait."""
_LONGEST: Final = 31_536_000  # a year: what the table of edits takes


@dataclass(frozen=True, slots=True)
class Worth:
    """The formula's inputs, where each came from, and what it gave. Times are seconds.

    Sources are "workload", "class" and "site", and for `run_time` also "time limit" where that is the shorter. `wanted`
    is the formula's answer, `wait` what is left of it within the bounds, `clipped_by` the bound that counted
    ("locality.max_wait", "max_switch_wait", or empty).
    """

    slowdown: float
    slowdown_source: str
    run_time: int
    run_time_source: str
    wanted: int
    wait: int
    clipped_by: str = ""
    max_wait: int = 0
    max_switch_wait: int | None = None
    runs: int = 0

    @property
    def inputs(self) -> dict[str, float | int | str | None]:
        """For `Note.inputs`: what `gsub explain` shows under the sentence."""
        return {
            "slowdown": self.slowdown,
            "slowdown_source": self.slowdown_source,
            "run_time": self.run_time,
            "run_time_source": self.run_time_source,
            "runs": self.runs,
            "worth": self.wanted,
            "locality.max_wait": self.max_wait,
            "max_switch_wait": self.max_switch_wait,
            "wait": self.wait,
        }

    @property
    def formula(self) -> str:
        """``(1.15 - 1) x 2 h = 18 min, cut to 5 min by max_switch_wait``."""
        text = f"({self.slowdown:g} - 1) x {spoken(self.run_time)} = {spoken(self.wanted)}"
        if self.clipped_by and self.wait:
            text += f", cut to {spoken(self.wait)} by {self.clipped_by}"
        return text


def worth_of_waiting(
    workload: Workload | None,
    locality: Locality,
    *,
    time_limit: int | None,
    max_switch_wait: int | None = None,
) -> Worth:
    """How many seconds a job may wait for a compact place.

    Parameters
    ----------
    workload: what is known of it; each of its two figures that is not known is the site's default.
    locality: the site's, for the job's partition.
    time_limit: seconds that the job may run, None for without end: it cannot run longer, whatever its kind does.
    max_switch_wait: Slurm's own bound in seconds, None where Slurm does not do the waiting.
    """
    slowdown, slowdown_source = locality.slowdown, "site"
    run_time, run_time_source = locality.run_time, "site"
    if workload is not None and workload.slowdown is not None:
        slowdown, slowdown_source = workload.slowdown, workload.source
    if workload is not None and workload.run_time is not None:
        run_time, run_time_source = workload.run_time, workload.source
    if time_limit is not None and time_limit < run_time:
        run_time, run_time_source = time_limit, "time limit"
    # A slowdown below 1 (noise: the spread runs happened to be faster) is none. The tenth of a millisecond takes
    # floating point's (1.15 - 1) * 14400 = 2159.9999... for what it is.
    wanted = min(int(max(slowdown - 1.0, 0.0) * max(run_time, 0) + 1e-4), _LONGEST)
    wait, clipped_by = wanted, ""
    for bound, name in ((locality.max_wait, "locality.max_wait"), (max_switch_wait, "max_switch_wait")):
        if bound is not None and bound < wait:
            wait, clipped_by = max(bound, 0), name
    if wait < SHORTEST:
        wait = 0
    runs = workload.runs if workload is not None else 0
    return Worth(
        slowdown,
        slowdown_source,
        run_time,
        run_time_source,
        wanted,
        wait,
        clipped_by,
        locality.max_wait,
        max_switch_wait,
        runs,
    )


def spoken(seconds: int) -> str:
    """Seconds as a person says them: no seconds beside hours, no more than two units.

    >>> spoken(8130), spoken(90)
    ('2 h 16 min', '1 min 30 s')
    """
    if seconds >= 86400:
        seconds = round(seconds / 3600) * 3600
    elif seconds >= 3600:
        seconds = round(seconds / 60) * 60
    return format_duration(max(seconds, 0))
