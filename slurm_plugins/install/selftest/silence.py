"""Scenarios of a gsubd that does not answer: hung for a moment, or stopped where the site allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from slurm_plugins.install.selftest.halt import MOST_SECONDS, HaltError
from slurm_plugins.install.selftest.outcome import EndedError, Outcome, Steps, failed, ok, skipped
from slurm_plugins.install.selftest.queue import Asked, Wish
from slurm_plugins.install.selftest.shown import differences
from slurm_plugins.install.selftest.world import DOCTOR, Halt, World, until

__all__ = ["dead_service", "hung_service"]

_LONGER: Final = 1.0
"""Seconds that a submission may take longer than one about which gsubd is not asked: the shim's deadline is less."""
_ASKED: Final = 4
"""Submissions while it is silent: the third opens the shim's breaker, the fourth asks nobody."""
_BACK_SECONDS: Final = 45.0
"""From its return to the next decision: the breaker's pause, and a start of gsubd."""
_STOPPED: Final = 8.0


def hung_service(world: World) -> Steps:
    """While gsubd hangs, submissions pass unchanged within a second; afterwards they are decided about again."""
    yield
    if not world.bounds.pause:
        return skipped("--no-pause: gsubd was not stopped for a moment")
    halt = _halt(world)
    return (
        yield from _silent(
            world,
            "hung-service",
            silence=lambda: halt.pause(MOST_SECONDS),
            speak=halt.resume,
            seconds=MOST_SECONDS,
        )
    )


def dead_service(world: World) -> Steps:
    """While gsubd is stopped, submissions pass unchanged; once it is back they are decided about again."""
    yield
    if not world.bounds.stop_service:
        return skipped("gsubd was not stopped: that is done with --stop-service alone")
    halt = _halt(world)
    return (yield from _silent(world, "dead-service", silence=halt.stop, speak=halt.start, seconds=_STOPPED))


def _halt(world: World) -> Halt:
    world.needs_gpus()
    if world.halt is None:
        raise EndedError(skipped("only root on the controller's host can stop gsubd"))
    return world.halt


def _silent(
    world: World,
    what: str,
    *,
    silence: Callable[[], None],
    speak: Callable[[], None],
    seconds: float,
) -> Steps:
    """Make it silent, submit, let it speak, and wait for the next decision."""
    queue = world.queue
    twin = world.twin()
    # the breaker of another scenario may still be open
    yield from until(
        queue.clock.now,
        _BACK_SECONDS,
        lambda: _decided(world, what),
        lambda: skipped("gsubd makes no decisions as it is, so its silence shows nothing"),
    )
    plain = [_unasked(world, what)]
    try:
        silence()
    except HaltError as error:
        return skipped(f"gsubd was not stopped: {error}")
    try:
        began = queue.clock.now()
        job = queue.submit(Wish(what, gpus=world.queue.open_gpus, later=True, word="explain"))
        asked = [job] if queue.clock.now() < began + seconds else []
        while asked and len(asked) < _ASKED:
            one = queue.ask(Wish(what, gpus=world.queue.open_gpus, word="explain"), only=True)
            if queue.clock.now() >= began + seconds:
                break
            asked.append(one)
    finally:
        speak()
    plain.append(_unasked(world, what))  # the machine may be busier by now
    outcome = _judged(world, twin, job, plain=max(plain), asked=asked)
    if outcome.level != "ok":
        return outcome
    back = queue.clock.now()
    yield from until(
        queue.clock.now,
        _BACK_SECONDS,
        lambda: _decided(world, what),
        lambda: failed(
            f"{_BACK_SECONDS:.0f} s after gsubd's return no job is decided about",
            f"systemctl status gsubd; {DOCTOR}",
        ),
    )
    facts = {**outcome.facts, "decided_again_after_seconds": round(queue.clock.now() - back, 1)}
    return ok(outcome.seen, **facts)


def _judged(world: World, twin: Asked, job: Asked, *, plain: float, asked: list[Asked]) -> Outcome:
    assert job.job is not None and twin.job is not None  # noqa: S101 - submit() made them
    changed = differences(world.queue.shown(twin.job), world.queue.shown(job.job))
    world.queue.cancel(job.job)
    if not asked:
        return skipped("this machine is too slow to tell: no submission was through while gsubd was silent")
    slowest = max(one.seconds for one in asked)
    facts = {
        "submissions": len(asked),
        "slowest_seconds": round(slowest, 3),
        "seconds_without": round(plain, 3),
    }
    if slowest > plain + _LONGER:
        return failed(
            f"a submission took {slowest:.2f} s while gsubd was silent, {plain:.2f} s where it is not asked",
            "is the deadline in job_submit.lua more than the shim's own 50 ms?",
            **facts,
        )
    if changed or any(one.said for one in asked):
        return failed(
            "a job was decided about while gsubd was silent: somebody else answers the shim",
            DOCTOR,
            **facts,
        )
    return ok(
        f"{len(asked)} submissions passed unchanged, the slowest in {slowest:.2f} s ({plain:.2f} s unasked)",
        **facts,
    )


def _unasked(world: World, what: str) -> float:
    """Seconds of a submission about which nobody is asked."""
    return world.queue.ask(Wish(what, gpus=world.queue.open_gpus, word="off"), only=True).seconds


def _decided(world: World, what: str) -> bool | None:
    asked = world.queue.ask(Wish(what, gpus=world.queue.open_gpus, word="explain"), only=True)
    return True if asked.said else None
