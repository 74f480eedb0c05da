"""What the shim refuses of a user's later changes: how much a job gets whose memory gsub-act has set."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.slurm_plugins.lua.lua import SHIM, Shim
from tests.unit.slurm_plugins.lua.test_hook import script_for

MARKED = {"user_id": 1000, "comment": "project 7 gsub:guarded", "job_state": 0}
CHANGES: list[dict[str, Any]] = [
    {"min_nodes": 4}, {"num_tasks": 32}, {"min_cpus": 32}, {"cpus_per_task": 4}, {"pn_min_cpus": 4},
    {"min_mem_per_node": 9000}, {"min_mem_per_cpu": 9000}, {"qos": "big"}, {"account": "other"},
    {"partition": "gpu"}, {"tres_per_node": "gres:gpu:8"}, {"shared": 0}, {"req_nodes": "n1"},
    {"comment": "mine"}, {"comment": ""},
]  # fmt: skip


@pytest.mark.case("A1")
@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_a_guarded_field_of_a_marked_job_stays(shim: Shim, change: dict[str, Any]) -> None:
    done = shim.modify(change, MARKED)
    assert (done["rc"], done["log"]) == (2002, [])
    (line,) = done["said"]
    assert line.startswith(
        f"gsub: {next(iter(change))} of this job stays as it is, since gsub has set its memory"
    )
    for record in ({**MARKED, "comment": None}, {**MARKED, "comment": "gsub:guarded2"}):
        assert shim.modify(change, record) == {"rc": 0, "said": [], "log": []}


@pytest.mark.case("A1")
@pytest.mark.parametrize(
    ("change", "record", "uid"),
    [
        ({"comment": "mine gsub:guarded"}, MARKED, 1000),
        ({"time_limit": 5, "dependency": "afterok:7", "name": "x"}, MARKED, 1000),
        ({"min_nodes": 4}, MARKED, 0),
        ({"min_nodes": 4}, MARKED, 2000),
        ({"min_nodes": 1}, {**MARKED, "job_state": 1}, 1000),
        ({"min_nodes": 4}, {**MARKED, "user_id": 7}, 1000),
    ],
)
def test_other_changes_pass(shim: Shim, change: dict[str, Any], record: dict[str, Any], uid: int) -> None:
    assert shim.modify(change, record, uid=uid) == {"rc": 0, "said": [], "log": []}


def test_flags_beside_the_state_and_a_release_without_it(shim: Shim) -> None:
    assert shim.modify({"min_nodes": 4}, {**MARKED, "job_state": 0x8000})["rc"] == 2002
    assert shim.modify({"min_nodes": 4}, {"user_id": 1000, "comment": "gsub:guarded"})["rc"] == 2002


def test_a_fault_lets_the_change_pass(shim: Shim) -> None:
    done = shim.modify({"min_nodes": 4}, {}, broken=True)
    assert done["rc"] == 0 and "a fault in gsub.lua, the change passes" in done["log"][0]


def test_the_shipped_script_calls_it(shim: Shim) -> None:
    assert shim.order("script", text=script_for(SHIM))["rc"] == 0
    assert shim.modify({"min_nodes": 4}, MARKED, scripted=True)["rc"] == 2002
    assert shim.modify({"name": "mine"}, MARKED, scripted=True)["rc"] == 0


def test_the_mark_is_that_of_gsub_act() -> None:
    from slurm_plugins.act.mark import MARK

    assert f'M.MARK = "{MARK}"' in (SHIM / "tables.lua").read_text()
