"""Samples the GPUs of this node without ever being held up by the driver.

A driver call can block for ever, even out of reach of SIGKILL. So the calls are made by a child process; when it does
not answer in time it is killed, or left behind if it cannot be, and the sample says which call on which GPU hung. That
GPU is left alone for a while, and a new child goes on with the others.

    with GpuSampler() as sampler:
        sample = sampler.sample()

``python -m profiler.sampler --interval 1 --until-eof --json`` prints the usage of this node's GPUs.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import msgspec

from profiler.gpu import GpuReading, GpuSample
from profiler.sampler_child import START, Call, CallPage, Done, Message, Read, Unavailable

_COMMAND = (sys.executable, "-I", "-m", "profiler.sampler_child")
_MAX_LINE = 1 << 20
_START_ALLOWANCE = 10.0  # seconds more for the first answer of a child: Python and the driver's library start


class _HungError(Exception):
    """The child did not answer in time."""


class _EndedError(Exception):
    """The child ended; the argument says how."""


class GpuSampler:
    """Samples of all GPUs of this node.

    `deadline` bounds a sample, in seconds; `retry_after` is for how long a GPU on which a call hung is left alone.
    At most `max_abandoned` children that could not be killed are left behind: after that the node counts as hung
    until one of them ends. Not for several threads at once.
    """

    def __init__(self, *, deadline: float = 5.0, retry_after: float = 60.0, max_abandoned: int = 2) -> None:
        self._deadline = deadline
        self._retry_after = retry_after
        self._max_abandoned = max_abandoned
        self._child: _Child | None = None
        self._abandoned: list[_Child] = []
        self._suspects: dict[str, float] = {}  # UUID ("": the driver as a whole) -> when to try again
        self._last_hang = ""

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def sample(self) -> GpuSample:
        """Read all GPUs now. Returns within the deadline (and a start allowance for a new child); never raises."""
        self._abandoned = [child for child in self._abandoned if not child.ended()]
        now = time.monotonic()
        self._suspects = {gpu: until for gpu, until in self._suspects.items() if until > now}
        skipped = tuple(sorted(gpu for gpu in self._suspects if gpu))
        if "" in self._suspects or len(self._abandoned) >= self._max_abandoned:
            return GpuSample(time.monotonic(), (), "hung", self._last_hang, skipped)
        readings: list[GpuReading] = []
        unreachable = 0
        try:
            child = self._child = self._child or _Child()
            for message in child.ask(list(skipped), self._deadline):
                if isinstance(message, Read):
                    readings.append(message.reading)
                elif isinstance(message, Done):
                    unreachable = message.unreachable
                elif isinstance(message, Unavailable):
                    self._drop()
                    return GpuSample(time.monotonic(), (), "unavailable", message.message, skipped)
        except _HungError:
            return self._hung(self._calling(), tuple(readings), skipped)
        except (_EndedError, OSError, msgspec.MsgspecError) as error:
            call = self._calling()
            self._drop()
            detail = f"Reading the GPUs failed in {_place(call)}: {error}."
            return GpuSample(
                time.monotonic(), tuple(readings), "unavailable", detail, skipped, reader_failed=True
            )
        return GpuSample(time.monotonic(), tuple(readings), "ok", "", skipped, unreachable)

    def close(self) -> None:
        """End the child, without waiting for one that hangs."""
        self._drop()

    def _calling(self) -> Call:
        """The driver call that the child is at, or was at when it ended."""
        return START if self._child is None else self._child.call()

    def _hung(self, call: Call, readings: tuple[GpuReading, ...], skipped: tuple[str, ...]) -> GpuSample:
        self._drop()
        self._suspects[call.gpu] = time.monotonic() + self._retry_after
        self._last_hang = (
            f"The NVIDIA driver did not answer {_place(call)} within {self._deadline:g} s; "
            f"trying again after {self._retry_after:g} s."
        )
        hung = tuple(sorted({*skipped, call.gpu} - {""}))
        return GpuSample(time.monotonic(), readings, "hung", self._last_hang, hung)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            if not self._child.ended(wait=1.0):
                self._abandoned.append(self._child)
            self._child = None


class _Child:
    """A process that reads GPUs, the pipe of its answers, and the page that says which call it makes."""

    def __init__(self) -> None:
        self._page, descriptor = CallPage.made()
        try:
            self._process = subprocess.Popen(
                [*_COMMAND, str(descriptor)],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(descriptor,),
            )
        finally:
            os.close(descriptor)
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101 - for the types
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._buffer = b""
        self._decoder = msgspec.json.Decoder(Message)
        self._allowance = _START_ALLOWANCE

    def ask(self, leave_alone: list[str], seconds: float) -> Iterator[Message]:
        """Send a request; yield the answers up to the last one. Raises _HungError, _EndedError."""
        self._page.write(*START)  # it waits for us, and makes none
        try:
            self._requests.write(msgspec.json.encode(leave_alone) + b"\n")
        except BrokenPipeError:
            raise _EndedError(self._how_it_ended()) from None
        deadline = time.monotonic() + seconds + self._allowance
        while True:
            message = self._decoder.decode(self._line(deadline))
            if self._allowance:  # it has started: from here on the driver alone takes the time
                deadline = min(deadline, time.monotonic() + seconds)
                self._allowance = 0.0
            yield message
            if isinstance(message, Done | Unavailable):
                return

    def call(self) -> Call:
        """The driver call that it makes, or made last in this look."""
        return self._page.read()

    def kill(self) -> None:
        """Ask the kernel to end it; a call in uninterruptible sleep goes on."""
        self._process.kill()
        self._page.close()
        self._selector.close()
        self._answers.close()
        with suppress(OSError):
            self._requests.close()

    def ended(self, wait: float = 0.0) -> bool:
        """Whether it has ended, and reaped if so; `wait` seconds at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=wait)
        return self._process.returncode is not None

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE:
                raise _EndedError("its answer is too long")
            if not self._selector.select(max(deadline - time.monotonic(), 0.0)):
                raise _HungError
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                raise _EndedError(self._how_it_ended())
            self._buffer += data
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line

    def _how_it_ended(self) -> str:
        if not self.ended(wait=1.0):
            return "it closed its output"
        code = self._process.returncode
        return f"it ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _place(call: Call) -> str:
    return f"{call.function} on {call.gpu}" if call.gpu else call.function


if __name__ == "__main__":
    from profiler.sampler_cli import main

    sys.exit(main())
