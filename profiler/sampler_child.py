"""The process that makes the driver calls for `profiler.sampler`, which may have to leave it behind.

A request is one line, a JSON list of the UUIDs to leave alone. The answer is lines: `Started` once, `Read` for each
GPU, at last `Done`; or `Unavailable`, and it ends. It also ends at the end of its input.

Which driver call is under way stands on a page of memory that both map (`CallPage`): the parent reads it when no answer
comes. A look at eight GPUs makes some 170 calls, and a line for each would wake the parent as often.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from typing import BinaryIO, NamedTuple

import msgspec

from profiler.gpu import GpuReading, GpusUnavailableError

_PR_SET_PDEATHSIG = 1


class Call(NamedTuple):
    """A driver call; the UUID is "" for one that belongs to no GPU."""

    gpu: str
    function: str


START = Call("", "start")
"""Before the first call."""


class CallPage:
    """The call that is made now, on a page of memory that two processes map."""

    _SIZE = mmap.PAGESIZE

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, self._SIZE)

    @classmethod
    def made(cls) -> tuple[CallPage, int]:
        """A new page, and the descriptor by which another process maps it; the caller closes it. Raises OSError."""
        descriptor = os.memfd_create("gsub-call")
        try:
            os.ftruncate(descriptor, cls._SIZE)
            return cls(descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, gpu: str, function: str) -> None:
        """This call is made next."""
        line = f"{gpu} {function}\n".encode("ascii", "replace")[: self._SIZE]
        self._page[: len(line)] = line

    def read(self) -> Call:
        """The call that was made last. Of a process that is killed while it writes, what is there."""
        line = self._page[: self._page.find(b"\n") + 1].decode("ascii", "replace")
        gpu, _, function = line.strip("\n").partition(" ")
        return Call(gpu, function) if function else START

    def close(self) -> None:
        """Let go of it."""
        self._page.close()


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Python runs, and the driver comes next."""


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A GPU was read."""

    reading: GpuReading


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request is answered; `unreachable` GPUs are counted by the driver but cannot be asked who they are."""

    unreachable: int


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """There is nothing to be read here."""

    message: str


Message = Started | Read | Done | Unavailable


def serve(requests: BinaryIO, answers: BinaryIO, page: CallPage) -> None:
    """Answer requests until there are no more."""
    from profiler.readers import NodeReader

    encoder = msgspec.json.Encoder()

    def say(message: Message) -> None:
        answers.write(encoder.encode(message) + b"\n")
        answers.flush()

    reader: NodeReader | None = None
    try:
        for request in requests:
            leave_alone = frozenset(msgspec.json.decode(request, type=list[str]))
            if reader is None:
                say(Started())
                reader = NodeReader(watch=page.write)
            for gpu in reader.gpus(leave_alone):
                say(Read(reader.read(gpu)))
            say(Done(reader.unreachable))
    except GpusUnavailableError as error:
        say(Unavailable(str(error)))


def main() -> None:
    """Serve on standard input and output, out of which a driver library's own chatter is kept.

    The argument is the number of the page's descriptor.
    """
    descriptor = int(sys.argv[1])
    page = CallPage(descriptor)
    os.close(descriptor)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Not to outlive the parent, even while a call hangs. (A call in uninterruptible sleep outlives anything.) The
    # kernel takes the parent's thread for the parent: when a thread that sampled ends, the next sample starts anew.
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    try:
        serve(sys.stdin.buffer, answers, page)
    except BrokenPipeError:  # the parent ended while we answered: what is left to write goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())


if __name__ == "__main__":
    main()
