"""Keeper and gsub-act killed together between any two steps: the failure is tried again once, and not forgotten."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.slurm_plugins.act.test_crash import Outside
from tests.unit.slurm_plugins.keeper.again import Again, a_failed_job

pytestmark = pytest.mark.slow

CASES: dict[str, tuple[float, list[str]]] = {
    "Slurm's delay is long": (120.0, ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]),
    "it is too short": (1.0, ["requeuehold 8", "update JobId=8 ExcNodeList=n1 StartTime=now", "release 8"]),
}


class Killer:
    """Kills this process at the n-th of the points that it passes."""

    def __init__(self, number: int) -> None:
        self.left = number

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        """Points before and after something."""

        def wrapped(*arguments: Any, **more: Any) -> Any:
            self.point()
            done = do(*arguments, **more)
            self.point()
            return done

        return wrapped


def opened(folder: Path, delay: float) -> Again:
    """All of it as it stands on disk, with the Slurm that lives on."""
    again = Again(folder, slurm=Outside(folder / "slurm", a_failed_job()))
    again.seen.delay = delay
    return again


def killed_at(number: int, folder: Path, delay: float) -> bool:
    """Work in a child that is killed at a point; whether it lived that long."""
    child = os.fork()
    if child == 0:
        try:
            again = opened(folder, delay)
            killer = Killer(number)
            again.hand.ask = killer.around(again.hand.ask)  # type: ignore[method-assign]
            again.seen.look = killer.around(again.seen.look)  # type: ignore[method-assign]
            again.world.slurm.act = killer.around(again.world.slurm.act)  # type: ignore[method-assign]
            again.store.put_resubmissions = killer.around(again.store.put_resubmissions)  # type: ignore[method-assign]
            again.settle()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("case", CASES)
def test_killed_at_each_point(tmp_path: Path, case: str) -> None:
    delay, steps = CASES[case]
    template = tmp_path / "template"
    template.mkdir()
    first = opened(template, delay)
    first.fail(8, "core_dump")
    first.close()
    number, seen = 0, set()
    while True:
        number += 1
        folder = tmp_path / str(number)
        shutil.copytree(template, folder)
        was_killed = killed_at(number, folder, delay)
        again = opened(folder, delay)
        seen.add(len(again.hand.done))
        again.settle()
        requeues = [line for line in again.hand.done if line.startswith("requeue")]
        assert requeues == steps[:1], "tried again once"
        job = again.world.slurm.known_jobs["8"]
        assert job.restarts == 1 and not job.held
        assert set(again.hand.done) == set(steps)
        row = again.row()
        assert (row.state, row.stop, again.undecided(), again.rows()) == ("done", "", [], [])
        again.close()
        if not was_killed:
            break
    assert seen == set(range(len(steps) + 1)), "it was killed before and after each step"
    assert number > 12
