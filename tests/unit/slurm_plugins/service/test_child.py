"""Processes of ours: what they answer, how they end, and that none takes its modules from where users write."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from slurm_plugins.service.child import Child, ChildError, ChildLateError, python
from tests.paths import REPOSITORY
from tests.waiting import wait_until

PATIENCE = 60.0


def asked(work: Callable[[Child], Awaitable[None]]) -> None:
    """Do something with a child that answers as `answers` does; no process of it stays."""

    async def whole() -> None:
        child = Child("tests.unit.slurm_plugins.service.answers", what="asking", env=os.environ, nicer=1)
        try:
            await work(child)
        finally:
            await child.close()

    asyncio.run(whole())


async def ask(child: Child, question: str, *, seconds: float = PATIENCE, most: int = 1 << 24) -> bytes:
    return await child.ask(question.encode(), seconds=seconds, most=most)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_each_answer_is_a_fork_of_one_process() -> None:
    async def work(child: Child) -> None:
        first, second = [(await ask(child, "processes")).split() for _ in range(2)]
        assert first[0] == second[0] != first[1] != second[1]
        assert first[2] == second[2] == b"1", "a fork knows nothing of the one before"
        await child.close()
        third = (await ask(child, "processes")).split()
        assert third[0] != first[0] and ended(int(first[0]))

    asked(work)


def test_large_questions_and_answers_are_whole() -> None:
    async def work(child: Child) -> None:
        assert await ask(child, "large 5000000") == b"x" * 5000000
        question = "again " + "y" * 3000000
        assert await ask(child, question) == question.encode()
        assert await ask(child, "noise 1000000") == b"noise 1000000", "who is not listened to is not stopped by it"

    asked(work)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("refuse", "asking ended with 1: there is no answer"),
        ("fail", "asking ended with 1: ValueError: a fault of ours"),
        ("killed", "asking ended with -?[0-9]+: "),
        ("half", "asking ended with 3: "),
        ("large 17000000", "asking answered 17000000 bytes, more than 16777216"),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_the_next_question_has_an_answer(question: str, said: str) -> None:
    async def work(child: Child) -> None:
        with pytest.raises(ChildError, match=said):
            await ask(child, question)
        assert await ask(child, "again") == b"again"

    asked(work)


def test_one_that_is_late_ends_with_its_commands(tmp_path: Path) -> None:
    async def work(child: Child) -> None:
        await ask(child, "begin")
        with pytest.raises(ChildLateError, match=r"asking took more than 0.5 s"):
            await ask(child, f"hang {tmp_path / 'pids'}", seconds=0.5)
        assert await ask(child, "again") == b"again"

    asked(work)
    for pid in (tmp_path / "pids").read_text().split():
        wait_until(lambda pid=pid: ended(int(pid)), PATIENCE, f"the end of process {pid}")  # type: ignore[misc]


def test_a_process_that_cannot_be_started_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(child: Child) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(ChildError, match=r"a process for asking cannot be started: .*nowhere"):
            await ask(child, "again")

    asked(work)


def test_it_ends_with_its_asker(tmp_path: Path) -> None:
    """Even while it answers: whoever is killed closes nothing."""
    script = f"""
import asyncio, os
from slurm_plugins.service.child import Child

async def work():
    child = Child("tests.unit.slurm_plugins.service.answers", what="asking", env=os.environ, nicer=0)
    print((await child.ask(b"processes", seconds=60, most=99)).decode(), flush=True)
    await child.ask(b"hang {tmp_path / "pids"}", seconds=60, most=99)

asyncio.run(work())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout
        server = int(asker.stdout.readline().split()[0])
        wait_until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 3)
        asker.kill()
    for pid in (server, int((tmp_path / "pids").read_text().split()[1])):
        wait_until(lambda pid=pid: ended(pid), PATIENCE, f"the end of process {pid}")  # type: ignore[misc]


@pytest.mark.case("A10")
def test_a_child_takes_no_module_from_a_hostile_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "json", "profiler", "slurm_plugins"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'made')!r}, 'w').close()\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run((*python("slurm_plugins.service"), "--help"), capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0 and not (tmp_path / "made").exists()


@pytest.mark.case("A10")
def test_every_module_is_run_isolated() -> None:
    """Neither the working directory nor PYTHONPATH may give a process of ours its modules."""
    started = re.compile(r"sys\.executable,\s*(?:\"-[A-Z]\",\s*)*\"-m\"")
    for folder in ("slurm_plugins", "profiler", "prolog_epilog", "gsub", "site_configs/packaging"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            for found in started.findall(file.read_text()):
                assert '"-I"' in found, file
