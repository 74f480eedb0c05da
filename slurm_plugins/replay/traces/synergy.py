"""Synergy's static trace, `job,model,arrival_s,iterations,gpus`: work is iterations times the seconds of a step.

The paper: Mohan et al., Synergy, OSDI'22; data: msr-fiddle/synergy. Steps are those of the profiles that it ships
(`slurm_plugins.tuner.values.PROFILES`), at the proportional share of its servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_plugins.replay.traces.files import Kind, LeftOut, Reading, count, number, rows, traced
from slurm_plugins.replay.values import Job
from slurm_plugins.tuner.values import PROFILES

__all__ = ["SYNERGY"]

_COLUMNS: Final = ("job", "model", "arrival_s", "iterations", "gpus")


def _read(path: Path) -> Reading:
    left = LeftOut()
    return Reading(traced(path, _jobs(path, left), left), SYNERGY.name)


def _jobs(path: Path, left: LeftOut) -> Iterator[Job]:
    for row in rows(path, _COLUMNS, left):
        profile = PROFILES.get(row["model"])
        if profile is None:
            left["a model without a profile"] += 1
            continue
        try:
            work, arrival = number(row, "iterations") * profile.step_s, number(row, "arrival_s")
            job, gpus = int(number(row, "job")), count(row, "gpus")
        except ValueError:
            left["a number that cannot be read"] += 1
            continue
        if work <= 0 or gpus < 0:
            left["no run time, or less than no GPU"] += 1
            continue
        yield Job(job, arrival, work, gpus, workload=profile.name)


def _knows(head: str) -> bool:
    return {"model", "arrival_s", "iterations", "gpus"} <= {name.strip() for name in head.split(",")}


SYNERGY: Final = Kind("synergy", "Synergy's jobs", _knows, _read)
