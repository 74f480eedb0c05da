"""A decision as it is written down. What a user wrote (script, comment, environment) stays out: its digest goes in."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.knowledge import names
from slurm_plugins.decide.request import Request

__all__ = ["decision_line"]


def decision_line(request: Request, decision: Decision, at: float) -> bytes:
    """The record of one decision: JSON on one line, kind "decision".

    `asked` are the fields that say what was asked for and find its job later. `changes` hold what was decided, in every
    mode; `enforced` whether it was also made. `script` is a digest of what gsub saw of it (its first 64 KiB).
    `workload` are the names under which its workload may be known; none of a smoke run, whose script is ours.
    """
    job = request.job
    record: dict[str, Any] = {
        "v": 1,
        "kind": "decision",
        "at": round(at, 6),
        "decision": decision.id,
        "mode": decision.mode,
        "enforced": _enforced(decision),
        "opted_out": decision.opted_out,
        "uid": request.uid,
        "asked": {name: value for name in _ASKED if (value := getattr(job, name)) is not None},
        "cut": request.cut,
        "batch": request.batch,
        "script": _digest(request),
        "workload": names(request),
        "changes": decision.changes,
        "env": decision.env,
        "notes": decision.notes,
        "reject": decision.reject,
        "failures": decision.failures,
        "facts": decision.facts,
    }
    return _ENCODER.encode(record)


_ENCODER = msgspec.json.Encoder()

# Not: comment, admin_comment, extra, dependency, licences: free text of the user, or of no use here.
_ASKED = (
    "name",
    "user_name",
    "account",
    "default_account",
    "partition",
    "qos",
    "reservation",
    "array_inx",
    "het_job_offset",
    "time_limit",
    "time_min",
    "work_dir",
    "min_nodes",
    "max_nodes",
    "num_tasks",
    "ntasks_per_node",
    "cpus_per_task",
    "min_cpus",
    "shared",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
    "cpus_per_tres",
    "mem_per_tres",
    "min_mem_per_node",
    "min_mem_per_cpu",
    "features",
    "prefer",
    "req_switch",
    "wait4switch",
    "req_nodes",
    "exc_nodes",
)


def _enforced(decision: Decision) -> bool:
    """Whether the answer held edits or variables."""
    may = decision.mode == "enforce" and not decision.opted_out and decision.reject is None
    return may and bool(decision.changes or decision.env)


def _digest(request: Request) -> dict[str, Any] | None:
    if not request.batch:
        return None
    head = request.script_head.encode("utf-8", "surrogatepass")
    return {"sha256": hashlib.sha256(head).hexdigest(), "bytes": request.script_bytes}
