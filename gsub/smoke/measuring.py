"""What a smoke run measures besides: how fast it steps, and with `--learn` how that depends on its CPUs.

The counts come from the script (gsub.train.step) or from its output; the driver is `profiler.driver`. None of it may
harm the run: what fails here is left out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gsub.smoke.plan import Plan
    from gsub.smoke.result import Result
    from gsub.smoke.watching import Watched
    from profiler.driver import Driver
    from profiler.gpu_busy import GpuBusy

__all__ = ["Measuring"]

_MARGIN: Final = 10.0  # seconds of a learning run that its start takes, at least


class Measuring:
    """Measures a run that was just started; without a lever where nothing is to be learnt.

    `steps` is the folder in which its processes count.
    """

    def __init__(self, plan: Plan, watched: Watched, steps: Path, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._watched = watched
        self.said: list[str] = []
        """What was found, in sentences."""
        self._driver: Driver | None = None
        self._busy: GpuBusy | None = None
        try:
            self._driver = self._made(steps, environ)
        except Exception as error:  # no measurement is worth a run
            self.said.append(f"nothing is measured ({type(error).__name__}: {error})")

    def _made(self, steps: Path, environ: Mapping[str, str]) -> Driver:
        from profiler.driver import Driver
        from profiler.gpu_busy import GpuBusy
        from profiler.lever import choose
        from profiler.process_tree import ProcessTree
        from profiler.sensitivity import Budget

        tree = ProcessTree(self._watched.pid, steps)
        gpus = max(self._plan.gpus, 1)
        if not self._plan.learn:
            return Driver(None, steps, None, cap=max(self._plan.cpus, _cpus(environ)), gpus=gpus, tree=tree)
        lever = choose(tree, environ)
        cap = min(self._plan.cpus or lever.cap, lever.cap)
        self._busy = GpuBusy.of_node(tree, gpus)
        budget = Budget(seconds=min(Budget().seconds, max(self._plan.seconds - _MARGIN, _MARGIN)))
        return Driver(lever, steps, None, cap=cap, gpus=gpus, budget=budget, tree=tree, gpu_busy=self._busy)

    def turn(self) -> None:
        """Hear what the script wrote, go on measuring; never raises."""
        if self._driver is None:
            return
        for at, data in self._watched.output.heard():
            self._driver.heard(at, data)
        self._driver.turn(time.monotonic())
        self.said += self._driver.news()

    @property
    def done(self) -> bool:
        """All that was to be learnt is."""
        return self._driver is not None and self._driver.done

    def close(self) -> None:
        """Give the CPUs back, before the run is ended."""
        if self._busy is not None:
            self._busy.close()
        if self._driver is not None:
            self._driver.close()
            self.said += self._driver.news()

    @property
    def rate(self) -> float:
        """Steps a second; 0 where nobody knows."""
        rate = self._driver.rate if self._driver is not None else None
        return rate if rate is not None and math.isfinite(rate) and rate > 0 else 0.0

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """(CPUs, steps a second)."""
        return tuple((float(one.cpus), one.rate) for one in self._driver.points) if self._driver else ()

    def deliver(self, result: Result, environ: Mapping[str, str]) -> str:
        """Send what was measured to the service, or keep it; what is said of that. Never raises."""
        plan = self._plan
        if not plan.workload or (not self.points and not result.peak_memory) or result.outcome == "failed":
            return ""
        try:
            from gsub.points import deliver, gpu_type
            from profiler.points import Measured
            from profiler.records import new_id

            measured = Measured(
                id=new_id(),
                at=time.time(),
                source="learn" if plan.learn else "smoke",
                workload=plan.workload[:8],
                cluster=plan.cluster,
                gpu_type=plan.gpu_type or gpu_type(environ),
                gpus=max(plan.gpus, 1),
                cap=max(plan.cpus, _cpus(environ)),
                points=self._driver.points[-64:] if self._driver is not None and self._driver.trusted else (),
                peak_memory=result.peak_memory or None,
                job=result.smoke,
            )
            return deliver(measured, environ)
        except Exception as error:  # a run is judged whether or not its figures arrive
            return f"its figures were not kept ({type(error).__name__}: {error})"


def _cpus(environ: Mapping[str, str]) -> int:
    """The job's CPUs on this node."""
    told = environ.get("SLURM_CPUS_ON_NODE", "")
    return (
        int(told) if told.isascii() and told.isdecimal() and len(told) < 6 else len(os.sched_getaffinity(0))
    )
