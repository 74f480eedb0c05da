"""Which variables of a job's environment go with an edit, so that `srun` in the script sees it too, by release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugins.decide.edits import Value
from slurm_plugins.decide.request import Request

__all__ = ["ENV_NAMES", "Mirrors", "mirrors"]

ENV_NAMES: frozenset[str] = frozenset()
"""Names that the shim reads and may write."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Variables to write along with edits, and edits that cannot be made because a stale variable would contradict."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)


def mirrors(request: Request, edits: Mapping[str, Value], release: tuple[int, int]) -> Mirrors:
    """The variables that go with `edits`. `release` is (major, minor)."""
    return Mirrors()
