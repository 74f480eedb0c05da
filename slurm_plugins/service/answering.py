"""The child's side of `slurm_plugins.service.child`: a process that answers questions, each in a fork of its own.

The modules are imported once, and what an answer takes of memory, or a library keeps of Slurm's configuration, ends
with the fork. A question and its answer are a length (8 bytes, big-endian) and as many bytes, on standard input and
output. Whatever goes wrong ends the process: the asker reads standard error, and starts another one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

__all__ = ["LENGTH", "AnswerError", "answer_questions", "die_with"]

LENGTH: Final = struct.Struct(">Q")
_PR_SET_PDEATHSIG: Final = 1


class AnswerError(Exception):
    """A question has no answer; the message is a sentence for the asker."""


def answer_questions(answer: Callable[[bytes], bytes]) -> int:
    """Answer the questions on standard input until it ends. Returns the exit code.

    Args:
        answer: returns what is written to standard output; raises AnswerError with a sentence for standard error.
    """
    # As an exception, so that a command of Slurm that is still running is ended with us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    die_with(os.getppid())  # where that is too late, standard input has ended
    gc.freeze()  # so that forks share the pages of all that is imported
    while (question := _read_question(sys.stdin.buffer)) is not None:
        server = os.getpid()
        fork = os.fork()
        if not fork:
            die_with(server)
            _answer_and_exit(answer, question)
        _, status = os.waitpid(fork, 0)
        if status:
            return os.waitstatus_to_exitcode(status)
    return 0


def _read_question(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    question = stream.read(length)
    return question if len(question) == length else None


def _answer_and_exit(answer: Callable[[bytes], bytes], question: bytes) -> None:
    """Write the answer and end this fork, whatever happens; threads that still wait for something end with it."""
    code = 1
    try:
        answered = answer(question)
        sys.stdout.buffer.write(LENGTH.pack(len(answered)))
        sys.stdout.buffer.write(answered)
        sys.stdout.buffer.flush()
        code = 0
    except AnswerError as error:
        print(error, file=sys.stderr)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process `parent`, which started it, ends (prctl(2)).

    SIGKILL: whatever we are stuck in, nobody must go on writing while the next one starts. A store survives that.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before we asked
    if os.getppid() != parent:
        os._exit(1)
