"""What a scenario comes to: ok, failed or skipped, in one sentence, with its figures."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["LEVELS", "EndedError", "Fact", "Level", "Outcome", "Result", "Steps", "failed", "ok", "skipped"]

Level = Literal["ok", "skipped", "failed"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
Fact: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen, and what to do where that is not as promised.

    `facts` are figures, by name with their unit (`submit_seconds`); a text among them is a word of ours, never one of
    the site's.
    """

    level: Level
    seen: str
    remedy: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one scenario of the table, and how long it took."""

    name: str
    shows: str
    outcome: Outcome
    seconds: float


Steps: TypeAlias = Generator[None, None, Outcome]
"""A scenario under way: it yields wherever it waits, so that all of them wait at the same time."""


class EndedError(Exception):
    """A scenario is over before its last line."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.seen)
        self.outcome = outcome


def ok(seen: str, /, **facts: Fact) -> Outcome:
    """As promised."""
    return Outcome("ok", seen, facts=facts)


def failed(seen: str, remedy: str, /, **facts: Fact) -> Outcome:
    """Not as promised."""
    return Outcome("failed", seen, remedy, facts)


def skipped(seen: str, remedy: str = "", /, **facts: Fact) -> Outcome:
    """It could not be told: a cluster that is full, no right, nothing of the kind here."""
    return Outcome("skipped", seen, remedy, facts)
