"""One trace under several policies, each in a process of its own.

A process is started anew (`spawn`): it has nothing of its parent's but what it is given, so a replay stays a function
of its arguments. Interrupting the parent ends them all; a process that dies is told of with its policy.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.values import Cluster, Replayed, Trace

__all__ = ["Run", "RunError", "Told", "side_by_side"]

Told: TypeAlias = Callable[[int, float], None]
"""Told the number of a run and how much of it is done, 0 to 1."""


class RunError(Exception):
    """A run that came to nothing: which policy, and why."""

    def __init__(self, policy: str, why: str) -> None:
        super().__init__(f"{policy}: {why}")
        self.policy = policy
        self.why = why


@dataclass(frozen=True)
class Run:
    """What one replay is made of."""

    trace: Trace
    cluster: Cluster
    policy: Policy
    seed: int = 0
    attempts: Attempts | None = None

    def go(self, progress: Callable[[float], None] | None = None) -> Replayed:
        """Replay it here. Raises RunError for a policy that nothing plans by."""
        try:
            return replay(
                self.trace,
                self.cluster,
                self.policy,
                seed=self.seed,
                attempts=self.attempts,
                progress=progress,
            )
        except ValueError as error:
            raise RunError(str(self.policy), str(error)) from error


def side_by_side(runs: Sequence[Run], *, processes: int = 1, told: Told | None = None) -> list[Replayed]:
    """What becomes of each run, in their order. One process, or one run: it is done here.

    Raises RunError for the first run that comes to nothing; the others are ended then.
    """
    tell = told or (lambda number, share: None)
    if processes <= 1 or len(runs) <= 1:
        return [run.go(lambda share, number=number: tell(number, share)) for number, run in enumerate(runs)]  # type: ignore[misc]
    return _Crew(runs, tell).work(processes)


class _Crew:
    """Processes at work, at most so many at once."""

    def __init__(self, runs: Sequence[Run], tell: Told) -> None:
        self.runs, self.tell = runs, tell
        self.made: dict[int, Replayed] = {}
        self.at: dict[Connection, tuple[int, BaseProcess]] = {}
        self.context = multiprocessing.get_context("spawn")

    def work(self, processes: int) -> list[Replayed]:
        waiting = list(range(len(self.runs)))[::-1]
        try:
            while waiting or self.at:
                while waiting and len(self.at) < processes:
                    self._start(waiting.pop())
                for end in wait(list(self.at)):
                    assert isinstance(end, Connection)  # noqa: S101 - they are those that were given
                    self._hear(end)
        finally:
            for end, (_, process) in self.at.items():
                process.terminate()
                process.join()
                end.close()
        return [self.made[number] for number in range(len(self.runs))]

    def _start(self, number: int) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(theirs, self.runs[number]), daemon=True)
        process.start()
        theirs.close()
        self.at[ours] = (number, process)

    def _hear(self, end: Connection) -> None:
        number, process = self.at[end]
        try:
            said = end.recv()
        except EOFError:
            process.join()
            code = process.exitcode or 0
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            hint = "; out of memory?" if code == -signal.SIGKILL else ""
            raise RunError(str(self.runs[number].policy), f"its process ended with {why}{hint}") from None
        if isinstance(said, float):
            self.tell(number, said)
            return
        if isinstance(said, str):
            raise RunError(str(self.runs[number].policy), said)
        self.made[number] = said
        del self.at[end]
        end.close()
        process.join()


def _child(end: Connection, run: Run) -> None:
    # ^C reaches all of a terminal's processes: the parent answers for all
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end.send(run.go(end.send))
    except RunError as error:
        end.send(error.why)
