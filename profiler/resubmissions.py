"""What was decided after a failed attempt: tried again or not, how, why, and what came of it.

One row for each attempt that failed, whether it is tried again or not: the user, `gsub why` and a site in observe mode
read the same sentence. Memory is MiB, times seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from profiler.findings import Finding, Source

__all__ = ["ACTIONS", "ENDED", "SILENT", "Action", "PastAttempt", "Resubmission", "State", "Stop"]

_Text: TypeAlias = Annotated[str, Meta(max_length=600)]
_Word: TypeAlias = Annotated[str, Meta(max_length=128)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
_Mib: TypeAlias = Annotated[int, Meta(ge=1, le=999_999_999)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=4e9)]

Action: TypeAlias = Literal[
    "never", "once", "other_node", "backoff", "more_memory", "from_checkpoint", "requeue"
]
"""What a reason asks for, as `failures/taxonomy.md` has it and the site may change it."""
ACTIONS: Final[tuple[Action, ...]] = (
    "never", "once", "other_node", "backoff", "more_memory", "from_checkpoint", "requeue",
)  # fmt: skip

Stop: TypeAlias = Literal[
    "",
    "never",  # the table: trying again cannot help
    "budget",  # tried often enough
    "same_evidence",  # the same evidence on other nodes
    "confidence",  # not sure enough of the reason
    "mode",  # the site does not enforce for this job
    "off",  # switched off, by the user or the site
    "dependants",  # other jobs wait for it
    "no_requeue",  # --no-requeue, or no batch job
    "array",  # a whole array, or a heterogeneous job
    "limit",  # a limit of user, account, QOS, partition or node
    "no_checkpoint",  # nothing says that it could go on from somewhere
    "unknown",  # what is needed to change it is not known (memory, nodes)
    "gone",  # Slurm has no record of it any more
    "slurm",  # Slurm or gsub-act said no
    "moved_on",  # somebody else requeued, cancelled or changed it meanwhile
]
"""Why an attempt is not followed by another one of ours; "" where it is."""

State: TypeAlias = Literal["planned", "requeued", "done", "stopped"]
"""`planned`: to be asked of gsub-act. `requeued`: Slurm has it queued again, not changed yet. `done`: all asked for was
done. `stopped`: nothing (more) is done; `stop` has why."""
ENDED: Final[tuple[State, ...]] = ("done", "stopped")
SILENT: Final = "gsub-act does not answer"
"""`said` of a row that waits because nobody is there to carry it out."""


class Resubmission(msgspec.Struct, frozen=True, omit_defaults=True):
    """What follows a failed attempt (`job_id`, `restarts`).

    `reason` is the verdict's, `action` what the table has for it. `why` is a sentence for the user: what is done and
    why, or why nothing is. `command` is what the user may type instead ("" where nothing helps). `nth` of `budget`:
    which of this job's resubmissions it is, from 1; 0 where it is none. `charged`: it counts against the budget, as all
    do but a lost node and a preemption. `due` is when it is next worked on. `avoid` are the nodes that are added to
    those the job excludes, `exclude` the hostlist that it is to exclude from now on; `memory_mib` is what it asks for
    instead of `memory_was_mib`, for each node or CPU (`memory_per`). `said` is what Slurm or gsub-act answered last,
    `tries` how often it was asked, `failed` how often Slurm said no to the step. `step` is the next thing to be asked
    for ("" where none is). `shown` is the job as Slurm writes it (12, 12_3).
    `held`: it was requeued with a hold, which has to be released.
    """

    cluster: _Word
    job_id: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    restarts: _Count
    reason: _Word
    action: Action
    state: State
    at: _Time
    why: _Text
    stop: Stop = ""
    command: _Text = ""
    nth: _Count = 0
    budget: _Count = 0
    charged: bool = True
    due: _Time | None = None
    delay_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    avoid: Annotated[tuple[_Word, ...], Meta(max_length=256)] = ()
    memory_mib: _Mib | None = None
    memory_was_mib: _Mib | None = None
    memory_per: Literal["", "node", "cpu"] = ""
    step: Literal["", "requeue", "requeuehold", "update", "release"] = ""
    said: _Text = ""
    tries: _Count = 0
    verdict: _Word = ""
    failed: _Count = 0
    shown: _Word = ""
    exclude: Annotated[str, Meta(max_length=1024)] = ""
    held: bool = False

    @property
    def withheld(self) -> bool:
        """Whether it waits for a gsub-act that does not answer: then nothing may be promised."""
        return self.state not in ENDED and self.said == SILENT


class PastAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An earlier attempt at a job: why it failed (None: it did not, or nothing is known), where it ran and for how long
    (seconds), when it ended, and what followed it (None: nothing of ours).
    """

    restarts: int
    finding: Finding | None = None
    source: Source = "user"
    nodes: tuple[str, ...] = ()
    runtime: float | None = None
    ended: float | None = None
    resubmission: Resubmission | None = None
