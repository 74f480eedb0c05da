"""What the agent's drain file does in the prolog that slurmd runs: the two halves of one promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.prolog_epilog.agent.conftest import Installed
from tests.unit.prolog_epilog.health.test_runner import EIGHT, ENFORCE, NO_CHILDREN, Node, node, wait_until

__all__ = ["node"]

JOB = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "4711"}


@pytest.fixture
def prolog(node: Node, tmp_path: Path) -> Installed:
    """The prolog as it is installed, with the folders of this agent."""
    made = Installed(tmp_path / "hooks", tmp_path / "spool", node.run, node.off)
    for folder in (made.folder, made.spool / "new", made.run / "new"):
        folder.mkdir(parents=True)
    made.install()
    return made


def test_jobs_are_kept_off_while_a_gpu_is_missing_and_no_longer(node: Node, prolog: Installed):
    node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT, times=2)
    assert prolog.hook("prolog", JOB) == (0, b"")
    node.feed(*EIGHT[:7], times=2)
    assert prolog.hook("prolog", JOB) == (1, b"gsub: gpu_count: 7 of 8 GPUs answer\n")
    assert prolog.hook("epilog", JOB) == (0, b"")
    node.feed(*EIGHT, times=3)
    assert prolog.hook("prolog", JOB) == (0, b"")


def test_the_kill_switch_lets_jobs_in_at_once(node: Node, prolog: Installed):
    node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    assert prolog.hook("prolog", JOB)[0] == 1
    node.off.touch()
    assert prolog.hook("prolog", JOB) == (0, b"")
    wait_until(lambda: not node.drain.exists())
