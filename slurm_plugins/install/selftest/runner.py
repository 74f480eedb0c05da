"""Runs scenarios side by side within their deadlines, and leaves no job behind, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_plugins.client.errors import SlurmError
from slurm_plugins.install.selftest.outcome import EndedError, Outcome, Result, Steps, failed
from slurm_plugins.install.selftest.table import Scenario
from slurm_plugins.install.selftest.world import DOCTOR, World

__all__ = ["run"]

_TICK: Final = 1.0
"""Seconds from one question about all jobs to the next."""
_SECONDS: Final = 600.0
"""A scenario's own, beside the wait for starts."""
_CLEAR_SECONDS: Final = 20.0


@dataclass(slots=True)
class _Live:
    scenario: Scenario
    steps: Steps
    began: float


def run(world: World, scenarios: Sequence[Scenario], told: Callable[[Result], None]) -> None:
    """Run them; `told` hears each result as soon as it is there.

    Whatever ends this (an interrupt too), the jobs are cancelled before it is over; `world.queue.left` says what may
    be left all the same.
    """
    try:
        _side_by_side(world, [one for one in scenarios if not one.last], told)
        for scenario in scenarios:
            if scenario.last:
                _side_by_side(world, [scenario], told)
    finally:
        queue = world.queue
        queue.left = "it was interrupted again"
        try:
            left = queue.clear(_CLEAR_SECONDS)
            queue.left = f"{len(left)} are still there" if left else ""
        except SlurmError as error:
            queue.left = str(error)


def _side_by_side(world: World, scenarios: Sequence[Scenario], told: Callable[[Result], None]) -> None:
    clock = world.queue.clock
    longest = _SECONDS + 3 * world.bounds.wait + world.requeue_delay()
    live = [_Live(one, one.run(world), clock.now()) for one in scenarios]
    try:
        while live:
            world.queue.look()
            for one in tuple(live):
                outcome = _step(one.steps)
                if outcome is None and clock.now() > one.began + longest:
                    outcome = failed(f"it was not over after {longest:.0f} s", DOCTOR)
                if outcome is not None:
                    live.remove(one)
                    one.steps.close()
                    seconds = round(clock.now() - one.began, 1)
                    told(Result(one.scenario.name, one.scenario.shows, outcome, seconds))
            if live:
                clock.sleep(_TICK)
    finally:
        for one in live:
            one.steps.close()


def _step(steps: Steps) -> Outcome | None:
    """Go on to the next wait; the outcome where it is over."""
    try:
        next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    except EndedError as end:
        return end.outcome
    except SlurmError as error:
        return failed(
            f"Slurm did not do its part: {error}", "'scontrol ping' tells whether slurmctld answers"
        )
    except Exception as error:
        # our bug: it must not end the others, nor leave their jobs behind
        return failed(f"a fault of the selftest: {type(error).__name__}: {error}", "please report it")
    return None
