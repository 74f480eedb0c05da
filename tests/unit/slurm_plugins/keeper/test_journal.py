"""gsubd's journal is read on where it was left: over turns, restarts and half lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_plugins.service.keeper.journal import JournalReader
from slurm_plugins.service.records import FILES
from tests.properties import examples


class Written:
    """A journal as gsubd writes it, and what was read of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "decisions.jsonl"
        self.kept = folder / "decisions.place"
        self.count = 0
        self.read: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A reader as a new keeper has it."""
        self.reader = JournalReader(self.path, self.kept)

    def write(self, lines: int = 1) -> None:
        with self.path.open("a") as file:
            for _ in range(lines):
                self.count += 1
                file.write(json.dumps({"kind": "decision", "number": self.count, "pad": "x" * 50}) + "\n")

    def turn(self) -> None:
        for number in range(FILES, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if older.exists():
                older.rename(self.path.with_name(f"{self.path.name}.{number}"))

    def take(self, most: int = 500, *, done: bool = True) -> None:
        read = self.reader.read(most)
        self.read += [record["number"] for record in read.records]
        if done:
            self.reader.done(read)


STEP = st.sampled_from(["write", "turn", "take", "take_some", "begin"])


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, max_size=25))
def test_each_line_is_read_once_and_in_order(tmp_path_factory: pytest.TempPathFactory, steps: list[str]):
    written = Written(tmp_path_factory.mktemp("journal"))
    turns = 0
    for step in steps:
        if step == "turn":
            turns += 1
            if turns > FILES:  # what was turned out of the journal is gone
                continue
            written.turn()
        elif step == "write":
            written.write(3)
        elif step == "take_some":
            written.take(2)
        elif step == "begin":
            written.begin()
        else:
            written.take()
    for _ in range(60):
        written.take()
    assert written.read == list(range(1, written.count + 1))


def test_what_was_not_stored_is_read_again(tmp_path: Path):
    written = Written(tmp_path)
    written.write(3)
    written.take(done=False)
    written.begin()
    written.take()
    assert written.read == [1, 2, 3, 1, 2, 3]


def test_half_a_line_is_left_until_it_is_whole_and_none_is_passed_over(tmp_path: Path):
    written = Written(tmp_path)
    written.write()
    with written.path.open("a") as file:
        file.write('{"number": 2')
        file.flush()
        written.take()
        assert written.read == [1]
        file.write("}\nnot json\n[]\n\n")
    written.count = 2
    written.write()
    written.take()
    assert written.read == [1, 2, 3]


@pytest.mark.parametrize("kept", [b"", b"{", b'{"file":7}', b"\xff" * 100])
def test_a_place_that_cannot_be_read_is_the_beginning(tmp_path: Path, kept: bytes):
    (tmp_path / "decisions.place").write_bytes(kept)
    written = Written(tmp_path)
    written.write(2)
    written.take()
    assert written.read == [1, 2]


def test_without_a_journal_there_is_nothing(tmp_path: Path):
    written = Written(tmp_path)
    written.take()
    assert written.read == []
