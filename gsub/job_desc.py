"""From sbatch's options to the job description that slurmctld's plugins see, and the variables that sbatch adds.

sbatch fills in what follows from what was asked (a number of tasks from nodes x tasks per node...), each release in
its own way; `gsub.gres_rules` is what slurmctld then does with the GPUs. What is here was recorded from 22.05,
24.11 and 26.05; tests hold it against recordings and against the running releases, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gsub.gres_rules import complete
from gsub.notations import NotationError, count, mebibytes, minutes, nodes
from site_configs.hostlist import HostlistError, expand, fold

__all__ = ["JobDesc", "Options", "Release", "job_desc"]

Value: TypeAlias = int | str
Release: TypeAlias = tuple[int, int]
Options: TypeAlias = Mapping[str, str | None]

_TASK_TRES: Final = (23, 11)
"""From here on tres_per_task holds all that a task needs, CPUs too, and GRES are written gres/gpu."""
_IMPLICIT_TASKS: Final = (24, 11)
"""From here on sbatch counts tasks that follow from nodes x tasks per node, but no longer states them."""
_MULTITHREAD: Final = 0xFFFF


@dataclass(slots=True)
class JobDesc:
    """The fields of job_desc by their Lua names, and the variables beside them."""

    fields: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def job_desc(options: Options, release: Release) -> JobDesc:
    """The job description of one component.

    Parameters
    ----------
    options: sbatch's options in effect by their full names; None for those without a value.
    release: (major, minor); one in between is taken for the recorded one before it.

    Raises NotationError for a value that sbatch would not take, or a combination that Slurm would not.
    """
    desc = JobDesc()
    for name, (target, read) in _PLAIN.items():
        if (value := options.get(name)) is not None:
            desc.fields[target] = _read(name, value, read)
    for name, (target, number) in _FLAGS.items():
        if name in options:
            desc.fields[target] = number
    _sharing(options, desc)
    _memory(options, desc, release)
    _switches(options, desc)
    _geometry(options, desc, release)
    _gres(options, desc, release)
    _size(options, desc, release)
    complete(desc.fields, release)
    for name, variable in _MIRRORED.items():
        if (value := options.get(name)) is not None:
            desc.env[variable] = value
    return desc


def _read(name: str, value: str, read: Callable[[str], Value]) -> Value:
    try:
        return read(value)
    except NotationError as error:
        raise NotationError(f"--{name}: {error}") from None


# option -> field, and how its value is read
_PLAIN: Final[Mapping[str, tuple[str, Callable[[str], Value]]]] = {
    "account": ("account", str),
    "array": ("array_inx", str),
    "comment": ("comment", str),
    "constraint": ("features", str),
    "dependency": ("dependency", str),
    "exclude": ("exc_nodes", str),
    "extra": ("extra", str),
    "licenses": ("licenses", str),
    "resources": ("licenses", str),
    "partition": ("partition", str),
    "prefer": ("prefer", str),
    "qos": ("qos", str),
    "reservation": ("reservation", str),
    "ntasks": ("num_tasks", count),
    "ntasks-per-node": ("ntasks_per_node", count),
    "ntasks-per-socket": ("ntasks_per_socket", count),
    "ntasks-per-core": ("ntasks_per_core", count),
    "ntasks-per-gpu": ("ntasks_per_tres", count),
    "ntasks-per-tres": ("ntasks_per_tres", count),
    "cpus-per-task": ("cpus_per_task", count),
    "mincpus": ("pn_min_cpus", count),
    "tmp": ("pn_min_tmp_disk", mebibytes),
    "time": ("time_limit", minutes),
    "time-min": ("time_min", minutes),
    "segment": ("segment_size", count),
}

_FLAGS: Final[Mapping[str, tuple[str, int]]] = {
    "contiguous": ("contiguous", 1),
    "requeue": ("requeue", 1),
    "no-requeue": ("requeue", 0),
    "oversubscribe": ("shared", 1),
}

# What sbatch writes into the job's environment as it was typed
_MIRRORED: Final[Mapping[str, str]] = {
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
}

_SHARING: Final[Mapping[str | None, int]] = {
    None: 0,
    "": 0,
    "exclusive": 0,
    "user": 2,
    "mcs": 3,
    "topo": 4,
}


def _sharing(options: Options, desc: JobDesc) -> None:
    if "exclusive" in options:
        value = options["exclusive"]
        if value not in _SHARING:
            raise NotationError(f"--exclusive={value}: want user, mcs, topo or nothing")
        desc.fields["shared"] = _SHARING[value]


def _memory(options: Options, desc: JobDesc, release: Release) -> None:
    for name, target in (("mem", "min_mem_per_node"), ("mem-per-cpu", "min_mem_per_cpu")):
        if (value := options.get(name)) is not None:
            desc.fields[target] = _read(name, value, mebibytes)
    if (value := options.get("mem-per-gpu")) is not None:
        size = _read("mem-per-gpu", value, mebibytes)
        desc.fields["mem_per_tres"] = f"{_gpu(release)}:{size}"
        desc.env["SLURM_MEM_PER_GPU"] = str(size)


def _switches(options: Options, desc: JobDesc) -> None:
    value = options.get("switches")
    if value is not None:
        number, at, wait = value.partition("@")
        desc.fields["req_switch"] = _read("switches", number, count)
        if at:
            desc.fields["wait4switch"] = int(_read("switches", wait, minutes)) * 60


_GEOMETRY: Final = ("sockets-per-node", "cores-per-socket", "threads-per-core")
# hint -> what it sets
_HINTS: Final[Mapping[str, Mapping[str, int]]] = {
    "compute_bound": {"threads_per_core": 1},
    "memory_bound": {"cores_per_socket": 1, "threads_per_core": 1},
    "multithread": {"ntasks_per_core": _MULTITHREAD},
    "nomultithread": {"threads_per_core": 1},
}


def _geometry(options: Options, desc: JobDesc, release: Release) -> None:
    """Sockets, cores, threads, by themselves, by -B, or by a hint."""
    found: dict[str, Value] = {}
    parts = (options.get("extra-node-info") or "").split(":")
    for name, part in zip(_GEOMETRY, [*parts, "", ""], strict=False):
        value = options.get(name)
        if value is None and part not in ("", "*"):
            value = part
        if value is not None:
            found[name.replace("-", "_")] = _read(name, value, count)
    hint = _HINTS.get(options.get("hint") or "", {})
    # A hint and a geometry exclude each other (sbatch(1)): newer releases drop the one, older ones the other.
    if hint and (not found or release < (26, 5)):
        found = dict(hint)
    desc.fields |= found
    if "threads_per_core" in found:
        desc.env["SLURM_THREADS_PER_CORE"] = str(found["threads_per_core"])


# --- GPUs -----------------------------------------------------------------------------------------------------------


def _gpu(release: Release) -> str:
    return "gres/gpu" if release >= _TASK_TRES else "gres:gpu"


def _each(value: str, prefix: str) -> str:
    """``a100:2,v100:1`` -> ``gres:gpu:a100:2,gres:gpu:v100:1``."""
    return ",".join(prefix + item for item in value.split(",") if item)


def _gres(options: Options, desc: JobDesc, release: Release) -> None:
    gpu = _gpu(release)
    kind = gpu.removesuffix("gpu")
    if (value := options.get("gpus")) is not None:
        desc.fields["tres_per_job"] = _each(value, f"{gpu}:")
    if (value := options.get("gpus-per-socket")) is not None:
        desc.fields["tres_per_socket"] = _each(value, f"{gpu}:")
    node = []
    if (value := options.get("gpus-per-node")) is not None:
        node.append(_each(value, f"{gpu}:"))
    if (value := options.get("gres")) is not None and value.lower() != "none":
        node.append(_each(value, kind))
    if node:
        desc.fields["tres_per_node"] = ",".join(node)
    if (value := options.get("cpus-per-gpu")) is not None:
        desc.fields["cpus_per_tres"] = f"{gpu}:{_read('cpus-per-gpu', value, count)}"
    if release >= _TASK_TRES:
        _tres_per_task(options, desc)
    elif (value := options.get("gpus-per-task")) is not None:
        desc.fields["tres_per_task"] = _each(value, f"{gpu}:")
        desc.env["SLURM_GPUS_PER_TASK"] = value


def _tres_per_task(options: Options, desc: JobDesc) -> None:
    """--tres-per-task as it was typed; else what -c and --gpus-per-task amount to."""
    parts = []
    if (value := options.get("tres-per-task")) is not None:
        parts = value.split(",")
        for part in parts:
            name, _, number = part.replace("=", ":").partition(":")
            if name == "cpu":
                desc.fields["cpus_per_task"] = _read("tres-per-task", number, count)
    names = {part.replace("=", ":").partition(":")[0] for part in parts}
    if "cpu" not in names and (value := options.get("cpus-per-task")) is not None:
        parts.insert(0, f"cpu={value}")
    if (value := options.get("gpus-per-task")) is not None:
        for item in value.split(","):
            name, colon, number = item.rpartition(":")
            parts.append(f"gres/gpu:{name}={number}" if colon else f"gres/gpu={item}")
    if parts:
        desc.fields["tres_per_task"] = desc.env["SLURM_TRES_PER_TASK"] = ",".join(parts)


# --- nodes, tasks, CPUs ---------------------------------------------------------------------------------------------


def _size(options: Options, desc: JobDesc, release: Release) -> None:
    fields = desc.fields
    tasks = options.get("ntasks") and int(fields["num_tasks"])
    per_node = int(fields.get("ntasks_per_node", 0))
    low: int | None = None
    high: int | None = None
    if (value := options.get("nodes")) is not None:
        try:
            low, high = nodes(value)
        except NotationError as error:
            raise NotationError(f"--nodes: {error}") from None
    hosts = _hosts(options, desc, release)
    exact = low is not None and low == high
    implied = max(low or 1, 1) if exact or low is None else 1
    if not tasks:
        if low is None and hosts:
            low = implied = hosts
        geometry = [
            int(fields[name])
            for name in ("sockets_per_node", "cores_per_socket", "threads_per_core")
            if name in fields
        ]
        if per_node and (exact or options.get("nodes") is None):
            implied *= per_node
            if release < _IMPLICIT_TASKS:
                tasks = implied
        elif geometry and (exact or "extra-node-info" in options):
            for number in geometry:
                implied *= number
            tasks = implied
    else:
        implied = tasks
        if low is None and hosts:
            low = hosts
        elif low is None and per_node and release >= _IMPLICIT_TASKS:
            low = -(-tasks // per_node)
        if low is not None and tasks < low:
            low = tasks
        if high is not None:
            high = max(min(high, tasks), low or 0)
    if tasks:
        fields["num_tasks"] = tasks
        desc.env["SLURM_NTASKS"] = desc.env["SLURM_NPROCS"] = str(tasks)
    if low is not None:
        fields["min_nodes"] = low
    if high:
        fields["max_nodes"] = high
    cpus = int(fields.get("cpus_per_task", 0))
    if cpus:
        desc.env["SLURM_CPUS_PER_TASK"] = str(cpus)
        fields["pn_min_cpus"] = max(int(fields.get("pn_min_cpus", 0)), cpus)
    if "overcommit" in options:
        fields["min_cpus"] = max(low or 0, 1)
    elif low == 0 and high == 0:
        fields["min_cpus"] = 0
    else:
        fields["min_cpus"] = implied * max(cpus, 1)
    if (value := options.get("distribution")) is not None:
        desc.env["SLURM_DISTRIBUTION"] = _distribution(value)


def _hosts(options: Options, desc: JobDesc, release: Release) -> int:
    """req_nodes as sbatch sends it; how many nodes it names."""
    value = options.get("nodelist")
    if not value:
        return 0
    try:
        names = expand(value)
    except HostlistError as error:
        raise NotationError(f"--nodelist: {error}") from None
    desc.fields["req_nodes"] = fold(names)
    return len(set(names))


def _distribution(value: str) -> str:
    """``block:*`` -> ``block:cyclic``: a star is the default of its level."""
    method, *flags = value.split(",")
    if method.startswith("plane"):
        return ",".join(["plane", *flags])
    defaults = ("block", "cyclic", "cyclic")
    levels = [d if part == "*" else part for part, d in zip(method.split(":"), defaults, strict=False)]
    return ",".join([":".join(levels), *flags])
