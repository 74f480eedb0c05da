"""Figures of a job out of those of its nodes, and of a node out of those of its GPUs. Pure.

Sums are exact (math.fsum), so that the order in which nodes deliver does not show in the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final

import msgspec

from profiler.records import GpuUse

__all__ = ["JOB_SUMS", "NODE_SUMS", "job_sums", "node_sums", "was_used"]

NODE_SUMS: Final = (
    "gpus_known",
    "gpus_idle",
    "gpu_seconds",
    "utilisation_sum",
    "utilisation_weight",
    "power_sum",
    "power_weight",
    "gpu_memory_peak_bytes",
    "gpu_memory_total_bytes",
)
JOB_SUMS: Final = (
    "gpus_known",
    "gpus_idle",
    "gpu_seconds",
    "utilisation_mean",
    "power_mean_w",
    "gpu_memory_peak_bytes",
    "gpu_memory_total_bytes",
    "cpu_seconds",
    "memory_peak_bytes",
)


def was_used(use: GpuUse) -> bool | None:
    """Whether the GPU ever computed; None: not known.

    A process alone is no use, where utilisation is known; a MIG instance has none, and there a process counts.
    """
    if use.utilisation_mean is not None:
        return use.utilisation_mean > 0
    if use.busy_seconds is not None:
        return use.busy_seconds > 0
    return None


def _known(use: GpuUse) -> bool:
    return use.samples > 0 or was_used(use) is not None or use.memory_peak_bytes is not None


def node_sums(gpus: Sequence[GpuUse]) -> dict[str, Any]:
    """Sums over the GPUs of a job on one node. A mean is weighted by the time looked at, a glance being a second."""
    used = [was_used(use) for use in gpus]
    utilisation = [
        (use.utilisation_mean, max(use.seconds, 1.0)) for use in gpus if use.utilisation_mean is not None
    ]
    power = [(use.power_mean_w, max(use.seconds, 1.0)) for use in gpus if use.power_mean_w is not None]
    return {
        "gpus_known": sum(map(_known, gpus)),
        "gpus_idle": used.count(False) if any(one is not None for one in used) else None,
        "gpu_seconds": fsum(use.seconds for use in gpus) if gpus else None,
        "utilisation_sum": fsum(mean * weight for mean, weight in utilisation) if utilisation else None,
        "utilisation_weight": fsum(weight for _, weight in utilisation) if utilisation else None,
        "power_sum": fsum(mean * weight for mean, weight in power) if power else None,
        "power_weight": fsum(weight for _, weight in power) if power else None,
        "gpu_memory_peak_bytes": _highest(use.memory_peak_bytes for use in gpus),
        "gpu_memory_total_bytes": _highest(use.memory_total_bytes for use in gpus),
    }


def job_sums(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A job's figures from its rows of job_node."""
    rows = list(rows)
    return {
        "gpus_known": sum(row["gpus_known"] or 0 for row in rows),
        "gpus_idle": _total(row["gpus_idle"] for row in rows),
        "gpu_seconds": _exact(row["gpu_seconds"] for row in rows),
        "utilisation_mean": _mean(rows, "utilisation"),
        "power_mean_w": _mean(rows, "power"),
        "gpu_memory_peak_bytes": _highest(row["gpu_memory_peak_bytes"] for row in rows),
        "gpu_memory_total_bytes": _highest(row["gpu_memory_total_bytes"] for row in rows),
        "cpu_seconds": _exact(row["cpu_seconds"] for row in rows),
        "memory_peak_bytes": _highest(row["memory_peak_bytes"] for row in rows),
    }


def told_gpus(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """How many GPUs the nodes say that Slurm gave to the job; None when one does not know."""
    count = None
    for row in rows:
        if row["started_at"] is not None:
            if row["gpus"] is None:
                return None
            count = (count or 0) + (row["gpus"] != "[]" and len(msgspec.json.decode(row["gpus"])))
    return count


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    weight = _exact(row[f"{name}_weight"] for row in rows)
    total = _exact(row[f"{name}_sum"] for row in rows)
    return total / weight if weight and total is not None else None


def _exact(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) if known else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
