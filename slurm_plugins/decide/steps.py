"""What goes with an edit so that the job's steps see it: the fields Slurm counts with, the variables `srun` reads.

sbatch writes the user's options into the job's environment before job_submit runs, and `srun` in the script reads them
back; slurmctld and slurmd write others on the batch host, from the job's record. As seen on 22.05.8, 24.11.5 and
26.05.5, by submitting each option and editing each field with and without its variable (see tests/slurm/decide):

================ ============================== =============================== =====================================
field            what sbatch writes             on the batch host               what a bare `srun` makes of a stale one
================ ============================== =============================== =====================================
min_nodes        nothing                        SLURM_NNODES... written anew
num_tasks        SLURM_NTASKS, SLURM_NPROCS     written anew from 24.11 on      22.05: the old number of tasks
ntasks_per_node  SLURM_NTASKS_PER_NODE          left alone                      a warning; where it is the only word
                                                                                on tasks, another number of them
gres             SLURM_GPUS_PER_NODE, for       left alone                      the old number of GPUs
                 --gpus-per-node only
cpus_per_task    SLURM_CPUS_PER_TASK, from      both written anew where they    SRUN_CPUS_PER_TASK, which 22.05 reads
                 24.11 SLURM_TRES_PER_TASK too  are there                       instead: the step cannot be made
cpus_per_tres    SLURM_CPUS_PER_GPU             left alone                      fewer CPUs, or the step cannot be made
mem_per_tres     SLURM_MEM_PER_GPU              left alone                      less memory, or the step waits for ever
min_mem_per_*    nothing                        SLURM_MEM_PER_NODE or _CPU      two of the three SLURM_MEM_PER_*: srun
                                                written anew                    ends with an error
shared, place    nothing                        nothing that srun reads
================ ============================== =============================== =====================================

Lua can add and replace a variable but not remove one: where one is there that would have to go, the edit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.decide.edits import EditError, Value, check_env
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.shape import gpu_items

__all__ = ["ENV_NAMES", "Mirrors", "complete", "mirrors"]

Release: TypeAlias = tuple[int, int]
Edits: TypeAlias = Mapping[str, Value]

# SRUN_CPUS_PER_TASK in its place before; read and seen in 22.05, gone in 24.11.
_SRUN_READS_SLURM_CPUS: Final[Release] = (24, 11)
# 26.05.5 lets `--gpus=4 -N 1` wait beside a node with 4 idle GPUs when one with 2 comes first; with --gres=gpu:4 it
# starts. 24.11.5 and older start it either way; those between were not seen.
_TOTAL_MISCOUNTED: Final[Release] = (25, 5)
# "gres/gpu:4", where it was "gres:gpu:4": Slurm refuses a job for the wrong one.
_SLASH: Final[Release] = (23, 11)


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Variables to write along with edits, and the edits that cannot be made."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Field -> why its steps would not see it, in half a sentence."""


# --- variables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that goes with a field.

    `text` makes its value from the edit's and its own present one (None: it is not there); None leaves it alone.
    `always` says whether it is written where it is not there. `before` is the first release that does not read it.
    """

    name: str
    text: Callable[[str, str], str | None] = lambda edit, now: edit
    always: Callable[[Request, Edits], bool] = lambda request, edits: False
    before: Release | None = None


def _gpus_of(gres: str, _now: str) -> str | None:
    """``gres:gpu:a100:4,gres:shard:2`` -> ``a100:4``, as SLURM_GPUS_PER_NODE has it."""
    items = [item.removeprefix("gpu:") for item in _items(gres) if item.startswith("gpu:")]
    return ",".join(items) or None


def _bare(gres: str, _now: str) -> str:
    """``gres/gpu:4`` -> ``gpu:4``."""
    return ",".join(_items(gres))


def _last(tres: str, _now: str) -> str:
    """``gres:gpu:8`` -> ``8``."""
    return re.split("[:=]", tres)[-1]


def _cpus_among(cpus: str, now: str) -> str | None:
    """``cpu=3,gres/gpu=1`` with other CPUs; a text that does not speak of CPUs stays."""
    changed, count = re.subn(r"(^|,)cpu([=:])\d+", rf"\g<1>cpu\g<2>{cpus}", now)
    return changed if count else None


def _items(gres: str) -> list[str]:
    return [re.sub("^gres[:/]", "", item) for item in gres.split(",")]


def _by_task(request: Request, edits: Edits) -> bool:
    """CPUs are counted by task, not by GPU (where sbatch writes no SLURM_CPUS_PER_TASK)."""
    return "cpus_per_tres" not in edits and request.job.cpus_per_tres is None


_MIRRORS: Final[Mapping[str, tuple[_Variable, ...]]] = {
    "num_tasks": tuple(
        _Variable(name, always=lambda request, edits: True) for name in ("SLURM_NTASKS", "SLURM_NPROCS")
    ),
    "ntasks_per_node": (
        # Where the tasks were stated, it is theirs; a new number of tasks without it stops programs that count on both.
        _Variable("SLURM_NTASKS_PER_NODE", always=lambda request, edits: "num_tasks" in edits),
    ),
    "gres": (
        # An exclusive job has all GPUs of its nodes, of which srun takes the stated total from the first nodes on.
        _Variable("SLURM_GPUS_PER_NODE", _gpus_of, always=lambda request, edits: request.job.shared == 0),
        _Variable("SLURM_GRES", _bare),
    ),
    "cpus_per_task": (
        _Variable("SLURM_CPUS_PER_TASK", always=_by_task),
        _Variable("SRUN_CPUS_PER_TASK", always=_by_task, before=_SRUN_READS_SLURM_CPUS),
        _Variable("SLURM_TRES_PER_TASK", _cpus_among),
    ),
    "cpus_per_tres": (_Variable("SLURM_CPUS_PER_GPU", _last),),
    "mem_per_tres": (_Variable("SLURM_MEM_PER_GPU", _last),),
}
"""Field -> the variables that go with it. A field that is not here needs none."""


# --- what contradicts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A field that cannot be edited while one of these fields or variables is set.

    It does not count where the field `unless` is stated and edited, too.
    """

    field: str
    fields: tuple[str, ...]
    variables: tuple[str, ...]
    why: str
    unless: str = ""


