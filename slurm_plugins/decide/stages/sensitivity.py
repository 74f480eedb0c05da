"""CPUs and memory for each GPU: what the workload makes use of, else the GPU's share of a node.

A workload's `Curve` says how its throughput grows with CPUs. The knee is the fewest CPUs that still give its best
(Synergy, section 3.1: the best-case demand). Without a curve a GPU gets its
share, the node's CPUs and memory divided by its GPUs, since less starves some workloads and more strands other GPUs
(Synergy, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from profiler.counting import count
from profiler.curves import TOLERANCE
from site_configs.site_model import Resources
from site_configs.units import format_size
from slurm_plugins.decide.context import Context, Curve, SlurmFacts, Workload
from slurm_plugins.decide.ground import ground
from slurm_plugins.decide.inventory import Kind, Pool
from slurm_plugins.decide.shape import Shape
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Note, Proposal, Request, Stage

__all__ = ["HEADROOM", "MOST_UNCERTAIN", "Sensitivity", "knee"]

HEADROOM: Final = 1.2
"""Memory is never set below so many times the measured peak."""
MOST_UNCERTAIN: Final = 0.05
"""A curve whose standard error is larger says nothing: its flat part could hide a loss that is worth having."""
_QUARTER: Final = 4  # a stated value is never set below so many parts of it

Number = TypeVar("Number", int, float)
Retune = Literal["off", "lower", "both"]
_WISHES: Final[dict[str, Retune]] = {
    "off": "off", "no": "off", "lower": "lower", "both": "both", "yes": "both", "on": "both",
}  # fmt: skip
By = Literal["on", "share", "off"]
_BY: Final[dict[str, By]] = {"on": "on", "yes": "on", "share": "share", "off": "off", "no": "off"}
_LEFT_OUT: Final[dict[By, str]] = {
    "share": "what was measured of this workload does not count",
    "off": "CPUs and memory are left alone",
}


def knee(points: Sequence[tuple[Number, float]], uncertainty: float = 0.0) -> Number | None:
    """The least that still gives the best throughput, but for `TOLERANCE`; None where the points do not say, as they
    are few or too uncertain.

    Uncertainty is no reason to give less: it is the best's, which all points share, so that it says little of how far
    one of them is below it.

    >>> knee([(1, 0.3), (2, 0.66), (3, 1.0), (4, 1.15), (6, 1.155)])
    4
    """
    if not points or not 0 <= uncertainty <= MOST_UNCERTAIN:
        return None
    best = max(throughput for _, throughput in points)
    enough = best * (1 - TOLERANCE)
    return min(amount for amount, throughput in points if throughput >= enough)


class Sensitivity(Stage):
    """CPUs and memory for each GPU at the knee of the workload's curve; without a curve, the GPU's share of a node.

    - Only what is open is filled, and only where the partition's defaults (DefCpuPerGPU, DefMemPerCPU...) give less.
    - Never below the share unless the curve shows that it costs nothing, and is not of runs with other arguments;
      memory also never below the measured peak + 20 %.
    - Never above the site's caps (`resources`); above the share only while the other GPUs of the node keep
      `keep_cpus_per_gpu` and `keep_memory_per_gpu` each.
    - Whole nodes have all CPUs anyway; their memory is asked for.
    - `policy.retune` or the job's own GSUB_RETUNE (off, lower, both) lets it change stated values too, on evidence, to
      no less than a quarter of what was stated.
    - `policy.sensitivity` or the job's own GSUB_SENSITIVITY: by what was measured (on), by the share alone (share), or
      not at all (off).
    """

    name = "sensitivity"

    def decide(self, request: Request, context: Context) -> Proposal:
        """See `Stage.decide`."""
        if (found := ground(request, context)) is None:
            return NO_PROPOSAL
        by, why = _wanted(request, context)
        told = (Note(f"{_LEFT_OUT[by]}: {why}", inputs={"sensitivity": by}),) if by != "on" else ()
        if by == "off":
            return Proposal((), told)
        kinds = tuple(group for suiting in found.groups for group in suiting)
        if not all(kind.cpus and kind.memory for kind in kinds):
            return NO_PROPOSAL  # Slurm did not say what they have
        pools = tuple(place.pool for place in found.places)
        resources = tuple(context.site.partition(pool.name).resources for pool in pools)
        workload = context.knowledge.workload(request, found.gpu_type) if by == "on" else None
        case = _Case(request, context, found.shape, kinds, pools, resources, workload, found.gpu_type)
        cpus = _cpus(case)
        memory = _memory(case, cpus)
        return Proposal((*cpus.changes, *memory.changes), (*told, *cpus.notes, *memory.notes))


def _wanted(request: Request, context: Context) -> tuple[By, str]:
    """By what it is to go, and who says so; the job has the last word."""
    if (own := _BY.get(request.asks("sensitivity"))) is not None:
        return own, f"the job says so (GSUB_SENSITIVITY={own} or gsub:sensitivity={own})"
    by = context.site.policy.sensitivity
    return by, f"the site says so (policy.sensitivity = {by})"


@dataclass(frozen=True, slots=True)
class _Case:
    """A job, the nodes that it may get, and what is known of it."""

    request: Request
    context: Context
    shape: Shape
    kinds: tuple[Kind, ...]
    pools: tuple[Pool, ...]
    resources: tuple[Resources, ...]
    """The site's word for each of the pools."""
    workload: Workload | None
    gpu_type: str = ""

    @property
    def gpus(self) -> int | None:
        """GPUs on a node, None while that is open."""
        return self.shape.gpus_per_node

    @property
    def curve(self) -> Curve | None:
        return self.workload.curve if self.workload else None

    def cpus_of(self, kind: Kind) -> int:
        """CPUs of a node for the jobs of these partitions: MaxCPUsPerNode is for all of them together."""
        return min([kind.cpus, *(pool.max_cpus_per_node for pool in self.pools if pool.max_cpus_per_node)])

    @property
    def tasks_stated(self) -> bool:
        """Slurm counts a task where none was stated; only of stated ones sbatch tells the steps."""
        return "SLURM_NTASKS" in self.request.env or self.shape.tasks_per_node is not None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node where that is certain."""
        shape = self.shape
        if shape.tasks_per_node and shape.nodes:
            return shape.tasks_per_node
        if shape.tasks and shape.nodes and shape.tasks % shape.nodes == 0:
            return shape.tasks // shape.nodes
        return None

    @property
    def retune(self) -> Retune:
        return _WISHES.get(self.request.asks("retune"), self.context.site.policy.retune)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Changes and notes about one resource; `cpus` are those of a node after them, None where they are not known."""

    changes: tuple[Change, ...] = ()
    notes: tuple[Note, ...] = ()
    cpus: int | None = None


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _bounded(wanted: int, share: int, spare: int | None, caps: Iterable[int | None]) -> int:
    """What is wanted for each GPU, above the share only as far as the other GPUs can spare, never above a cap."""
    if wanted > share:
        wanted = max(share, min(wanted, spare if spare is not None else share))
    return max(min([wanted, *(cap for cap in caps if cap is not None)]), 1)


