"""The checks: a row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gsub.preflight import (
    cuda,
    data,
    limits,
    loads,
    outputs,
    paths,
    python_code,
    request,
    shape,
    shell,
    space,
)
from gsub.preflight.values import Finding, Submission

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, what it finds in a sentence, how long it may take, and its function.

    `sbatch_tells`: sbatch refuses the same, in its own words; looked for only when nothing is submitted afterwards.
    """

    name: str
    about: str
    look: Callable[[Submission], Iterable[Finding]]
    deadline: float = 2.0
    sbatch_tells: bool = False


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "script",
        "it begins with #!, is text, and has the line ends of Unix",
        shell.line_ends,
        sbatch_tells=True,
    ),
    Check("first-line", "the program that runs the script is there", shell.first_line),
    Check("syntax", "the script's shell understands it", shell.syntax),
    Check("option-lines", "#SBATCH lines that sbatch would not read", shell.option_lines),
    Check("options", "#SBATCH lines with options that no sbatch has", shell.options),
    Check("shape", "GPUs, nodes and tasks asked for and those that the script counts on", shape.shape),
    Check("limits", "limits of partitions that the job breaks and sbatch lets pass", limits.limits),
    Check("cuda", "a CUDA module that is older than the GPUs asked for", cuda.cuda),
    Check("modules", "modules that are loaded are there", loads.loads),
    Check("test-only", "sbatch --test-only", request.test_only, sbatch_tells=True),
    Check("output", "the folders of the job's output and error files", outputs.output),
    Check("files", "programs, scripts and inputs that command lines name", paths.files),
    Check("data", "a sample of the data that command lines name can be read", data.data),
    Check("space", "space, inodes and quota where output goes", space.space),
    Check("python", "Python files compile, and their imports are there", python_code.python),
)
