"""The process that makes the driver calls for `profiler.sampler`, which may have to leave it behind.

A request is one line, a JSON list of the UUIDs to leave alone. The answer is lines: `Calling` before each driver call,
`Read` for each GPU, at last `Done`; or `Unavailable`, and it ends. It also ends at the end of its input.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from profiler.gpu import GpuReading, GpusUnavailableError

_PR_SET_PDEATHSIG = 1


class Calling(msgspec.Struct, frozen=True, tag="calling"):
    """The driver call that is made next; the UUID is "" for one that belongs to no GPU."""

    gpu: str
    function: str


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A GPU was read."""

    reading: GpuReading


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request is answered; `unreachable` GPUs are counted by the driver but cannot be asked who they are."""

    unreachable: int


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """There is nothing to be read here."""

    message: str


Message = Calling | Read | Done | Unavailable


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
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
                reader = NodeReader(watch=lambda gpu, function: say(Calling(gpu, function)))
            for gpu in reader.gpus(leave_alone):
                say(Read(reader.read(gpu)))
            say(Done(reader.unreachable))
    except GpusUnavailableError as error:
        say(Unavailable(str(error)))


def main() -> None:
    """Serve on standard input and output, out of which a driver library's own chatter is kept."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Not to outlive the parent, even while a call hangs. (A call in uninterruptible sleep outlives anything.) The
    # kernel takes the parent's thread for the parent: when a thread that sampled ends, the next sample starts anew.
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
