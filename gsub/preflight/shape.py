"""What is asked of Slurm against what the script counts on: nodes, GPUs, tasks and the processes of launchers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gsub.preflight.asked import Asked, asked, gpus_of, number
from gsub.preflight.children import read_file
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.launch import Program, program
from gsub.preflight.launchers import Launch
from gsub.preflight.modules import module_path
from gsub.preflight.values import MOST, Finding, Level, Submission
from profiler.counting import count

__all__ = ["shape"]

_NCCL: Final = re.compile(rb"['\"]nccl['\"]|\bdeepspeed\.initialize\(")
_OTHERWISE: Final = re.compile(rb"gloo|['\"](?:mpi|ccl|ucc)['\"]")
_SPREADS: Final = frozenset(
    {"srun", "ssh", "pdsh", "clush", "parallel-ssh", "mpirun", "mpiexec", "ray", "blaunch"}
)
"""Programs that start others on other nodes."""
_DEVICES: Final = re.compile(
    r"--?(?:trainer[.])?(?:devices|n?gpus|num[-_]gpus|n[-_]gpus?|gpus[-_]per[-_]node)"
)
_ACCELERATE: Final = re.compile(
    rb"^(num_machines|num_processes)\s*:\s*['\"]?(\d{1,6})['\"]?\s*(?:#.*)?$", re.MULTILINE
)
_OVER: Final = ("oversubscribe", "hostfile", "machinefile", "host", "hosts", "H", "f", "rf", "rankfile")


@dataclass(frozen=True, slots=True)
class _Processes:
    """What a launcher starts: processes on each node, nodes; None where that is not stated."""

    each: int | None
    nodes: int | None
    option: str
    nodes_option: str


def shape(submission: Submission) -> Iterator[Finding]:
    """Steps larger than the job, processes without a GPU each, and variables that say otherwise than the request."""
    if len(submission.components) != 1:
        return
    job = asked(submission)
    all_commands = commands(submission)
    for command in all_commands:
        found = program(command)
        if found is None:
            continue
        yield from _step(submission, command, found, job)
        if found.launch is not None:
            yield from _processes(submission, command, found, job, all_commands)
        yield from _tasks(submission, command, found, job)
        yield from _variables(submission, command, found, job)
        yield from _devices(submission, command, found, job)


def _error(command: Command) -> Level:
    return "error" if command.sure and command.decisive else "warning"


# --- steps ----------------------------------------------------------------------------------------------------------


def _step(submission: Submission, command: Command, found: Program, job: Asked) -> Iterator[Finding]:
    """A step that asks for more than its job has: Slurm refuses it (seen on 22.05, 24.11 and 26.05)."""
    if found.srun is None or number(found.srun.get("jobid")):
        return
    options = found.srun
    low = number((options.get("nodes") or "").partition("-")[0])
    if job.nodes and low and low > job.nodes:
        what = f"srun asks for {low} nodes, and the job has {job.nodes}"
        helps = f"--nodes={low} for the job, or leave srun's -N out"
        yield submission.finding(_error(command), command.line, what, helps)
        return
    sure: Level = "warning" if job.exclusive else _error(command)
    each = gpus_of(lambda name: options.get(name) or "")
    if job.gpus and each and each > job.gpus:
        what = f"srun asks for {count(each, 'GPU')} a node, and the job has {job.gpus}"
        yield submission.finding(
            sure,
            command.line,
            what,
            f"ask for {count(each, 'GPU')} a node for the job, or for {job.gpus} here",
        )
        return
    tasks = number(options.get("ntasks")) or (
        job.all_tasks if low is None and "ntasks-per-node" not in options else None
    )
    one = number(options.get("gpus-per-task"))
    whole = number(options.get("gpus")) or (tasks * one if tasks and one and "ntasks" in options else None)
    if job.all_gpus and whole and whole > job.all_gpus:
        what = f"srun asks for {count(whole, 'GPU')}, and the job has {job.all_gpus}"
        yield submission.finding(
            sure, command.line, what, f"ask for {count(whole, 'GPU')} for the job, or for {job.all_gpus} here"
        )


def _tasks_a_node(found: Program, job: Asked) -> int | None:
    """Tasks that a step starts on each node, where that is certain."""
    options = found.srun
    if options is None:
        return None
    if "ntasks-per-node" in options:
        return number(options["ntasks-per-node"])
    nodes = number(options.get("nodes")) or job.nodes
    if "ntasks" in options:
        tasks = number(options["ntasks"])
        return tasks // nodes if tasks and nodes and tasks % nodes == 0 else None
    return job.tasks if "nodes" not in options else None


def _tasks(submission: Submission, command: Command, found: Program, job: Asked) -> Iterator[Finding]:
    """More tasks than GPUs where each wants one; more ranks of MPI than tasks."""
    tasks = _tasks_a_node(found, job)
    gpus = _gpus_here(found, job)
    if (
        found.launch is None
        and found.kind == "python"
        and tasks
        and gpus
        and tasks > gpus
        and _needs_nccl(command, found)
    ):
        what = f"{tasks} tasks a node share {count(gpus, 'GPU')}, and NCCL wants a GPU for each"
        yield submission.finding(
            "warning", command.line, what, f"--ntasks-per-node={gpus}, or ask for {tasks} GPUs a node"
        )
    if found.mpi is not None and job.all_tasks and not found.mpi.given(*_OVER):
        ranks = found.mpi.number("np", "n", "c")
        if ranks and ranks > job.all_tasks:
            what = (
                f"mpirun starts {count(ranks, 'rank')}, and the job has {count(job.all_tasks, 'task')}: "
                "Open MPI refuses that"
            )
            yield submission.finding(
                "warning", command.line, what, f"--ntasks={ranks} for the job, or leave it out here"
            )


# --- launchers ------------------------------------------------------------------------------------------------------


def _gpus_here(found: Program, job: Asked) -> int | None:
    """GPUs of a node that the program sees: those of its step, else those of the job."""
    options = found.srun or {}
    own = gpus_of(lambda name: options.get(name) or "")
    if own is not None:
        return own
    if found.srun is not None and job.bound:
        return None
    return None if {"gpus", "gpus-per-task", "gres", "gpus-per-node"} & set(options) else job.gpus


def _launched(command: Command, launch: Launch) -> _Processes:
    if launch.name == "torchrun":
        nodes = launch.number("nnodes")
        if nodes is None and not launch.given("nnodes"):
            nodes = 1
        return _Processes(launch.number("nproc-per-node"), nodes, "--nproc_per_node", "--nnodes")
    if launch.name == "deepspeed":
        elsewhere = launch.given("hostfile", "H", "include", "i", "exclude", "e", "launcher")
        nodes = launch.number("num-nodes") if elsewhere else 1
        return _Processes(launch.number("num-gpus"), nodes, "--num_gpus", "--num_nodes")
    total, nodes = launch.number("num-processes"), launch.number("num-machines")
    if launch.given("config-file"):
        told = _config(command, launch.options.get("config-file"))
        total = total if launch.given("num-processes") else told.get("num_processes")
        nodes = nodes if launch.given("num-machines") else told.get("num_machines")
    elif not launch.given("num-machines"):
        nodes = 1
    each = total // nodes if total and nodes and total % nodes == 0 else None
    return _Processes(each, nodes, "--num_processes", "--num_machines")


def _config(command: Command, word: str | None) -> dict[str, int]:
    """The counts that accelerate's configuration file states; empty where it is not known."""
    path = command.path(word) if word else None
    if path is None or command.makes(path):
        return {}
    try:
        text = read_file(path, 65536)
    except OSError:
        return {}
    return {found[1].decode(): int(found[2]) for found in _ACCELERATE.finditer(text)}


