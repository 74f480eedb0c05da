"""What doctor and selftest say: one finding a line, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

__all__ = ["LEVELS", "Finding", "Level", "worst"]

Level = Literal["ok", "unknown", "warning", "error"]
"""`unknown`: it could not be told from here (no right, not this host's part, no answer); never counted as well."""

LEVELS: Final[tuple[Level, ...]] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the check's name, how bad it is, what was seen, and what to do (empty where nothing is).

    Texts are one line, of printable characters: what a site's files hold is escaped by who makes the finding.
    """

    check: str
    level: Level
    seen: str
    remedy: str = ""


def worst(findings: tuple[Finding, ...]) -> Level:
    """The worst of them; ok when there are none.

    >>> worst((Finding("a", "ok", ""), Finding("b", "warning", "", "mend it")))
    'warning'
    """
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
