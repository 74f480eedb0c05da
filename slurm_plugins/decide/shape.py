"""What a request asks for in GPUs, nodes and tasks: one value for all the ways to say it.

============================================ =========================================================
--gpus=16                                    gpus 16; on how many nodes is open (one for --gpus=1)
-N 2 --gpus-per-node=8, -N 2 --gres=gpu:8    gpus 16 on 2 nodes, 8 each
-n 16 --gpus-per-task=1                      gpus 16; how many tasks on a node is open
-n 16 --ntasks-per-gpu=1                     gpus 16
--gpus-per-socket=4 --sockets-per-node=2     8 on each node; one node when nothing says more
--gres=gpu:8 -N 2-4                          8 on each of 2 to 4 nodes; in total open
============================================ =========================================================

>>> shape = shape_of(Job(tres_per_job="gres:gpu:a100:16"))
>>> shape.gpus, shape.gpu_type, shape.closed
(16, 'a100', False)
>>> shape_of(Job(tres_per_node="gres/gpu:8", min_nodes=2, max_nodes=2)).gpus
16
>>> shape_of(Job(tres_per_job="gres:gpu:16", tres_per_node="gres:gpu:8", min_nodes=3, max_nodes=3)).why
'16 GPUs in all are not 3 x 8'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.parse import names, tres
from slurm_plugins.decide.request import Job, Request

__all__ = ["NO_GPUS", "NotUnderstood", "Shape", "gpu_items", "requested", "shape_of"]

_MANY: Final = 10_000_000  # more nodes, tasks or GPUs than any cluster has


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A request that contradicts itself, or that says something this release of gsub cannot read: change nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job asks for. None is "open": not stated, and not implied by what is stated.

    A job array has the shape of one of its tasks, a heterogeneous job one for each component.
    """

    gpus: int | None = 0
    """GPUs in all; 0 for a job without GPUs."""
    gpu_type: str = ""
    """As in Gres (a100, 1g.10gb); empty for any type, or for several."""
    types: tuple[tuple[str, int], ...] = ()
    """Several types in one request: type -> GPUs, on the basis that the request names; else empty."""
    nodes_low: int | None = None
    nodes_high: int | None = None
    """Nodes: what -N says, or what the rest implies. Both None: open."""
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    """As stated; beside `tasks` it is the most that a node gets."""
    tasks_per_gpu: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    memory_per_node: int | None = None
    """MiB, as are the next two; 0 is all of a node's."""
    memory_per_cpu: int | None = None
    memory_per_gpu: int | None = None
    exclusive: bool = False

    @property
    def nodes(self) -> int | None:
        """How many nodes, when that is fixed."""
        return self.nodes_low if self.nodes_low == self.nodes_high else None

    @property
    def closed(self) -> bool:
        """How many nodes, and how many GPUs on each, is settled."""
        return self.nodes == 1 or (self.nodes is not None and self.gpus_per_node is not None)

    @property
    def cpus_stated(self) -> bool:
        """The user said something about CPUs."""
        return self.cpus_per_task is not None or self.cpus_per_gpu is not None

    @property
    def memory_stated(self) -> bool:
        """The user said something about memory."""
        stated = (self.memory_per_node, self.memory_per_cpu, self.memory_per_gpu)
        return any(size is not None for size in stated)


NO_GPUS: Final = Shape()


_tres: Final = lru_cache(maxsize=2048)(tres)


