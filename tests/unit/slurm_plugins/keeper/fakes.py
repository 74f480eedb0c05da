"""A munged in memory, and a Slurm that says what a test tells it to."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from profiler.munge import Credential, MungeError, Reason
from slurm_plugins.service.keeper.ask import Question, Seen


@dataclass
class FakeKey:
    """What the munged of one cluster share: which credentials they made, and which were opened."""

    made: dict[str, Credential] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    fails: dict[str, Reason] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def munge(self, uid: int) -> FakeMunge:
        """As `profiler.munge.Munge` for a process of `uid`."""
        return FakeMunge(self, uid)


@dataclass(frozen=True)
class FakeMunge:
    key: FakeKey
    uid: int

    def encode(self, payload: bytes) -> str:
        with self.key.lock:
            number = next(self.key.numbers)
            text = f"MUNGE:{base64.b64encode(b'%012d' % number + payload[:8]).decode()}:"
            self.key.made[text] = Credential(payload, self.uid, self.uid)
            return text

    def decode(self, text: str) -> Credential:
        with self.key.lock:
            if text in self.key.fails:
                raise MungeError(self.key.fails[text], "as the test wants")
            if text not in self.key.made:
                raise MungeError("invalid", "not of this key")
            if text in self.key.opened:
                raise MungeError("replayed", "opened before")
            self.key.opened.add(text)
            return self.key.made[text]


class FakeSlurm:
    """Answers with `seen`, or what `answer` makes of the question; `asked` are the questions."""

    def __init__(self, answer: Callable[[Question], Seen] | None = None) -> None:
        self.answer = answer or (lambda question: Seen(at=0.0, error="no Slurm here"))
        self.asked: list[Question] = []

    async def close(self) -> None:
        pass

    async def ask(self, question: Question) -> Seen:
        self.asked.append(question)
        return self.answer(question)
