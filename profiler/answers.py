"""What the service answers over HTTP, as values: what its API promises, and what gsub, a node or a notebook reads.

The API's OpenAPI document is made from these types. Times are seconds since the epoch, spans seconds, sizes bytes,
utilisation per cent; None is "not known". A reader passes over fields that it does not know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from profiler.curves import Point
from profiler.findings import Finding, Source
from profiler.records import GpuSeries, GpuUse, HostUse, JobRef, NodeEvent
from profiler.resubmissions import Resubmission


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was not granted, and what to do."""

    error: str
    remedy: str = ""


class Refused(msgspec.Struct, frozen=True):
    """A record that will never be taken: its place in the batch, its id where it could be read, and why."""

    index: int
    id: str
    why: str


class Taken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a batch of records: the ids of those that are in the store now, and those that never will be.

    `running` are the jobs that Slurm had on that node when it was asked at `seen_at`; None where that is not known.
    """

    accepted: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    running: tuple[JobRef, ...] | None = None
    seen_at: float | None = None


class JobSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt at a job: what Slurm says of it, and in a few figures how it used its GPUs.

    `state` is Slurm's word; absent from the moment when its nodes tell of its end until Slurm says how it ended.
    `complete` once it has ended and every node that started it has told its end. GPU figures are means over its GPUs
    (peak: the highest); `gpus_idle` are those that were never used; `gpus_known` those that anything is known of.
    `memory_asked_bytes` is for the whole job; `memory_peak_bytes` the highest of one node.
    """

    cluster: str
    job_id: int
    restarts: int = 0
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    name: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: str | None = None
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    time_limit: float | None = None
    nodes: str = ""
    cpus: int | None = None
    gpus: int | None = None
    memory_asked_bytes: int | None = None
    work_dir: str = ""
    complete: bool = False
    gpus_known: int = 0
    gpus_idle: int | None = None
    gpu_seconds: float | None = None
    utilisation_mean: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    power_mean_w: float | None = None
    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None


