"""Runs tasks in child processes that may block for ever: each has its deadline, and the others do not wait for it.

A child that does not answer is killed. One that not even SIGKILL ends (uninterruptible sleep in a dead file system)
is left behind, and its check is not started again before it has gone: the first answer stands until then. At most
`max_abandoned` are left behind; after that nothing is started that might add to them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from prolog_epilog.health.finding import Finding
from prolog_epilog.health.tasks import Answer, Task

__all__ = ["Children"]

_COMMAND: Final = (sys.executable, "-I", "-m", "prolog_epilog.health.child")
_START_ALLOWANCE: Final = 20.0  # seconds more for a child's first answer: Python starts
_GRACE: Final = 1.0  # seconds more than a deadline that the child itself keeps
_TO_END: Final = 2.0  # seconds for a child to go after its last answer, or after SIGKILL
_MAX_ANSWER: Final = 1 << 20


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    tasks: deque[Task]
    deadline: float
    buffer: bytes = b""
    last: Answer = field(default_factory=lambda: Answer(""))
    killed: bool = False


class Children:
    """Not for several threads at once, except `wake`."""

    def __init__(self, max_abandoned: int = 8) -> None:
        self._max_abandoned = max_abandoned
        self._running: list[_Child] = []
        self._ending: list[_Child] = []  # they have no more to say
        self._ready: list[Answer] = []  # answers that need no child
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._decoder = msgspec.json.Decoder(Answer)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def abandoned(self) -> tuple[str, ...]:
        """The checks whose children could not be ended (so far)."""
        return tuple(child.last.name for child in self._ending if time.monotonic() > child.deadline)

    @property
    def busy(self) -> frozenset[str]:
        """The checks that have not answered yet."""
        return frozenset(task.name for child in self._running for task in child.tasks)

    def start(self, tasks: Sequence[Task]) -> None:
        """Start a child for those that do not block, and one each for those that run alone."""
        self._reap()
        held = {child.last.name: child.last for child in self._ending}
        fit: list[Task] = []
        for task in tasks:
            if task.name in self.busy:
                continue
            if task.name in held:
                self._ready.append(held[task.name])
            elif len(self.abandoned) >= self._max_abandoned:
                why = (
                    f"was not run: {len(self.abandoned)} earlier runs of checks hang ({self.abandoned[0]}...)"
                )
                self._ready.append(_unknown(task, why))
            else:
                fit.append(task)
        together = [task for task in fit if not task.alone]
        for group in ([together] if together else []) + [[task] for task in fit if task.alone]:
            self._launch(deque(group))
        if self._ready:
            self.wake()

    def wait(self, seconds: float) -> tuple[Answer, ...]:
        """The answers that come within that time; returns with the first ones, or when woken."""
        if not self._ready:
            now = time.monotonic()
            first = min((child.deadline for child in self._running), default=now + seconds)
            for key, _ in self._selector.select(max(min(first - now, seconds), 0.0)):
                if key.fd == self._woken:
                    with suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                else:
                    self._hear(key.data)
        now = time.monotonic()
        for child in [child for child in self._running if child.deadline <= now]:
            task = child.tasks[0]
            self._give_up(child, f"did not answer within {task.deadline:g} s")
        self._reap()
        answers, self._ready = tuple(self._ready), []
        return answers

    def wake(self) -> None:
        """Make `wait` return, from another thread."""
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):
                    os.write(self._waker, b"x")

    def cancel(self) -> None:
        """Kill what runs; nobody waits for its answers any more."""
        for child in list(self._running):
            child.tasks.clear()
            self._end(child, kill=True)
        self._ready.clear()

    def close(self) -> None:
        """Kill what runs, without waiting for what hangs."""
        self.cancel()
        self._reap()
        self._selector.close()
        with self._lock:  # the number of a closed file may be another's
            self._closed = True
            os.close(self._woken)
            os.close(self._waker)

    def _launch(self, tasks: deque[Task]) -> None:
        try:
            process = subprocess.Popen(
                _COMMAND,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # killed with all that it started
            )
        except OSError as error:
            why = f"cannot start a process: {error.strerror or error}"
            self._ready.extend(_unknown(task, why) for task in tasks)
            return
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - for the types
        deadline = time.monotonic() + tasks[0].deadline + _START_ALLOWANCE
        child = _Child(process, tasks, deadline)
        os.set_blocking(process.stdout.fileno(), False)
        with suppress(OSError):  # it has ended already: reading tells
            process.stdin.write(msgspec.json.encode(list(tasks)) + b"\n")
            process.stdin.close()
        self._running.append(child)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)

    def _hear(self, child: _Child) -> None:
        assert child.process.stdout is not None  # noqa: S101 - for the types
        data = os.read(child.process.stdout.fileno(), 1 << 16)
        child.buffer += data
        while child.tasks and (end := child.buffer.find(b"\n")) >= 0:
            line, child.buffer = child.buffer[:end], child.buffer[end + 1 :]
            task = child.tasks[0]
            if not line:  # it has started
                child.deadline = time.monotonic() + task.deadline + _GRACE
                continue
            try:
                answer = self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                self._give_up(child, f"gave an answer that is none: {error}")
                return
            child.tasks.popleft()
            child.last = Answer(task.name, answer.findings)
            self._ready.append(child.last)
            if child.tasks:
                child.deadline = time.monotonic() + child.tasks[0].deadline + _GRACE
        if not child.tasks:
            self._end(child)
        elif not data:
            self._give_up(child, "ended without an answer")
        elif len(child.buffer) > _MAX_ANSWER:
            self._give_up(child, "gave too long an answer")

    def _give_up(self, child: _Child, why: str) -> None:
        """One task has failed its child: kill that, and go on with the others in a new one."""
        task = child.tasks.popleft()
        rest, child.tasks = child.tasks, deque()
        child.last = _unknown(task, why)
        self._ready.append(child.last)
        self._end(child, kill=True)
        if rest:
            self._launch(rest)

    def _end(self, child: _Child, *, kill: bool = False) -> None:
        assert child.process.stdout is not None  # noqa: S101 - for the types
        self._selector.unregister(child.process.stdout)
        child.process.stdout.close()
        self._running.remove(child)
        child.deadline = time.monotonic() + _TO_END
        self._ending.append(child)
        if kill:
            _kill(child)

    def _reap(self) -> None:
        now = time.monotonic()
        for child in list(self._ending):
            if child.process.poll() is not None:
                self._ending.remove(child)
            elif now > child.deadline and not child.killed:
                _kill(child)


def _kill(child: _Child) -> None:
    child.killed = True
    if child.process.poll() is None:  # else its number may be another's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)


def _unknown(task: Task, why: str) -> Answer:
    return Answer(task.name, (Finding("unknown", why),))
