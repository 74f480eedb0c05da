"""Requests written as sbatch's words, and decisions to compare with: what the table tests are made of.

`ask` turns ``-N 2 --gpus=16`` into what job_submit sees, as it was seen on 22.05.8, 24.11.5 and 26.05.5: options that
were not given stay unset, sbatch works out `num_tasks` and `min_cpus`, and 22.05 writes ``gres:gpu:16`` where newer
releases write ``gres/gpu:16``, or ``gres/gpu=1`` for each task.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from site_configs.hostlist import expand
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.edits import Value
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stage import Stage

ID = "d-0123456789abcdef"
_SHORT = {
    "-N": "nodes", "-n": "ntasks", "-G": "gpus", "-c": "cpus-per-task", "-p": "partition", "-C": "constraint",
    "-w": "nodelist", "-x": "exclude", "-t": "time", "-a": "array", "-A": "account", "-q": "qos",
}  # fmt: skip
_PLAIN = {
    "partition": "partition", "constraint": "features", "nodelist": "req_nodes", "exclude": "exc_nodes",
    "array": "array_inx", "account": "account", "qos": "qos", "comment": "comment", "reservation": "reservation",
    "prefer": "prefer", "licenses": "licenses",
}  # fmt: skip
_NUMBERS = {
    "ntasks-per-node": "ntasks_per_node", "cpus-per-task": "cpus_per_task", "sockets-per-node": "sockets_per_node",
    "mincpus": "pn_min_cpus", "ntasks-per-socket": "ntasks_per_socket", "ntasks-per-core": "ntasks_per_core",
    "threads-per-core": "threads_per_core",
    "segment": "segment_size", "time": "time_limit",
}  # fmt: skip
_TRES = {"gpus": "tres_per_job", "gpus-per-node": "tres_per_node", "gres": "tres_per_node",
         "gpus-per-socket": "tres_per_socket", "gpus-per-task": "tres_per_task",
         "cpus-per-gpu": "cpus_per_tres"}  # fmt: skip


def ask(words: str, release: tuple[int, int] = (22, 5), **fields: Any) -> Job:
    """The job of `sbatch` with those words; `fields` are set besides. Times are minutes."""
    job: dict[str, Any] = {}
    for option, value in _options(words):
        if option in _PLAIN:
            job[_PLAIN[option]] = value
        elif option in _NUMBERS:
            job[_NUMBERS[option]] = int(value)
        elif option in _TRES:
            text = _tres(
                value if option == "gres" else _gpus(value), release, equals=option == "gpus-per-task"
            )
            job[_TRES[option]] = ",".join(filter(None, (job.get(_TRES[option]), text)))
        elif option == "nodes":
            low, _, high = value.partition("-")
            job["min_nodes"], job["max_nodes"] = int(low), int(high or low)
        elif option == "ntasks":
            job["num_tasks"] = int(value)
        elif option == "ntasks-per-gpu":
            job["ntasks_per_tres"] = int(value)
        elif option == "mem":
            job["min_mem_per_node"] = _mib(value)
        elif option == "mem-per-cpu":
            job["min_mem_per_cpu"] = _mib(value)
        elif option == "mem-per-gpu":
            job["mem_per_tres"] = _tres(f"gpu:{_mib(value)}", release)
        elif option == "exclusive":
            job["shared"] = {"": 0, "user": 2, "mcs": 3}[value]
        elif option == "oversubscribe":
            job["shared"] = 1
        elif option == "switches":
            count, _, wait = value.partition("@")
            job["req_switch"] = int(count)
            if wait:
                job["wait4switch"] = int(wait) * 60
        else:
            raise AssertionError(f"no option {option!r} in the tests' sbatch")
    nodes, each = job.get("min_nodes"), job.get("ntasks_per_node")
    if nodes is None and "num_tasks" in job and each and release >= (24, 11):
        job["min_nodes"] = -(-job["num_tasks"] // each)
    if nodes is None and "req_nodes" in job:
        job["min_nodes"] = len(expand(job["req_nodes"]))
    if "num_tasks" not in job and each and nodes == job.get("max_nodes") and release < (26, 5):
        job["num_tasks"] = (nodes or 1) * each
    if "num_tasks" not in job and nodes and "tres_per_socket" in job and "sockets_per_node" in job:
        job["num_tasks"] = nodes * job["sockets_per_node"]
    tasks = job.get("num_tasks") or (nodes or 1) * (each or 1)
    job["min_cpus"] = tasks * job.get("cpus_per_task", 1)
    if "cpus_per_task" in job:
        job.setdefault("pn_min_cpus", job["cpus_per_task"])
    return Job(**job, **fields)


def environment(words: str, release: tuple[int, int] = (22, 5)) -> dict[str, str]:
    """What sbatch writes into the environment for those words, of what a decision reads."""
    options, job = dict(_options(words)), ask(words, release)
    env: dict[str, str] = {}
    if job.num_tasks is not None and ("ntasks" in options or release < (24, 11)):
        env["SLURM_NTASKS"] = env["SLURM_NPROCS"] = str(job.num_tasks)
    for option in ("ntasks-per-node", "gpus-per-node", "cpus-per-task", "cpus-per-gpu", "ntasks-per-gpu"):
        if option in options:
            env["SLURM_" + option.upper().replace("-", "_")] = options[option]
    return env


def _options(words: str) -> list[tuple[str, str]]:
    found, rest = [], shlex.split(words)
    while rest:
        word = rest.pop(0)
        if word in _SHORT:
            found.append((_SHORT[word], rest.pop(0)))
        else:
            name, _, value = word.removeprefix("--").partition("=")
            found.append((name, value))
    return found


def _gpus(value: str) -> str:
    """``a100:4,v100:2`` of --gpus as --gres has it."""
    return ",".join(f"gpu:{item}" for item in value.split(","))


def _tres(value: str, release: tuple[int, int], *, equals: bool = False) -> str:
    if release < (23, 11):
        return ",".join(f"gres:{item}" for item in value.split(","))
    items = [f"gres/{item}" for item in value.split(",")]
    return ",".join(re.sub(r":(\d+)$", r"=\1", item) for item in items) if equals else ",".join(items)


def _mib(size: str) -> int:
    shift = {"M": 0, "G": 10, "T": 20}.get(size[-1])
    return int(size) if shift is None else int(size[:-1]) << shift


def made(decision: Decision) -> dict[str, Value]:
    """What was decided for the job itself: without AdminComment, and without what `steps` has go with other edits."""
    along = {change.field for change in decision.changes if change.field == "gres" and not change.reason}
    return {
        name: value
        for name, value in decision.edits.items()
        if name not in {"admin_comment", "min_cpus", "pn_min_cpus", *along}
    }


def grid(nodes: int, gres: str = "", each: int | None = None, *, whole: bool = False) -> dict[str, Value]:
    """Edits that close a shape: so many nodes, GPUs and tasks on each, exclusive."""
    edits: dict[str, Value] = {"min_nodes": nodes, "max_nodes": nodes}
    if gres:
        edits["gres"] = gres
    if each:
        edits["ntasks_per_node"] = each
    if whole:
        edits["shared"] = 0
    return edits


@dataclass(frozen=True)
class Row:
    """A request, what is to become of it, and a piece of the reason or note that says so."""

    words: str
    edits: Mapping[str, Value]
    says: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def decide(self, context: Context, *stages: Stage, batch: bool = True) -> Decision:
        """The decision of those stages (none: of all)."""
        release = context.slurm.release
        env = {**environment(self.words, release), **self.env} if batch else {}
        request = Request(id=1, uid=1000, job=ask(self.words, release), env=env, batch=batch)
        return decide(request, context, decision_id=ID, stages=stages or None)

    def check(self, context: Context, *stages: Stage) -> None:
        """Assert that the decision is as the row has it."""
        decision = self.decide(context, *stages)
        assert not decision.failures, decision.failures
        edits = made(decision)
        if "max_nodes" in edits:  # sbatch may have set the lower bound already
            low = ask(self.words, context.slurm.release).min_nodes
            edits.setdefault("min_nodes", low or 1)
        assert edits == dict(self.edits), (self.words, decision.notes)
        told = [change.reason for change in decision.changes] + [note.text for note in decision.notes]
        assert any(self.says in text for text in told) or not self.says, (self.words, told)
