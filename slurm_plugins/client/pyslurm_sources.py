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

__all__ = ["ALSO_USED", "OLDEST_PYSLURM", "SOURCES", "Source"]

Convert = Callable[[Any], Any]


def _text(value: object) -> str | None:
    return parse.text(value) if isinstance(value, str) else None


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


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


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _tres(value: object) -> Tres:
    """From pyslurm's TRES (numbers, memory in MiB) or from a node's dict of strings."""
    if not isinstance(value, dict):
        return NO_TRES
    return parse.tres(",".join(f"{name}={count}" for name, count in value.items()))


@dataclass(frozen=True, slots=True)
class Source:
    """One collection of pyslurm: how it is loaded, the class of its items, and our value -> (attribute, conversion)."""

    load: str
    item: str
    attributes: Mapping[str, tuple[str, Convert]]


SOURCES: Mapping[str, Source] = {
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
}

# Beside the loads and attributes above: what the child calls.
ALSO_USED: tuple[str, ...] = ("Nodes.values", "Partitions.values", "RPCError")

OLDEST_PYSLURM = "25.11.2"
"""The oldest pyslurm that has all of it."""
