"""Following an output file, whatever happens to it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gsub.tail import CHUNK, Tail


def write(path: Path, text: str, mode: str = "w") -> None:
    with path.open(mode, newline="") as file:
        file.write(text)


def test_lines_as_they_come(tmp_path):
    path = tmp_path / "out"
    tail = Tail(path)
    assert tail.lines() == []  # not there yet
    write(path, "one\ntw")
    assert tail.lines() == ["one"]
    write(path, "o\nthree", "a")
    assert tail.lines() == ["two"]
    assert list(tail.rest()) == ["three"]
    assert list(tail.rest()) == []


def test_what_lies_there_of_an_earlier_job_is_no_news(tmp_path):
    path = tmp_path / "out"
    write(path, "old\n")
    tail = Tail(path, "end")
    assert tail.lines() == []
    write(path, "new\n", "a")  # --open-mode=append
    assert tail.lines() == ["new"]


def test_a_file_written_anew_is_read_from_its_start(tmp_path):
    path = tmp_path / "out"
    for text in (
        "shorter\n",
        "as long as the old: 26 byt\n",
        "much longer than what lay there before\nand more\n",
    ):
        write(path, "what lay there of the past\n")
        tail = Tail(path, "end")
        write(path, text)
        assert tail.lines() == text.splitlines(), text


def test_a_requeued_job_begins_its_file_again(tmp_path):
    path = tmp_path / "out"
    write(path, "begin a\n")
    tail = Tail(path)
    assert tail.lines() == ["begin a"]
    write(path, "begin b\nthen\n")
    assert tail.lines() == ["begin b", "then"]


def test_attaching_shows_the_last_lines(tmp_path):
    path = tmp_path / "out"
    write(path, "".join(f"line {i}\n" for i in range(10_000)))
    assert Tail(path, "recent").lines() == [f"line {i}" for i in range(9_990, 10_000)]
    write(path, "a\nb\n")
    assert Tail(path, "recent").lines() == ["a", "b"]
    write(path, "a\nb")
    assert list(Tail(path, "recent").rest()) == ["a", "b"]


def test_a_flood_is_read_in_pieces(tmp_path):
    path = tmp_path / "out"
    write(path, "x" * 99 + "\n")
    tail = Tail(path)
    write(path, ("x" * 99 + "\n") * 3000)
    first = tail.lines()
    assert 0 < len(first) <= CHUNK // 100
    rest = list(tail.rest())
    assert len(first) + len(rest) == 3000 and set(first + rest) == {"x" * 99}


def test_a_progress_bar_is_shown_as_a_terminal_would(tmp_path):
    path = tmp_path / "out"
    write(path, "10 %\r50 %\r100 %\ndone\r\n")
    assert Tail(path).lines() == ["100 %", "done"]


@given(st.lists(st.text(alphabet="ab\n", max_size=20), max_size=8))
def test_pieces_add_up(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("tail") / "out"
    path.touch()
    tail = Tail(path)
    read = []
    for piece in pieces:
        write(path, piece, "a")
        read += tail.lines()
    read += list(tail.rest())
    text = "".join(pieces)
    assert read == (text.split("\n")[:-1] if text.endswith("\n") or not text else text.split("\n"))
