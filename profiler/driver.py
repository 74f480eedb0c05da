"""Measures a run while it runs: how fast it steps, and with a lever how that depends on its CPUs.

`profiler.sensitivity.plan` says which count of CPUs to try next and when to stop; this is what does it: pulls the
lever, has what lies ready used up (`profiler.draining`), reads the times of the steps, says in sentences what it found.

    driver = Driver(lever, folder, log, cap=16)
    try:
        while child.poll() is None and not driver.done:
            driver.turn(time.monotonic())
            time.sleep(0.1)
    finally:
        driver.close()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from profiler.counting import count
from profiler.curves import Point, contradicted, fit, knee
from profiler.draining import Drain, needed
from profiler.gpu_use import GpuUse
from profiler.lever import Lever
from profiler.probing import LEAST_STEPS, Speed
from profiler.process_tree import Process, ProcessTree
from profiler.sensitivity import Budget, Done, Limit, Probe, limit, plan
from profiler.step_counter import StepCounters
from profiler.step_log import StepLog

__all__ = ["Driver"]

_RECENT: Final = 30.0  # seconds of steps that an ordinary run's rate is taken from
_AGAIN: Final = (
    1.0  # seconds between two passes of the lever, and between two looks at a point that takes longer
)
_PATIENCE: Final = 2.0  # of what a point may take at most, before it is given up
_MUTE: Final = 45.0  # seconds of GPU work without a step that was told
_REPEATS: Final = 3
_OVERTIME: Final = 1.3  # of the budget's seconds
_SETTLED: Final = 0.25  # of a point's seconds, at most, that are waited after a change

_HELD: Final = 1.15  # of the CPUs given: who uses more is not held by the lever

Phase = Literal["waiting", "draining", "measuring", "over"]


@dataclass(slots=True)
class _Attempt:
    """A point that is being measured: since when it is prepared for, and when its steps begin to count."""

    probe: Probe
    since: float
    begin: float
    next_look: float
    before: tuple[Process, ...] = ()
    pulled: float = 0.0  # when `before` was seen


class Driver:
    """One run.

    Parameters
    ----------
    lever: None to measure the rate alone.
    counters_folder: where its processes count (GSUB_STEPS), None: nowhere.
    log: its log, None where it has none or is given to `heard`.
    cap: the most CPUs to try; never more than the lever has.
    gpus: of the run on this node. Counts tried are multiples of it.
    tree: its processes, to tell how many workers it has; None: not told.
    gpu_busy: asked each turn how busy its GPUs are (per cent; None: nothing new). None: not known.
    clock: seconds since the epoch, for the points' own times.
    """

    def __init__(
        self,
        lever: Lever | None,
        counters_folder: Path | None,
        log: Path | None,
        *,
        cap: int,
        gpus: int = 1,
        budget: Budget | None = None,
        tree: ProcessTree | None = None,
        gpu_busy: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lever = lever
        self._cap = cap if lever is None else min(cap, lever.cap)
        self._gpus = max(gpus, 1)
        self._budget = Budget() if budget is None else budget
        self._tree = tree
        self._busy = gpu_busy
        self._clock = clock
        self._counters = StepCounters(counters_folder) if counters_folder is not None else None
        self._log = StepLog(log, clock)
        self._source: StepCounters | StepLog | GpuUse | None = None
        self._phase: Phase = "waiting"
        self._attempt: _Attempt | None = None
        self._drain: Drain | None = None
        self._drains = True  # whether one CPU for each GPU slows the run down, so that a drain can work
        self._given = 0
        self._done: list[Point] = []
        self._first: float | None = None  # when the first turn was
        self._begun: float | None = None  # when the first step was seen
        self._now = 0.0
        self._pulled = 0.0
        self._recent: tuple[float, float | None] = (-math.inf, None)
        self._news: list[str] = []
        self._use = GpuUse()
        self._full: float | None = None  # per cent that the GPUs were busy with the most CPUs
        self.workers: int | None = None
        """Processes that prepare batches, for each GPU, as seen with the most CPUs; None: none seen."""
        self.trusted = True
        """False where points contradict each other: they are better not kept."""
        self._repeats = 0
        self.result: Done | None = None
        self.limit: Limit | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        """What was measured, without the warm-up."""
        return tuple(self._done[1:])

    @property
    def done(self) -> bool:
        """Whether there is nothing more to measure with the lever; always False without one."""
        return self._lever is not None and self._phase == "over"

    @property
    def source(self) -> str:
        """Where steps are read: "counter", "log", "gpu" where none are told; "" as long as there were none."""
        if self._source is None:
            return ""
        return "log" if self._source is self._log else "gpu" if self._source is self._use else "counter"

    @property
    def unit(self) -> str:
        """What rates are in: steps a second, or per cent of the GPUs' time."""
        return "% GPU" if self._source is self._use else "steps/s"

    @property
    def rate(self) -> float | None:
        """Steps in a second: with the most CPUs where that was measured, else in the last half minute. None where
        none are told.
        """
        if self._source is self._use:
            return None
        full = [point.rate for point in self.points if point.cpus == max(one.cpus for one in self.points)]
        if full:
            return full[-1]
        if self._now - self._recent[0] >= _AGAIN:
            found: Speed | None = None
            try:
                begin = max(self._now - _RECENT, self._begun or 0.0)
                found = self._source.speed(begin) if self._source is not None else None
            except (ValueError, ArithmeticError):
                found = None
            # A run that has just ended, or has stopped to step, keeps what it had
            self._recent = (self._now, self._recent[1] if found is None else found.rate)
        return self._recent[1]

    def news(self) -> tuple[str, ...]:
        """What was found since the last call, in sentences."""
        told, self._news = tuple(self._news), []
        return told

    def heard(self, now: float, data: bytes) -> None:
        """Take what the run has written, where nobody writes it into a log. Never raises."""
        try:
            self._log.heard(now, data)
        except Exception as error:  # whatever a log holds, the run goes on
            self._break_off(error)

    def turn(self, now: float) -> None:
        """Go on; to be called some times a second with the monotonic clock's time. Never raises, never waits."""
        try:
            self._turn(now)
        except Exception as error:  # a fault of ours must not end the user's run
            self._break_off(error)

    def close(self) -> None:
        """Give all CPUs back, and say what is known where the run ended ahead of time. Never raises."""
        try:
            if self._lever is not None and self._phase != "over":
                self._end("the run ended first")
        except Exception as error:
            self._break_off(error)
        self._restore()

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self._now = now
        if self._first is None:
            self._first = now
        if self._counters is not None:
            self._counters.look()
        self._log.look(now)
        if self._busy is not None and (percent := self._busy()) is not None:
            self._use.add(now, percent)
        if self._source is None:
            self._find_source(now)
        if self._lever is None or self._phase == "over":
            return
        if self._phase == "waiting":
            if self._source is not None:
                self._next(now)
            return
        if now - self._pulled >= _AGAIN:
            self._pulled = now
            self._lever.again()
        if self._attempt is None:
            return
        if self._drain is not None:
            self._use_up(self._drain, self._attempt, now)
        elif now >= self._attempt.next_look:
            self._measure(self._attempt, now)

    def _find_source(self, now: float) -> None:
        first = self._first if self._first is not None else now
        if self._counters is not None and self._counters.counted(-math.inf) >= 1:
            self._source = self._counters
            self._news.append("steps are counted by the script (gsub.train.step)")
        elif self._log.counted(first) >= 2:
            self._source = self._log
            found = self._log.read(first)
            self._news.append(f"steps are read from the log ({found.format if found else 'lines'})")
        elif self._use.begun is not None and now - self._use.begun >= _MUTE:
            self._source = self._use
            self._news.append("no steps are told: the GPUs' use stands for them, in per cent of their time")
        else:
            return
        self._begun = now

    def _next(self, now: float) -> None:
        """Begin with the next point, or end."""
        begun = self._begun if self._begun is not None else now
        if self._cap < self._gpus:
            self._end(f"{count(self._cap, 'CPU')} for {count(self._gpus, 'GPU')}: too few to try fewer")
            return
        step = plan(tuple(self._done), self._cap, self._gpus, budget=self._budget)
        if isinstance(step, Done) and (again := self._once_more(now - begun)) is not None:
            step = again
        if isinstance(step, Done):
            self._finish(step)
            return
        if now - begun > _OVERTIME * self._budget.seconds:
            self._end("the time is used up")
            return
        self._attempt = _Attempt(step, now, now, now)
        # Where one CPU is nearly enough, what lies ready lasts longest at that count itself
        if (self._drains or step.cpus == self._gpus) and needed(self._done, step.cpus):
            best = max(point.rate for point in self._done)
            self._phase, self._drain = "draining", Drain(best, now, self._steps(now))
            self._pull(self._gpus, now)
        else:
            self._count(self._attempt, now)

    def _once_more(self, used: float) -> Probe | None:
        """A point that others contradict, to be measured anew; what disturbs a run makes it slower."""
        bad = contradicted(self.points)
        if bad is None or self._repeats >= _REPEATS:
            return None
        seconds = min(max(self._budget.each, self._budget.steps / bad.rate), self._budget.longest)
        if used + seconds > _OVERTIME * self._budget.seconds:
            return None
        self._repeats += 1
        self._done.remove(bad)
        return Probe(bad.cpus, seconds, "again, as fewer CPUs were faster")

    def _use_up(self, drain: Drain, attempt: _Attempt, now: float) -> None:
        """Hold the run at one CPU for each GPU until no batch is ready any more."""
        if drain.over(now, self._steps(now)):
            self._drain, self._drains = None, drain.dry
            self._count(attempt, now)

    def _count(self, attempt: _Attempt, now: float) -> None:
        """Give the run the CPUs of the point; its steps count from when they have settled."""
        probe = attempt.probe
        changed = probe.cpus != self._given and bool(self._done)
        self._pull(probe.cpus, now)
        attempt.begin = now + (min(self._budget.settling, _SETTLED * probe.seconds) if changed else 0.0)
        attempt.next_look = attempt.begin + probe.seconds
        if self._tree is not None:
            attempt.before, attempt.pulled = self._tree.processes(), now
        self._phase = "measuring"

    def _pull(self, cpus: int, now: float) -> None:
        assert self._lever is not None  # noqa: S101
        self._lever.set(cpus)
        self._given, self._pulled = cpus, now

    def _steps(self, now: float) -> int:
        if isinstance(self._source, GpuUse):
            return self._source.work(now)
        return self._source.steps if self._source is not None else 0

    def _measure(self, attempt: _Attempt, now: float) -> None:
        """Take the point when there are enough steps for it."""
        source = self._source
        assert source is not None  # noqa: S101
        counters = self._counters
        # The script's own count is better, where it began later than its log
        if (
            counters is not None
            and source is not counters
            and not self._done
            and counters.counted(attempt.begin)
        ):
            self._source = source = counters
            self._news.append("steps are counted by the script (gsub.train.step)")
        probe = attempt.probe
        speed = source.speed(attempt.begin, now)
        if speed is None or speed.steps < LEAST_STEPS:
            if now - attempt.begin > _PATIENCE * max(self._budget.longest, probe.seconds):
                self._end(
                    f"with {count(probe.cpus, 'CPU')} fewer than {LEAST_STEPS} steps came in "
                    f"{now - attempt.begin:.0f} s"
                )
            else:
                attempt.next_look = now + _AGAIN
            return
        if attempt.before and self._tree is not None:
            used = _used(attempt.before, self._tree.processes()) / max(now - attempt.pulled, 1.0)
            if probe.cpus < self._cap and used > probe.cpus * _HELD + 0.5:
                # Flat throughput would look like a job that needs one CPU
                self._done.clear()
                self._end(
                    f"its processes used {used:.1f} CPUs where they had {probe.cpus}: they are not held"
                )
                return
            if len(self._done) == 1:
                self._count_workers(self._tree, attempt.before, now - attempt.begin)
        if len(self._done) == 1:
            self._full = self._use.mean(attempt.begin, now)
        # The time is what it cost, with its preparation: that is what the plan's budget is of
        point = Point(probe.cpus, speed.rate, speed.error, speed.steps, now - attempt.since, self._clock())
        self._done.append(point)
        self._attempt = None
        self._news.append(_told(point, probe, self.unit))
        self._next(now)

    def _count_workers(self, tree: ProcessTree, before: tuple[Process, ...], seconds: float) -> None:
        trainers = self._counters.processes if self._counters is not None else frozenset()
        found = sum(one.pid not in trainers for one in tree.leaves(before, seconds))
        # Without a worker the one that is busy is the trainer itself
        if found > (0 if trainers else self._gpus):
            self.workers = -(-found // self._gpus)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, found: Done) -> None:
        self._phase, self._attempt, self._drain, self.result = "over", None, None, found
        self.limit = limit(found.curve, workers=self.workers, gpu_busy=self._full)
        if (bad := contradicted(self.points)) is not None:
            self.trusted, found = False, replace(found, sure=False)
            self.result = found
            self._news.append(
                f"not to be trusted: {bad.rate:.4g} {self.unit} with {count(bad.cpus, 'CPU')}, and more with fewer: "
                "others disturb this run"
            )
        sure = "" if found.sure else ", but it is not sure within one"
        self._news.append(
            f"the knee: {count(found.knee, 'CPU')} for each GPU give{'s' * (found.knee == 1)} "
            f"{found.curve.at(found.knee):.4g} {self.unit}, "
            f"the best is {found.curve.top:.4g}{sure}"
        )
        self._news.append(self.limit.text)
        self._restore()

    def _end(self, why: str) -> None:
        """End with what there is."""
        self._phase, self._attempt, self._drain = "over", None, None
        self._news.append(f"measuring ended: {why}")
        if len({point.cpus for point in self.points}) >= 2:
            curve = fit(self.points, self._gpus)
            self._finish(Done(curve, knee(curve), False, "time"))
        self._restore()

    def _break_off(self, error: Exception) -> None:
        self._phase, self._attempt, self._drain = "over", None, None
        self._news.append(f"measuring broke off: {type(error).__name__}: {error}")
        self._restore()

    def _restore(self) -> None:
        if self._lever is not None:
            try:
                self._lever.restore()
            except Exception as error:
                self._news.append(f"not all CPUs could be given back: {error}")


def _told(point: Point, probe: Probe, unit: str) -> str:
    return (
        f"{point.cpus} CPU{'' if point.cpus == 1 else 's'}: {point.rate:.4g} {unit} +- {point.error:.2g} "
        f"({probe.why}; {point.steps} {'steps' if unit == 'steps/s' else 'looks'} in {point.seconds:.0f} s)"
    )


def _used(before: Sequence[Process], after: Sequence[Process]) -> float:
    """CPU seconds of those that were there before, since then."""
    had = {(one.pid, one.began): one.cpu_seconds for one in before}
    return sum(
        max(one.cpu_seconds - had[one.pid, one.began], 0.0) for one in after if (one.pid, one.began) in had
    )
