"""What Slurm concludes from the GPUs that a job asks for, before any plugin sees it.

gres_job_state_validate and _test_gres_cnt of Slurm's gres.c: numbers of nodes, tasks and CPUs that follow, and
requests that contradict themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gsub.notations import NotationError

__all__ = ["Release", "complete", "gpu_name"]

Release: TypeAlias = tuple[int, int]
Fields: TypeAlias = MutableMapping[str, "int | str"]

_SLASHES: Final = (23, 11)
"""From here on GRES are written gres/gpu."""
_CPUS_COUNTED: Final = (23, 11)
"""From here on the job's CPUs are at least those of its GPUs."""
_TASKS_COUNTED: Final = (26, 5)
"""From here on they are also at least those of the tasks that follow from its GPUs."""
_GPU: Final = re.compile(r"gres[:/]gpu(?:[:=](?P<type>[^:=\d][^:=]*))?(?:[:=](?P<count>\d{1,9}))?")


def gpu_name(release: Release) -> str:
    """How a job's description names a GPU."""
    return "gres/gpu" if release >= _SLASHES else "gres:gpu"


@dataclass(slots=True)
class _Gpus:
    """GPUs of one type, by what they are counted for; 0 where they are not."""

    job: int = 0
    node: int = 0
    socket: int = 0
    task: int = 0


def complete(fields: Fields, release: Release) -> None:
    """Fill in what follows from the GPUs. Raises NotationError for a request that contradicts itself."""
    types = _types(fields)
    _refuse(fields, types, release)
    cpus = _per_gpu(fields, "cpus_per_tres")
    if _exact(fields) and "ntasks_per_node" in fields and "cpus_per_task" in fields:
        fields.setdefault("num_tasks", _number(fields, "min_nodes") * _number(fields, "ntasks_per_node"))
    for name, gpus in types.items():
        _nodes(fields, gpus)
        _tasks(fields, gpus, cpus if not name else 0)
    if "ntasks_per_tres" in fields:
        _tasks_of_gpus(fields, types.values())
    least = 0
    if cpus and release >= _CPUS_COUNTED:
        total = sum(_total(fields, gpus) for gpus in types.values())
        if not types:
            total = _number(fields, "num_tasks") // _number(fields, "ntasks_per_tres", 1)
        least = total * cpus
    if types and release >= _TASKS_COUNTED:
        least = max(least, _number(fields, "num_tasks") * _number(fields, "cpus_per_task"))
    fields["min_cpus"] = max(_number(fields, "min_cpus"), least)


def _number(fields: Fields, name: str, unset: int = 0) -> int:
    return int(fields.get(name, unset))


def _exact(fields: Fields) -> bool:
    """Whether one number of nodes was asked for."""
    return "min_nodes" in fields and fields["min_nodes"] == fields.get("max_nodes")


def _per_gpu(fields: Fields, name: str) -> int:
    return int(str(fields.get(name, "0")).rpartition(":")[2])


def _types(fields: Fields) -> dict[str, _Gpus]:
    types: dict[str, _Gpus] = {}
    for level in ("job", "node", "socket", "task"):
        for item in str(fields.get(f"tres_per_{level}", "")).split(","):
            found = _GPU.fullmatch(item)
            if found and (number := int(found["count"] or 1)):
                setattr(types.setdefault(found["type"] or "", _Gpus()), level, number)
    return types


def _refuse(fields: Fields, types: dict[str, _Gpus], release: Release) -> None:
    if "" in types and len(types) > 1:
        raise NotationError("GPUs are asked for with and without a type")
    if not types and "ntasks_per_tres" not in fields:
        for name, option in (("mem_per_tres", "--mem-per-gpu"), ("cpus_per_tres", "--cpus-per-gpu")):
            if name in fields and (name == "mem_per_tres" or release >= _CPUS_COUNTED):
                raise NotationError(f"{option}: no GPU is asked for")
    for gpus in types.values():
        if gpus.socket and "sockets_per_node" not in fields:
            raise NotationError("--gpus-per-socket needs --sockets-per-node")
        whole = gpus.job
        for name, part in (("node", gpus.node), ("socket", gpus.socket), ("task", gpus.task)):
            if whole and part and whole % part:
                raise NotationError(f"{whole} GPUs are no multiple of the {part} asked for each {name}")
        if gpus.job and gpus.job < _number(fields, "min_nodes"):
            raise NotationError(f"{gpus.job} GPUs are fewer than the {fields['min_nodes']} nodes asked for")


def _nodes(fields: Fields, gpus: _Gpus) -> None:
    if gpus.job and gpus.node:
        wanted = gpus.job // gpus.node
        low, high = _number(fields, "min_nodes"), _number(fields, "max_nodes", wanted)
        if not low <= wanted <= high:
            raise NotationError(
                f"{gpus.job} GPUs, {gpus.node} a node, are {wanted} nodes, but {low}-{high} are asked for"
            )
        fields["min_nodes"] = fields["max_nodes"] = wanted
    elif gpus.job and gpus.job < _number(fields, "max_nodes"):
        fields["max_nodes"] = gpus.job
    if gpus.node and gpus.socket:
        fields.setdefault("sockets_per_node", gpus.node // gpus.socket)


def _tasks(fields: Fields, gpus: _Gpus, cpus_per_gpu: int) -> None:
    """Tasks that follow from GPUs per task."""
    if not gpus.task:
        return
    if gpus.job:
        wanted = gpus.job // gpus.task
        if fields.setdefault("num_tasks", wanted) != wanted:
            raise NotationError(
                f"{gpus.job} GPUs, {gpus.task} a task, are {wanted} tasks, not {fields['num_tasks']}"
            )
    elif "num_tasks" not in fields:
        per_node = _number(fields, "ntasks_per_node")
        if not _exact(fields) or (not per_node and "cpus_per_task" in fields):
            raise NotationError("--gpus-per-task needs --ntasks or --gpus beside it")
        fields["num_tasks"] = _number(fields, "min_nodes") * max(per_node, 1)
    for level, target in ((gpus.node, "ntasks_per_node"), (gpus.socket, "ntasks_per_socket")):
        if level:
            wanted = level // gpus.task
            if fields.setdefault(target, wanted) != wanted:
                raise NotationError(
                    f"{level} GPUs, {gpus.task} a task, are {wanted} tasks, not {fields[target]}"
                )
    if cpus_per_gpu:
        fields.setdefault("cpus_per_task", cpus_per_gpu * gpus.task)


def _tasks_of_gpus(fields: Fields, types: Iterable[_Gpus]) -> None:
    """--ntasks-per-gpu: tasks from GPUs; where no GPU is named, one a node."""
    each = _number(fields, "ntasks_per_tres")
    total = sum(_total(fields, gpus) for gpus in types)
    tasks = _number(fields, "num_tasks")
    if total:
        fields["num_tasks"] = total * each
    elif tasks and tasks >= each and tasks % each:
        raise NotationError(f"{tasks} tasks are no multiple of the {each} asked for each GPU")
    elif not tasks:
        if not _exact(fields):
            raise NotationError("--ntasks-per-gpu needs GPUs, nodes or tasks beside it")
        fields["num_tasks"] = _number(fields, "min_nodes") * each


def _total(fields: Fields, gpus: _Gpus) -> int:
    """GPUs in all, of the least number of nodes."""
    nodes = max(_number(fields, "min_nodes"), 1)
    if gpus.job:
        return gpus.job
    if gpus.node:
        return gpus.node * nodes
    if gpus.socket:
        return gpus.socket * _number(fields, "sockets_per_node", 1) * nodes
    return gpus.task * _number(fields, "num_tasks", 1)
