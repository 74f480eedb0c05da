"""Records as nodes would tell them."""

from __future__ import annotations

import hashlib
from typing import Any

from profiler.findings import Evidence, Finding
from profiler.records import (
    GpuRef,
    GpuSeries,
    GpuUse,
    HostUse,
    JobEnded,
    JobFinding,
    JobRef,
    JobSeries,
    JobStarted,
    JobUsage,
    NodeEvent,
)
from profiler.store import Judged, Store

CLUSTER = "lab"
T0 = 1_700_000_000.0
GIB = 1 << 30


def record_id(*what: object) -> str:
    return hashlib.md5(repr(what).encode()).hexdigest()


def started(job: int = 1, node: str = "n1", at: float = T0, restarts: int = 0, **more: Any) -> JobStarted:
    values: dict[str, Any] = {
        "source": "prolog",
        "uid": 1000,
        "gid": 1000,
        "user": "ada",
        "account": "vision",
        "partition": "gpu",
        "nodes": node,
        "gpus": (gpu(0), gpu(1)),
        "work_dir": "/home/ada/run",
        "stdout": "slurm-%j.out",
    } | more
    return JobStarted(
        record_id("s", job, node, at, restarts), CLUSTER, node, at, JobRef(job, restarts), **values
    )


def ended(job: int = 1, node: str = "n1", at: float = T0 + 3600, restarts: int = 0, **more: Any) -> JobEnded:
    return JobEnded(record_id("e", job, node, at, restarts), CLUSTER, node, at, JobRef(job, restarts), **more)


def usage(
    job: int = 1, node: str = "n1", serial: int = 1, final: bool = False, restarts: int = 0, **more: Any
) -> JobUsage:
    at = more.pop("at", T0 + 60 * serial)
    values: dict[str, Any] = {
        "since": T0,
        "until": at,
        "gpus": (use(0, 80.0), use(1, 0.0)),
        "host": HostUse("cgroup2", 120.5, 8.0, 6 * GIB, 4 * GIB, 16 * GIB, 0),
    } | more
    name = record_id("u", job, node, serial, final, restarts, at)
    return JobUsage(name, CLUSTER, node, at, JobRef(job, restarts), serial, final, **values)


def series(
    job: int = 1, node: str = "n1", serial: int = 1, final: bool = False, restarts: int = 0, **more: Any
) -> JobSeries:
    at = more.pop("at", T0 + 60 * serial)
    values: dict[str, Any] = {
        "since": T0,
        "step": 10.0,
        "gpus": (GpuSeries(gpu(0), (80.0, None, 81.5), (1e9, 2e9, 2e9), (250.0, None, 251.25)),),
        "cpus": (7.5, 8.0, 7.75),
        "memory_bytes": (1e9, 2e9, None),
    } | more
    name = record_id("c", job, node, serial, final, restarts, at)
    return JobSeries(name, CLUSTER, node, at, JobRef(job, restarts), serial, final, **values)


def event(
    name: str = "gpu_count", state: str = "error", node: str = "n1", at: float = T0, **more: Any
) -> NodeEvent:
    key = record_id("v", name, state, node, at)
    return NodeEvent(key, CLUSTER, node, at, name, state, **more)  # type: ignore[arg-type]


def found(
    job: int = 1,
    reason: str = "gpu_oom",
    node: str = "n1",
    serial: int = 1,
    restarts: int = 0,
    at: float = T0 + 3600,
    **more: Any,
) -> JobFinding:
    """What the logs say, as the batch host tells it."""
    values: dict[str, Any] = {
        "confidence": 0.9,
        "tier": "explicit",
        "evidence": (Evidence("CUDA out of memory", "/home/ada/run/slurm-1.out", 12),),
        "signature": "torch-cuda-oom",
        "fingerprint": f"f-{reason}",
    } | more
    key = record_id("f", job, reason, node, serial, restarts, at)
    return JobFinding(key, CLUSTER, node, at, JobRef(job, restarts), Finding(reason, **values), serial)


def judge_by_logs(store: Store, at: float = T0 + 1e6) -> tuple[Judged, ...]:
    """Judge all that is due by what its logs say alone; what was new."""
    cases = store.unjudged(CLUSTER, 1000, at)
    return store.put_verdicts([Judged(case, case.finding) for case in cases], at)


def gpu(minor: int) -> GpuRef:
    return GpuRef(minor, f"GPU-{minor:08d}", "NVIDIA A100-SXM4-80GB")


def use(minor: int, utilisation: float | None, seconds: float = 3600.0, **more: Any) -> GpuUse:
    values: dict[str, Any] = {
        "samples": 360,
        "utilisation_mean": utilisation,
        "utilisation_p95": None if utilisation is None else min(100.0, utilisation + 5),
        "memory_peak_bytes": 40 * GIB,
        "memory_total_bytes": 80 * GIB,
        "power_mean_w": 250.0,
        "busy_seconds": seconds if utilisation else 0.0,
        "throttled": {"sw_power_cap": 12.5},
    } | more
    return GpuUse(gpu(minor), seconds=seconds, **values)
