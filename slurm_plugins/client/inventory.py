"""Records of ``scontrol -o show node|partition`` into values. Pure; recorded outputs test it for each release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from . import parse
from .values import Node, Partition

__all__ = ["node", "partition"]

Row = Mapping[str, str]


def node(row: Row) -> Node:
    """A record of ``scontrol -o show node``."""
    get = row.get
    state, flags = parse.node_state(row.get("State", ""))
    reason, by, at = _reason(get("Reason", ""))
    gres = parse.tres(get("Gres", ""))
    return Node(
        name=row["NodeName"],
        state=state,
        state_text=get("State", ""),
        flags=flags,
        address=parse.word(get("NodeAddr", "")),
        hostname=parse.word(get("NodeHostName", "")),
        slurm_version=parse.word(get("Version", "")),
        cpus=parse.count(get("CPUTot", "")),
        cpus_effective=parse.count(get("CPUEfctv", "")),
        sockets=parse.count(get("Sockets", "")),
        cores_per_socket=parse.count(get("CoresPerSocket", "")),
        threads_per_core=parse.count(get("ThreadsPerCore", "")),
        memory=parse.memory(get("RealMemory", "")),
        memory_reserved=parse.memory(get("MemSpecLimit", "")),
        memory_free=parse.memory(get("FreeMem", "")),
        load=_number(get("CPULoad", "")),
        tres=parse.tres(get("CfgTRES", "")),
        gres=gres,
        tres_allocated=parse.tres(get("AllocTRES", "")),
        cpus_allocated=parse.count(get("CPUAlloc", "")) or 0,
        memory_allocated=parse.memory(get("AllocMem", "")) or 0,
        features=parse.names(get("AvailableFeatures", "(null)")),
        active_features=parse.names(get("ActiveFeatures", "(null)")),
        partitions=parse.names(get("Partitions", "")),
        weight=parse.count(get("Weight", "")),
        reason=reason,
        reason_by=by,
        reason_at=at,
        comment=parse.text(get("Comment", "")),
        extra=parse.text(get("Extra", "")),
        booted=parse.time(get("BootTime", "")),
        slurmd_started=parse.time(get("SlurmdStartTime", "")),
        last_busy=parse.time(get("LastBusyTime", "")),
    )


_REASON = re.compile(r"(?s)(.*?)(?: \[([^\[\]]*)@(\w+)\])?")


def _reason(value: str) -> tuple[str | None, str | None, datetime | None]:
    """``broken fan [root@1795236875]`` -> reason, who, when."""
    found = _REASON.fullmatch(value)
    if not found or not value:
        return None, None, None
    return parse.text(found[1]), found[2], parse.time(found[3] or "")


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def partition(row: Row) -> Partition:
    """A record of ``scontrol -o show partition``."""
    get = row.get
    defaults = dict(item.split("=", 1) for item in parse.names(get("JobDefaults", "")) if "=" in item)
    return Partition(
        name=row["PartitionName"],
        state=get("State", ""),
        is_default=get("Default") == "YES",
        is_hidden=get("Hidden") == "YES",
        nodes=parse.hosts(get("Nodes")),
        total_nodes=parse.count(get("TotalNodes", "")),
        total_cpus=parse.count(get("TotalCPUs", "")),
        tres=parse.tres(get("TRES", "")),
        max_time=parse.duration(get("MaxTime", "")),
        default_time=parse.duration(get("DefaultTime", "")),
        min_nodes=parse.count(get("MinNodes", "")),
        max_nodes=parse.count(get("MaxNodes", "")),
        priority_tier=parse.count(get("PriorityTier", "")),
        preempt_mode=parse.word(get("PreemptMode", "")),
        oversubscribe=parse.word(get("OverSubscribe", "")),
        exclusive=_partition_exclusive(row),
        qos=parse.word(get("QoS", "")),
        grace_time=parse.count(get("GraceTime", "")),
        default_memory_per_cpu=parse.memory(get("DefMemPerCPU", "")),
        default_memory_per_node=parse.memory(get("DefMemPerNode", "")),
        max_memory_per_cpu=parse.memory(get("MaxMemPerCPU", "")),
        max_memory_per_node=parse.memory(get("MaxMemPerNode", "")),
        max_cpus_per_node=parse.count(get("MaxCPUsPerNode", "")),
        max_cpus_per_socket=parse.count(get("MaxCPUsPerSocket", "")),
        default_cpus_per_gpu=parse.count(defaults.get("DefCpuPerGPU", "")),
        default_memory_per_gpu=parse.memory(defaults.get("DefMemPerGPU", "")),
        billing_weights=parse.text(get("TRESBillingWeights", "")),
        allow_accounts=_allowed(get("AllowAccounts", "ALL")),
        allow_groups=_allowed(get("AllowGroups", "ALL")),
        allow_qos=_allowed(get("AllowQos", "ALL")),
        deny_accounts=parse.names(get("DenyAccounts", "")),
        deny_qos=parse.names(get("DenyQos", "")),
    )


def _allowed(value: str) -> tuple[str, ...] | None:
    """None: everyone."""
    return None if value == "ALL" else parse.names(value)


def _partition_exclusive(row: Row) -> str | None:
    if "Exclusive" in row:
        return None if row["Exclusive"] == "NO" else row["Exclusive"]
    return (
        "USER" if row.get("ExclusiveUser") == "YES" else "TOPO" if row.get("ExclusiveTopo") == "YES" else None
    )
