"""From sbatch's options to the job description that slurmctld's plugins see, and the variables that sbatch adds.

sbatch fills in what follows from what was asked (a number of tasks from nodes x tasks per node...), each release in
its own way; `gsub.gres_rules` is what Slurm then does with the GPUs. What is here was recorded from 22.05, 24.11 and
26.05; tests hold it against recordings and against the running releases, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gsub.gres_rules import Release, complete, gpu_name
from gsub.notations import NotationError, count, mebibytes, minutes, nodes, seconds
from site_configs.hostlist import HostlistError, expand, fold

__all__ = ["WAIT", "JobDesc", "Options", "job_desc"]

Value: TypeAlias = int | str
Options: TypeAlias = Mapping[str, str | None]

WAIT: Final = "wait4switch"
"""Not an option of sbatch but a variable, SBATCH_WAIT4SWITCH: the wait of --switches where that has none."""

_TASK_TRES: Final = (23, 11)
"""From here on tres_per_task holds all that a task needs, CPUs too."""
_ONE_PER_NODE: Final = (26, 5)
"""From here on it takes --gpus-per-node or --gres=gpu."""
_IMPLICIT_TASKS: Final = (23, 2)
"""From here on sbatch counts the tasks that follow from nodes x tasks per node, but does not state them."""


@dataclass(slots=True)
class JobDesc:
    """The fields of job_desc by their Lua names, and the variables beside them."""

    fields: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """A field that is a number; 0 when it is not set."""
        return int(self.fields.get(name, 0))


def job_desc(options: Options, release: Release) -> JobDesc:
    """The job description of one component.

    Parameters
    ----------
    options: sbatch's options in effect by their full names, in the order in which they were set; None for those
        without a value.
    release: (major, minor).

    Raises NotationError for a value that sbatch would not take, or a combination that Slurm would not.
    """
    _refuse(options, release)
    desc = JobDesc()
    for name, value in options.items():
        if name in _FLAGS:
            target, number = _FLAGS[name]
            desc.fields[target] = number
        elif name == "exclusive":
            desc.fields["shared"] = _sharing(value)
        elif name in _PLAIN and value is not None and release >= _LUA_SINCE.get(name, (0, 0)):
            target, read = _PLAIN[name]
            desc.fields[target] = _read(name, value, read)
        if name in _MIRRORED and value is not None:
            desc.env[_MIRRORED[name]] = value
    _switches(options, desc)
    _geometry(options, desc, release)
    _gpus(options, desc, release)
    _size(options, desc, release)
    complete(desc.fields, release)
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
    "mem": ("min_mem_per_node", mebibytes),
    "mem-per-cpu": ("min_mem_per_cpu", mebibytes),
    "tmp": ("pn_min_tmp_disk", mebibytes),
    "time": ("time_limit", minutes),
    "time-min": ("time_min", minutes),
    "segment": ("segment_size", count),
}
_LUA_SINCE: Final[Mapping[str, Release]] = {"segment": (25, 11)}
"""Options whose field job_submit.lua does not have from the beginning."""

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
    "ntasks-per-tres": "SLURM_NTASKS_PER_TRES",
}

# Options of which sbatch takes one, and since when
_ONE_OF: Final[tuple[tuple[Release, str, str], ...]] = (
    ((22, 5), "ntasks-per-gpu", "gpus-per-task"),
    ((22, 5), "ntasks-per-gpu", "gpus-per-socket"),
    ((22, 5), "ntasks-per-gpu", "ntasks-per-node"),
    ((22, 5), "ntasks-per-gpu", "tres-per-task"),
    ((22, 5), "ntasks-per-tres", "ntasks-per-node"),
    ((22, 5), "ntasks-per-tres", "gpus-per-task"),
    ((22, 5), "cpus-per-gpu", "cpus-per-task"),
    ((22, 5), "mem", "mem-per-cpu"),
    ((22, 5), "mem", "mem-per-gpu"),
    ((22, 5), "mem-per-cpu", "mem-per-gpu"),
    ((23, 11), "exclusive", "oversubscribe"),
)


# Options whose effect on the job's description is not known here
_NOT_READ: Final = ("nodefile",)


def _refuse(options: Options, release: Release) -> None:
    for name in _NOT_READ:
        if name in options:
            raise NotationError(f"--{name} is not read here")
    if (options.get("distribution") or "").startswith("arbitrary") or "/" in (options.get("nodelist") or ""):
        raise NotationError("--distribution=arbitrary, and a --nodelist in a file, are not read here")
    for since, one, other in _ONE_OF:
        if release >= since and one in options and other in options:
            raise NotationError(f"--{one} and --{other} exclude each other")


_SHARING: Final[Mapping[str | None, int]] = {
    None: 0,
    "": 0,
    "exclusive": 0,
    "user": 2,
    "mcs": 3,
    "topo": 4,
}


def _sharing(value: str | None) -> int:
    if value not in _SHARING:
        raise NotationError(f"--exclusive={value}: want user, mcs, topo or nothing")
    return _SHARING[value]


def _switches(options: Options, desc: JobDesc) -> None:
    number, _, wait = (options.get("switches") or "").partition("@")
    if number:
        desc.fields["req_switch"] = _read("switches", number, count)
    wait = wait or options.get(WAIT) or ""
    if wait and (span := seconds(wait)) is not None:
        desc.fields["wait4switch"] = span


_GEOMETRY: Final = ("sockets_per_node", "cores_per_socket", "threads_per_core")
# hint -> what it sets (0xFFFF: as many as there are)
_HINTS: Final[Mapping[str, Mapping[str, int]]] = {
    "compute_bound": {"threads_per_core": 1},
    "memory_bound": {"cores_per_socket": 1, "threads_per_core": 1},
    "multithread": {"ntasks_per_core": 0xFFFF},
    "nomultithread": {"threads_per_core": 1},
}


def _geometry(options: Options, desc: JobDesc, release: Release) -> None:
    """Sockets, cores, threads, by themselves, by -B, or by a hint."""
    found: dict[str, Value] = {}
    for name, value in options.items():
        target = name.replace("-", "_")
        if value is not None and target in _GEOMETRY:
            found[target] = _read(name, value, count)
        elif value is not None and name == "extra-node-info":
            parts = zip(_GEOMETRY, value.split(":"), strict=False)
            found = {level: _read(name, part, count) for level, part in parts if part not in ("", "*")}
    hint = _HINTS.get(options.get("hint") or "", {})
    # A hint and a geometry exclude each other (sbatch(1)); which of the two counts differs.
    against = found if release >= (26, 5) else {"threads_per_core"} & found.keys()
    if hint and not against and "extra-node-info" not in options:
        found = dict(hint)
    desc.fields |= found
    if "threads_per_core" in found:
        desc.env["SLURM_THREADS_PER_CORE"] = str(found["threads_per_core"])


# --- GPUs -----------------------------------------------------------------------------------------------------------


def _each(value: str, prefix: str) -> str:
    """``a100:2,v100:1`` -> ``gres:gpu:a100:2,gres:gpu:v100:1``."""
    return ",".join(item if item.startswith(prefix) else prefix + item for item in value.split(","))


def _gpus(options: Options, desc: JobDesc, release: Release) -> None:
    gpu = gpu_name(release)
    for name, target in (("gpus", "tres_per_job"), ("gpus-per-socket", "tres_per_socket")):
        if value := options.get(name):
            desc.fields[target] = _each(value, f"{gpu}:")
    node = []
    if value := options.get("gpus-per-node"):
        node.append(_each(value, f"{gpu}:"))
    if (value := options.get("gres")) is not None and value.lower() != "none":
        node.append(_each(value, gpu.removesuffix("gpu")))
    if len(node) > 1 and gpu in node[1] and release >= _ONE_PER_NODE:
        raise NotationError("--gpus-per-node and --gres=gpu exclude each other")
    if node:
        desc.fields["tres_per_node"] = ",".join(node)
    if (value := options.get("cpus-per-gpu")) is not None:
        desc.fields["cpus_per_tres"] = f"{gpu}:{_read('cpus-per-gpu', value, count)}"
    if (value := options.get("mem-per-gpu")) is not None:
        size = _read("mem-per-gpu", value, mebibytes)
        desc.fields["mem_per_tres"] = f"{gpu}:{size}"
        desc.env["SLURM_MEM_PER_GPU"] = str(size)
    if release >= _TASK_TRES:
        _tres_per_task(options, desc)
    elif value := options.get("gpus-per-task"):
        desc.fields["tres_per_task"] = _each(value, f"{gpu}:")
        desc.env["SLURM_GPUS_PER_TASK"] = value


def _tres_per_task(options: Options, desc: JobDesc) -> None:
    """--tres-per-task as it was typed, and what -c and --gpus-per-task amount to ahead of it."""
    typed = [
        part.replace("gres:", "gres/", 1) for part in (options.get("tres-per-task") or "").split(",") if part
    ]
    names = {part.replace("=", ":").rpartition(":")[0] for part in typed}
    added = []
    if (value := options.get("cpus-per-task")) is not None:
        if "cpu" in names:
            raise NotationError("--tres-per-task=cpu and --cpus-per-task exclude each other")
        added.append(f"cpu={desc.fields['cpus_per_task']}")
    for part in typed:
        if part.startswith(("cpu=", "cpu:")):
            if "cpus-per-gpu" in options:
                raise NotationError("--tres-per-task=cpu and --cpus-per-gpu exclude each other")
            desc.fields["cpus_per_task"] = _read("tres-per-task", part[4:], count)
    if value := options.get("gpus-per-task"):
        if any(name.startswith("gres/gpu") for name in names):
            raise NotationError("--tres-per-task=gres/gpu and --gpus-per-task exclude each other")
        kind, colon, number = value.rpartition(":")
        if "," in value or not number.isdigit():
            raise NotationError(
                f"--gpus-per-task={value}: want NUMBER or TYPE:NUMBER, others are not read here"
            )
        added.append(f"gres/gpu:{kind}={number}" if colon else f"gres/gpu={value}")
    if added or typed:
        desc.fields["tres_per_task"] = desc.env["SLURM_TRES_PER_TASK"] = ",".join(added + typed)


# --- nodes, tasks, CPUs ---------------------------------------------------------------------------------------------


def _size(options: Options, desc: JobDesc, release: Release) -> None:
    """Nodes, tasks and CPUs, and what sbatch concludes from one about the other."""
    fields = desc.fields
    low, high = _nodes(options, desc, release)
    stated_low = low
    tasks = desc.number("num_tasks")
    if tasks:
        counted = tasks
        per_node = desc.number("ntasks_per_node")
        if low is None and per_node and release >= _IMPLICIT_TASKS:
            low = -(-tasks // per_node)
        elif low is not None and tasks < low:
            low = stated_low = tasks
        if high is not None:
            high = max(min(high, tasks), low or 0)
    else:
        counted, stated = _counted(options, desc, low, high, release)
        if stated:
            fields["num_tasks"] = tasks = counted
    if tasks:
        desc.env["SLURM_NTASKS"] = desc.env["SLURM_NPROCS"] = str(tasks)
    if low is not None:
        fields["min_nodes"] = low
    if high:
        fields["max_nodes"] = high
    cpus = desc.number("cpus_per_task")
    if cpus:
        desc.env["SLURM_CPUS_PER_TASK"] = str(cpus)
        fields["pn_min_cpus"] = max(desc.number("pn_min_cpus"), cpus)
    if "overcommit" in options:
        fields["min_cpus"] = max(stated_low or 0, 1)
    elif low == 0 and not cpus:
        fields["min_cpus"] = 0
    else:
        fields["min_cpus"] = counted * max(cpus, 1)
    if (value := options.get("distribution")) is not None:
        desc.env["SLURM_DISTRIBUTION"] = _distribution(value)


def _counted(
    options: Options, desc: JobDesc, low: int | None, high: int | None, release: Release
) -> tuple[int, bool]:
    """How many tasks sbatch counts where none were asked for, and whether it states them."""
    if high is not None and low != high:
        return 1, False
    counted = max(low or 1, 1)
    if per_node := desc.number("ntasks_per_node"):
        return counted * per_node, release < _IMPLICIT_TASKS
    geometry = [desc.number(name) for name in _GEOMETRY if name in desc.fields]
    if geometry and (low is not None or "extra-node-info" in options):
        for number in geometry:
            counted *= number
        return counted, True
    return counted, False


def _nodes(options: Options, desc: JobDesc, release: Release) -> tuple[int | None, int | None]:
    """The least and the greatest number of nodes; None where open. Named nodes count."""
    names: list[str] = []
    if value := options.get("nodelist"):
        try:
            names = list(dict.fromkeys(expand(value)))
        except HostlistError as error:
            raise NotationError(f"--nodelist: {error}") from None
    low = high = None
    if (value := options.get("nodes")) is not None:
        low, high = _both(value)
        if release < _IMPLICIT_TASKS:
            low = max(low, len(names))
            if low > high:
                raise NotationError(f"--nodelist names {low} nodes, --nodes asks for {high}")
    tasks = desc.number("num_tasks")
    if names:
        if low is None:
            low = len(names)
            high = tasks if 0 < tasks < low else None
        if release < _IMPLICIT_TASKS and tasks:
            names = names[:tasks]  # more nodes than tasks: the rest is dropped
        desc.fields["req_nodes"] = fold(names)
    return low, high


def _both(value: str) -> tuple[int, int]:
    try:
        return nodes(value)
    except NotationError as error:
        raise NotationError(f"--nodes: {error}") from None


def _distribution(value: str) -> str:
    """``block:*`` -> ``block:cyclic``: a star is the default of its level."""
    method, *flags = value.split(",")
    if method.startswith("plane"):
        return ",".join(["plane", *flags])
    defaults = ("block", "cyclic", "cyclic")
    levels = [
        default if part == "*" else part for part, default in zip(method.split(":"), defaults, strict=False)
    ]
    return ",".join([":".join(levels), *flags])
