"""What was learnt reaches the decisions: the file of profiles in the state folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.knowledge import PROFILES
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import NO_PROPOSAL, Note, Proposal, Stage
from tests.unit.slurm_plugins.service.serving import Serving


class Tells(Stage):
    """Says what is known of a workload."""

    name = "tells"

    def decide(self, request: Request, context: Context) -> Proposal:
        """See `Stage.decide`."""
        known = context.knowledge.workload(request, "a100")
        return (
            NO_PROPOSAL
            if known is None
            else Proposal(notes=(Note(f"slowdown {known.slowdown}", advice=True),))
        )


def profile(slowdown: float) -> str:
    line = {"kind": "workload", "cluster": "test", "uid": 1000, "workload": "name:train", "gpu_type": "a100"}
    return json.dumps({**line, "slowdown": slowdown}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


def test_profiles_are_read_at_the_start_and_with_the_site_file(folder: Path) -> None:
    file = folder / "state" / PROFILES
    file.write_text("not a record\n" + profile(1.3))
    service = Serving(folder, mode="advise", stages=[Tells()])
    service.start()
    try:
        peer = service.peer()
        assert peer.ask()["say"] == ["gsub: slowdown 1.3"]
        file.write_text(profile(1.7))
        service.do(service.daemon.reload())
        assert peer.ask()["say"] == ["gsub: slowdown 1.7"]
        file.unlink()
        file.mkdir()  # it cannot be read: decisions go on without
        service.do(service.daemon.reload())
        assert peer.ask()["say"] == []
        peer.close()
    finally:
        service.stop()
