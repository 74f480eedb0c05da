"""The journal: begun anew without losing what matters, whole after a crash, and nothing is done that it cannot hold."""

from __future__ import annotations

import errno
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.act.__main__ import _persist
from slurm_plugins.act.journal import NAME, Journal, held
from slurm_plugins.act.ledger import Book, Entry
from slurm_plugins.service.errors import StartError
from tests.unit.slurm_plugins.act.fakes import World, failed, pending


def test_it_is_begun_anew_and_knows_what_it_knew(tmp_path):
    world = World(tmp_path, *(pending(number) for number in range(1, 400)), file_bytes=20_000, files=2)
    world.ask("hold", "1", until=world.clock() + 3600, why="w" * 300)
    line = json.dumps(world.request("hold", "2")).encode()
    world.send(line)
    for number in range(3, 200):
        assert world.ask("hold", str(number), why="w" * 250, until=world.clock() + 3000)["result"] == "done"
        assert world.ask("release", str(number))["result"] == "done"
        world.clock.now += 15
    folder = tmp_path / "state"
    assert sorted(path.name for path in folder.glob(f"{NAME}*")) == [NAME, f"{NAME}.1", f"{NAME}.2"]
    # all of the last hour is kept: 240 holds and releases
    assert all(path.stat().st_size < 500_000 for path in folder.iterdir())
    assert [found.job for found in held(folder)] == ["1", "2"]
    world.restart()
    assert [found.job for found in world.journal.book.all_held()] == ["1", "2"]
    assert world.send(line)["repeat"]  # as long as its hold is known, so is its id
    assert len(world.slurm.acts) == 2 + 2 * 197
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600


def test_an_id_of_the_last_hour_is_known_after_it_was_begun_anew(tmp_path):
    world = World(tmp_path, *(pending(number) for number in range(1, 60)), file_bytes=4000)
    line = json.dumps(world.request("hold", "1")).encode()
    assert world.send(line)["result"] == "done"
    for number in range(2, 50):
        world.ask("hold", str(number))
    assert (tmp_path / "state" / f"{NAME}.1").exists()
    world.restart()
    assert world.send(line)["repeat"] and len(world.slurm.acts) == 49


def test_what_was_forgotten_stays_forgotten(tmp_path):
    world = World(tmp_path, *(pending(number) for number in range(1, 60)), file_bytes=4000)
    world.ask("hold", "1")
    world.slurm.known_jobs["1"] = pending(1)
    world.wait(182)
    assert held(tmp_path / "state") == ()
    for number in range(2, 50):
        world.ask("hold", str(number))
    world.restart()
    assert "1" not in [found.job for found in held(tmp_path / "state")]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_line_that_a_crash_cut_off_stands_for_nothing(tmp_path, cut):
    world = World(tmp_path, pending())
    world.ask("hold", "7")
    file = tmp_path / "state" / NAME
    line = file.read_bytes().splitlines()[0]
    with file.open("ab") as opened:
        opened.write(line[:cut])
    world.restart()
    assert [found.job for found in held(tmp_path / "state")] == ["7"]
    assert world.ask("release", "7")["result"] == "done"
    assert held(tmp_path / "state") == ()


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_stops_all_acts(tmp_path, monkeypatch, fails):
    world = World(tmp_path, pending(), failed(8))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full)
        answer = world.ask("hold", "7")
        assert answer["result"] == "refused" and "No space left" in answer["said"]
        assert world.slurm.acts == []
    assert world.ask("hold", "7")["result"] == "done"


