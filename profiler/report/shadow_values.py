"""What the shadow is made of: decisions as they were written down, attempts, and a stage's row of the page."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from profiler.report.evidence import LEAST, Figure, interval

if TYPE_CHECKING:
    from sqlalchemy import Row

__all__ = ["MEMORY", "Attempt", "Body", "Changed", "Happened", "Noted", "Script", "Stage", "Verdict", "most"]

MEMORY: Final = frozenset({"min_mem_per_node", "min_mem_per_cpu", "mem_per_tres"})
"""The fields of a job that say how much memory it has."""
Verdict: TypeAlias = Literal["for", "against", "open"]


class Changed(msgspec.Struct):
    """A change, as `slurm_plugins.decide.decision.Change` is written down."""

    field: str
    after: int | str
    before: int | str | None = None
    stage: str = ""


class Noted(msgspec.Struct):
    """A note of a stage, with the numbers behind it."""

    stage: str = ""
    inputs: dict[str, Any] = {}


class Script(msgspec.Struct):
    """What is known of a script."""

    sha256: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What was asked for."""

    partition: str | None = None
    num_tasks: int | None = None
    array_inx: str | None = None


class Body(msgspec.Struct):
    """What is read of a decision's record (`slurm_plugins.service.written`)."""

    changes: tuple[Changed, ...] = ()
    notes: tuple[Noted, ...] = ()
    asked: Asked = Asked()
    facts: dict[str, Any] = {}
    script: Script | None = None
    reject: str | None = None
    opted_out: bool = False

    @property
    def changes_memory(self) -> bool:
        """Whether sensitivity would have set another memory."""
        return any(one.stage == "sensitivity" and one.field in MEMORY for one in self.changes)


@dataclass(slots=True)
class Attempt:
    """What happened: times in seconds, memory in bytes on a node, `used` CPUs busy in the mean. None: not known."""

    key: int
    job_id: int
    restarts: int
    uid: int | None
    partition: str
    hosts: str
    state: str
    submitted: float | None
    wait: float | None
    run: float | None
    nodes: int | None
    cpus: int | None
    gpus: int | None
    asked: float | None
    peak: float | None
    used: float | None
    utilisation: float | None
    reason: str

    @classmethod
    def of(cls, row: Row[Any]) -> Attempt:
        """Out of a row of the store."""
        known = row.started is not None and row.ended is not None
        run = max(0.0, row.ended - row.started) if known else None
        first = row.submitted if row.eligible is None else row.eligible
        waited = row.started is not None and first is not None
        return cls(
            key=row.pk,
            job_id=row.job_id,
            restarts=row.restarts,
            uid=row.uid,
            partition=row.partition,
            hosts=row.nodes,
            state=row.state or ("ended" if row.ended is not None else "running"),
            submitted=row.submitted,
            wait=max(0.0, row.started - first) if waited else None,
            run=run,
            nodes=row.node_count,
            cpus=row.cpus,
            gpus=row.gpus,
            asked=row.memory_asked_bytes / row.node_count
            if row.memory_asked_bytes and row.node_count
            else None,
            peak=row.memory_peak_bytes,
            used=row.cpu_seconds / run if run and row.cpu_seconds is not None else None,
            utilisation=row.utilisation_mean,
            reason=row.why or "",
        )

    @property
    def like(self) -> tuple[str, int | None]:
        """What it is compared with: its partition and its GPUs."""
        return self.partition, self.gpus

    @property
    def hours(self) -> float:
        """Of its run; 0 where that is not known."""
        return (self.run or 0.0) / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage's row of the page.

    `attempts` of `jobs` on which it would have acted, with the GPU-hours that these held; `changes` by kind. `helped`
    and `harmed` of `known` (None: the store cannot tell); `verdict` is "for" where the stage is to be recommended,
    "against" where it would have done harm, else "open", and `why` says it in a sentence. `enforced` were done already.
    """

    name: str
    attempts: int
    jobs: int
    gpu_hours: float
    changes: Mapping[str, int]
    happened: tuple[Figure, ...]
    benefit: tuple[Figure, ...]
    harm: tuple[Figure, ...]
    helped: int | None
    harmed: int | None
    known: int
    verdict: Verdict
    why: str
    assumes: str
    enforced: int = 0

    @property
    def sure(self) -> float:
        """Attempts of those known that it would have helped at least: the lower end of the interval."""
        return interval(self.helped or 0, self.known)[0] * self.known


class Happened:
    """What really happened to the attempts on which a stage would have acted."""

    def __init__(self) -> None:
        self.attempts = self.jobs = 0
        self.changes: Counter[str] = Counter()
        self.hours = array("d")
        self._waits = array("d")
        self._busy = array("d")
        self._seen = array("d")
        self._known = 0
        self._ends: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, fields: Sequence[str], attempts: Sequence[Attempt]) -> None:
        """A decision that would have changed those fields, and the attempts at its job."""
        self.jobs += 1
        self.changes.update(set(fields))
        for one in attempts:
            self.attempts += 1
            held = (one.gpus or 0) * one.hours
            self.hours.append(held)
            if one.wait is not None:
                self._waits.append(one.wait)
            if one.utilisation is not None and held:
                self._known += 1
                self._busy.append(one.utilisation * held)
                self._seen.append(held)
            self._ends[one.state.lower()] += 1
            if one.reason not in ("", "none"):
                self._reasons[one.reason] += 1

    def figures(self) -> tuple[Figure, ...]:
        """Waited, used, ended, failed."""
        waits = sorted(self._waits)
        middle = waits[(len(waits) - 1) // 2] if len(waits) >= LEAST else None
        seen = fsum(self._seen)
        use = fsum(self._busy) / seen if seen and self._known >= LEAST else None
        return (
            Figure("waited (median)", middle, "s", len(waits)),
            Figure("GPU utilisation", use, "%", self._known),
            *(Figure(f"ended: {name}", count, "", self.attempts) for name, count in most(self._ends)),
            *(Figure(f"failed: {name}", count, "", self.attempts) for name, count in most(self._reasons)),
        )

    def row(self) -> dict[str, Any]:
        """The members of a `Stage` that it knows."""
        return {
            "attempts": self.attempts,
            "jobs": self.jobs,
            "gpu_hours": fsum(self.hours),
            "changes": dict(most(self.changes)),
            "happened": self.figures(),
        }


def most(counts: Counter[str]) -> list[tuple[str, int]]:
    """The most frequent first; among equals by name."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
