"""Whether a smoke run failed for want of what only the real job has: its log, its number, its other tasks. Pure.

Scripts copy their own log, name folders by their job's number, ask Slurm where they lie; of an array each task has data
of its own. What a script says about such things may be true of the smoke job alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["asks_slurm", "doubt", "submits"]

_ABOUT_DATA: Final = frozenset(
    {"missing_input", "corrupt_input", "permission_error", "bad_arguments", "semantic_error"}
)
"""Reasons that may be about one file or one value."""
_ASKS: Final = re.compile(r"(?<![\w.-])(?:scontrol|squeue|sacct|sstat)(?![\w.=-])")
_SUBMITS: Final = re.compile(r"(?<![\w.-])(?:[\w./-]*/)?sbatch(?![\w=/.-])")
_NAME: Final = re.compile(r"[\w.+@%~-]{3,}")
_QUOTED: Final = re.compile(r"(?<!\w)['\"‘]([^'\"’\n]{1,400})['\"’]")
_DEFAULT: Final = "slurm-%j.out"


def asks_slurm(texts: Iterable[str]) -> bool:
    """Whether scripts ask Slurm about jobs: it tells them of the smoke job, which has no script of a name.

    >>> asks_slurm(["D=$(scontrol show job $SLURM_JOB_ID | grep Command)"]), asks_slurm(["# squeue is not used"])
    (True, False)
    """
    return any(_ASKS.search(line) for line in _lines(texts))


def submits(texts: Sequence[str]) -> bool:
    """Whether scripts submit jobs, whatever they are run for: a smoke run would submit them, too.

    >>> submits(["#SBATCH -N2\\nsbatch --dependency=afterany:$SLURM_JOB_ID $0"]), submits(["see sbatch.html"])
    (True, False)
    >>> submits(['if [ -z "$GSUB_SMOKE" ]; then sbatch next.sh; fi'])
    False
    """
    return not any("GSUB_SMOKE" in text for text in texts) and any(map(_SUBMITS.search, _lines(texts)))


def _lines(texts: Iterable[str]) -> list[str]:
    """Without comments."""
    return [line for text in texts for line in text.splitlines() if not line.lstrip().startswith("#")]


def doubt(
    reason: str,
    words: Sequence[str],
    *,
    job: int,
    outputs: Sequence[str],
    asks: bool,
    array: bool,
    script: str,
) -> str:
    """Why a failure may be the smoke job's alone, the end of a sentence; "" where nothing speaks for that.

    Parameters
    ----------
    reason: of the taxonomy. words: the deciding line first, then those that belong to it.
    job: the smoke job. outputs: the real job's own, with Slurm's patterns. asks: see `asks_slurm`.
    array: whether it stands for an array. script: the batch script's text.

    >>> doubt("missing_input", ["cp: cannot stat 'logs/a-7.out'"], job=9, outputs=("logs/%x-%j.out",), asks=False,
    ...     array=False, script="")
    "it is about the real job's own output"
    """
    if reason not in _ABOUT_DATA | {"environment_error"}:
        return ""
    text = "\n".join(words)
    if job and re.search(rf"(?<!\d){job}(?!\d)", text):
        return "it names the smoke job's number, where the real job has its own"
    if reason not in _ABOUT_DATA:
        return ""
    for output in (*outputs, _DEFAULT):
        if re.search(rf"(?<![\w.-]){_pattern(output)}(?![\w-])", text):
            return "it is about the real job's own output"
    if asks and reason in ("missing_input", "bad_arguments"):
        return "its script asks Slurm about its job, and here that is the smoke job"
    # What stands in the script as it is, all tasks have; what does not may be the first task's alone
    names = _names(words[0] if words else "")
    if array and not (names and all(name in script for name in names)):
        return "it may be so of the first task alone"
    return ""


def _pattern(output: str) -> str:
    """Of a file's name, in whatever folder, with anything for what Slurm puts in."""
    name = output.rstrip("/").rpartition("/")[2]
    pieces = re.split(r"%\d*[A-Za-z]", name)
    return "\\S*".join(map(re.escape, pieces)) if any(len(piece) > 1 for piece in pieces) else "(?!)"


def _names(line: str) -> list[str]:
    """Names of files and options in a line, and what stands in quotes.

    >>> _names("train.py: error: argument --lr: invalid float value: 'abc'")
    ['train.py', '--lr', 'abc']
    """
    found = [name.rstrip(".") for name in _NAME.findall(line) if re.search(r"[.-]", name.strip("."))]
    return [*found, *(name for name in map(_last, _QUOTED.findall(line)) if name and name not in found)]


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