def test_an_end_that_cannot_be_written_is_written_later_and_nothing_begins_before(tmp_path, monkeypatch):
    world = World(tmp_path, pending(), failed(8))
    write = os.write
    full = False

    def sometimes(handle: int, data: bytes) -> int:
        if full:
            write(handle, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    def fill() -> None:
        nonlocal full
        full = True

    monkeypatch.setattr(os, "write", sometimes)
    world.slurm.before_act = fill
    line = json.dumps(world.request("hold", "7")).encode()
    assert world.send(line)["result"] == "done"  # it was
    assert world.ask("requeue", "8")["result"] == "refused"
    assert world.send(line)["result"] == "done"
    assert [(found.job, found.certain) for found in held(tmp_path / "state")] == [("7", False)]
    world.slurm.before_act = lambda: None
    full = False
    world.wait(1)
    assert [(found.job, found.certain) for found in held(tmp_path / "state")] == [("7", True)]
    assert world.ask("requeue", "8")["result"] == "done"
    assert [line["event"] for line in world.lines()] == ["asked", "done", "asked", "done"]


def test_what_is_held_is_released_although_the_disk_is_full(tmp_path, monkeypatch):
    world = World(tmp_path, pending())
    world.ask("hold", "7")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        world.wait(185)
    assert not world.slurm.known_jobs["7"].held
    assert len(world.slurm.acts) == 2


def test_it_is_ascii(tmp_path):
    world = World(tmp_path, pending())
    world.ask("hold", "7", why="größer als gedacht")
    raw = (tmp_path / "state" / NAME).read_bytes()
    assert raw.isascii() and world.lines()[0]["why"] == "größer als gedacht"


def test_one_process_has_it(tmp_path):
    world = World(tmp_path)
    with pytest.raises(StartError, match="another gsub-act"):
        Journal(tmp_path / "state", now=0.0)
    world.journal.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_nobody_else_may_write_to_its_folder(tmp_path, mode):
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartError, match="not safe"):
        Journal(folder, now=0.0)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StartError, match="no folder"):
        Journal(tmp_path / "state", now=0.0)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "requeuehold", "release", "requeue"]),
        st.sampled_from(["1", "2", "3"]),
        st.sampled_from(["done", "failed", "unknown", "unknown done", "none", "forgot"]),
        st.integers(0, 2000),
    ),
    max_size=30,
)


@given(_STEPS)
def test_what_still_matters_adds_up_to_the_same(steps):
    """Whatever happened: a journal of the living entries alone tells the same holds and the same open requests."""
    book, now = Book(), 1e9
    for number, (verb, job, end, passes) in enumerate(steps):
        now += passes
        if end == "forgot":
            book.add(Entry(event="forgot", at=now, job=job))
            continue
        if any(asked.job == job for asked in book.open):
            continue  # as the desk has it: one thing at a time for a job
        book.add(Entry(event="asked", at=now, id=f"id-{number}", job=job, verb=verb))
        for event in end.replace("none", "").split():
            book.add(Entry(event=event, at=now + 1, id=f"id-{number}", job=job, verb=verb))
    again = Book(book.living(now))
    assert again.all_held() == book.all_held()
    assert again.open == book.open
    recent = {id_ for id_, standing in book.standing.items() if standing.asked.at > now - 3600}
    assert recent <= again.standing.keys()
    book.forget(now)
    assert book.all_held() == again.all_held() and book.standing.keys() == again.standing.keys()


@pytest.mark.case("A12")
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("file", [".lock", NAME])
def test_a_disk_that_may_recover_is_waited_for_and_told_once(tmp_path, monkeypatch, caplog, number, file):
    opened, tries = os.open, 0

    def fails(path, *args, **more):
        nonlocal tries
        if os.fspath(path).endswith(file) and tries < 5:
            tries += 1
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", fails)
    pauses: list[float] = []
    _persist(lambda: Journal(tmp_path, now=0.0).close(), pause=pauses.append)
    assert len(pauses) == tries == 5
    assert caplog.text.count(os.strerror(number)) == 1


@pytest.mark.case("A12")
def test_what_does_not_pass_ends_it(tmp_path):
    def pause(_: float) -> None:
        raise AssertionError("it waits")

    with pytest.raises(StartError, match="no folder"):
        _persist(lambda: Journal(tmp_path / "none", now=0.0).close(), pause=pause)
