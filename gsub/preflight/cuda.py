"""The CUDA that a script loads against the GPUs that it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gsub.preflight.commands import commands
from gsub.preflight.values import Finding, Submission

__all__ = ["LEAST", "cuda"]

LEAST: Final = {
    "v100": (9, 0), "t4": (10, 0), "a100": (11, 0), "a30": (11, 0), "a10": (11, 1), "a40": (11, 1), "rtx3090": (11, 1),
    "a6000": (11, 1), "l4": (11, 8), "l40": (11, 8), "l40s": (11, 8), "rtx4090": (11, 8), "h100": (11, 8),
    "h200": (11, 8), "gh200": (11, 8), "b200": (12, 8), "gb200": (12, 8),
}  # fmt: skip
"""The first CUDA toolkit that compiles for a GPU, by its usual name in Slurm (NVIDIA, CUDA release notes)."""
_TYPE: Final = re.compile(r"(?:gpu[:/])?([A-Za-z][A-Za-z0-9]*)(?:[._-][\w.-]*)?[:=]\d+")
_MODULE: Final = re.compile(
    r"(?:[\w+-]+/)*?(?:cuda|cudatoolkit|nvidia-cuda)[/-](\d{1,2})\.(\d{1,2})(?:[.\w-]*)", re.IGNORECASE
)


def cuda(submission: Submission) -> Iterator[Finding]:
    """A module of CUDA that is older than the GPU: a warning, since frameworks mostly bring their own."""
    types = {
        found[1].lower()
        for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres")
        if (option := submission.option(name)) is not None
        for item in (option.value or "").split(",")
        if (found := _TYPE.fullmatch(item.strip())) and found[1].lower() in LEAST
    }
    if len(types) != 1 or len(submission.components) != 1:
        return
    (gpu,) = types
    least = LEAST[gpu]
    for command in commands(submission):
        if command.name not in ("module", "ml"):
            continue
        for word in command.words[1:]:
            found = _MODULE.fullmatch(word or "")
            if found and (int(found[1]), int(found[2])) < least:
                what = f"CUDA {found[1]}.{found[2]} knows no {gpu.upper()}, which needs {least[0]}.{least[1]}"
                helps = f"load CUDA {least[0]}.{least[1]} or newer"
                yield submission.finding("warning", command.line, what, helps)
