"""What the options come to: nodes, tasks and GPUs, wherever they leave no other reading."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gsub.preflight.values import Submission

__all__ = ["Asked", "asked", "gpus_of", "number"]

_GPU: Final = re.compile(r"(?:gres[:/])?gpu(?::[A-Za-z][\w.-]*)?(?:[:=](\d{1,6}))?")
_COUNT: Final = re.compile(r"(?:[A-Za-z][\w.-]*[:=])?(\d{1,6})")
_NUMBER: Final = re.compile(r"\d{1,6}")


@dataclass(frozen=True, slots=True)
class Asked:
    """The request's shape; None for what is not stated or may be read in several ways.

    Parameters
    ----------
    gpus, tasks: of each node.
    all_gpus, all_tasks: of the job.
    exclusive: it has nodes to itself, and perhaps more of them than it states.
    bound: a step's tasks see the GPUs of their own only (`--gpus-per-task`).
    """

    nodes: int | None = None
    gpus: int | None = None
    all_gpus: int | None = None
    tasks: int | None = None
    all_tasks: int | None = None
    exclusive: bool = False
    bound: bool = False


def number(text: str | None) -> int | None:
    """A plain number above 0; None for anything else."""
    return int(text) or None if text and _NUMBER.fullmatch(text) else None


def gpus_of(stated: Callable[[str], str]) -> int | None:
    """GPUs a node by `--gpus-per-node` or `--gres`, of a job or a step; None where neither states them."""
    if found := _COUNT.fullmatch(stated("gpus-per-node")):
        return int(found[1])
    items = [_GPU.fullmatch(item.strip()) for item in stated("gres").split(",")]
    return sum(int(found[1] or 1) for found in items if found) if any(items) else None


def asked(submission: Submission) -> Asked:
    """The request's shape, of a job with one component."""

    def stated(name: str) -> str:
        option = submission.option(name)
        return option.value or "" if option is not None else ""

    nodes, tasks, all_tasks = (number(stated(name)) for name in ("nodes", "ntasks-per-node", "ntasks"))
    if all_tasks is None and nodes and tasks:
        all_tasks = nodes * tasks
    elif all_tasks is not None and nodes and all_tasks % nodes == 0 and tasks is None:
        tasks = all_tasks // nodes
    elif all_tasks is not None and tasks is not None:
        tasks = None if nodes is None else min(tasks, -(-all_tasks // nodes))  # --ntasks wins
    each = _COUNT.fullmatch(stated("gpus-per-task"))
    whole = _COUNT.fullmatch(stated("gpus"))
    gpus, all_gpus = gpus_of(stated), int(whole[1]) if whole else None
    if each and gpus is None:
        gpus = tasks * int(each[1]) if tasks else None
        all_gpus = all_tasks * int(each[1]) if all_tasks and all_gpus is None else all_gpus
    if gpus is None and all_gpus is not None and nodes == 1:
        gpus = all_gpus
    if all_gpus is None and gpus is not None and nodes:
        all_gpus = gpus * nodes
    return Asked(
        nodes, gpus, all_gpus, tasks, all_tasks, submission.option("exclusive") is not None, each is not None
    )
