"""The journal: whole lines, bounded files, and no submission that waits for a disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.decide.decision import Change, Decision, Note, StageFailure
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.service.errors import StartError
from slurm_plugins.service.records import Journal, tail
from slurm_plugins.service.written import decision_line
from tests.unit.slurm_plugins.service.serving import PATIENCE
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records wait for no others."""
    monkeypatch.setattr("slurm_plugins.service.records._GATHER", 0)


def write(journal: Journal, *records: object) -> None:
    for record in records:
        journal.put(lambda record=record: json.dumps(record).encode())  # type: ignore[misc]


def until(true: Callable[[], bool]) -> None:
    wait_until(true, PATIENCE, pause=0.001)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_lines_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, *range(1000))
    journal.close()
    assert lines(journal.path) == [*range(1000)]
    assert (journal.written, journal.dropped) == (1000, 0)
    assert journal.path.stat().st_mode & 0o777 == 0o640


def test_a_later_service_goes_on_where_the_earlier_one_ended(tmp_path: Path) -> None:
    for number in (1, 2):
        journal = Journal(tmp_path)
        write(journal, number)
        journal.close()
    assert lines(journal.path) == [1, 2]


def test_a_line_that_a_crash_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"v":1}\n{"kind":"decis')
    journal = Journal(tmp_path)
    write(journal, {"v": 2})
    journal.close()
    assert list(tail(journal.path)) == [{"v": 1}, {"v": 2}]


def test_files_turn_over_at_their_size_and_only_so_many_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=1000, files=3)
    for number in range(200):
        write(journal, {"n": number, "x": "y" * 80})
        until(lambda number=number: journal.written > number)  # type: ignore[misc]
    journal.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["decisions.jsonl", *(f"decisions.jsonl.{number}" for number in (1, 2, 3))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    kept = [
        line["n"]
        for number in (".3", ".2", ".1", "")
        for line in lines(tmp_path / f"decisions.jsonl{number}")
    ]
    assert kept == [*range(kept[0], 200)] and len(kept) > 20


def test_the_tail_reaches_into_the_file_before_and_no_further_than_asked(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text("".join(f'{{"n":{number}}}\n' for number in range(100, 200)))
    (tmp_path / "decisions.jsonl.1").write_text("".join(f'{{"n":{number}}}\n' for number in range(100)))
    assert [record["n"] for record in tail(path)] == [*range(200)]
    some = [record["n"] for record in tail(path, limit=105)]
    assert some[-1] == 199 and 100 > some[0] > 80 and len(some) < 25
    assert list(tail(tmp_path / "none")) == []


def test_a_file_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, 1)
    until(lambda: journal.written > 0)
    journal.path.rename(tmp_path / "taken")
    write(journal, 2)
    journal.close()
    assert (lines(tmp_path / "taken"), lines(journal.path)) == ([1], [2])


def test_a_record_that_cannot_be_encoded_costs_itself_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, 1)
    journal.put(lambda: json.dumps(object()).encode())
    write(journal, 2)
    journal.close()
    assert (lines(journal.path), journal.dropped) == ([1, 2], 1)


def test_more_than_the_writer_can_take_is_counted_and_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugins.service.records._QUEUE", 10)
    journal = Journal(tmp_path)
    reader, writer = os.pipe()
    journal.put(lambda: os.read(reader, 1))  # the disk hangs
    until(lambda: not journal._queue.qsize())
    write(journal, *range(50))
    assert journal.dropped == 40
    os.write(writer, b"0")
    journal.close()
    assert lines(journal.path) == [0, *range(10)]


def test_a_full_disk_is_said_once_and_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [100]
    real = os.write

    def full(handle: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(handle, data[: room[0]])
        room[0] -= written
        return written

    journal = Journal(tmp_path)
    monkeypatch.setattr("slurm_plugins.service.records.os.write", full)
    for number in range(30):
        write(journal, {"n": number})
        until(lambda number=number: journal.written + journal.dropped > number)  # type: ignore[misc]
    assert lines(journal.path) == [{"n": number} for number in range(journal.written)]
    assert 0 < journal.written < 30 and "No space left" in caplog.text
    assert caplog.text.count("cannot be written") == 1
    room[0] = 1 << 20
    caplog.set_level(logging.INFO)
    write(journal, {"n": 30})
    journal.close()
    assert lines(journal.path)[-1] == {"n": 30} and "written again" in caplog.text


def test_a_folder_that_vanishes_costs_the_records_meanwhile_and_each_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    journal = Journal(folder)
    write(journal, 1)
    until(lambda: journal.written == 1)
    folder.rename(tmp_path / "away")
    write(journal, 2)
    until(lambda: journal.dropped == 1)
    write(journal, 3)
    until(lambda: journal.dropped == 2)
    assert caplog.text.count("cannot be written") == 1
    folder.mkdir()
    write(journal, 4)
    journal.close()
    assert lines(journal.path) == [4]


def test_it_starts_on_a_full_disk_and_writes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("slurm_plugins.service.records.os.open", full)
        journal = Journal(tmp_path)
        write(journal, 1)
        until(lambda: journal.dropped == 1)
    assert caplog.text.count("No space left") == 1
    write(journal, 2)
    journal.close()
    assert lines(journal.path) == [2]


def test_what_a_user_wrote_does_not_steer_the_terminal_of_who_looks(tmp_path: Path) -> None:
    name = "a\x9b31m\u202e\x1b[2J\U0001f600"
    journal = Journal(tmp_path)
    request = Request(id=1, uid=1000, job=Job(name=name))
    journal.put(lambda: decision_line(request, Decision("d-0", "observe"), 1.5))
    journal.close()
    assert all(32 <= byte < 127 for byte in journal.path.read_bytes().removesuffix(b"\n"))
    assert lines(journal.path)[0]["asked"]["name"] == name


def test_a_folder_that_is_not_there_is_told_in_three_lines(tmp_path: Path) -> None:
    with pytest.raises(StartError) as told:
        Journal(tmp_path / "none")
    assert len(str(told.value).splitlines()) == 3


def test_a_record_says_what_was_decided_and_nothing_that_the_user_wrote() -> None:
    request = Request(
        id=1,
        uid=1000,
        job=Job(
            name="train", comment="hunter2", dependency="hunter2", extra="hunter2", tres_per_node="gres:gpu:8"
        ),
        env={"GSUB": "hunter2"},
        script_head="#!/bin/sh\nexport TOKEN=hunter2\n",
        script_bytes=31,
    )
    decision = Decision(
        "d-0123456789abcdef",
        "enforce",
        (Change("min_nodes", None, 2, "why", "gang"),),
        {"SLURM_NNODES": "2"},
        (Note("seen", "gang", {"gpus": 16}),),
        failures=(StageFailure("site", "ValueError: x"),),
        facts={"gpus": 16},
    )
    line = decision_line(request, decision, 1.5)
    record = json.loads(line)
    assert b"hunter2" not in line and b"\n" not in line
    assert record["asked"] == {"name": "train", "tres_per_node": "gres:gpu:8"}
    assert (record["kind"], record["decision"], record["mode"], record["enforced"], record["at"]) == (
        "decision",
        "d-0123456789abcdef",
        "enforce",
        True,
        1.5,
    )
    assert record["changes"] == [
        {"field": "min_nodes", "before": None, "after": 2, "reason": "why", "stage": "gang"}
    ]
    assert record["env"] == {"SLURM_NNODES": "2"} and record["facts"] == {"gpus": 16}
    assert record["failures"] == [{"stage": "site", "error": "ValueError: x"}]
    assert len(record["script"]["sha256"]) == 64 and record["script"]["bytes"] == 31