_CONFLICTS: Final[tuple[_Conflict, ...]] = (
    _Conflict(
        "min_mem_per_node",
        ("mem_per_tres",),
        ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"),
        "memory is asked for in another way (per CPU or GPU), which srun would hold against it",
    ),
    _Conflict(
        "min_mem_per_cpu",
        ("mem_per_tres",),
        ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_GPU"),
        "memory is asked for in another way (per node or GPU), which srun would hold against it",
    ),
    _Conflict(
        "mem_per_tres",
        ("min_mem_per_node", "min_mem_per_cpu"),
        ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"),
        "memory is asked for in another way (per node or CPU), which counts instead",
    ),
    _Conflict(
        "ntasks_per_node",
        ("ntasks_per_tres", "ntasks_per_gpu"),
        ("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES"),
        "tasks are asked for per GPU, and srun takes one of the two only",
    ),
    _Conflict(
        "num_tasks",
        ("ntasks_per_tres", "ntasks_per_gpu"),
        ("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES"),
        "tasks are asked for per GPU",
    ),
    _Conflict("gres", ("tres_per_socket",), ("SLURM_GPUS_PER_SOCKET",), "GPUs are asked for per socket"),
    # Of an option that the job does not state, a variable is left from the job or shell that it was submitted in.
    _Conflict(
        "cpus_per_tres",
        ("cpus_per_task",),
        ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"),
        "CPUs are asked for per task",
        unless="cpus_per_tres",
    ),
    _Conflict(
        "cpus_per_task",
        ("cpus_per_tres",),
        ("SLURM_CPUS_PER_GPU",),
        "CPUs are asked for per GPU",
        unless="cpus_per_tres",
    ),
)

# Of a job without an environment of its own (salloc, srun) the client keeps the options as they were typed.
_TYPED: Final[Mapping[str, tuple[str, ...]]] = {
    "num_tasks": (),
    "ntasks_per_node": ("ntasks_per_node",),
    "gres": ("tres_per_node",),
    "cpus_per_task": (),
    "cpus_per_tres": ("cpus_per_tres",),
    "mem_per_tres": ("mem_per_tres",),
}
"""Field -> the fields that must be unset for the client to follow; none: it never does."""

ENV_NAMES: Final[frozenset[str]] = frozenset(
    [variable.name for group in _MIRRORS.values() for variable in group]
    + [name for conflict in _CONFLICTS for name in conflict.variables]
)
"""The variables of Slurm that a decision reads or writes; the shim sends these and takes no others."""


def mirrors(request: Request, edits: Edits, release: Release) -> Mirrors:
    """The variables that go with `edits`.

    Parameters
    ----------
    request: the job before the edits. release: (major, minor) of Slurm, (0, 0) when it is not known: then what any
        release reads is written.
    """
    refused: dict[str, str] = {}
    for conflict in _CONFLICTS:
        if conflict.field in edits and _met(conflict, request, edits):
            refused.setdefault(conflict.field, conflict.why)
    if why := _other_total(request, edits):
        refused.setdefault("gres", why)
    if not request.batch:
        for name, fields in _TYPED.items():
            if name in edits and (not fields or any(_stated(request, one) for one in fields)):
                refused.setdefault(name, "salloc and srun go by what was typed")
        return Mirrors({}, refused)
    env: dict[str, str] = {}
    for name, variables in _MIRRORS.items():
        if name not in edits:
            continue
        for variable in variables:
            now = request.env.get(variable.name)
            read = variable.before is None or release < variable.before
            if now is None and not (read and variable.always(request, edits)):
                continue
            text = variable.text(str(edits[name]), now or "")
            if text is None or text == now:
                continue
            try:
                check_env(variable.name, text)
            except EditError:  # what the user's own part of it holds
                refused.setdefault(name, f"{variable.name} holds what gsub does not write")
            else:
                env[variable.name] = text
    return Mirrors(env, refused)


