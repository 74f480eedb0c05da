"""One thing at a time, done beside the agent's loop because it may be held up: by a process that hangs in the kernel,
by a child that is slow. Who never comes back holds up nothing else.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside:
    """A thread that does what it is asked to, and has the answer posted to the loop."""

    def __init__(self, name: str, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something is being done, or hangs."""
        return self._waiting > 0

    @property
    def busy_for(self) -> float:
        """For how many seconds; 0.0 when nothing is being done."""
        return time.monotonic() - self._since if self._waiting else 0.0

    def ask(
        self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> bool:
        """Have `work` done here; the loop then calls `then` with what it returned, or `failed`. False if busy."""
        with self._lock:
            if self._waiting:
                return False
            self._waiting += 1
            self._since = time.monotonic()
        self._asked.put(lambda: self._do(work, then, failed))
        return True

    def _do(
        self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        try:
            result = work()
        except Exception as error:
            told = error
            answer: Callable[[], None] = lambda: failed(told)  # noqa: E731
        else:
            answer = lambda: then(result)  # noqa: E731
        with self._lock:
            self._waiting -= 1
        self._post(answer)

    def _work(self) -> None:
        while True:
            self._asked.get()()
