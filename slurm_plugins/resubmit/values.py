"""What `plan` looks at: a failed attempt, what is known of its failure, what was tried before, what Slurm allows.

All frozen, no clock, no I/O: the keeper and `gsub resubmit` make them, each from what it can see. Memory is MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiler.findings import Finding, Source
from profiler.resubmissions import Resubmission

__all__ = ["Attempt", "Earlier", "Failure", "Memory", "Past", "Switches"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A job's memory: `asked_mib` for each `per` ("node", "cpu", "gpu"; "" where not known), the highest peak of a
    node, and what a node of its partition gives at most. `cpus_per_node` where `per` is "cpu". None: not known.
    """

    asked_mib: int | None = None
    per: str = ""
    peak_mib: int | None = None
    most_mib: int | None = None
    cpus_per_node: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed.

    `id` is Slurm's way to write it (12, 12_3). `nodes` are those that it ran on, `excluded` those it kept off,
    `required` those that it must have (--nodelist), `partition_nodes` all that it could run on (empty: not known).
    `runtime_s` and `gpus` None: not known; `gpus` 0: it asked for none.
    `batch`, `requeue`: Slurm's words; None: not known. `dependants` are jobs that wait for this one (None: not known).
    `client` is the program that manages it and is left to do so ("": none).
    `wishes` are the words for gsub in its comment and environment ("off", "resubmit=off", "checkpoint").
    `signal_before_end`: it has asked Slurm for a signal before its time ends (--signal).
    """

    cluster: str
    job_id: int
    restarts: int
    id: str
    uid: int
    state: str
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    partition_nodes: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    runtime_s: float | None = None
    ended: float | None = None
    gpus: int | None = None
    batch: bool | None = None
    requeue: bool | None = None
    whole_array: bool = False
    het: bool = False
    dependants: tuple[str, ...] | None = ()
    client: str = ""
    wishes: frozenset[str] = frozenset()
    signal_before_end: bool = False
    memory: Memory = Memory()


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict on it. `source` is who could have written what decided; `node` the first to fail ("": not known).

    `checkpoint` is a checkpoint that the job told of or its log names ("": none); `progressed` as in `Finding`.
    `resumes`: the job told of it through `gsub.train`, so its script goes on from there; what a framework prints when
    it saves does not say that.
    """

    reason: str
    confidence: float
    tier: str
    source: Source
    fingerprint: str = ""
    node: str = ""
    progressed: bool | None = None
    checkpoint: str = ""
    resumes: bool = False

    @classmethod
    def of(cls, finding: Finding, source: Source) -> Failure:
        """A verdict as policy sees it."""
        return cls(
            reason=finding.reason,
            confidence=finding.confidence,
            tier=finding.tier,
            source=source,
            fingerprint=finding.fingerprint,
            node=finding.node,
            progressed=finding.progressed,
            checkpoint=finding.checkpoint,
            resumes=finding.resumes,
        )


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier attempt of the same job: its failure, where it ran, what followed it (None: nothing of ours)."""

    failure: Failure
    nodes: tuple[str, ...]
    resubmission: Resubmission | None
    runtime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """All earlier attempts of the job that are known, the oldest first."""

    attempts: tuple[Earlier, ...] = ()


@dataclass(frozen=True, slots=True)
class Switches:
    """Who may stop it: the site's mode for this job, and the site's switch."""

    mode: str = "observe"
    enabled: bool = True