def _met(conflict: _Conflict, request: Request, edits: Edits) -> bool:
    if conflict.unless and conflict.unless in edits and _stated(request, conflict.unless):
        return False
    if any(_stated(request, name) for name in conflict.fields):
        return True
    return any(name in request.env for name in conflict.variables)


def _stated(request: Request, name: str) -> bool:
    return getattr(request.job, name) is not None


def _other_total(request: Request, edits: Edits) -> str | None:
    """Why GPUs per node do not go with the stated total, which no edit can change; None where they do."""
    if "gres" not in edits or request.job.tres_per_job is None:
        return None
    total, each = _gpus(request.job.tres_per_job), _gpus(edits["gres"])
    least, most = (edits.get(name, getattr(request.job, name)) for name in ("min_nodes", "max_nodes"))
    if total is None or each is None or least is None or least != most or each * int(least) == total:
        return None
    return f"{least} x {each} GPUs are not the {total} that the job asks for"


def _gpus(tres: Value | None) -> int | None:
    """GPUs in ``gres:gpu:a100:4,gres:gpu:v100:2``, here 6; None where none are named, or not in a way that is known."""
    try:
        return sum(gpu_items(str(tres or "")).values()) or None
    except SlurmFormatError:
        return None


# --- fields ---------------------------------------------------------------------------------------------------------


def complete(request: Request, edits: Edits, release: Release) -> dict[str, Value]:
    """`edits` with the fields that go with them, spelled as this Slurm wants it.

    sbatch counts a job's CPUs (`min_cpus`, `pn_min_cpus`) from its tasks and options before job_submit runs. With the
    old count a job gets too many CPUs or too few, is refused ("Requested node configuration is not available", 24.11
    and 26.05) or waits for ever (24.11). A total of GPUs on one node is said by the node, too, where 26.05 would wait
    otherwise. What `edits` already says stays.
    """
    full = dict(edits)
    job = request.job
    tasks = _number(edits, "num_tasks") or _tasks(request, edits)
    scale = _scale(request, edits)
    if scale and job.cpus_per_task and job.cpus_per_task % scale[0] == 0:
        # sbatch --cpus-per-gpu with --gpus-per-task makes both of them
        full.setdefault("cpus_per_task", job.cpus_per_task // scale[0] * scale[1])
    each = _number(full, "cpus_per_task")
    if each is not None:
        full.setdefault("min_cpus", each * tasks)
        if job.pn_min_cpus is not None and job.pn_min_cpus == job.cpus_per_task:
            full.setdefault("pn_min_cpus", each)
    elif scale and job.min_cpus is not None and job.min_cpus % scale[0] == 0:
        full.setdefault("min_cpus", job.min_cpus // scale[0] * scale[1])
    elif "num_tasks" in edits and job.min_cpus is not None:
        full.setdefault("min_cpus", tasks * (job.cpus_per_task or 1))
    if "gres" not in full and _on_one_node(request, edits) and not (0, 0) < release < _TOTAL_MISCOUNTED:
        full["gres"] = _bare(job.tres_per_job or "", "")
    for name in ("cpus_per_tres", "mem_per_tres"):
        if name in full:
            mark = "gres" + _mark(request, release)
            full[name] = ",".join(mark + item for item in _items(str(full[name])))
    if "gres" in full:
        full["gres"] = _bare(str(full["gres"]), "")  # Lua's `gres` puts the prefix there itself
    return full


def _on_one_node(request: Request, edits: Edits) -> bool:
    """The edits put a job on one node that says how many GPUs it wants in all, and not how many on a node."""
    job = request.job
    if job.tres_per_job is None or job.tres_per_node or job.tres_per_socket:
        return False
    if "min_nodes" not in edits and "max_nodes" not in edits:
        return False
    nodes = [edits.get(name, getattr(job, name)) for name in ("min_nodes", "max_nodes")]
    return nodes == [1, 1] and _gpus(job.tres_per_job) is not None


def _number(edits: Edits, name: str) -> int | None:
    value = edits.get(name)
    return value if isinstance(value, int) else None


def _tasks(request: Request, edits: Edits) -> int:
    """Tasks as sbatch would count them."""
    job = request.job
    if job.num_tasks:
        return job.num_tasks
    nodes = _number(edits, "min_nodes") or job.min_nodes or 1
    return nodes * (_number(edits, "ntasks_per_node") or job.ntasks_per_node or 1)


def _scale(request: Request, edits: Edits) -> tuple[int, int] | None:
    """CPUs per GPU before and after; None where one of them is not there."""
    before, after = request.job.cpus_per_tres, edits.get("cpus_per_tres")
    if before is None or after is None:
        return None
    counts = [_last(str(text), "") for text in (before, after)]
    if not all(count.isdigit() and int(count) > 0 for count in counts):
        return None
    return int(counts[0]), int(counts[1])


def _mark(request: Request, release: Release) -> str:
    """``:`` or ``/``: as the job's own fields have it, where they do."""
    job = request.job
    for text in (job.tres_per_job, job.tres_per_node, job.tres_per_task, job.tres_per_socket):
        found = re.search("gres([:/])", text or "")
        if found:
            return found[1]
    return "/" if release >= _SLASH else ":"