def _processes(
    submission: Submission, command: Command, found: Program, job: Asked, others: Sequence[Command]
) -> Iterator[Finding]:
    if found.launch is None:
        return
    name = found.launch.name
    start = _launched(command, found.launch)
    gpus, tasks = _gpus_here(found, job), _tasks_a_node(found, job)
    if found.launch.given("cpu", "use-cpu"):
        gpus = None
    if gpus and start.each and start.each != gpus:
        scale = (start.nodes or 1) if start.option == "--num_processes" else 1
        helps = f"{start.option}={gpus * scale}, or ask for {count(start.each, 'GPU')} a node"
        if start.each > gpus:
            sure: Level = "warning" if job.exclusive or not _needs_nccl(command, found) else _error(command)
            what = f"{start.each} processes a node want a GPU each, and {gpus} a node are asked for"
            yield submission.finding(sure, command.line, what, helps)
        elif "CUDA_VISIBLE_DEVICES" not in command.variables and command.sure:
            what = (
                f"{count(start.each, 'process', 'processes')} a node use{'s' * (start.each == 1)} {start.each} of the "
                f"{count(gpus, 'GPU')} a node that are asked for"
            )
            yield submission.finding("warning", command.line, what, helps)
    elif gpus and start.each and tasks and tasks > 1:
        each = f"{count(start.each, 'process', 'processes')} each, for {count(gpus, 'GPU')}"
        what = f"srun starts {name} {tasks} times a node, with {each}"
        yield submission.finding(
            "warning", command.line, what, "srun --ntasks-per-node=1: the launcher starts the others"
        )
    if job.nodes and start.nodes and start.nodes > job.nodes:
        what = f"{name} waits for {start.nodes} nodes, and the job has {job.nodes}"
        helps = f"{start.nodes_option}={job.nodes}, or ask for {start.nodes} nodes"
        yield submission.finding("warning", command.line, what, helps)
    spread = found.srun is not None or found.mpi is not None or any(one.name in _SPREADS for one in others)
    if job.nodes and job.nodes > 1 and start.nodes == 1 and command.sure and not spread:
        what = f"{name} runs on the first node only, and the job has {job.nodes}"
        helps = f"srun --ntasks-per-node=1 {name} {start.nodes_option}={job.nodes} ..., or ask for one node"
        yield submission.finding("warning", command.line, what, helps)


