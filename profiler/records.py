"""What a node tells the service of its jobs and of itself: frozen records that cross process borders, versioned.

A record is made on a node, waits in its spool, travels in a batch, and ends in the store, which ignores a repeat:
each is known by what it is about (`identity`), so that sending it twice changes nothing.

Times (`at`, `since`, ...) are seconds since the epoch by the node's clock, spans are seconds; None is "not known",
never 0. What a user wrote (paths, names) is text that nobody may trust.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from profiler.findings import Finding

VERSION = 1
LAST_JOB_ID = 0xFFFEFFFF
"""The greatest id of a job. ``srun --no-allocate`` draws numbers beyond it, which slurmctld has no jobs for
(MIN_NOALLOC_JOBID), and whose end nobody tells."""

# Bounds hold for what is decoded: a record comes over the network.
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Uid: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
_Percent: TypeAlias = Annotated[float, Meta(ge=0, le=100)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=4e9)]
_Word: TypeAlias = Annotated[str, Meta(max_length=256)]
_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Node: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$")]
_Id: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]


def new_id() -> str:
    """An id for a record: 128 random bits, in hex."""
    return secrets.token_hex(16)


class GpuRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU, or a MIG instance, of a node.

    `minor` is the number of its device file (3: /dev/nvidia3; for an instance that of its GPU), as Slurm knows it;
    `uuid` is NVML's. One of the two may be unknown. `parent_uuid` is set for a MIG instance.
    """

    minor: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    uuid: Annotated[str, Meta(max_length=128)] | None = None
    name: _Word = ""
    parent_uuid: Annotated[str, Meta(max_length=128)] | None = None


class JobRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt at a job: Slurm's id (an array task's, a hetjob component's own), and how often it was requeued."""

    job_id: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    restarts: Annotated[int, Meta(ge=0, le=1 << 20)] = 0


class JobStarted(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_started", tag_field="kind"):
    """A job was given this node. `source`: the prolog told it, or the agent found it running (`reconciled`).

    `gpus` are those that Slurm gave to it here; None: not known; empty: none. `nodes` is Slurm's hostlist of all its
    nodes. `stdout` and `stderr` are unexpanded patterns ("slurm-%j.out"), relative to `work_dir`; "" where Slurm
    does not tell. `het_job_id` is the leader's id.
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    job: JobRef
    source: Literal["prolog", "reconciled"] = "prolog"
    uid: _Uid | None = None
    gid: _Uid | None = None
    user: _Word = ""
    account: _Word = ""
    partition: _Word = ""
    nodes: Annotated[str, Meta(max_length=1 << 16)] = ""
    gpus: Annotated[tuple[GpuRef, ...], Meta(max_length=1024)] | None = None
    het_job_id: Annotated[int, Meta(ge=1, le=2**32 - 1)] | None = None
    work_dir: _Text = ""
    stdout: _Text = ""
    stderr: _Text = ""
    v: Literal[1] = 1


class JobEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_ended", tag_field="kind"):
    """A job left this node. `source`: the epilog told it; the agent saw it gone (`reconciled`); the node began anew
    (`reboot`), which ended it.

    `exit_code` and `signal` are of the batch script, where Slurm tells them here (on the batch host, mostly).
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    job: JobRef
    source: Literal["epilog", "reconciled", "reboot"] = "epilog"
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=0, le=127)] | None = None
    derived_exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    v: Literal[1] = 1


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job used one GPU. All from NVML, which is root's evidence.

    `seconds` were looked at, by `samples` readings. Utilisation in per cent of time with a kernel running: mean, and
    5th, 50th and 95th percentile over the time. `idle_at_start` is the time before its first use, `idle_after` the
    longest idle stretch after one, `idle_at_end` the one that lasted to the end; `busy_seconds` the time with a
    process on it. `stuck_seconds` is time at high utilisation and hardly any power: the mark of a collective that
    waits for ever; `stuck_at_end` the stretch of that, however short, that lasted to the end. `throttled` has the
    seconds for which each cause slowed the clocks ("gpu_idle" is none). ECC errors are those that came during the job.
    """

    gpu: GpuRef
    samples: _Count = 0
    seconds: _Number = 0.0
    utilisation_mean: _Percent | None = None
    utilisation_p5: _Percent | None = None
    utilisation_p50: _Percent | None = None
    utilisation_p95: _Percent | None = None
    utilisation_busy_mean: _Percent | None = None
    memory_peak_bytes: _Count | None = None
    memory_mean_bytes: _Number | None = None
    memory_total_bytes: _Count | None = None
    power_mean_w: _Number | None = None
    power_peak_w: _Number | None = None
    power_limit_w: _Number | None = None
    energy_j: _Number | None = None
    temperature_peak_c: Annotated[int, Meta(ge=0, le=1000)] | None = None
    clock_sm_mean_mhz: _Number | None = None
    busy_seconds: _Number | None = None
    idle_at_start_seconds: _Number | None = None
    idle_after_seconds: _Number | None = None
    idle_at_end_seconds: _Number | None = None
    stuck_seconds: _Number | None = None
    stuck_at_end_seconds: _Number | None = None
    throttled: Annotated[dict[Annotated[str, Meta(max_length=64)], _Number], Meta(max_length=32)] | None = (
        None
    )
    ecc_corrected: _Count | None = None
    ecc_uncorrected: _Count | None = None
    xids: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 20)], ...], Meta(max_length=256)] = ()
    faults: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=32)] = ()


class HostUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's CPUs and memory on this node, by its cgroup or, less exactly, by /proc (`source`).

    `cpu_seconds` is user and system time; `cpus` those that it may use. `memory_peak_bytes` counts what it holds
    (anonymous and page cache in a cgroup: `source` says which; resident pages by /proc), `memory_working_bytes` its
    peak without what the kernel could take back. `oom_kills` counts processes that the kernel killed for memory.
    """

    source: Literal["cgroup2", "cgroup1", "proc"]
    cpu_seconds: _Number | None = None
    cpus: _Number | None = None
    memory_peak_bytes: _Count | None = None
    memory_working_bytes: _Count | None = None
    memory_limit_bytes: _Count | None = None
    oom_kills: _Count | None = None


