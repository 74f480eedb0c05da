"""One trace under several policies, each in a process of its own.

A process is started anew (`spawn`): it has nothing of its parent's but what it is given, so a replay stays a function
of its arguments. Interrupting the parent ends them all; a process that dies is told of with its policy.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, TypeAlias

import numpy as np

from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.failing import strike
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.remedies import Bill, lived
from slurm_plugins.replay.retrying import RETRIES
from slurm_plugins.replay.smoking import SMOKES
from slurm_plugins.replay.values import Cluster, Replayed, Trace

__all__ = ["Done", "Remedy", "Run", "RunError", "Told", "side_by_side"]

Told: TypeAlias = Callable[[int, float], None]
"""Told the number of a run and how much of it is done, 0 to 1."""


class RunError(Exception):
    """A run that came to nothing: which one, and why."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(f"{run}: {why}")
        self.run = run
        self.why = why


@dataclass(frozen=True, slots=True)
class Remedy:
    """What follows a failure, and what is tried before: names of `RETRIES` and `SMOKES`.

    >>> Remedy.parse("gsub/gate").smoke, str(Remedy.parse("three"))
    ('gate', 'three')
    """

    retry: str
    smoke: str = "none"

    @classmethod
    def parse(cls, text: str) -> Remedy:
        """``RETRY`` or ``RETRY/SMOKE``. Raises ValueError."""
        retry, _, smoke = text.partition("/")
        smoke = smoke or "none"
        if retry not in RETRIES:
            raise ValueError(f"{retry!r} is no way to retry; known: {', '.join(RETRIES)}")
        if smoke not in SMOKES:
            raise ValueError(f"{smoke!r} is no way to smoke; known: {', '.join(SMOKES)}")
        return cls(retry, smoke)

    def __str__(self) -> str:
        return self.retry if self.smoke == "none" else f"{self.retry}/{self.smoke}"


@dataclass(frozen=True)
class Done:
    """What became of the trace, and what its failures came to; None where nothing was made to fail."""

    name: str
    replayed: Replayed
    bill: Bill | None = None


@dataclass(frozen=True)
class Run:
    """What one replay is made of. Without a remedy jobs run as the trace has them."""

    trace: Trace
    cluster: Cluster
    policy: Policy
    seed: int = 0
    remedy: Remedy | None = None

    def __str__(self) -> str:
        return str(self.policy) if self.remedy is None else f"{self.policy}, {self.remedy}"

    def go(self, progress: Callable[[float], None] | None = None) -> Done:
        """Replay it here. Raises RunError for a policy that nothing plans by."""
        try:
            return self._go(progress or _nobody)
        except ValueError as error:
            raise RunError(str(self), str(error)) from error

    def _go(self, progress: Callable[[float], None]) -> Done:
        plays = partial(replay, self.trace, self.cluster, self.policy, seed=self.seed)
        if self.remedy is None:
            return Done(str(self), plays(progress=progress))
        faults = strike(self.trace, seed=self.seed)
        retry, smoke = RETRIES[self.remedy.retry], SMOKES[self.remedy.smoke]
        waits = None
        if smoke.way == "race":
            # Whether a smoke run is in time hangs on how long its job waits: that is replayed first
            before = plays(
                attempts=lived(self.trace, faults, retry).attempts, progress=lambda share: progress(share / 2)
            )
            waits = np.nan_to_num(before.started - self.trace["arrival"], nan=np.inf)
        life = lived(self.trace, faults, retry, smoke, waits=waits)
        late: Callable[[float], None] = (
            progress if waits is None else (lambda share: progress(0.5 + share / 2))
        )
        return Done(str(self), plays(attempts=life.attempts, progress=late), life.bill)


def side_by_side(runs: Sequence[Run], *, processes: int = 1, told: Told | None = None) -> list[Done]:
    """What becomes of each run, in their order. One process, or one run: it is done here.

    Raises RunError for the first run that comes to nothing; the others are ended then.
    """
    tell = told or (lambda number, share: None)
    if processes <= 1 or len(runs) <= 1:
        return [run.go(partial(tell, number)) for number, run in enumerate(runs)]
    return _Crew(runs, tell).work(processes)


class _Crew:
    """Processes at work, at most so many at once."""

    def __init__(self, runs: Sequence[Run], tell: Told) -> None:
        self.runs, self.tell = runs, tell
        self.made: dict[int, Done] = {}
        self.at: dict[Connection, tuple[int, BaseProcess]] = {}
        self.context: Final = multiprocessing.get_context("spawn")

    def work(self, processes: int) -> list[Done]:
        waiting = list(range(len(self.runs)))[::-1]
        try:
            while waiting or self.at:
                while waiting and len(self.at) < processes:
                    self._start(waiting.pop())
                for end in wait(list(self.at)):
                    if isinstance(end, Connection):
                        self._hear(end)
        finally:
            with _deaf():  # ^C comes twice from some: all the same nobody stays
                for _, process in self.at.values():
                    process.kill()  # it keeps nothing, and SIGTERM may be ignored here: children inherit that
                for end, (_, process) in self.at.items():
                    process.join()
                    end.close()
        return [self.made[number] for number in range(len(self.runs))]

    def _start(self, number: int) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(theirs, self.runs[number]), daemon=True)
        with _deaf():
            process.start()
            self.at[ours] = (number, process)
        theirs.close()

    def _hear(self, end: Connection) -> None:
        number, process = self.at[end]
        try:
            said = end.recv()
        except EOFError:
            process.join()
            code = process.exitcode or 0
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            hint = "; is there too little memory? Try --processes 1" if code == -signal.SIGKILL else ""
            raise RunError(str(self.runs[number]), f"its process ended with {why}{hint}") from None
        if isinstance(said, float):
            self.tell(number, said)
        elif isinstance(said, Done):
            self.made[number] = said
            del self.at[end]
            end.close()
            process.join()
        else:
            raise RunError(str(self.runs[number]), str(said))


@contextmanager
def _deaf() -> Iterator[None]:
    """^C reaches all of a terminal's processes; the parent answers for all. A child begins without hearing it."""
    resource_tracker.ensure_running()  # as it starts, with the first child, it opens the ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(end: Connection, run: Run) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):  # whoever asked has gone
        try:
            end.send(run.go(lambda share: end.send(float(share))))
        except RunError as error:
            end.send(error.why)


def _nobody(_: float) -> None:
    """Nobody looks."""
