"""What stages said is kept for jobs that are asked about again, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from benchmarks import world
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.pipeline import Walk, decide
from slurm_plugins.decide.recent import MOST, Recent
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stage import Change, Proposal, Stage


class Counting(Stage):
    """Asks for a switch, and counts how often it was asked."""

    name = "counting"

    def __init__(self, *, fails: bool = False) -> None:
        self.asked = 0
        self.fails = fails

    def decide(self, request: Request, context: Context) -> Proposal:
        self.asked += 1
        if self.fails:
            raise ValueError("not today")
        return Proposal((Change("req_switch", None, 1, "near"),))


CONTEXT = world.context(2)
REQUEST = Request(
    id=1,
    uid=1000,
    job=Job(name="a", tres_per_job="gres:gpu:1"),
    env={"SLURM_NTASKS": "1"},
    script_head="true",
)
OTHERS = {
    "uid": {"uid": 1001},
    "submit_uid": {"submit_uid": 0},
    "job": {"job": Job(name="b", tres_per_job="gres:gpu:1")},
    "env": {"env": {"SLURM_NTASKS": "2"}},
    "batch": {"batch": False},
    "script": {"script_head": "false"},
    "length": {"script_bytes": 5},
    "cut": {"cut": ("comment",)},
}


def test_the_same_job_asked_about_again_gets_the_same_under_its_own_id() -> None:
    stage, recent = Counting(), Recent[Walk]()
    stages = (stage,)
    again = msgspec.structs.replace(REQUEST, id=2, shim={"late": 1})
    first = decide(REQUEST, CONTEXT, decision_id="d-1", stages=stages, recent=recent)
    second = decide(again, CONTEXT, decision_id="d-2", stages=stages, recent=recent)
    assert stage.asked == 1
    assert second == decide(again, CONTEXT, decision_id="d-2", stages=stages)
    assert first.env["GSUB_DECISION"] == "d-1" and second.env["GSUB_DECISION"] == "d-2"
    assert second.edits["admin_comment"] == "gsub:d-2"


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_job_is_looked_at_anew(other: dict[str, object]) -> None:
    stage, recent = Counting(), Recent[Walk]()
    stages = (stage,)
    for request in (REQUEST, msgspec.structs.replace(REQUEST, **other)):
        decide(request, CONTEXT, decision_id="d-1", stages=stages, recent=recent)
    assert stage.asked == 2


def test_nothing_is_kept_over_a_new_snapshot_or_other_stages() -> None:
    stage, recent = Counting(), Recent[Walk]()
    stages = (stage,)
    for context, these in ((CONTEXT, stages), (replace(CONTEXT), stages), (CONTEXT, (stage, Counting()))):
        decide(REQUEST, context, decision_id="d-1", stages=these, recent=recent)
    assert stage.asked == 3


def test_a_stage_that_failed_is_asked_again() -> None:
    stage, recent = Counting(fails=True), Recent[Walk]()
    stages = (stage,)
    for _ in range(2):
        found = decide(REQUEST, CONTEXT, decision_id="d-1", stages=stages, recent=recent)
        assert [failure.stage for failure in found.failures] == ["counting"]
    assert stage.asked == 2


def test_the_oldest_goes_first() -> None:
    stage, recent = Counting(), Recent[Walk]()
    stages = (stage,)
    for number in (*range(MOST + 1), 1, 0):
        request = msgspec.structs.replace(REQUEST, uid=number)
        decide(request, CONTEXT, decision_id="d-1", stages=stages, recent=recent)
    assert len(recent) == MOST
    assert stage.asked == MOST + 2
