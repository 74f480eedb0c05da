"""Which files a run changed, by two looks: made, changed, removed; bounds; and what it does when they are met."""

from __future__ import annotations

import os
from pathlib import Path

from gsub.smoke.changed import changes, look, named_paths


def test_made_changed_and_removed_files_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("same", "grown", "gone"):
        (tmp_path / name).write_text("1")
    before = look([str(tmp_path)])
    (tmp_path / "grown").write_text("12")
    (tmp_path / "gone").unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/new").write_text("")
    found = changes(before, look([str(tmp_path)]))
    assert not found.cut
    assert {os.path.relpath(path, tmp_path) for path in found.paths} == {"grown", "gone", "sub", "sub/new"}


def test_a_file_written_again_with_the_same_bytes_and_time_is_found(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_text("abc")
    before = look([str(tmp_path)])
    stamp = file.stat().st_mtime_ns
    file.write_text("abd")
    os.utime(file, ns=(stamp, stamp))
    assert changes(before, look([str(tmp_path)])).paths == (str(file),)


def test_a_look_is_bounded_and_says_so(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"old{number}").write_text("")
        os.utime(tmp_path / f"old{number}", (1, 1))
    before = look([str(tmp_path)], entries=10)
    assert before.cut and len(before.files) <= 10
    (tmp_path / "old7").write_text("more")
    seen = changes(before, look([str(tmp_path)]), slack=-1000.0)
    assert seen.cut
    # a clock far ahead: of files that the first look had not, none counts as changed since
    assert set(seen.paths) <= {str(tmp_path / "old7")}


def test_a_folder_that_is_linked_into_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert not look([str(tmp_path)]).cut


def test_ours_and_what_was_open_but_is_gone_are_left_out(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    before = look([str(tmp_path)])
    ours.mkdir()
    (ours / "x").write_text("")
    opened = [str(ours / "y"), "/elsewhere/log", "/elsewhere/tmp (deleted)"]
    found = changes(before, look([str(tmp_path)]), opened=opened, ours=[str(ours)])
    assert found.paths == ("/elsewhere/log",)


def test_paths_on_command_lines_outside_of_the_folder(tmp_path: Path) -> None:
    out, here = tmp_path / "out", tmp_path / "here"
    out.mkdir()
    here.mkdir()
    words = [
        "python",
        "train.py",
        f"--out={out}",
        "--lr=1e-3",
        "../out",
        "/usr/bin",
        str(here / "x"),
        "/not/there",
        "a/b",
    ]
    assert named_paths(words, str(here)) == [str(out)]