class JobUsage(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_usage", tag_field="kind"):
    """What a job did on this node so far, or (`final`) in all. The one with the highest `serial` counts.

    `unseen_seconds` is the part of since..until in which nobody looked (agent down, driver hung); None: not known.
    `note` says in a sentence why something is missing.
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    job: JobRef
    serial: _Count
    final: bool
    since: _Time
    until: _Time
    gpus: Annotated[tuple[GpuUse, ...], Meta(max_length=1024)] = ()
    host: HostUse | None = None
    unseen_seconds: _Number | None = None
    note: _Text = ""
    v: Literal[1] = 1


_Column: TypeAlias = Annotated[tuple[_Number | None, ...], Meta(max_length=2048)]


class GpuSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU over the time of a job: a value a step, None where nobody looked. Per cent, bytes, watts."""

    gpu: GpuRef
    utilisation: _Column = ()
    memory_bytes: _Column = ()
    power_w: _Column = ()


class JobSeries(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_series", tag_field="kind"):
    """A job on this node over time: columns of values that stand for `step` seconds each, from `since` on.

    However long the job, a column has a bounded number of steps: they get longer. The highest `serial` counts.
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    job: JobRef
    serial: _Count
    final: bool
    since: _Time
    step: Annotated[float, Meta(gt=0, le=1e9)]
    gpus: Annotated[tuple[GpuSeries, ...], Meta(max_length=1024)] = ()
    cpus: _Column = ()
    memory_bytes: _Column = ()
    v: Literal[1] = 1


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_event", tag_field="kind"):
    """Something that happened to a node or a GPU: a health check that changed its mind, an Xid, records that were lost.

    `name` is the check's or the event's ("gpu_count", "xid", "spool_dropped"); `state` what it is now. `action` is
    what was done: nothing, a comment, a drain. `job` where it came during one.
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    name: _Word
    state: Literal["ok", "warning", "error", "unknown", "info"]
    detail: _Text = ""
    action: Literal["none", "comment", "drain", "undrain"] = "none"
    gpu: GpuRef | None = None
    job: JobRef | None = None
    v: Literal[1] = 1


class JobFinding(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_finding", tag_field="kind"):
    """What an ended job's logs say of its failure, as its batch host read them with the user's rights.

    The highest `serial` counts. The service joins it with Slurm's word and the nodes' evidence to a verdict.
    """

    id: _Id
    cluster: _Word
    node: _Node
    at: _Time
    job: JobRef
    finding: Finding
    serial: _Count = 1
    v: Literal[1] = 1


Record: TypeAlias = JobStarted | JobEnded | JobUsage | JobSeries | JobFinding | NodeEvent

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """A record as one line of JSON, without its end."""
    return _encoder.encode(record)


def decode(line: bytes | msgspec.Raw) -> Record:
    """Read what `encode` wrote; unknown fields are passed over, so that a newer node may speak to an older service.

    Raises msgspec.MsgspecError (a ValueError), whose message names the field and what is wrong.
    """
    return _decoder.decode(line)


def identity(record: Record) -> tuple[object, ...]:
    """What a record is about: two with the same identity are one fact told twice, or an older and a newer state of it.

    The higher `serial` counts, where there is one; else the first.
    """
    if isinstance(record, NodeEvent):
        return ("node_event", record.id)
    kind = str(record.__struct_config__.tag)
    return (kind, record.cluster, record.job.job_id, record.job.restarts, record.node)


PRIORITY = {
    "job_ended": 0,
    "job_started": 0,
    "job_usage": 1,
    "job_finding": 1,
    "node_event": 2,
    "job_series": 3,
}
"""Which records are given up first when there is no room: the highest number. Summaries outlive series."""


def kind_of(record: Record) -> str:
    """The tag of a record, as in its JSON ("job_usage")."""
    return str(record.__struct_config__.tag)


def now() -> float:
    """The time that records carry."""
    return time.time()
