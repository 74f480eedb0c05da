"""What is asked of Slurm against what the script counts on: GPUs, nodes and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gsub.preflight.children import child, read_file
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.launch import Program, program
from gsub.preflight.values import MOST, Finding, Submission

__all__ = ["shape", "test_only"]

_GPU: Final = re.compile(r"(?:gres[:/])?gpu(?::[A-Za-z][\w.-]*)?(?:[:=](\d{1,6}))?")
_COUNT: Final = re.compile(r"(?:[A-Za-z][\w.-]*[:=])?(\d{1,6})")
_NUMBER: Final = re.compile(r"\d{1,6}")
_NCCL: Final = re.compile(rb"['\"]nccl['\"]")
_GLOO: Final = re.compile(rb"gloo|['\"]mpi['\"]")


def shape(submission: Submission) -> Iterator[Finding]:
    """Steps larger than the job, processes without a GPU each, and variables that say otherwise than the request."""
    if len(submission.components) != 1:
        return
    nodes, gpus = _nodes(submission), _gpus_per_node(submission)
    for command in commands(submission):
        found = program(command)
        if found is None:
            continue
        yield from _step(submission, command, found, nodes)
        yield from _processes(submission, command, found, nodes, gpus)
        yield from _variables(submission, command, found, gpus)


def _value(submission: Submission, name: str) -> str:
    option = submission.option(name)
    return option.value or "" if option is not None else ""


def _nodes(submission: Submission) -> int | None:
    """The number of nodes, where exactly one was stated."""
    stated = _value(submission, "nodes")
    return int(stated) if _NUMBER.fullmatch(stated) and int(stated) else None


def _gpus_per_node(submission: Submission) -> int | None:
    """GPUs of each node, where they were stated in a way that leaves no other reading."""
    stated = _value(submission, "gpus-per-node")
    if stated and (found := _COUNT.fullmatch(stated)):
        return int(found[1])
    items = [_GPU.fullmatch(item.strip()) for item in _value(submission, "gres").split(",")]
    if any(items):
        return sum(int(found[1] or 1) for found in items if found)
    whole = _COUNT.fullmatch(_value(submission, "gpus"))
    return int(whole[1]) if whole and _nodes(submission) == 1 else None


def _step(submission: Submission, command: Command, found: Program, nodes: int | None) -> Iterator[Finding]:
    wanted = (found.srun or {}).get("nodes") or ""
    low = wanted.partition("-")[0]
    if nodes is None or not _NUMBER.fullmatch(low) or int(low) <= nodes:
        return
    what = f"srun asks for {low} nodes, and the job has {nodes}"
    helps = f"--nodes={low} for the job, or leave srun's -N out"
    yield submission.finding(
        "error" if command.sure and command.decisive else "warning", command.line, what, helps
    )


def _processes(
    submission: Submission, command: Command, found: Program, nodes: int | None, gpus: int | None
) -> Iterator[Finding]:
    torch = found.torch
    if torch is None:
        return
    each = torch.get("nproc-per-node") or ""
    if gpus and _NUMBER.fullmatch(each) and int(each) != gpus:
        if int(each) > gpus:
            sure = command.sure and command.decisive and _needs_nccl(command, found)
            what = f"{each} processes a node want a GPU each, and {gpus} a node are asked for"
            helps = f"--nproc_per_node={gpus}, or ask for {each} GPUs a node"
            yield submission.finding("error" if sure else "warning", command.line, what, helps)
        elif "CUDA_VISIBLE_DEVICES" not in command.variables:
            what = f"{each} processes a node use {each} of the {gpus} GPUs a node that are asked for"
            helps = f"--nproc_per_node={gpus}, or ask for {each} GPUs a node"
            yield submission.finding("warning", command.line, what, helps)
    wanted = torch.get("nnodes") or ""
    if nodes and _NUMBER.fullmatch(wanted) and int(wanted) > nodes:
        what = f"torchrun waits for {wanted} nodes, and the job has {nodes}"
        yield submission.finding(
            "warning", command.line, what, f"--nnodes={nodes}, or ask for {wanted} nodes"
        )


def _needs_nccl(command: Command, found: Program) -> bool:
    """Whether the program names NCCL and nothing else: NCCL refuses two processes on one GPU."""
    path = command.path(found.file)
    try:
        text = read_file(path) if path else b""
    except OSError:
        return False
    return bool(_NCCL.search(text)) and not _GLOO.search(text)


def _variables(
    submission: Submission, command: Command, found: Program, gpus: int | None
) -> Iterator[Finding]:
    variables = {**command.variables, **found.variables}
    own = {k: v for k, v in variables.items() if submission.environ.get(k) != v}
    seen = own.get("CUDA_VISIBLE_DEVICES", "")
    if gpus and found.kind == "python" and re.fullmatch(r"\d+(?:,\d+)*", seen):
        highest = max(int(one) for one in seen.split(","))
        if highest >= gpus:
            what = f"CUDA_VISIBLE_DEVICES={seen[:MOST]} names GPU {highest}, and the job has {gpus} a node, from 0 on"
            yield submission.finding("warning", command.line, what, "leave the variable to Slurm")
    size, tasks = own.get("WORLD_SIZE", ""), _tasks(submission)
    if (
        tasks
        and found.torch is None
        and found.kind == "python"
        and _NUMBER.fullmatch(size)
        and int(size) != tasks
    ):
        stated = (found.srun or {}).get("ntasks")
        if found.srun is not None and (stated is None or stated != size):
            what = f"WORLD_SIZE={size}, and the step has {stated or tasks} tasks"
            yield submission.finding("warning", command.line, what, "WORLD_SIZE=$SLURM_NTASKS")


def _tasks(submission: Submission) -> int | None:
    stated = _value(submission, "ntasks")
    if _NUMBER.fullmatch(stated):
        return int(stated)
    each, nodes = _value(submission, "ntasks-per-node"), _nodes(submission)
    return int(each) * nodes if nodes and _NUMBER.fullmatch(each) and not stated else None


def test_only(submission: Submission) -> Iterator[Finding]:
    """Slurm's own verdict on the request."""
    from gsub.remedies import explain
    from gsub.sbatch import PROGRAM

    folder = f"{submission.slurm_folder}/" if submission.slurm_folder else ""
    given = submission.text.encode("utf-8", "surrogateescape") if submission.name == "standard input" else b""
    said = child(
        [folder + PROGRAM, "--test-only", *submission.words],
        given=given,
        environ=submission.environ,
        folder=submission.cwd,
    )
    if not said.code:
        return
    if "DOS line" in said.err or "look like a batch script" in said.err:
        return  # told with its line already
    error = explain(said.err)
    if (
        "not configured" in error.what
        or "out of reach" in error.what
        or "Unable to contact" in said.err
        or "Socket timed out" in said.err
    ):
        return
    line = _line_of(submission, said.err)
    why = f" ({error.why.removeprefix('sbatch says: ')[:MOST]})" if error.why else ""
    yield submission.finding("error", line, f"{error.what}{why}", error.fix or "see 'man sbatch'")


def _line_of(submission: Submission, said: str) -> int:
    """The `#SBATCH` line that sbatch's words point at; 0 where none does."""
    for option in submission.components[0]:
        if option.source.startswith("script line "):
            value = option.value or ""
            if f"--{option.name}" in said or (
                len(value) > 1 and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said)
            ):
                return int(option.source.rpartition(" ")[2])
    return 0
