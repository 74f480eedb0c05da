"""Jobs whose script is a bare `srun`, many at a time, and what each of them got: by its own tasks and by accounting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from site_configs.devcluster import Cluster
from tests.waiting import wait_until

# One line a task: node, CPUs of the step there, CPUs for each task as told, GPUs.
_TASK = (
    'echo "task $SLURMD_NODENAME $SLURM_CPUS_ON_NODE ${SLURM_CPUS_PER_TASK:-0} ${CUDA_VISIBLE_DEVICES:--}"'
)
SCRIPT = f"#!/bin/bash\nsrun sh -c '{_TASK}' 2>&1\n"
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
_SUFFIX = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Step:
    """What one `srun` got.

    `tasks` and `cpus` are node -> count of the step there; `cpus_told` and `gpus` what each task found in its
    environment: SLURM_CPUS_PER_TASK (0: none) and how many GPUs. `tres` is the step's in accounting, memory in MiB;
    `job` the allocation's, without billing. `noise` is what srun said besides.
    """

    tasks: Mapping[str, int]
    cpus: Mapping[str, int]
    cpus_told: frozenset[int]
    gpus: frozenset[int]
    tres: Mapping[str, int]
    job: Mapping[str, int]
    noise: str

    @property
    def nodes(self) -> int:
        """Nodes of the step."""
        return len(self.tasks)

    @property
    def tasks_per_node(self) -> list[int]:
        """Sorted, the most first."""
        return sorted(self.tasks.values(), reverse=True)


def tres(text: str) -> dict[str, int]:
    """``cpu=4,gres/gpu=2,mem=4G,node=1`` as numbers; memory in MiB."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        number, suffix = re.fullmatch(r"([\d.]+)([KMGT]?)", value).groups()  # type: ignore[union-attr]
        found[name] = round(float(number) * (_SUFFIX[suffix] if suffix else 1))
    return found


def submit_marked(
    cluster: Cluster,
    line: Sequence[str],
    *,
    user: str | None,
    mark: Callable[[str], bool],
    env: Mapping[str, str] | None = None,
    script: str = SCRIPT,
) -> str:
    """Submit until the job bears the mark of a decision: on a loaded machine an answer may come too late, by design."""

    def marked() -> str | None:
        done = cluster.run(["sbatch", "--parsable", *line], user=user, env=env, input=script)
        assert done.returncode == 0, (line, done.stderr)
        job = done.stdout.split(";")[0].strip()
        shown = cluster.run(["scontrol", "show", "job", "-o", job]).stdout
        found = re.search(r"AdminComment=(\S*)", shown)
        if found and mark(found[1]):
            return job
        cluster.run(["scancel", job])
        return None

    return wait_until(marked, message=f"a decision about {line}")


def records(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Shown id of each job, array task (``12_1``) and component (``12+0``) -> its record in scontrol."""
    found = {}
    for line in cluster.run(["scontrol", "show", "job", "-o"], check=True).stdout.splitlines():
        record = dict(re.findall(r"(\w[\w/:]*)=(\S*)", line))
        if not line.startswith("JobId=") or not record["JobId"].isdecimal():
            continue  # an ended job of another test, whose name holds newlines or looks like fields
        if "ArrayTaskId" in record:
            shown = f"{record['ArrayJobId']}_{record['ArrayTaskId']}"
        elif "HetJobOffset" in record:
            shown = f"{record['HetJobId']}+{record['HetJobOffset']}"
        else:
            shown = record["JobId"]
        found[shown] = record
    return found


def steps(cluster: Cluster, jobs: Iterable[str], folder: Path) -> dict[str, Step]:
    """Wait for the jobs' ends; shown id of each, of its tasks or components -> what its bare `srun` got.

    Each wrote its output to ``<folder>/<shown id>.out``.
    """
    want = set(jobs)

    def all_left() -> bool:
        queue = cluster.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split()
        return want.isdisjoint(re.split(r"[_+]", job)[0] for job in queue)

    wait_until(all_left, 360, "the jobs' ends")
    shown = [job for job in records(cluster) if re.split(r"[_+]", job)[0] in want]

    def all_in_accounting() -> dict[str, dict[str, tuple[str, str]]] | None:
        line = ["sacct", "-n", "-P", "-j", ",".join(want), "-o", "JobID,State,AllocTRES"]
        found: dict[str, dict[str, tuple[str, str]]] = {job: {} for job in shown}
        for said in cluster.run(line, check=True).stdout.splitlines():
            name, state, text = said.split("|")
            job, _, step = name.partition(".")
            found.setdefault(job, {})[step] = (state.split()[0], text)
        states = [{state for state, _ in found[job].values()} for job in shown]
        return found if all(each and each <= _ENDED for each in states) else None

    ended = wait_until(all_in_accounting)
    return {
        job: _step(ended[job], file.read_text() if (file := folder / f"{job}.out").exists() else "")
        for job in shown
    }


def _step(each: Mapping[str, tuple[str, str]], said: str) -> Step:
    told = [line.split()[1:] for line in said.splitlines() if line.startswith("task ")]
    noise = "\n".join(line for line in said.splitlines() if not line.startswith("task "))
    return Step(
        tasks=Counter(node for node, *_ in told),
        cpus={node: int(cpus) for node, cpus, *_ in told},
        cpus_told=frozenset(int(cpus) for _, _, cpus, _ in told),
        gpus=frozenset(0 if gpus == "-" else gpus.count(",") + 1 for *_, gpus in told),
        tres=next((tres(text) for step, (_, text) in each.items() if step.isdigit()), {}),
        job={name: count for name, count in tres(each[""][1]).items() if name != "billing"},
        noise=noise,
    )
