"""Changes are made whole or not at all."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.slurm_plugins.lua.lua import KINDS, MEMORY, Shim

JOB = {"tres_per_node": "gres:gpu:2", "num_tasks": 4, "comment": "mine"}


def feed(shim: Shim, edits: dict[str, Any], env: dict[str, str] | None = None) -> dict[str, Any]:
    line = json.dumps(
        {"v": 1, "id": 1, "mode": "enforce", "edits": edits, "env": env or {}, "say": []}
    ).encode()
    [reply] = shim.feed([line], JOB, env={"SLURM_NTASKS": "4"})
    return reply


def test_every_edit_of_the_table_can_be_made(shim: Shim) -> None:
    for name, (kind, low, high, *_) in shim.order("tables")["edits"].items():
        for value in (low, high) if kind == "int" else ("1" * low, "1" * high):
            reply = feed(shim, {name: value})
            assert "dropped" not in reply, (name, value)
            assert reply["writes"] == [name]
            assert reply["job"][{"gres": "tres_per_node"}.get(name, name)] == value


def test_memory_is_written_after_all_else(shim: Shim) -> None:
    edits = {"min_mem_per_cpu": 4000, "min_nodes": 2, "features": "a", "cpus_per_task": 8, "num_tasks": 8}
    writes = feed(shim, edits, {"SLURM_NTASKS": "8"})["writes"]
    assert set(writes) == {*edits, "env.SLURM_NTASKS"}
    assert writes[-1] == "min_mem_per_cpu"


def test_a_change_that_slurm_refuses_takes_the_others_back(shim: Shim) -> None:
    edits = {"num_tasks": 8, "min_nodes": 2, "features": "a", "gres": "gpu:4", "min_mem_per_node": 4000}
    before, variables = dict(JOB), {"SLURM_NTASKS": "4"}
    reply = shim.order(
        "refuse",
        kinds={**KINDS, **MEMORY},
        job=before,
        env=variables,
        edits=edits,
        set_env={"SLURM_NTASKS": "8"},
        name="min_mem_per_node",
    )
    assert reply["why"].startswith("min_mem_per_node could not be changed")
    assert "fine" not in reply
    assert len(reply["writes"]) == 2 * 5  # four fields and a variable, there and back
    assert reply["job"] == JOB
    assert reply["env"] == {"SLURM_NTASKS": "4"}