def _needs_nccl(command: Command, found: Program) -> bool:
    """Whether the program names NCCL and nothing else: NCCL refuses two processes on one GPU."""
    path = module_path(command.folder, found.module) if found.module else command.path(found.file)
    try:
        text = read_file(path) if path else b""
    except OSError:
        return False
    return bool(_NCCL.search(text)) and not _OTHERWISE.search(text)


# --- variables and arguments ----------------------------------------------------------------------------------------


def _variables(submission: Submission, command: Command, found: Program, job: Asked) -> Iterator[Finding]:
    variables = {**command.variables, **found.variables}
    own = {k: v for k, v in variables.items() if submission.environ.get(k) != v}
    seen = own.get("CUDA_VISIBLE_DEVICES", "")
    if job.gpus and found.kind == "python" and re.fullmatch(r"\d+(?:,\d+)*", seen):
        highest = max(int(one) for one in seen.split(","))
        if highest >= job.gpus:
            has = f"the job has {count(job.gpus, 'GPU')} a node, and there is no {highest}"
            what = f"CUDA_VISIBLE_DEVICES={seen[:MOST]}: {has}"
            yield submission.finding("warning", command.line, what, "leave the variable to Slurm")
    size = number(own.get("WORLD_SIZE"))
    if found.srun is None or found.launch is not None or found.kind != "python" or size is None:
        return
    tasks = number(found.srun.get("ntasks"))
    if tasks is None and not {"ntasks", "nodes", "ntasks-per-node"} & set(found.srun):
        tasks = job.all_tasks
    if tasks and size != tasks:
        what = f"WORLD_SIZE={size}, and the step has {count(tasks, 'task')}"
        yield submission.finding("warning", command.line, what, "WORLD_SIZE=$SLURM_NTASKS")


def _devices(submission: Submission, command: Command, found: Program, job: Asked) -> Iterator[Finding]:
    """Arguments like `--devices 8` (Lightning's name) that count more GPUs than the job has, on a node or in all."""
    gpus = _gpus_here(found, job)
    most = max(gpus or 0, job.all_gpus or 0)
    if found.kind != "python" or found.launch is not None or not gpus or not job.all_gpus:
        return
    for place, word in enumerate(found.args):
        name, equals, value = (word or "").partition("=")
        if not _DEVICES.fullmatch(
            name if name.startswith("-") else f"--{name}" if equals and "." in name else ""
        ):
            continue
        stated = number(value if equals else found.args[place + 1] if place + 1 < len(found.args) else None)
        if stated and stated > most:
            has = f"the job has {count(gpus, 'GPU')} a node, {job.all_gpus} in all"
            what = f"{name}{'=' if equals else ' '}{stated}: {has}"
            yield submission.finding(
                "warning", command.line, what, f"ask for them, or {name}{equals or ' '}{gpus}"
            )