def _spare(kinds: Iterable[Kind], gpus: int | None, amount: Callable[[Kind], int], keep: int) -> int | None:
    """The most for each of a job's GPUs on a node that leaves `keep` to each of the others; None when that is open."""
    if not gpus:
        return None
    return min((amount(kind) - (kind.gpus - gpus) * keep) // gpus for kind in kinds)


# --- CPUs -----------------------------------------------------------------------------------------------------------


def _cpus(case: _Case) -> _Outcome:
    job, shape, gpus = case.request.job, case.shape, case.gpus
    if shape.exclusive:
        return _Outcome(cpus=min(kind.cpus for kind in case.kinds))
    # CPUs of hyperthreads come by the core: the share of an odd number would strand a GPU of each node.
    share = min(max(_whole_cores(case.cpus_of(kind) // kind.gpus, kind), 1) for kind in case.kinds)
    found = None if case.curve is None else knee(case.curve.points, case.curve.uncertainty)
    wanted = share if found is None else math.ceil(found)
    if case.curve is not None and found is not None and found == case.curve.points[-1][0]:
        wanted = max(
            wanted, share
        )  # the best is the most that was tried: nothing says that more is of no use
    elsewhere = found is not None and case.workload is not None and case.workload.other_arguments
    if elsewhere:
        wanted = max(wanted, share)  # a small trial says nothing of how few are enough for the real run
    keep = max(resources.keep_cpus_per_gpu for resources in case.resources)
    caps = [resources.max_cpus_per_gpu for resources in case.resources]
    target = _bounded(wanted, share, _spare(case.kinds, gpus, case.cpus_of, keep), caps)
    why = f"a GPU's share of its node is {share}"
    if found is not None:
        why = f"its throughput is at its best from {count(found, 'CPU')} for each GPU on{_evidence(case.workload)}"
        if elsewhere and math.ceil(found) < share:
            why = f"with other arguments {found:g} were enough, and a GPU's share of its node is {share}"
        elif wanted > math.ceil(found):
            why = f"it was never tried with more than {found:g}, and a GPU's share of its node is {share}"
    if target < min(wanted, share):
        why = f"the most that this site gives, where {why}"
    note = Note(
        f"{count(target, 'CPU')} for each GPU: {why}",
        inputs={
            "share": share,
            "knee": found,
            "cap": _least(*caps),
            "cpus_per_gpu": target,
            "gpu_type": case.gpu_type or None,
            "workload": case.workload.key if case.workload and found is not None else None,
        },
    )
    if shape.cpus_stated or job.cpus_per_tres:
        changes = _stated_cpus(case, target, why, measured=found is not None and not elsewhere)
        return _Outcome(changes, (note,), _cpus_of(case, changes))
    if job.threads_per_core or job.ntasks_per_core or job.pn_min_cpus or job.min_mem_per_cpu is not None:
        return _Outcome((), (), None)  # it says how CPUs, or memory by the CPU, are to be counted
    # With --ntasks-per-gpu Slurm counts a CPU for each task, whatever DefCpuPerGPU says (seen on 22.05.8, 24.11.5,
    # 26.05.5).
    given = [pool.default_cpus_per_gpu if shape.tasks_per_gpu is None else None for pool in case.pools]
    if all(
        default is not None and (default == target or ((found is None or elsewhere) and default > target))
        for default in given
    ):
        return _Outcome((), (note,), (given[0] or 0) * gpus if gpus else None)
    changes = _open_cpus(case, target, why)
    return _Outcome(changes, (note,), _cpus_of(case, changes))


def _evidence(workload: Workload | None) -> str:
    """What a curve rests on, where that is known."""
    if workload is None or not workload.runs:
        return ""
    return f" (measured in {count(workload.runs, 'run')})"


def _whole_cores(cpus: int, kind: Kind) -> int:
    return cpus - cpus % kind.threads


def _open_cpus(case: _Case, target: int, why: str) -> tuple[Change, ...]:
    """By the task where tasks are stated: srun then gives each its part. Else by the GPU: a script may start any
    number of tasks with srun, and CPUs by the task would be too many for them."""
    tasks, gpus = case.tasks_per_node, case.gpus
    if tasks and gpus and case.tasks_stated and case.request.batch:
        each = target * gpus // tasks
        reason = f"{count(target, 'CPU')} for each GPU, {each} for each task: {why}"
        return (Change("cpus_per_task", None, each, reason),) if each > 1 else ()
    return (Change("cpus_per_tres", None, f"gres:gpu:{target}", why),)


def _stated_cpus(case: _Case, target: int, why: str, *, measured: bool) -> tuple[Change, ...]:
    job, shape, tasks, gpus = case.request.job, case.shape, case.tasks_per_node, case.gpus
    if shape.memory_per_cpu is not None or job.threads_per_core or job.ntasks_per_core:
        return ()  # fewer CPUs would be less memory
    if shape.cpus_per_gpu is not None:
        new = _retuned(case.retune, shape.cpus_per_gpu, target, measured=measured)
        if new is not None:
            return (Change("cpus_per_tres", job.cpus_per_tres, f"gres:gpu:{new}", why + _UNDO),)
    elif shape.cpus_per_task is not None and tasks and gpus:
        new = _retuned(case.retune, shape.cpus_per_task, max(target * gpus // tasks, 1), measured=measured)
        if new is not None:
            return (Change("cpus_per_task", shape.cpus_per_task, new, why + _UNDO),)
    return ()


_UNKNOWN: Final = -1
_UNDO: Final = "; GSUB_RETUNE=off keeps what you state"


def _retuned(retune: Retune, stated: int, target: int, *, measured: bool) -> int | None:
    """What becomes of a stated value; None: it stays. Less of it only on evidence, and never below a quarter."""
    if retune == "both" and target > stated:
        return target
    if retune in ("lower", "both") and measured and target < stated:
        lowered = max(target, -(-stated // _QUARTER))
        return lowered if lowered < stated else None
    return None


def _cpus_of(case: _Case, changes: Iterable[Change]) -> int | None:
    """CPUs of the job on a node, as Slurm will count them; None where that is open."""
    gpus, tasks, shape = case.gpus, case.tasks_per_node, case.shape
    if shape.tasks is None and shape.nodes:
        tasks = tasks or 1  # Slurm counts one for each node
    set_to = {change.field: change.after for change in changes}
    per_gpu = set_to.get("cpus_per_tres")
    if isinstance(per_gpu, str):
        return int(per_gpu.rpartition(":")[2]) * gpus if gpus else None
    per_task = set_to.get("cpus_per_task", shape.cpus_per_task)
    if isinstance(per_task, int):
        return per_task * tasks if tasks else None
    if shape.cpus_per_gpu:
        return shape.cpus_per_gpu * gpus if gpus else None
    return tasks


# --- memory ---------------------------------------------------------------------------------------------------------


def _memory(case: _Case, cpus: _Outcome) -> _Outcome:
    shape, gpus, workload = case.shape, case.gpus, case.workload
    peak = workload.memory_peak if workload else None
    floor = None if peak is None else math.ceil(peak * HEADROOM)
    measured = None if case.curve is None else knee(case.curve.memory, case.curve.uncertainty)
    if peak is None:
        measured = None  # how little it ran with is no evidence of how much it may come to use
    share = min(kind.memory // kind.gpus for kind in case.kinds)
    wanted = max(share if measured is None else measured, floor or 0)
    if shape.exclusive and gpus:
        share = wanted = max(min(kind.memory for kind in case.kinds) // gpus, 1)
        spare, caps = None, [_least(*(pool.max_memory_per_node for pool in case.pools))]
        caps = [None if cap is None else cap // gpus for cap in caps]
    else:
        keep = max(resources.keep_memory_per_gpu for resources in case.resources)
        spare = _spare(case.kinds, gpus, lambda kind: kind.memory, keep)
        caps = [resources.max_memory_per_gpu for resources in case.resources]
        caps += [pool.max_memory_per_node // gpus for pool in case.pools if pool.max_memory_per_node and gpus]
    limits = [pool.max_memory_per_cpu for pool in case.pools if pool.max_memory_per_cpu]
    if limits and not gpus:
        return _Outcome()
    if limits and gpus:
        # Beyond MaxMemPerCPU Slurm would give, and charge, more CPUs.
        caps.append(min(limits) * (cpus.cpus or 1) // gpus)
    target = _bounded(wanted, share, spare, caps)
    evidence = measured is not None or (floor is not None and floor > share)
    why = _why_memory(case, target, share, floor, measured)
    notes: list[Note] = []
    if floor is not None and target < floor:
        notes.append(
            Note(
                f"its measured peak of {_said(peak or 0)} for each GPU needs {_said(floor)}, and {_said(target)} is "
                "all that a GPU of these nodes can have",
                inputs={"memory_peak": peak, "memory_per_gpu": target},
            )
        )
    if shape.memory_stated or case.request.job.min_mem_per_cpu is not None or case.request.job.mem_per_tres:
        changes = _stated_memory(case, target, why, floor)
        return _Outcome(changes, tuple(notes))
    note = Note(
        f"{_said(target)} for each GPU: {why}",
        inputs={
            "share": share,
            "knee": measured,
            "memory_peak": peak,
            "cap": _least(*caps),
            "memory_per_gpu": target,
        },
    )
    notes.append(note)
    if all(_enough(case, pool, target, cpus, evidence=evidence) for pool in case.pools):
        return _Outcome((), tuple(notes))
    if gpus:
        return _Outcome((Change("min_mem_per_node", None, target * gpus, why),), tuple(notes))
    return _Outcome((Change("mem_per_tres", None, f"gres:gpu:{target}", why),), tuple(notes))


def _enough(case: _Case, pool: Pool, target: int, cpus: _Outcome, *, evidence: bool) -> bool:
    """Whether what Slurm gives unasked will do: as much, or more where nothing is known against it.

    Where it gives all of a node's memory, or the CPUs of the job changed what it gives, more is too much.
    """
    given = _given(case, pool, cpus)
    if given == _UNKNOWN:
        return True  # to set less than that would take away what the user may count on
    if given is None:
        return (
            not case.context.slurm.memory_tracked
        )  # not known to be counted: no limit is better than a wrong one
    return given == target or (given > target and not evidence and not cpus.changes)


def _given(case: _Case, pool: Pool, cpus: _Outcome) -> int | None:
    """MiB for each GPU that a job gets that states no memory; None for all of its node's; `_UNKNOWN` where it hangs on
    CPUs that cannot be told."""
    facts: SlurmFacts = case.context.slurm
    if pool.default_memory_per_gpu is not None:
        return pool.default_memory_per_gpu
    per_cpu = pool.default_memory_per_cpu
    per_node = pool.default_memory_per_node
    if per_cpu is None and per_node is None:
        per_cpu, per_node = facts.default_memory_per_cpu, facts.default_memory_per_node
    gpus = case.gpus or 1
    if per_cpu is not None and cpus.cpus:
        return per_cpu * cpus.cpus // gpus
    if per_cpu is not None:
        each = _cpus_per_gpu(case, pool, cpus)
        return _UNKNOWN if each is None else per_cpu * each
    return None if per_node is None else per_node // gpus


def _cpus_per_gpu(case: _Case, pool: Pool, cpus: _Outcome) -> int | None:
    """CPUs for each GPU of a job whose CPUs on a node are open; None where that is, too."""
    job, shape = case.request.job, case.shape
    set_to = {change.field: change.after for change in cpus.changes}
    if isinstance(per_gpu := set_to.get("cpus_per_tres"), str):
        return int(per_gpu.rpartition(":")[2])
    if shape.cpus_per_gpu:
        return shape.cpus_per_gpu
    if case.gpus or shape.cpus_per_task or job.pn_min_cpus or job.threads_per_core or job.ntasks_per_core:
        return None
    return pool.default_cpus_per_gpu or 1


def _why_memory(case: _Case, target: int, share: int, floor: int | None, measured: int | None) -> str:
    if case.shape.exclusive:
        return "all of its nodes' memory, which nobody else can use"
    if floor is not None and target >= floor > (share if measured is None else measured):
        return f"its measured peak and {round(100 * HEADROOM - 100)} % more, {_said(floor)} for each GPU"
    if measured is not None:
        return f"its throughput is at its best from {_said(measured)} for each GPU on"
    return f"a GPU's share of its node is {_said(share)}"


def _said(mib: int) -> str:
    """MiB in whole GiB where that is close.

    >>> _said(63_990), _said(900)
    ('62.5G', '900M')
    """
    return (
        format_size(mib) if mib < 10 * 1024 or mib % 1024 == 0 else f"{mib / 1024:.1f}G".replace(".0G", "G")
    )


def _stated_memory(case: _Case, target: int, why: str, floor: int | None) -> tuple[Change, ...]:
    """Memory that was stated by the node or by the GPU; by the CPU it stays."""
    job, shape, gpus, retune = case.request.job, case.shape, case.gpus, case.retune
    if shape.exclusive:
        return ()
    if shape.memory_per_gpu is not None:
        new = _retuned(retune, shape.memory_per_gpu, target, measured=floor is not None)
        if new is not None:
            return (Change("mem_per_tres", job.mem_per_tres, f"gres:gpu:{new}", why + _UNDO),)
    elif shape.memory_per_node and gpus:  # 0 is all of the node's
        new = _retuned(retune, shape.memory_per_node, target * gpus, measured=floor is not None)
        if new is not None:
            return (Change("min_mem_per_node", shape.memory_per_node, new, why + _UNDO),)
    return ()
