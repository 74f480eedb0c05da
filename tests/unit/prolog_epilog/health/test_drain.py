"""The drain file: whole or not there, soon expired, and no way to make root write or remove something else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from prolog_epilog.health.drain import EXPIRY, DrainFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    return folder


def test_it_says_until_when_and_why(folder):
    DrainFile(folder / "drain").write("gpu_count: 7 of 8 GPUs answer", 1000.7)
    assert (folder / "drain").read_text() == f"v1 {1000 + int(EXPIRY)} gpu_count: 7 of 8 GPUs answer\n"
    assert stat.S_IMODE((folder / "drain").stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir()] == ["drain"]


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("two\nlines", "two lines"),
        ("\x1b[31m red", "[31m red"),
        ("95 °C", "95 ?C"),
        ("x" * 400, "x" * 250),
        ("", ""),
    ],
)
def test_its_reason_is_one_short_line_of_ascii(folder, reason, written):
    DrainFile(folder / "drain").write(reason, 0)
    assert (folder / "drain").read_text().removeprefix(f"v1 {int(EXPIRY)} ") == written + "\n"


@pytest.mark.parametrize("kind", ["file", "dangling", "folder"])
def test_a_link_in_its_place_is_replaced_not_followed(folder, tmp_path, kind):
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("precious")
    elif kind == "folder":
        target.mkdir()
    (folder / "drain").symlink_to(target)
    DrainFile(folder / "drain").write("why", 0)
    assert not (folder / "drain").is_symlink()
    if kind == "file":
        assert target.read_text() == "precious"
    elif kind == "dangling":
        assert not target.exists()
    else:
        assert list(target.iterdir()) == []


def test_removing_removes_a_link_and_not_what_it_leads_to(folder, tmp_path):
    (tmp_path / "target").write_text("precious")
    (folder / "drain").symlink_to(tmp_path / "target")
    DrainFile(folder / "drain").remove()
    assert not (folder / "drain").is_symlink()
    assert (tmp_path / "target").read_text() == "precious"
    DrainFile(folder / "drain").remove()  # twice is as once
    DrainFile(folder / "nowhere/drain").remove()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        DrainFile(folder / "drain").write("why", 0)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_a_link_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        DrainFile(tmp_path / "link/drain").write("why", 0)


def test_nothing_is_left_behind_when_it_cannot_be_put_in_place(folder):
    (folder / "drain").mkdir()
    with pytest.raises(OSError, match="drain"):
        DrainFile(folder / "drain").write("why", 0)
    assert [path.name for path in folder.iterdir()] == ["drain"]
