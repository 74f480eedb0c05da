"""What Slurm itself adds to a job that asks for GPUs, before any plugin sees it (gres.c, gres_job_state_validate)."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gsub.notations import NotationError

__all__ = ["complete"]

Fields: TypeAlias = MutableMapping[str, "int | str"]
_LEVELS: Final = ("job", "node", "socket", "task")
_ITEM: Final = re.compile(
    r"gres[:/]gpu(?:[:=](?P<type>[^:=\d][^:=]*))?(?:[:=](?P<count>\d+)(?P<unit>[kKmM]?))?"
)


@dataclass(slots=True)
class _Gpus:
    """GPUs of one type, by what they are counted for."""

    job: int = 0
    node: int = 0
    socket: int = 0
    task: int = 0


def complete(fields: Fields, release: tuple[int, int]) -> None:
    """Fill in what follows from the GPUs asked for. Raises NotationError for what Slurm would refuse."""
    types: dict[str, _Gpus] = {}
    for level in _LEVELS:
        for item in str(fields.get(f"tres_per_{level}", "")).split(","):
            if found := _ITEM.fullmatch(item):
                number = int(found["count"] or 1)
                if number:
                    setattr(types.setdefault(found["type"] or "", _Gpus()), level, number)
    for name, gpus in types.items():
        _one(fields, gpus, typed=bool(name))


def _one(fields: Fields, gpus: _Gpus, *, typed: bool) -> None:
    if gpus.job and gpus.node:
        fields["min_nodes"] = fields["max_nodes"] = gpus.job // gpus.node
    if gpus.task:
        if gpus.job:
            fields.setdefault("num_tasks", gpus.job // gpus.task)
        elif "num_tasks" not in fields and "min_nodes" in fields:
            fields["num_tasks"] = int(fields["min_nodes"]) * int(fields.get("ntasks_per_node", 1))
        if gpus.node:
            fields.setdefault("ntasks_per_node", gpus.node // gpus.task)
    if gpus.job and "max_nodes" in fields and gpus.job < int(fields["max_nodes"]):
        fields["max_nodes"] = gpus.job
