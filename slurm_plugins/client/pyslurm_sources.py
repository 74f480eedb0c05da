"""All that is used of pyslurm, as one table: which collections, which attributes, and what becomes of each.

`pyslurm_client` is driven by it, and a test holds it against pyslurm's own sources, since pyslurm can be installed
only beside the very release of Slurm that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from . import parse
from .resources import NO_TRES, Hosts, Tres

__all__ = ["ALSO_USED", "SOURCES", "Source"]

Convert = Callable[[Any], Any]


def _text(value: object) -> str | None:
    return parse.text(value) if isinstance(value, str) else None


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _joined(value: object) -> str | None:
    return ",".join(map(str, value)) or None if isinstance(value, list) else _text(value)


def _names(value: object) -> tuple[str, ...]:
    return (
        tuple(map(str, value))
        if isinstance(value, list)
        else parse.names(value if isinstance(value, str) else "")
    )


def _everyone(value: object) -> tuple[str, ...] | None:
    return None if value in (None, [], ["ALL"]) else _names(value)


def _nobody(value: object) -> tuple[str, ...]:
    # "ALL" is what pyslurm shows for a list that is not set, in the deny lists too
    return () if value in (None, ["ALL"]) else _names(value)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _minutes(value: object) -> int | None:
    return value * 60 if isinstance(value, int) else None


def _mebibytes(value: object) -> int | None:
    return value << 20 if isinstance(value, int) else None


def _time(value: object) -> datetime | None:
    return datetime.fromtimestamp(value, timezone.utc) if isinstance(value, int) and value > 0 else None


def _hosts(value: object) -> Hosts:
    return parse.hosts(value if isinstance(value, str) else "")


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _tres(value: object) -> Tres:
    """From pyslurm's TRES (numbers, memory in MiB) or from a node's dict of strings."""
    if not isinstance(value, dict):
        return NO_TRES
    return parse.tres(",".join(f"{name}={count}" for name, count in value.items()))


def _requested(value: object) -> Tres:
    """The same of a request, as far as what the user typed is understood."""
    if not isinstance(value, dict):
        return NO_TRES
    return parse.requested(",".join(f"{name}={count}" for name, count in value.items()))[0]


def _dependency(value: object) -> str | None:
    """``afterok:1(unfulfilled),afterany:2`` from the parts that pyslurm made of it."""
    if not isinstance(value, dict):
        return None
    parts = [
        f"{kind}:{':'.join(map(str, jobs))}"
        for kind, jobs in value.items()
        if isinstance(jobs, list) and jobs
    ]
    parts += ["singleton"] if value.get("singleton") else []
    return ("?" if value.get("satisfy") == "any" else ",").join(parts) or None


@dataclass(frozen=True, slots=True)
class Source:
    """One collection of pyslurm: how it is loaded, the class of its items, and our value -> (attribute, conversion)."""

    load: str
    item: str
    attributes: Mapping[str, tuple[str, Convert]]


_JOB: dict[str, tuple[str, Convert]] = {
    "id": ("id", _number),
    "name": ("name", _name),
    "user": ("user_name", _name),
    "state": ("state", _name),
    "reason": ("state_reason", parse.word),
    "uid": ("user_id", _number),
    "group": ("group_name", _text),
    "account": ("account", _text),
    "qos": ("qos", _text),
    "partition": ("partition", _name),
    "cluster": ("cluster", _text),
    "priority": ("priority", _number),
    "nice": ("nice", _number),
    "array_job_id": ("array_id", _number),
    "array_task_id": ("array_task_id", _number),
    "array_tasks": ("array_tasks_waiting", _text),
    "het_job_id": ("heterogeneous_id", _number),
    "het_offset": ("heterogeneous_offset", _number),
    "exit_code": ("exit_code", _number),
    "exit_signal": ("exit_code_signal", _number),
    "derived_code": ("derived_exit_code", _number),
    "derived_signal": ("derived_exit_code_signal", _number),
    "restarts": ("requeue_count", _number),
    "requeue": ("is_requeueable", _flag),
    "batch": ("is_batch_job", _flag),
    "submitted": ("submit_time", _time),
    "eligible": ("eligible_time", _time),
    "start": ("start_time", _time),
    "end": ("end_time", _time),
    "deadline": ("deadline", _time),
    "time_limit": ("time_limit", _minutes),
    "nodes": ("allocated_nodes", _hosts),
    "scheduled_nodes": ("scheduled_nodes", _hosts),
    "required_nodes": ("required_nodes", _hosts),
    "excluded_nodes": ("excluded_nodes", _hosts),
    "batch_host": ("batch_host", _text),
    "reservation": ("reservation", _text),
    "features": ("constraints", _joined),
    "prefer": ("preferred_features", _joined),
    "switches": ("required_switches", _number),
    "switches_wait": ("max_wait_time_switches", _number),
    "sharing": ("resource_sharing", _name),
    "num_nodes": ("num_nodes", _number),
    "num_cpus": ("cpus", _number),
    "num_tasks": ("ntasks", _number),
    "cpus_per_task": ("cpus_per_task", _number),
    "tres_allocated": ("allocated_tres", _tres),
    "tres_requested": ("requested_tres", _tres),
    "tres_per_job": ("tres_per_job", _requested),
    "tres_per_node": ("tres_per_node", _requested),
    "tres_per_socket": ("tres_per_socket", _requested),
    "tres_per_task": ("tres_per_task", _requested),
    "cpus_per_gpu": ("cpus_per_gpu", _number),
    "memory_per_gpu": ("memory_per_gpu", _mebibytes),
    "licenses": ("licenses", _joined),
    "dependency": ("dependencies", _dependency),
    "comment": ("comment", _text),
    "admin_comment": ("admin_comment", _text),
    "system_comment": ("system_comment", _text),
    "extra": ("extra", _text),
    "command": ("command", _text),
    "submit_line": ("submit_line", _text),
    "work_dir": ("working_directory", _text),
    "stdout": ("standard_output", _text),
    "stderr": ("standard_error", _text),
}

SOURCES: Mapping[str, Source] = {
    "jobs": Source("Jobs.load", "Job", _JOB),
    "job": Source("Job.load", "Job", _JOB),
    "nodes": Source(
        "Nodes.load",
        "Node",
        {
            "name": ("name", _name),
            "state": ("state", _name),
            "address": ("address", _text),
            "hostname": ("hostname", _text),
            "slurm_version": ("slurm_version", _text),
            "cpus": ("total_cpus", _number),
            "cpus_effective": ("effective_cpus", _number),
            "sockets": ("sockets", _number),
            "cores_per_socket": ("cores_per_socket", _number),
            "threads_per_core": ("threads_per_core", _number),
            "memory": ("real_memory", _mebibytes),
            "memory_free": ("free_memory", _mebibytes),
            "load": ("cpu_load", _float),
            "gres": ("configured_gres", _tres),
            "tres_allocated": ("allocated_tres", _tres),
            "cpus_allocated": ("allocated_cpus", _number),
            "memory_allocated": ("allocated_memory", _mebibytes),
            "features": ("available_features", _names),
            "active_features": ("active_features", _names),
            "partitions": ("partitions", _names),
            "weight": ("weight", _number),
            "reason": ("reason", _text),
            "reason_by": ("reason_user", _text),
            "reason_at": ("reason_time", _time),
            "comment": ("comment", _text),
            "extra": ("extra", _text),
            "booted": ("boot_time", _time),
            "slurmd_started": ("slurmd_start_time", _time),
            "last_busy": ("last_busy_time", _time),
        },
    ),
    "partitions": Source(
        "Partitions.load",
        "Partition",
        {
            "name": ("name", _name),
            "state": ("state", _name),
            "is_default": ("is_default", bool),
            "is_hidden": ("is_hidden", bool),
            "nodes": ("nodes", _hosts),
            "total_nodes": ("total_nodes", _number),
            "total_cpus": ("total_cpus", _number),
            "max_time": ("max_time", _minutes),
            "default_time": ("default_time", _minutes),
            "min_nodes": ("min_nodes", _number),
            "max_nodes": ("max_nodes", _number),
            "priority_tier": ("priority_tier", _number),
            "preempt_mode": ("preempt_mode", _text),
            "oversubscribe": ("oversubscribe", _text),
            "user_exclusive": ("is_user_exclusive", bool),
            "qos": ("qos", _text),
            "grace_time": ("preemption_grace_time", _number),
            "default_memory_per_cpu": ("default_memory_per_cpu", _mebibytes),
            "default_memory_per_node": ("default_memory_per_node", _mebibytes),
            "max_memory_per_cpu": ("max_memory_per_cpu", _mebibytes),
            "max_memory_per_node": ("max_memory_per_node", _mebibytes),
            "max_cpus_per_node": ("max_cpus_per_node", _number),
            "default_cpus_per_gpu": ("default_cpus_per_gpu", _number),
            "default_memory_per_gpu": ("default_memory_per_gpu", _mebibytes),
            "allow_accounts": ("allowed_accounts", _everyone),
            "allow_groups": ("allowed_groups", _everyone),
            "allow_qos": ("allowed_qos", _everyone),
            "deny_accounts": ("denied_accounts", _nobody),
            "deny_qos": ("denied_qos", _nobody),
        },
    ),
    "accounting": Source(
        "db.Jobs.load",
        "db.Job",
        {
            "id": ("id", _number),
            "name": ("name", _name),
            "user": ("user_name", _name),
            "state": ("state", _name),
            "reason": ("state_reason", parse.word),
            "restarts": ("requeue_count", _number),
            "uid": ("user_id", _number),
            "group": ("group_name", _text),
            "account": ("account", _text),
            "qos": ("qos", _text),
            "partition": ("partition", _name),
            "cluster": ("cluster", _text),
            "priority": ("priority", _number),
            "array_job_id": ("array_id", _number),
            "array_task_id": ("array_task_id", _number),
            "array_tasks": ("array_tasks_waiting", _text),
            "het_job_id": ("heterogeneous_id", _number),
            "het_offset": ("heterogeneous_offset", _number),
            "exit_code": ("exit_code", _number),
            "exit_signal": ("exit_code_signal", _number),
            "derived_code": ("derived_exit_code", _number),
            "derived_signal": ("derived_exit_code_signal", _number),
            "submitted": ("submit_time", _time),
            "eligible": ("eligible_time", _time),
            "start": ("start_time", _time),
            "end": ("end_time", _time),
            "elapsed": ("elapsed_time", _number),
            "suspended": ("suspended_time", _number),
            "time_limit": ("time_limit", _minutes),
            "nodes": ("nodelist", _hosts),
            "num_nodes": ("num_nodes", _number),
            "num_cpus": ("cpus", _number),
            "tres": ("allocated_tres", _tres),
            "tres_requested": ("requested_tres", _tres),
            "features": ("constraints", _joined),
            "reservation": ("reservation", _text),
            "failed_node": ("failed_node", _text),
            "comment": ("comment", _text),
            "admin_comment": ("admin_comment", _text),
            "system_comment": ("system_comment", _text),
            "extra": ("extra", _text),
            "submit_line": ("submit_command", _text),
            "work_dir": ("working_directory", _text),
            "stdout": ("standard_output", _text),
            "stderr": ("standard_error", _text),
        },
    ),
}

# Beside the loads and attributes above: what the child calls.
ALSO_USED: tuple[str, ...] = (
    "Jobs.values",
    "Nodes.values",
    "Partitions.values",
    "db.Jobs.values",
    "db.JobFilter.ids",
    "db.JobFilter.users",
    "db.JobFilter.start_time",
    "db.JobFilter.end_time",
    "db.TrackableResources.to_dict",
    "db.TrackableResource.count",
    "db.GPU.count",
    "db.GenericResourceLayout.count",
    "RPCError",
)