def gpu_items(text: str | None) -> dict[str, int]:
    """Type -> GPUs of a tres text of any release; "" for GPUs without a type.

    >>> gpu_items("gres:gpu:a100:2"), gpu_items("cpu=3,gres/gpu=1"), gpu_items("gres:nvme:1")
    ({'a100': 2}, {'': 1}, {})

    --gpus-per-node and --gres are one list, in this order, and of one name the last one counts: Slurm before 26.05
    lets both be asked for, and gives the GPUs once.

    >>> gpu_items("gres:gpu:8,gres:gpu:8"), gpu_items("gres:gpu:4,gres:gpu:2")
    ({'': 8}, {'': 2})

    Raises SlurmFormatError for what is not a list of resources.
    """
    if not text:
        return {}
    parts = names(text) if text.count("gpu") > 1 else (text,)
    last = {
        name.partition(":")[2]: count
        for part in parts
        for name, count in _tres(part).items()
        if name == "gres/gpu" or name.startswith("gres/gpu:")
    }
    return {name: count for name, count in last.items() if count}


def requested(request: Request) -> Shape | NotUnderstood:
    """What a request asks for; the environment is a witness where the job brings one of its own."""
    return shape_of(request.job, request.env if request.batch else None)


def shape_of(job: Job, env: Mapping[str, str] | None = None) -> Shape | NotUnderstood:
    """What `job` asks for, or why that cannot be said.

    With the environment of a batch job at hand, sbatch's own sum is told from ``-n``: for --ntasks-per-node=4 without
    -N it sends 4 tasks, as if for one node, and from 24.11 on it writes no SLURM_NTASKS then. Such tasks are open.
    """
    return _shape_or_why(_Said._make(_of_job(job)), "SLURM_NTASKS" not in env if env else False)


class _Said(NamedTuple):
    """The fields of a `Job` that its shape comes of."""

    tres_per_job: str | None
    tres_per_node: str | None
    tres_per_socket: str | None
    tres_per_task: str | None
    cpus_per_tres: str | None
    mem_per_tres: str | None
    ntasks_per_tres: int | None
    ntasks_per_gpu: int | None
    ntasks_per_node: int | None
    num_tasks: int | None
    min_nodes: int | None
    max_nodes: int | None
    sockets_per_node: int | None
    cpus_per_task: int | None
    min_mem_per_node: int | None
    min_mem_per_cpu: int | None
    shared: int | None


_of_job: Final = attrgetter(*_Said._fields)


# Each stage asks for the shape, and users for the same few. A text is 4096 characters at most.
@lru_cache(maxsize=1024)
def _shape_or_why(said: _Said, tasks_unsaid: bool) -> Shape | NotUnderstood:
    try:
        return _shape(said, tasks_unsaid)
    except _OddError as odd:
        return NotUnderstood(str(odd))
    except SlurmFormatError:
        return NotUnderstood("a list of resources that gsub cannot read")


class _OddError(Exception):
    """The request contradicts itself, or says too little or too much; the message says which."""


