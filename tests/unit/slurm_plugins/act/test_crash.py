"""Killed between any two steps of a request, gsub-act has done it once or not at all, and finds out which."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.act.journal import held
from slurm_plugins.client.values import Job
from tests.unit.slurm_plugins.act.fakes import FakeSlurm, World, failed, pending

pytestmark = pytest.mark.slow


class Outside(FakeSlurm):
    """A Slurm that outlives us: what was done to it stands in a file."""

    def __init__(self, file: Path, *jobs: Job) -> None:
        super().__init__(*jobs)
        self.file = file
        for line in file.read_text().splitlines() if file.exists() else []:
            super().act(json.loads(line))

    def act(self, argv: Sequence[str]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(list(argv)) + "\n")
        super().act(argv)


class Killer:
    """Kills this process at the n-th of the points that it passes: before, amid and after each write, sync and act."""

    def __init__(self, number: int) -> None:
        self.left = number

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.point()
            done = do(*arguments)
            self.point()
            return done

        return wrapped

    def writing(self, write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
        def wrapped(handle: int, data: bytes) -> int:
            self.point()
            half = write(handle, data[: len(data) // 2])
            self.point()
            rest = write(handle, data[len(data) // 2 :])
            self.point()
            return half + rest

        return wrapped


def killed_at(number: int, world: World, line: bytes) -> bool:
    """Answer a line in a child that is killed at a point; whether it lived that long."""
    child = os.fork()
    if child == 0:
        try:
            killer = Killer(number)
            os.fsync = killer.around(os.fsync)
            os.write = killer.writing(os.write)  # type: ignore[assignment]
            world.slurm.act = killer.around(world.slurm.act)  # type: ignore[method-assign]
            world.send(line)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


CASES = {
    "hold": (pending(), {}, None),
    "requeue": (failed(), {}, None),
    "requeuehold": (failed(), {}, None),
    "update": (pending(restarts=1), {"ExcNodeList": "n1", "MinMemoryNode": "4000"}, None),
    # those that name their attempt
    "requeue of one": (failed(restarts=1), {}, 1),
    "requeuehold of one": (failed(restarts=1), {}, 1),
    "requeue with what follows": (failed(restarts=1), {"MinMemoryNode": "4000", "StartTime": "now"}, 1),
    "update of one": (pending(restarts=1), {"ExcNodeList": "n1", "StartTime": "now"}, 1),
    "release": (pending(), {}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_killed_at_each_point(tmp_path, case):
    verb = case.split()[0]
    job, fields, restarts = CASES[case]
    number, points = 0, []
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, job)
        file = folder / "slurm"
        world.slurm = Outside(file, job)
        world.restart()
        if verb == "release":
            assert world.ask("hold")["result"] == "done"
        before = len(file.read_text().splitlines()) if file.exists() else 0
        line = json.dumps(world.request(verb, fields=fields, restarts=restarts)).encode()
        was_killed = killed_at(number, world, line)
        world.slurm = Outside(file, job)
        world.restart()
        done = len(world.slurm.acts) - before
        asked = any(entry.get("id") == json.loads(line)["id"] for entry in world.lines())
        assert done <= asked, "nothing is done that is not written down"
        world.wait(40)
        assert world.journal.book.open == ()
        assert len(world.slurm.acts) - before == done, "what became of it is found out, not done again"
        answer = world.send(line)
        if asked:
            assert (answer["result"] == "done") == (done == 1) and answer["repeat"]
            assert len(world.slurm.acts) - before == done
        else:
            assert answer["result"] == "done" and len(world.slurm.acts) - before == 1
        if restarts is not None and verb != "update":
            # an asker that lost its memory too, and so has another id
            was_requeued = bool(world.slurm.acts)
            again = world.ask(verb, fields=fields, restarts=restarts)["result"]
            assert again == ("refused" if was_requeued else "done")
            assert len(world.slurm.acts) == 1, "requeued once, whoever asks"
        assert bool(held(folder / "state")) == world.slurm.known_jobs["7"].held
        world.journal.close()
        points.append((asked, done))
        if not was_killed:
            break
    assert set(points) == {(False, 0), (True, 0), (True, 1)}, "each kind of end was seen"
    assert number > 10
