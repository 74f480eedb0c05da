"""Heterogeneous jobs: which options of one component sbatch takes over into the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gsub.script import Asked

__all__ = ["spread"]

# Recorded alike from 22.05, 24.11 and 26.05: sbatch forgets the other options between components.
SHARED: Final = frozenset({
    "account", "array", "chdir", "comment", "dependency", "exclude", "export", "extra", "job-name", "mem",
    "no-requeue", "prefer", "qos", "requeue", "reservation", "time", "time-min",
})  # fmt: skip
ONWARDS: Final = frozenset({"hint"})
"""Options that hold for the components after theirs only."""


def spread(components: Sequence[Sequence[Asked]]) -> list[list[Asked]]:
    """The options in effect for each component: its own, and those that others hand on to it."""
    if len(components) == 1:
        return [list(components[0])]
    # sbatch reads the command line twice, and what it does not forget is there from the first time on.
    held = {option.name: option for options in components for option in options if option.name in SHARED}
    found = []
    for options in components:
        own = {option.name for option in options}
        found.append([*(option for name, option in held.items() if name not in own), *options])
        held |= {option.name: option for option in options if option.name in SHARED | ONWARDS}
    return found