class Jobs(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of jobs, the last to start (or to end) first; `next` asks for the page after it."""

    jobs: tuple[JobSummary, ...]
    next: str | None = None


class NodeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job did on one of its nodes. Without usage yet, `gpus` and `host` are empty."""

    node: str
    since: float | None = None
    until: float | None = None
    final: bool = False
    ended_by: Literal["epilog", "reconciled", "reboot"] | None = None
    gpus: tuple[GpuUse, ...] = ()
    host: HostUse | None = None
    unseen_seconds: float | None = None
    note: str = ""


class RuleTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule on use that the job's user was told of at `at`: what it says of the job, and what that rested on.

    `cancelled` is when the job was cancelled for it.
    """

    rule: str
    at: float
    about: str = ""
    evidence: str = ""
    cancelled: float | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's use of its GPUs and nodes; what follows if it failed, once that is decided; what its user was told of."""

    job: JobSummary
    nodes: tuple[NodeUse, ...]
    resubmission: Resubmission | None = None
    told: tuple[RuleTold, ...] = ()


class NodeSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node's columns, a value for each `step` seconds from `since` on."""

    node: str
    since: float
    step: float
    gpus: tuple[GpuSeries, ...] = ()
    cpus: tuple[float | None, ...] = ()
    memory_bytes: tuple[float | None, ...] = ()


class Series(msgspec.Struct, frozen=True):
    """A job over time."""

    job: JobSummary
    nodes: tuple[NodeSeries, ...]


class Sign(msgspec.Struct, frozen=True):
    """A node's sign of life: when (seconds since the epoch), and its agent's release of gsub, empty if not told."""

    at: float
    release: str = ""


class NodeSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node: when it was last heard of, and which checks are not well there (the last event of each).

    version: its agent's release of gsub, where it was heard of since the service started; else empty.
    """

    name: str
    heard: float | None = None
    jobs: tuple[JobRef, ...] = ()
    unwell: tuple[NodeEvent, ...] = ()
    version: str = ""


class Nodes(msgspec.Struct, frozen=True):
    """The nodes that ever gave a sign of life."""

    nodes: tuple[NodeSummary, ...]


class Events(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of events of a node, the latest first."""

    events: tuple[NodeEvent, ...]
    next: str | None = None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt at a job failed, as far as is known: what its logs, Slurm and its nodes say, put together.

    `source` is who could have written what decided: root (Slurm, the kernel, NVML), or the user, whose logs they are.
    `state` is Slurm's word, absent where it gave none. `gpu_seconds` is what the attempt held: GPUs asked for, times
    its run time. `at`: when it ended.
    """

    cluster: str
    job_id: int
    restarts: int
    finding: Finding
    source: Source = "user"
    at: float | None = None
    state: str | None = None
    gpu_seconds: float | None = None


class Verdicts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of verdicts, the last to end first."""

    verdicts: tuple[Verdict, ...]
    next: str | None = None


class EarlyFailures(msgspec.Struct, frozen=True, omit_defaults=True):
    """After how long jobs of a kind failed of what a smoke run would have seen, of all users, without names.

    `jobs` are those that failed so or ran for ten minutes and longer; `failed` run times in seconds, ascending. A
    workload of a user counts once a day.
    """

    jobs: int
    failed: tuple[float, ...] = ()


class Similar(msgspec.Struct, frozen=True, omit_defaults=True):
    """Other failures of the same user that look like this one, since `days` days before it.

    `by` says in what they are alike: the evidence ("fingerprint"), or only reason and job name ("reason"). `last_job`
    is the last of them and `last_at` its end, `jobs` names the last few. `passed_after` counts runs of the same job
    name that ended well and started after the last of these failures, this one among them; a lower bound for a user
    with thousands of jobs since.
    """

    count: int
    days: int
    last_job: str
    last_at: float
    passed_after: int
    jobs: tuple[str, ...] = ()
    by: Literal["fingerprint", "reason"] = "fingerprint"


class VerdictAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed, and what is known of failures like it. Without a verdict: none is known (yet)."""

    job: JobSummary
    verdict: Verdict | None = None
    similar: Similar | None = None


class Resubmissions(msgspec.Struct, frozen=True):
    """What was decided after each failed attempt at a job, the oldest attempt first."""

    resubmissions: tuple[Resubmission, ...]


class Clearance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody has looked after a node: what speaks against it from before `at` does not count any more."""

    node: str
    at: float
    by: str = ""
    why: str = ""


class DecisionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What gsub decided when the job was submitted, and how the job was found; None: not known, or not there.

    Both are lines of gsubd's journal, as docs/service.md has them.
    """

    job: JobSummary
    decision: dict[str, Any] | None = None
    joined: dict[str, Any] | None = None


class FreeGpus(msgspec.Struct, frozen=True, omit_defaults=True):
    """GPUs that suit a pending job: free now, of how many, the most on one node; and nodes that cannot be used."""

    free: int
    total: int
    largest: int = 0
    unusable: int = 0


class QueuePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The jobs that come before a pending job in its partitions, as the queue was at `at` (None: just now).

    `higher` have a higher priority; `earlier` have the same and were submitted before it. `free` is None where it asks
    for no GPU, or where that is not known.
    """

    higher: int = 0
    earlier: int = 0
    at: float | None = None
    free: FreeGpus | None = None


class ReasonRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason over a span of time: failed attempts, their jobs and users, what they held of GPUs.

    `gpu_seconds` sums GPUs asked for times run time; `runtime_p50` is the median run time to the failure.
    """

    reason: str
    attempts: int
    jobs: int
    users: int
    gpu_seconds: float = 0.0
    runtime_p50: float | None = None


class Reasons(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why attempts failed that ended from `since` on and before `until`: the costliest reason first."""

    reasons: tuple[ReasonRow, ...]
    since: float
    until: float


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure, on how many attempts it rests, and of how many of these it is not known: they are not in it."""

    value: float | None = None
    attempts: int = 0
    unknown: int = 0


class ReportOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How attempts ended, and what they held of GPUs; `unknown`: of how many that is not known."""

    outcome: str
    attempts: int
    gpu_seconds: float | None = None
    unknown: int = 0


class ReportReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Failed attempts of one reason ("n/a": none is known), and the median run time until the failure."""

    reason: str
    attempts: int
    gpu_seconds: float | None = None
    runtime_p50: float | None = None
    unknown: int = 0


class ReportWait(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long attempts of one size waited in the queue; `gpus` is a class of sizes, "n/a" or "all".

    `over_10_min` counts those that waited so long; `unknown` are in none of the figures.
    """

    gpus: str
    attempts: int
    unknown: int = 0
    wait_p50: float | None = None
    wait_p90: float | None = None
    wait_seconds: float | None = None
    over_10_min: int = 0


class ReportCause(msgspec.Struct, frozen=True, omit_defaults=True):
    """What attempts waited for from their submission to their start: a cause, "n/a" for what nobody saw.

    `waited` counts those that did so at all; of `unknown` it is not known how long they waited for it.
    """

    cause: str
    attempts: int
    unknown: int = 0
    waited: int = 0
    wait_seconds: float | None = None


class Advice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that would have helped: of `attempts` it is so, of `of` it is known whether it is.

    `what` names it, `gpu_seconds` is what was at stake, `job_id` the last of the jobs, `values` what else there is to
    tell of them. docs/report.md says when each is given.
    """

    what: str
    attempts: int
    of: int
    job_id: int
    gpu_seconds: float | None = None
    values: dict[str, float] = {}


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user's attempts that ran from `since` on and before `until` held, used and lost.

    GPU seconds are those inside the span. Figures about GPUs are of attempts on GPUs. `idle` are GPUs that were never
    used, `wasted` all of failed attempts and what others never used. `held_seconds` is the time from submitted to
    eligible (a dependency, a begin time, a hold), `queued_seconds` from then to the start.
    """

    cluster: str
    since: float
    until: float
    attempts: int
    jobs: int
    gpu_seconds: Figure
    utilisation: Figure
    idle_gpu_seconds: Figure
    failed_gpu_seconds: Figure
    wasted_gpu_seconds: Figure
    held_seconds: Figure
    queued_seconds: Figure
    outcomes: tuple[ReportOutcome, ...] = ()
    failures: tuple[ReportReason, ...] = ()
    waits: tuple[ReportWait, ...] = ()
    causes: tuple[ReportCause, ...] = ()
    advice: tuple[Advice, ...] = ()


class NodeEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What speaks against a node from one source: `votes` of `users`, one for each user, workload and day, and one for
    all that failed at once.

    Both lose half their weight in some days: `weight` is what is left of the votes, `trials` of all workloads that ran
    there. `probability` that they fail there more than elsewhere in the partition; the votes came from `since` to
    `last`.
    """

    votes: int
    users: int
    weight: float
    trials: float
    probability: float
    since: float | None = None
    last: float | None = None


class BadNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a partition that evidence speaks against, for one reason. `avoided`: jobs keep off it.

    Only operators are told the rest, and of nodes that are not avoided: `by`, whose evidence is enough ("" for
    nobody's), and the evidence, root's and users' apart.
    """

    node: str
    partition: str
    reason: str
    avoided: bool = False
    by: Literal["", "root", "user"] = ""
    root: NodeEvidence | None = None
    user: NodeEvidence | None = None


class BadNodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nodes that evidence speaks against, the worst of each partition first, as of `at` (None: not weighed yet).

    `cleared`: those that somebody has looked after, and when. Operators only.
    """

    nodes: tuple[BadNode, ...] = ()
    at: float | None = None
    cleared: tuple[Clearance, ...] = ()


class ClearNode(msgspec.Struct, frozen=True):
    """What an operator says who clears a node: why."""

    why: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class PointsTaken(msgspec.Struct, frozen=True):
    """What a run measured is kept. `new`: it was not there before."""

    new: bool


class ForgetWorkload(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which workload is to be forgotten: one of its names, or as much of one as no other begins with.

    `user` is the login name or the uid of whose it is, for operators; empty for one's own.
    """

    workload: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    user: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Forgotten(msgspec.Struct, frozen=True):
    """What was forgotten: all that `runs` runs measured which had this name."""

    workload: str
    runs: int


class WorkloadCurve(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one workload of a user on one type of GPU, under one of its names.

    `also` are its other names that the same runs have. `runs` measured its throughput, on `gpus` GPUs of a node; `at`
    is when the last did, or last told of its memory. `measured` are their points, all GPUs together. `curve` is what
    was fitted to these: (CPUs for each GPU, steps a second), `knee` in it the fewest CPUs for each GPU that give the
    best, `spread` how sure that is (standard deviation, in CPUs), `error` the standard error of the best as a share of
    it; `open_end`: more CPUs than any that were tried may give more. Without two counts of CPUs there is no curve.
    `memory_peak` is bytes for each GPU.
    """

    workload: str
    gpu_type: str = ""
    also: tuple[str, ...] = ()
    runs: int = 0
    at: float = 0.0
    gpus: int = 1
    measured: tuple[Point, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()
    knee: int | None = None
    spread: float | None = None
    error: float | None = None
    open_end: bool = False
    memory_peak: int | None = None


class Curves(msgspec.Struct, frozen=True):
    """What is known of the asker's workloads, the one that was measured last first."""

    curves: tuple[WorkloadCurve, ...]
