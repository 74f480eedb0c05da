"""What a health check says: findings. And the class that a site's own check in Python derives from.

    import socket
    from prolog_epilog.health.finding import Finding, HealthCheck

    class Licence(HealthCheck):
        \"\"\"The licence server answers.\"\"\"

        def check(self):
            with socket.create_connection(("licences", 27000), timeout=5):
                return Finding("ok")

docs/health.md says how to install one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = ["LEVELS", "Finding", "HealthCheck", "Limits", "State", "cleaned", "worst"]

State: TypeAlias = Literal["ok", "warning", "error", "unknown"]
LEVELS: tuple[State, ...] = ("ok", "warning", "error")
"""From well to worst. "unknown" is none of them: nobody could say."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a run of a check looked at, and how it is. Findings come from other processes: they are bounded.

    `subject` tells the things of one check apart (a path, a GPU); "" where it has one. `gpu` is a UUID. `detail` is
    one clause without a full stop ("7 of 8 GPUs answer"). A `certain` finding cannot be a passing disturbance (a GPU
    that fell off the bus): it counts at once, where others must be seen again.
    """

    state: State
    detail: Annotated[str, Meta(max_length=1000)] = ""
    subject: Annotated[str, Meta(max_length=300)] = ""
    gpu: Annotated[str, Meta(max_length=128)] = ""
    certain: bool = False


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a check's warning and its error start, in its unit; None: nowhere. `below`: low values are the bad ones.

    >>> Limits(warn=90, fail=97).judge(93)
    'warning'
    >>> Limits(warn=50, below=True).judge(93)
    'ok'
    """

    warn: float | None = None
    fail: float | None = None
    below: bool = False

    def judge(self, value: float) -> State:
        """The state of a value; one that equals a limit has reached it."""
        if self._reached(value, self.fail):
            return "error"
        return "warning" if self._reached(value, self.warn) else "ok"

    def _reached(self, value: float, limit: float | None) -> bool:
        if limit is None:
            return False
        return value <= limit if self.below else value >= limit


class HealthCheck(ABC):
    """A check of a site's own, installed under the entry point group ``gsub.health``.

    Each run makes it anew in a process of its own, as root: it may block, crash or leak without hurting anything
    but its own answer, which is then "unknown".
    """

    @abstractmethod
    def check(self) -> Finding | Iterable[Finding]:
        """Look now; return what was found. What it raises makes the check's state unknown, and is told."""


def worst(states: Iterable[State]) -> State:
    """The worst of some states; of none, "ok". "unknown" is passed over."""
    return max((state for state in states if state in LEVELS), key=LEVELS.index, default="ok")


def cleaned(text: str, limit: int = 200) -> str:
    r"""Text from elsewhere on one line that is safe to show: control and odd characters become blanks.

    >>> cleaned("disk\x1b[31m full\n")
    'disk [31m full'
    """
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())[
        :limit
    ]
