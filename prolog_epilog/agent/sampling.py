"""The thread that looks at the node's GPUs: on a schedule without drift, and at once when a job starts or ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from profiler.gpu import GpuSample

_log = logging.getLogger(__name__)

DENSE = 60.0
"""Seconds from a job's start in which the GPUs are looked at more often, where the driver keeps no samples itself."""

_DENSE_INTERVAL = 1.0
_SHARE = 0.1
_SPACING = 0.2  # seconds between two looks at least: 200 jobs that start at once want one look, not 200


class Sampler(Protocol):
    """Looks at the GPUs, in bounded time, without raising: `profiler.sampler.GpuSampler`."""

    def sample(self) -> GpuSample:
        """What they do now."""

    def close(self) -> None:
        """Let go of them."""


class Sampling(threading.Thread):
    """Hands each look to `on_sample`, with its time in seconds since the epoch, in this thread.

    `interval` is from the start of one look to that of the next; after a slow look the schedule goes on as it was, less
    what was missed. The sampler is made and used in this thread alone, as its child process lives as long as that. None
    of the methods waits for a driver.
    """

    def __init__(
        self,
        make_sampler: Callable[[], Sampler],
        interval: float,
        on_sample: Callable[[GpuSample, float], None],
    ) -> None:
        super().__init__(name="sampling", daemon=True)
        self._make_sampler = make_sampler
        self._interval = interval
        self._on_sample = on_sample
        self._change = threading.Condition()
        self._soon = False
        self._stopped = False
        self._dense_from = self._dense_until = 0.0
        self._last: GpuSample | None = None
        self._fault = ""

    def sample_soon(self, dense: float = 0.0) -> None:
        """Look once more as soon as may be, though a look may be under way; then densely for so many seconds."""
        with self._change:
            self._soon = True
            if dense:
                self._dense_from = time.monotonic()
                self._dense_until = max(self._dense_until, self._dense_from + dense)
            self._change.notify()

    def last(self) -> GpuSample | None:
        """The last look; None before the first."""
        return self._last

    def stop(self, timeout: float = 0.0) -> bool:
        """End after the look that is under way. Returns whether it has ended within `timeout` seconds."""
        with self._change:
            self._stopped = True
            self._change.notify()
        if self.ident is not None:
            self.join(timeout)
        return not self.is_alive()

    def has_died(self) -> bool:
        """Whether it ended unasked, by a fault that no look is to blame for: nobody looks any more."""
        return self.ident is not None and not self._stopped and not self.is_alive()

    def run(self) -> None:
        """Look until stopped."""
        sampler = self._make_sampler()
        due = time.monotonic()
        try:
            while self._wait_until(due):
                started = time.monotonic()
                self._look(sampler)
                due = self._next(due, started)
        finally:
            sampler.close()

    def _look(self, sampler: Sampler) -> None:
        try:
            self._last = sample = sampler.sample()
            self._on_sample(sample, time.time() - (time.monotonic() - sample.at))
        except Exception as error:
            # This thread must outlive a bug in whoever looks or counts: the next look may be well.
            if repr(error) != self._fault:
                _log.exception("A look at the GPUs could not be made, or not be counted.")
            self._fault = repr(error)

    def _next(self, due: float, started: float) -> float:
        """When to look next by the schedule."""
        now = time.monotonic()
        if now < self._dense_until and not _remembers(self._last):
            return max(now, started + dense_step(started - self._dense_from, self._interval))
        if due > started:  # it was asked for between two looks of the schedule
            return due
        missed = int((now - due) / self._interval)
        return due + (missed + 1) * self._interval

    def _wait_until(self, due: float) -> bool:
        """Wait for the time, or for being asked; False when stopped."""
        with self._change:
            earliest = time.monotonic() + (_SPACING if self._last is not None else 0.0)
            while not self._stopped:
                now = time.monotonic()
                wanted = min(due, earliest) if self._soon else due
                if now >= wanted:
                    self._soon = False
                    return True
                self._change.wait(wanted - now)
            return False


def dense_step(age: float, interval: float) -> float:
    """Seconds from one dense look to the next, `age` seconds after a job's start.

    A second, and later a tenth of what the job has run for: the figures of a job of any length rest on as many looks,
    and its first minute costs half of what a look each second does.

    >>> [dense_step(age, 10.0) for age in (0.0, 9.0, 30.0, 59.0)]
    [1.0, 1.0, 3.0, 5.9]
    """
    return min(max(_DENSE_INTERVAL, _SHARE * age), interval)


def _remembers(sample: GpuSample | None) -> bool:
    """Whether the driver has samples of its own of each GPU that has a utilisation at all."""
    return sample is not None and all(
        reading.recent is not None for reading in sample.readings if reading.utilisation is not None
    )
