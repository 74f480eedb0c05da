"""From what the real job asks for to what its smoke job asks for: one GPU with its share of the rest.

Only what is listed here goes over. The smoke job's batch script has none of the user's #SBATCH lines, and `sbatch` is
started without SBATCH_* variables: `--output`, `--array`, `--mail-type` and the like stay with the real job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gsub.argv import CommandLine
    from site_configs.site_model import Site
    from slurm_plugins.decide.shape import Shape

__all__ = ["NoSmokeError", "Real", "environment", "first_task", "real_job", "words"]

_AS_THEY_ARE: Final = (
    "account", "partition", "qos", "reservation", "constraint", "cluster-constraint", "wckey", "licenses", "exclude",
    "export", "begin", "tmp",
)  # fmt: skip
"""Where it may run and on whose bill, on nodes that the real job could get, with the real job's environment."""
_APART: Final = {
    "container": "it runs in a container that Slurm makes",
    "container-id": "it runs in a container that Slurm makes",
    "clusters": "it may run on another cluster",
    "bb": "it has a burst buffer",
    "bbf": "it has a burst buffer",
    "uid": "it is another user's",
    "gid": "it runs as another group",
    "hold": "it is held, so that what it needs may not be there yet",
    "export-file": "its environment comes from a file",
    "get-user-env": "its environment is made anew",
    "external": "it has no script",
}
"""Options with which a run on one GPU would not be the job's."""
_SLACK: Final = 120
"""Seconds of the smoke job's limit beyond those of the script: to start, to end it, to look at what it said."""
_RESERVE: Final = 5  # seconds between the command and the submission


class NoSmokeError(Exception):
    """There is no smoke run for this job; the message says why, as the end of "no smoke run: ..."."""


@dataclass(frozen=True, slots=True)
class Real:
    """The real job: its options in effect, its name and folder, what it asks for; GPUs and nodes 0 where open."""

    options: Mapping[str, str | None]
    name: str
    folder: str
    shape: Shape
    comment: str

    @property
    def gpus(self) -> int:
        """GPUs in all, at least."""
        if self.shape.gpus:
            return self.shape.gpus
        return (self.shape.gpus_per_node or 1) * max(self.shape.nodes_low or 1, 1)

    @property
    def nodes(self) -> int:
        """How many nodes, at least; 0 where that is open."""
        return self.shape.nodes_low or 0

    @property
    def gpu_type(self) -> str:
        """As in Gres; of several types the first."""
        return self.shape.gpu_type or (self.shape.types[0][0] if self.shape.types else "")

    @property
    def seconds(self) -> int | None:
        """Its time limit; None where it states none."""
        from gsub.notations import FOREVER, NotationError, minutes

        try:
            stated = minutes(self.options.get("time") or "")
        except NotationError:
            return None
        return None if stated >= FOREVER else stated * 60


def real_job(line: CommandLine, text: bytes, environ: Mapping[str, str], release: tuple[int, int]) -> Real:
    """The real job. Raises NoSmokeError for one that has no smoke run."""
    import os

    from gsub.argv import read_options
    from gsub.decide import components
    from gsub.errors import UserError
    from gsub.here import here
    from gsub.job_env import effective
    from gsub.sbatch_options import Table
    from gsub.script import directives
    from slurm_plugins.decide.shape import NO_GPUS, NotUnderstood, requested

    if len(line.components) > 1:
        raise NoSmokeError("it is a heterogeneous job")
    if line.unsure:
        raise NoSmokeError("its command line has options that gsub does not know")
    # those of site plugins: with pyxis' `--container-image` the script runs in a container, and ours would not
    table = Table.of_release(f"{release[0]:02d}.{release[1]:02d}")
    if any(read_options(one.words, table).unsure for one in directives(text.decode(errors="replace"))):
        raise NoSmokeError("its #SBATCH lines have options that gsub does not know")
    try:
        parts = components(line, text, environ, release, uid=os.geteuid())
    except UserError as error:
        raise NoSmokeError(error.why or error.what) from None
    if len(parts) > 1:
        raise NoSmokeError("it is a heterogeneous job")
    options = effective(parts[0].options)
    for name, why in _APART.items():
        if name in options:
            raise NoSmokeError(why)
    shape = requested(parts[0].request)
    if isinstance(shape, NotUnderstood):
        raise NoSmokeError(shape.why)
    if shape == NO_GPUS:
        raise NoSmokeError("it asks for no GPU")
    if "%" in (options.get("chdir") or ""):
        raise NoSmokeError("its folder depends on its number")
    if "/" in (options.get("nodelist") or ""):
        raise NoSmokeError("its nodes are listed in a file")
    job = parts[0].request.job
    folder = os.path.normpath(os.path.join(here(), job.work_dir or ""))  # noqa: PTH118 - text
    return Real(options, job.name or "sbatch", folder, shape, job.comment or "")


