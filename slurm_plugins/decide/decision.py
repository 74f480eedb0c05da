"""What comes out: changes with their reasons, a proposal of one stage, the decision of all, and its wire
form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from site_configs.site_model import Mode
from slurm_plugins.decide.edits import Value

__all__ = [
    "MAX_SAY",
    "MAX_SAY_BYTES",
    "NO_PROPOSAL",
    "Change",
    "Decision",
    "Note",
    "Proposal",
    "StageFailure",
]

MAX_SAY: Final = 8
"""Lines said to a user at one submission, at most."""
MAX_SAY_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class Change:
    """One field that is to be set.

    `before` is what the user's request holds there (None: open). `reason` is one sentence for the user, without a
    full stop: "2 nodes x 8 GPUs: the fewest nodes that hold 16 GPUs evenly". A change without a reason is for the
    machine alone (max_nodes beside min_nodes): the sentence of its neighbour covers it.
    """

    field: str
    before: Value | None
    after: Value
    reason: str = ""
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something a stage found and did not change: why a wish was not met, what a formula gave."""

    text: str
    stage: str = ""
    inputs: Mapping[str, float | int | str | None] = field(default_factory=dict, hash=False)
    """The numbers behind it, for `gsub explain`."""
    advice: bool = False
    """Worth a line to the user at submission in advise and enforce; else only `gsub explain` shows it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one stage wants: changes that belong together (all or none are made), notes, or a refusal of the
    job.

    `reject` is for what can never run: up to 3 lines that say what, why, and what helps. `error` is Slurm's own error
    number for such a refusal, by which programs know it; 0 where it has none.
    """

    changes: tuple[Change, ...] = ()
    notes: tuple[Note, ...] = ()
    reject: str | None = None
    error: int = 0


NO_PROPOSAL: Final = Proposal()


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A stage that raised or proposed what the table forbids: recorded, and its proposal dropped."""

    stage: str
    error: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What gsub would do with a job, and how far it may go.

    `changes` are all that were decided; `edits` and `env` go to the job when the mode is enforce; both are empty when
    the user opted out. `say` are the lines for the user in this mode.
    """

    id: str
    mode: Mode
    changes: tuple[Change, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[Note, ...] = ()
    reject: str | None = None
    say: tuple[str, ...] = ()
    opted_out: bool = False
    failures: tuple[StageFailure, ...] = ()
    facts: Mapping[str, float | int | str | None] = field(default_factory=dict, hash=False)
    """What the decision knew of the job: its GPUs, shape, workload; for records and `explain`."""
    error: int = 0
    """Slurm's error number for the refusal; 0 for its general one."""

    @property
    def edits(self) -> dict[str, Value]:
        """Field -> what it is set to; a later stage's word counts."""
        return {change.field: change.after for change in self.changes}

    def answer(self, request_id: int) -> bytes:
        """The line for the shim: edits only in enforce."""
        enforced = self.mode == "enforce" and not self.opted_out
        return (
            _ENCODER.encode(
                {
                    "v": 1,
                    "id": request_id,
                    "decision": self.id,
                    "mode": self.mode,
                    "edits": self.edits if enforced and self.reject is None else {},
                    "env": dict(self.env) if enforced and self.reject is None else {},
                    "say": list(self.say) if not self.opted_out else [],
                    "reject": self.reject if enforced else None,
                    **({"errno": self.error} if enforced and self.reject is not None and self.error else {}),
                }
            )
            + b"\n"
        )


_ENCODER: Final = msgspec.json.Encoder()
