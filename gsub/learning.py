"""`gsub learn --here`: a command, run and measured in this very place, its CPUs made fewer and given back.

The command runs in a session of its own. What it writes is read for steps as it comes; its end is kept, to be shown
when it fails. When the measurement is over the command is ended, unless it is to go on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from profiler.driver import Driver
from profiler.gpu_busy import GpuBusy
from profiler.lever import choose
from profiler.process_tree import MARK, ProcessTree
from profiler.sensitivity import Budget

__all__ = ["Asked", "Learnt", "gpus_here", "learn_here"]

_TURN: Final = 0.1
_PATIENCE: Final = 10.0  # seconds between SIGTERM and SIGKILL
_TAIL: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What to run and how. `most`, `gpus`: None as found here. `go_on`: let the command end by itself."""

    command: tuple[str, ...]
    most: int | None = None
    gpus: int | None = None
    budget: Budget = field(default_factory=Budget)
    go_on: bool = False
    show: bool = False


@dataclass(frozen=True, slots=True)
class Learnt:
    """What came of it. `code` is the command's exit code, None where we ended it; `tail` the end of its output."""

    driver: Driver
    gpus: int
    cap: int
    code: int | None
    tail: bytes


def gpus_here(environ: Mapping[str, str]) -> int:
    """The job's GPUs on this node, as Slurm tells; 1 where it does not.

    >>> gpus_here({"SLURM_GPUS_ON_NODE": "4"}), gpus_here({"CUDA_VISIBLE_DEVICES": "0,1"}), gpus_here({})
    (4, 2, 1)
    """
    told = environ.get("SLURM_GPUS_ON_NODE", "")
    if told.isdecimal() and 0 < int(told) <= 1024:
        return int(told)
    return max(sum(bool(one.strip()) for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")), 1)


def learn_here(asked: Asked, environ: Mapping[str, str], say: Callable[[str], None]) -> Learnt:
    """Run the command and measure it. `say` gets each sentence as it comes. Raises OSError where it cannot be run."""
    with tempfile.TemporaryDirectory(prefix="gsub-learn-", ignore_cleanup_errors=True) as folder:
        theirs = {**environ, MARK: folder, "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(
            asked.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=theirs,
            start_new_session=True,
        )
        tree = ProcessTree(child.pid, folder)
        busy: GpuBusy | None = None
        try:
            lever = choose(tree, environ)
            gpus = asked.gpus or gpus_here(environ)
            cap = min(asked.most or lever.cap, lever.cap)
            busy = GpuBusy.of_node(tree, gpus)
            driver = Driver(
                lever,
                Path(folder),
                None,
                cap=cap,
                gpus=gpus,
                budget=asked.budget,
                tree=tree,
                gpu_busy=busy,
            )
            run = _Run(child, driver, asked, say)
            code = run.to_the_end()
        finally:
            if busy is not None:
                busy.close()
            _end(child, tree)
        return Learnt(driver, gpus, cap, code, bytes(run.tail))


class _Run:
    """The command while it runs."""

    def __init__(
        self, child: subprocess.Popen[bytes], driver: Driver, asked: Asked, say: Callable[[str], None]
    ) -> None:
        self._child = child
        self._driver = driver
        self._asked = asked
        self._say = say
        self._stop = False
        self._more = False  # whether the last look at the output found some
        self.tail: deque[int] = deque(maxlen=_TAIL)

    def to_the_end(self) -> int | None:
        """Measure; the command's exit code, None where it still runs."""
        said_no = [
            (number, signal.signal(number, self._asked_to_stop)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
        try:
            return self._measured()
        finally:
            self._driver.close()
            self._tell()
            for number, before in said_no:
                signal.signal(number, before)

    def _measured(self) -> int | None:
        assert self._child.stdout is not None  # noqa: S101
        output = self._child.stdout
        os.set_blocking(output.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            due = 0.0
            while not self._stop and (self._asked.go_on or not self._driver.done):
                if selector.get_map() and selector.select(max(due - time.monotonic(), 0.0)):
                    if not self._heard(output.fileno()):
                        selector.unregister(output)
                elif not selector.get_map():
                    time.sleep(_TURN)
                if (now := time.monotonic()) >= due:
                    due = now + _TURN
                    self._driver.turn(now)
                    self._tell()
                    if self._child.poll() is not None:
                        while self._heard(output.fileno()) and self._more:
                            pass
                        return self._child.returncode
        return None

    def _heard(self, descriptor: int) -> bool:
        """Take what the command has written; whether there may be more."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            self._more = False
            return True
        self._more = bool(data)
        self._driver.heard(time.monotonic(), data)
        self.tail.extend(data)
        if self._asked.show and data:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        return bool(data)

    def _tell(self) -> None:
        for line in self._driver.news():
            self._say(line)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True


def _end(child: subprocess.Popen[bytes], tree: ProcessTree) -> None:
    """End all of the run that is still there, those first that began it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _PATIENCE
        sent: set[tuple[int, int]] = set()
        while time.monotonic() < until:
            child.poll()
            there = tree.processes()
            if not there:
                break
            for one in there:
                if (one.pid, one.began) not in sent:
                    sent.add((one.pid, one.began))
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(one.pid, number)
            time.sleep(0.05)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
