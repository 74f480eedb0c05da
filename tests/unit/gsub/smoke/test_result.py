"""A result on disk and on a terminal."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec

from gsub.smoke.result import Line, Result, forget, lines, read, result_file, write


def test_a_result_comes_back_whole_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    line = Line("output", 3, "No module")
    more = Result(
        smoke=7, outcome="failed", evidence=(line,), changed=("/a", "/b"), points=((4.0, 2.5),), key="k"
    )
    result = msgspec.structs.replace(more, real=6, reason="import_error", sentence="no einops", held=True)
    path = write(result, tmp_path)
    kept = read(tmp_path, 7)
    assert kept is not None and kept.at > 1e9
    assert msgspec.structs.replace(kept, at=0.0) == result
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [path] == list(path.parent.iterdir())


def test_what_another_job_of_its_number_left_is_forgotten(tmp_path: Path) -> None:
    write(Result(smoke=7, outcome="passed"), tmp_path)
    forget(tmp_path, 7)
    assert read(tmp_path, 7) is None
    forget(tmp_path, 7)


def test_what_is_no_result_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, 1) is None
    path = result_file(tmp_path, 1)
    path.parent.mkdir(parents=True)
    for text in (
        "",
        "{",
        "[]",
        '{"smoke": 1, "outcome": "great"}',
        '{"v": 2, "smoke": 1, "outcome": "passed"}',
    ):
        path.write_text(text)
        assert read(tmp_path, 1) is None


def test_names_that_are_no_text_are_kept_and_steer_no_terminal(tmp_path: Path) -> None:
    hostile = "/home/a\x1b[31m\udcff\nb"
    result = Result(
        smoke=1, outcome="failed", sentence=hostile, evidence=(Line(hostile, 1, hostile),), changed=(hostile,)
    )
    write(result, tmp_path)
    kept = read(tmp_path, 1)
    assert kept is not None
    for told in (lines(kept), lines(result)):
        assert "\x1b" not in "".join(told) and not any("\n" in line for line in told)
        "".join(told).encode()


def test_the_lines_say_what_to_do_with_a_held_job() -> None:
    told = lines(Result(smoke=7, real=6, outcome="failed", sentence="s", held=True))
    assert told[0] == "smoke failed: s"
    assert "  held: 6; let it run all the same: scontrol release 6" in told


def test_the_lines_say_where_files_went() -> None:
    apart = "\n".join(lines(Result(smoke=1, outcome="passed", changed=("/a",), kept="overlay")))
    plain = "\n".join(
        lines(Result(smoke=1, outcome="passed", changed=("/a",), changed_more=3, kept_why="it uses srun"))
    )
    assert "nothing of yours was changed" in apart
    assert "4 files of yours changed" in plain and "and 3 more" in plain and "it uses srun" in plain
