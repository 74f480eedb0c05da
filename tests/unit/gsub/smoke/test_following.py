"""What is told of a smoke job beside the one that is watched, and whose result is found later."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gsub.smoke import following
from gsub.smoke.following import Following
from gsub.smoke.kept import AGE, holder_of, prune
from gsub.smoke.result import Line, Result, write
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.values import JobState

FAILED = Result(
    smoke=8, real=7, outcome="failed", sentence="a module is missing\x1b[31m", held=True,
    evidence=(Line("output", 4, "ModuleNotFoundError"),),
)  # fmt: skip


class Client:
    """Slurm, with one job in one state after the other; None: it has forgotten it, an error: it does not answer."""

    def __init__(self, *states: str | Exception | None) -> None:
        self.states = list(states)

    def jobs(self, **_: Any) -> tuple[Any, ...]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return () if state is None else (SimpleNamespace(state=JobState(state)),)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_ASKED", 0.0)
    monkeypatch.setattr(following, "_PATIENCE", 0.0)


def told(state: Path | str, *states: str | Exception | None) -> tuple[list[str], Following]:
    client = Client(*states)
    found = Following(8, str(state), client)  # type: ignore[arg-type]
    return [line for _ in range(2 * len(states)) for line in found.news()], found


def test_its_states_are_told_once(tmp_path: Path) -> None:
    lines, found = told(tmp_path, "PENDING", "PENDING", SlurmUnreachable("x"), "RUNNING", "RUNNING")
    assert lines[:2] == ["smoke job 8 PENDING", "smoke job 8 RUNNING"] and not found.held


def test_its_result_is_told_whole_and_once(tmp_path: Path) -> None:
    write(FAILED, tmp_path)
    lines, found = told(tmp_path, "RUNNING")
    assert lines[0] == "smoke job 8: smoke failed: a module is missing"
    assert "output:4: ModuleNotFoundError" in lines[1] and found.held and found.over and found.news() == []


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("PENDING", "DEADLINE"), "did not start in time"),
        (("RUNNING", "CANCELLED"), "was cancelled"),
        (("RUNNING", "NODE_FAIL"), "node failed"),
        (("FAILED",), "ended without a result (FAILED)"),
        ((None,), "forgotten"),
    ],
)
def test_an_end_without_a_result_is_told(tmp_path: Path, states: tuple[str | None, ...], words: str) -> None:
    lines, found = told(tmp_path, *states)
    assert words in lines[-1] and found.over and not found.held


def test_a_result_of_an_older_job_of_that_number_is_none(tmp_path: Path) -> None:
    write(structs.replace(FAILED, at=time.time() - 3600), tmp_path)
    lines, found = told(tmp_path, "RUNNING")
    assert lines == ["smoke job 8 RUNNING"] and not found.held


def test_who_held_a_job(tmp_path: Path) -> None:
    assert holder_of(tmp_path, 7) is None
    write(structs.replace(FAILED, at=1e9), tmp_path)
    write(Result(smoke=9, real=7, outcome="passed"), tmp_path)
    write(Result(smoke=10, real=0, outcome="failed", held=True, dependants=(11, 12)), tmp_path)
    (tmp_path / "smoke" / "5.out").touch()
    (tmp_path / "smoke" / "6").mkdir()
    assert (holder_of(tmp_path, 7, since=1e9) or Result(smoke=0, outcome="left")).smoke == 8
    assert holder_of(tmp_path, 7, since=1e9 + 3600) is None
    assert (holder_of(tmp_path, 12) or FAILED).smoke == 10
    assert holder_of(tmp_path, 9) is None


def test_what_is_old_goes(tmp_path: Path) -> None:
    write(FAILED, tmp_path)
    (tmp_path / "smoke" / "8.out").touch()
    (tmp_path / "smoke" / "mine.txt").touch()
    prune(tmp_path)
    assert len(list((tmp_path / "smoke").iterdir())) == 3
    prune(tmp_path, time.time() + AGE + 60)
    assert [path.name for path in (tmp_path / "smoke").iterdir()] == ["mine.txt"]
    prune(tmp_path / "nothing")