def first_task(array: str) -> dict[str, str]:
    """The variables of an array's first task, as Slurm sets them; empty for no array.

    >>> first_task("4-10:3%2")["SLURM_ARRAY_TASK_ID"], first_task("7,3")["SLURM_ARRAY_TASK_MIN"]
    ('4', '3')
    """
    ids: list[int] = []
    step = 1
    for part in array.partition("%")[0].split(","):
        found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part.strip())
        if not found:
            return {}
        low, high = int(found[1]), int(found[2] or found[1])
        step = max(int(found[3] or 1), 1)
        if (high - low) // step > 4_000_000:  # more than any Slurm takes (MaxArraySize)
            return {}
        ids += range(low, high + 1, step)
    if not ids:
        return {}
    return {
        "SLURM_ARRAY_TASK_ID": str(min(ids)),
        "SLURM_ARRAY_TASK_COUNT": str(len(set(ids))),
        "SLURM_ARRAY_TASK_MIN": str(min(ids)),
        "SLURM_ARRAY_TASK_MAX": str(max(ids)),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the smoke job's `sbatch` finds: the user's variables without those that it would read as options."""
    options = ("SLURM_CLUSTERS", "SLURM_HINT")
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("SBATCH_") and name not in options
    }


def words(
    real: Real,
    site: Site,
    *,
    seconds: float,
    nodes: int,
    waits: str,
    drop_after: float | None,
    output: str,
    cpus: int = 0,
) -> tuple[tuple[str, ...], int]:
    """The smoke job's options for `sbatch`, and how many CPUs they ask for a GPU (0: none stated).

    Parameters
    ----------
    seconds: how long the script may run. nodes: one, or two with a GPU each.
    waits: what it depends on, as `--dependency` has it; may be empty.
    drop_after: seconds after which Slurm drops it, if it has not started; None: never.
    output: a file; "%" in it is Slurm's. cpus: that a learning run begins with, at least; 0: the job's own share.
    """
    options = real.options
    limit = math.ceil((seconds + _SLACK) / 60)
    gres = [item for item in (options.get("gres") or "").split(",") if item and not _is_gpu(item)]
    kind = f":{real.gpu_type}" if real.gpu_type else ""
    found = [
        f"--job-name=smoke-{real.name}",
        f"--output={output}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--gres={','.join([f'gpu{kind}:1', *(item for item in gres if item.lower() != 'none')])}",
        f"--time={limit}",
        "--no-requeue",
        "--kill-on-invalid-dep=yes",
    ]
    found += [f"--{name}={options[name]}" for name in _AS_THEY_ARE if options.get(name)]
    cpus = max(cpus, cpus_of(real, site))
    if cpus:
        found.append(f"--cpus-per-task={cpus}")
    memory = memory_of(real, site)
    if memory:
        found.append(memory)
    if (nodelist := options.get("nodelist")) and (names := _first(nodelist, nodes)):
        found.append(f"--nodelist={names}")
    if waits:
        found.append(f"--dependency={waits}")
    if drop_after is not None:
        found.append(f"--deadline=now+{math.ceil(drop_after + limit * 60 + _RESERVE)}")
    return tuple(found), cpus


def cpus_of(real: Real, site: Site) -> int:
    """CPUs of one GPU's share; 0 where nothing says how many."""
    shape = real.shape
    if shape.cpus_per_gpu:
        return shape.cpus_per_gpu
    tasks = shape.tasks_per_gpu
    each = shape.cpus_per_task
    if shape.tasks and shape.gpus and (each or shape.tasks > (shape.nodes or 1)):
        return max(1, shape.tasks * (each or 1) // shape.gpus)
    if tasks or (shape.gpus_per_task and each):
        return max(1, (tasks or 1) * (each or 1) // (shape.gpus_per_task or 1))
    if shape.tasks_per_node and shape.gpus_per_node:
        return max(1, shape.tasks_per_node * (each or 1) // shape.gpus_per_node)
    if each:
        return max(1, each // (shape.gpus_per_node or 1)) if shape.nodes else each
    partition = site.partition(real.options.get("partition") or "")
    if shape.exclusive and partition.cpus_per_node and partition.gpus_per_node:
        return max(1, partition.cpus_per_node // partition.gpus_per_node)
    return 0


def memory_of(real: Real, site: Site) -> str:
    """The option for one GPU's share of memory; empty where neither job nor site file says: Slurm's default."""
    shape = real.shape
    if shape.memory_per_cpu:
        return f"--mem-per-cpu={shape.memory_per_cpu}M"
    if shape.memory_per_gpu:
        return f"--mem={shape.memory_per_gpu}M"
    partition = site.partition(real.options.get("partition") or "")
    per_node = shape.gpus_per_node or (shape.gpus if shape.nodes == 1 else None)
    if per_node is None and shape.gpus and partition.gpus_per_node:
        per_node = min(shape.gpus, partition.gpus_per_node)  # on the fewest nodes
    if shape.memory_per_node and per_node:
        return f"--mem={max(1, shape.memory_per_node // per_node)}M"
    if shape.memory_per_node:
        return f"--mem={shape.memory_per_node}M"
    # All of a node's, or nothing stated, which is all of a node's where Slurm has no default (DefMemPerCPU...)
    if partition.memory_per_node and partition.gpus_per_node:
        return f"--mem={max(1, partition.memory_per_node // partition.gpus_per_node)}M"
    return ""


def cap_of(site: Site, name: str) -> int:
    """The most CPUs that gsub would give one GPU in a partition: a learning run begins there. 0: not known."""
    partition = site.partition(name)
    given = partition.resources
    if given.max_cpus_per_gpu:
        return given.max_cpus_per_gpu
    if partition.cpus_per_node and partition.gpus_per_node:
        return max(1, partition.cpus_per_node - given.keep_cpus_per_gpu * (partition.gpus_per_node - 1))
    return 0


def _is_gpu(item: str) -> bool:
    name = item.strip().removeprefix("gres:").removeprefix("gres/")
    return re.split(r"[:=]", name, maxsplit=1)[0] in ("gpu", "mps", "shard")


def _first(nodelist: str, count: int) -> str:
    """The first nodes of a list; empty for a list that cannot be read, or a shorter one."""
    from site_configs.hostlist import HostlistError, expand

    try:
        names = list(expand(nodelist))
    except HostlistError:
        return ""
    return ",".join(names[:count]) if len(names) >= count else ""