def _shape(job: _Said, tasks_unsaid: bool) -> Shape:
    per_job, gpu_type, types = _one_type(
        gpu_items(job.tres_per_job), gpu_items(job.tres_per_node), gpu_items(job.tres_per_socket),
        gpu_items(job.tres_per_task),
    )  # fmt: skip
    total, per_node, per_socket, per_task = per_job
    per_gpu = job.ntasks_per_tres or job.ntasks_per_gpu or None
    if not any(per_job) and not per_gpu:
        return NO_GPUS
    low, high = _nodes(job)
    tasks, tasks_per_node = _positive(job.num_tasks), _positive(job.ntasks_per_node)
    if tasks_unsaid and low is None and tasks == tasks_per_node:
        tasks = None
    if per_socket:
        if not job.sockets_per_node:
            raise _OddError("GPUs per socket, and it is open how many sockets of a node are used")
        per_node = _agree(per_node, per_socket * job.sockets_per_node, "GPUs on a node")
    if tasks is None and low is not None and low == high and tasks_per_node:
        tasks = low * tasks_per_node
    if tasks is None and low is None and per_task and not total and tasks_per_node:
        low = high = 1  # sbatch: without -n and -N there is one node
        tasks = tasks_per_node
    if per_gpu:
        if per_task or tasks_per_node:
            raise _OddError("tasks for each GPU, and another count of tasks beside it")
        if tasks is not None and not total and not per_node:
            total = _whole(tasks, per_gpu, "tasks", "for each GPU")
    if per_task:
        if tasks is None and total:
            tasks = _whole(total, per_task, "GPUs", "for each task")
        if tasks is None:
            raise _OddError("GPUs for each task, and it is open how many tasks there are")
        total = _agree(total, tasks * per_task, "GPUs in all")
        if tasks_per_node and low is not None and low == high and low * tasks_per_node == tasks:
            per_node = _agree(per_node, tasks_per_node * per_task, "GPUs on a node")
    if total and per_node:
        implied = total // per_node
        if total % per_node or (low is not None and not low <= implied <= (high or implied)):
            raise _OddError(f"{total} GPUs in all are not {_span(low, high, implied)} x {per_node}")
        low = high = implied
    elif low is None and ((per_node and tasks is None) or (total == 1 and tasks in (None, 1))):
        low = high = 1
    if low is not None and low == high:
        total, per_node = _on(low, total, per_node)
    if per_gpu and total and tasks is None:
        tasks = total * per_gpu
    for number in (total, per_node, low, high, tasks):
        if number is not None and number > _MANY:
            raise _OddError(f"{number} of something is more than any cluster has")
    return Shape(
        total,
        gpu_type,
        types,
        low,
        high,
        per_node,
        per_task,
        tasks,
        tasks_per_node,
        per_gpu,
        _positive(job.cpus_per_task),
        _for_each_gpu(job.cpus_per_tres),
        job.min_mem_per_node,
        _positive(job.min_mem_per_cpu),
        _for_each_gpu(job.mem_per_tres),
        job.shared == 0,
    )


def _for_each_gpu(text: str | None) -> int | None:
    items = gpu_items(text)
    return items.get("") or next(iter(items.values()), None)


_Counts = tuple[int | None, int | None, int | None, int | None]


def _one_type(*bases: dict[str, int]) -> tuple[_Counts, str, tuple[tuple[str, int], ...]]:
    """GPUs per job, node, socket and task, and their type; several types only where one basis names them."""
    named = {kind for basis in bases for kind in basis}
    stated = [basis for basis in bases if basis]
    if len(named) > 1 and len(stated) > 1:
        raise _OddError(f"types of GPU that do not agree: {', '.join(sorted(named)) or 'any'}")
    counts = tuple(sum(basis.values()) or None for basis in bases)
    several = tuple(sorted(stated[0].items())) if len(named) > 1 else ()
    gpu_type = next(iter(named)) if len(named) == 1 else ""
    return (counts[0], counts[1], counts[2], counts[3]), gpu_type, several


def _nodes(job: _Said) -> tuple[int | None, int | None]:
    low, high = _positive(job.min_nodes), _positive(job.max_nodes)
    if low is None and high is not None:
        low = 1
    if low is not None and high is not None and low > high:
        raise _OddError(f"at least {low} and at most {high} nodes")
    return low, high


def _on(nodes: int, total: int | None, per_node: int | None) -> tuple[int | None, int | None]:
    """GPUs in all and on each of a fixed number of nodes, each worked out from the other where that is certain."""
    if per_node:
        return nodes * per_node, per_node
    return total, (total if nodes == 1 else None)


def _span(low: int | None, high: int | None, implied: int) -> str:
    if low is None:
        return str(max(implied, 1))
    return str(low) if low == high else f"{low}-{high or ''}"


def _positive(number: int | None) -> int | None:
    return number if number and number > 0 else None


def _agree(stated: int | None, implied: int, what: str) -> int:
    if stated not in (None, implied):
        raise _OddError(f"{stated} {what}, and {implied} by what else is asked for")
    return implied


def _whole(number: int, by: int, what: str, each: str) -> int:
    if number % by:
        raise _OddError(f"{number} {what} are not a multiple of {by} {each}")
    return number // by
