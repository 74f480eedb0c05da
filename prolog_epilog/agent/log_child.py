"""Has a child read a job's logs, and believes nothing of what it says beyond what a finding may say.

A child has a deadline. One that does not keep it is killed, and one that not even SIGKILL ends (it sleeps in a dead
file system) is left behind: its user's logs are not read again before it has gone, so that a dead home directory
costs one process and not one for each job.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from profiler.findings import Evidence, Finding
from profiler.logs import one_line
from prolog_epilog.failures.question import Question
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS

__all__ = ["LogChild", "NoAnswerError", "checked"]

DEADLINE: Final = 10.0
"""Seconds for an answer, from the child's word that it has started."""
STARTED_WITHIN: Final = 20.0
"""Seconds for that word: Python starts, and signatures are loaded."""
MOST_LEFT: Final = 4
"""Children that may be left behind; beyond that no log is read."""
MOST_ANSWER: Final = 256 << 10
_ENDED_WITHIN: Final = 2.0  # seconds for a killed child to be gone
_ROOT: Final = Path(__file__).resolve().parents[2]
# Isolated (-I), Python finds neither the working directory nor the user's own packages: it is told where we lie
_MAIN: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from prolog_epilog.failures.child import main; main()"
)
_KINDS: Final = frozenset({"log", "exit", "error file"})
"""What of a child's evidence may be from: it knows nothing of Slurm and of nodes."""
_TORCH_ENDINGS: Final = ("stdout.log", "stderr.log", ".json")
"""torchrun's logs and error files, whose folder only the job's output names."""
_decoder = msgspec.json.Decoder(Finding)


class NoAnswerError(Exception):
    """No finding came; the message says why, in a sentence without its subject."""


class LogChild:
    """Asks one child at a time. Not for several threads. `command` is for tests: what is started."""

    def __init__(
        self,
        command: tuple[str, ...] | None = None,
        *,
        deadline: float = DEADLINE,
        started_within: float = STARTED_WITHIN,
    ) -> None:
        self._command = command or (sys.executable, "-I", "-B", "-c", _MAIN, os.fspath(_ROOT))
        self._deadline = deadline
        self._started_within = started_within
        self._left: list[tuple[subprocess.Popen[bytes], int]] = []

    def ask(self, question: Question) -> Finding:
        """What the logs say. Takes no longer than both deadlines and a bit. Raises NoAnswerError."""
        self._left = [(child, uid) for child, uid in self._left if child.poll() is None]
        if any(uid == question.uid for _, uid in self._left):
            raise NoAnswerError(
                "were not read: an earlier reader of this user's logs still hangs in a file system"
            )
        if len(self._left) >= MOST_LEFT:
            raise NoAnswerError(
                f"were not read: {len(self._left)} earlier readers still hang in file systems"
            )
        child = self._start()
        try:
            line = self._hear(child, question)
        finally:
            self._end(child, question.uid)
        return checked(line, question)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={"LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswerError(
                f"were not read: no process can be started: {error.strerror or error}"
            ) from None

    def _hear(self, child: subprocess.Popen[bytes], question: Question) -> bytes:
        """The line that answers."""
        assert child.stdin is not None and child.stdout is not None  # noqa: S101 - for the types
        os.set_blocking(child.stdin.fileno(), False)
        os.set_blocking(child.stdout.fileno(), False)
        unsaid = memoryview(msgspec.json.encode(question) + b"\n")
        heard, started = b"", False
        deadline = time.monotonic() + self._started_within
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                ready = selector.select(max(deadline - time.monotonic(), 0.0))
                if not ready and time.monotonic() >= deadline:
                    seconds = self._deadline if started else self._started_within
                    raise NoAnswerError(f"were not read within {seconds:g} s")
                for key, _ in ready:
                    if key.fileobj is child.stdin:
                        unsaid = unsaid[_written(key.fd, unsaid) :]
                        if not unsaid:
                            selector.unregister(child.stdin)
                        continue
                    with suppress(BlockingIOError):
                        data = os.read(key.fd, 1 << 16)
                        heard += data
                        if not data:
                            raise NoAnswerError("were not read: the reader ended without an answer")
                if not started and heard[:1] == b"\n":
                    started, heard = True, heard[1:]
                    deadline = time.monotonic() + self._deadline
                if (end := heard.find(b"\n")) >= 0:
                    return heard[:end]
                if len(heard) > MOST_ANSWER:
                    raise NoAnswerError("were not classified: the reader said too much")

    def _end(self, child: subprocess.Popen[bytes], uid: int) -> None:
        """Have it gone, or leave it."""
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # not waited for yet: the number is still its own
        try:
            child.wait(_ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            self._left.append((child, uid))


def checked(line: bytes, question: Question) -> Finding:
    """A child's answer as far as it may be believed: all bounds kept, a reason that exists, texts that are only that.

    It is the user's word whatever it says of itself. Raises NoAnswerError.
    """
    try:
        finding = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise NoAnswerError("were not classified: the reader gave an answer that is none") from None
    if finding.reason not in REASONS and finding.reason != NONE:
        raise NoAnswerError("were not classified: the reader gave a reason that there is not")
    # What is quoted first says who has decided: without a line of the user's it would be another's word
    if finding.reason not in (NONE, NO_SIGNATURE) and not finding.evidence:
        raise NoAnswerError("were not classified: the reader gave a reason without a line for it")
    if any(not _asked(each.file, question) or each.what not in _KINDS for each in finding.evidence):
        raise NoAnswerError("were not classified: the reader told of what it was not asked for")
    return Finding(
        reason=finding.reason,
        confidence=0.0 if finding.reason == NO_SIGNATURE else finding.confidence,
        tier=finding.tier,
        evidence=tuple(_plain(each) for each in finding.evidence),
        advice=one_line(finding.advice, 600),
        signature=one_line(finding.signature, 128),
        fingerprint=one_line(finding.fingerprint, 128),
        rank=finding.rank,
        node=one_line(finding.node, 128),
        unseen=tuple(one_line(each, 600) for each in finding.unseen),
        remarks=tuple(one_line(each, 600) for each in finding.remarks),
        progressed=finding.progressed,
        checkpoint=one_line(finding.checkpoint, 600),
        resumes=finding.resumes,
    )


def _plain(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(
        evidence,
        text=one_line(evidence.text, 600),
        file=one_line(evidence.file, 4096),
        node=one_line(evidence.node, 128),
        source="user",
    )


def _asked(path: str, question: Question) -> bool:
    """Whether this is one of the job's logs, by all that we can tell: the child alone has looked into folders."""
    if not path or path in question.files:
        return True
    folder, name = os.path.split(path)
    beside = folder in {os.path.dirname(each) for each in question.files}  # noqa: PTH120 - text of a user's
    return (beside and any(each in name for each in question.ids)) or name.endswith(_TORCH_ENDINGS)


def _written(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:  # it has ended already: reading tells
        return len(data)
