"""Alibaba's pods of 2023, and the nodes that they ran on.

    openb_pods     name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,
                   scheduled_time
    openb_nodes    sn,cpu_milli,memory_mib,gpu,model

The paper: Weng et al., Beware of Fragmentation, ATC'23; data: hkust-adsl/kubernetes-scheduler-simulator. A pod may ask
for a part of one GPU (`gpu_milli` below 1000). Slurm gives out whole ones, and so does a replay: the part is rounded
up, and a note tells how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_plugins.replay.traces.files import (
    Kind,
    LeftOut,
    Reading,
    TraceError,
    count,
    lines,
    number,
    rows,
    traced,
)
from slurm_plugins.replay.values import Cluster, Job, Nodes

__all__ = ["OPENB", "is_nodes", "nodes_of"]

_COLUMNS: Final = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip
_NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def _read(path: Path) -> Reading:
    left, parts, notes = LeftOut(), Counter[str](), []
    trace = traced(path, _jobs(path, left, parts), left)
    if parts["part"]:
        notes.append(f"{parts['part']:,} jobs asked for a part of a GPU; each is replayed with a whole one")
    if parts["several"]:
        notes.append(
            f"{parts['several']:,} jobs take any of several types of GPU; each is replayed with any type"
        )
    beside = path.with_name(path.name.replace("pods", "nodes"))
    if beside != path and beside.exists():
        notes.append(f"nodes are those of {beside.name}, beside it")
        return Reading(trace, OPENB.name, nodes_of(beside), tuple(notes))
    return Reading(trace, OPENB.name, notes=tuple(notes))


def _jobs(path: Path, left: LeftOut, parts: Counter[str]) -> Iterator[Job]:
    for place, row in enumerate(rows(path, _COLUMNS, left), start=1):
        if not row["scheduled_time"]:
            left["never started"] += 1
            continue
        if not row["deletion_time"]:
            left["has not ended"] += 1
            continue
        try:
            arrival, began = number(row, "creation_time"), number(row, "scheduled_time")
            work, gpus = number(row, "deletion_time") - began, count(row, "num_gpu")
            cpus, memory = number(row, "cpu_milli") / 1000, number(row, "memory_mib")
            part = gpus > 0 and number(row, "gpu_milli") < 1000
        except ValueError:
            left["a number that cannot be read"] += 1
            continue
        if work <= 0 or min(gpus, cpus, memory) < 0:
            left["no run time, or less than nothing asked for"] += 1
            continue
        types = [one for one in row["gpu_spec"].split("|") if one]
        parts["part"] += part
        parts["several"] += len(types) > 1
        yield Job(
            place,
            arrival,
            work,
            gpus,
            cpus=cpus,
            memory=memory,
            gpu_type=types[0] if len(types) == 1 else "",
            queue=row["qos"],
            # A pod is one process on one node, whatever it asks for
            nodes=1,
            outcome={"Succeeded": "completed", "Failed": "failed"}.get(row["pod_phase"], ""),
            began=began,
        )


def nodes_of(path: Path) -> Cluster:
    """The nodes, all under one switch: the file tells of none. Raises TraceError."""
    left, kinds = LeftOut(), Counter[tuple[int, float, float, str]]()
    names: dict[tuple[int, float, float, str], list[str]] = {}
    for row in rows(path, _NODES, left):
        try:
            gpus, cpus, memory = (
                count(row, "gpu"),
                number(row, "cpu_milli") / 1000,
                number(row, "memory_mib"),
            )
        except ValueError as error:
            raise TraceError(f"{path}: node {row['sn']!r} has a number that cannot be read") from error
        kind = (gpus, cpus, memory, row["model"])
        kinds[kind] += 1
        names.setdefault(kind, []).append(row["sn"])
    if not kinds:
        raise TraceError(f"{path}: it names no node")
    groups = (
        Nodes(count, gpus, cpus, memory, model, names=tuple(names[gpus, cpus, memory, model]))
        for (gpus, cpus, memory, model), count in sorted(kinds.items())
    )
    return Cluster("openb", tuple(groups))


def is_nodes(path: Path) -> bool:
    """Whether the file is that of the nodes."""
    with lines(path) as found:
        return next(found, "").strip() == ",".join(_NODES)


def _knows(head: str) -> bool:
    return {"num_gpu", "gpu_milli", "scheduled_time"} <= {name.strip() for name in head.split(",")}


OPENB: Final = Kind("openb", "Alibaba's pods", _knows, _read)
