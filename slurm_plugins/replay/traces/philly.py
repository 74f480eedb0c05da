"""Philly's jobs as `timestamp,duration,num_gpus,gpu_time,cluster`: a virtual cluster each, without user or ending.

The paper: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, ATC'19; data: msr-fiddle/philly-traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from slurm_plugins.replay.traces.files import Kind, LeftOut, Reading, count, number, rows, traced
from slurm_plugins.replay.values import Job

__all__ = ["PHILLY"]

_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")


def _read(path: Path) -> Reading:
    left = LeftOut()
    return Reading(traced(path, _jobs(path, left), left, dated=True), PHILLY.name)


def _jobs(path: Path, left: LeftOut) -> Iterator[Job]:
    for place, row in enumerate(rows(path, _COLUMNS, left), start=1):
        try:
            # The file names no zone: read as UTC, its days are as long as they were
            arrival = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=timezone.utc).timestamp()
            work, gpus = number(row, "duration"), count(row, "num_gpus")
        except ValueError:
            left["a time, a duration or a number of GPUs that cannot be read"] += 1
            continue
        if work <= 0 or gpus < 0:
            left["no run time, or less than no GPU"] += 1
            continue
        yield Job(place, arrival, work, gpus, queue=row["cluster"])


def _knows(head: str) -> bool:
    return {"timestamp", "num_gpus", "cluster"} <= {name.strip() for name in head.split(",")}


PHILLY: Final = Kind("philly", "Philly's jobs", _knows, _read)
