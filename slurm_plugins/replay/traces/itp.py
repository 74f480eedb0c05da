"""ITP's jobs as `job_id,submission_time,duration,num_gpu`: times in seconds, ids that are no numbers.

The paper: Gu et al., ElasticFlow, ASPLOS'23; data: microsoft/elasticflow-traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_plugins.replay.traces.files import Kind, LeftOut, Reading, count, number, rows, traced
from slurm_plugins.replay.values import Job

__all__ = ["ITP"]

_COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")


def _read(path: Path) -> Reading:
    left = LeftOut()
    return Reading(traced(path, _jobs(path, left), left), ITP.name)


def _jobs(path: Path, left: LeftOut) -> Iterator[Job]:
    for place, row in enumerate(rows(path, _COLUMNS, left), start=1):
        try:
            arrival, work = number(row, "submission_time"), number(row, "duration")
            gpus = count(row, "num_gpu")
        except ValueError:
            left["a time, a duration or a number of GPUs that cannot be read"] += 1
            continue
        if work <= 0 or gpus < 0:
            left["no run time, or less than no GPU"] += 1
            continue
        yield Job(place, arrival, work, gpus)


def _knows(head: str) -> bool:
    return {"submission_time", "duration", "num_gpu"} <= {name.strip() for name in head.split(",")}


ITP: Final = Kind("itp", "ITP's jobs", _knows, _read)
