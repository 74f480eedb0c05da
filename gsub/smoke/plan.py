r"""What the runner in the smoke job is told: one line of JSON within the batch script of that job.

>>> plan = Plan(script=b"#!/bin/sh\nexit 0\n", name="train.sh", cwd="/home/ada", seconds=240.0)
>>> decoded(encoded(plan)) == plan
True
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

__all__ = ["VERSION", "Mode", "Plan", "PlanError", "decoded", "encoded"]

VERSION: Final = 1
Mode = Literal["race", "gate", "only"]


class PlanError(ValueError):
    """A plan that cannot be written down, or is none."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A smoke run.

    Parameters
    ----------
    script: the real job's batch script as Slurm gets it (of `--wrap` the one that sbatch makes).
    name: the script's name as typed, "wrap" or "sbatch".
    args: what it is called with.
    cwd: where the real job begins, absolute.
    real: its job id; 0 when there is none, or none yet (gate).
    seconds: how long the script may run.
    gpus: of the smoke job. gpus_of_real, nodes_of_real: what the real job asks for; 0 when that is open.
    outputs: the real job's `--output` and `--error`, as typed.
    array: SLURM_ARRAY_* variables of the task that is tried; empty for a job that is no array.
    key: of the memory of passes (`gsub.smoke.passes`); empty: a pass is not remembered.
    workload: the names of the workload, the most telling first (`profiler.workload`).
    gpu_type: as in Gres; empty for any.
    cluster: as the site calls it.
    asked: the user asked for it. Unasked, it runs only where files can be kept apart.
    learn: find the CPU curve too. cpus: how many the smoke job was given for that; 0: not known.
    state: the user's folder of state ($XDG_STATE_HOME/gsub); empty for none.
    """

    v: int = VERSION
    script: bytes
    name: str
    args: tuple[str, ...] = ()
    cwd: str
    mode: Mode = "race"
    real: int = 0
    seconds: float
    gpus: int = 1
    gpus_of_real: int = 0
    nodes_of_real: int = 0
    outputs: tuple[str, ...] = ()
    array: dict[str, str] = {}
    key: str = ""
    workload: tuple[str, ...] = ()
    gpu_type: str = ""
    cluster: str = ""
    asked: bool = True
    learn: bool = False
    cpus: int = 0
    state: str = ""


def encoded(plan: Plan) -> bytes:
    """A plan as one line. Raises PlanError where a text of it is no UTF-8 (a name or an argument of the user's)."""
    try:
        return msgspec.json.encode(plan)
    except UnicodeEncodeError as error:
        raise PlanError("an argument or a path is not UTF-8") from error


def decoded(line: bytes) -> Plan:
    """The plan in a line. Raises PlanError for anything else, and for a plan of a newer gsub."""
    try:
        plan = msgspec.json.decode(line, type=Plan)
    except msgspec.MsgspecError as error:
        raise PlanError(f"no plan of a smoke run: {error}") from error
    if plan.v != VERSION:
        raise PlanError(f"a plan of version {plan.v}, and this gsub knows {VERSION}")
    return plan
