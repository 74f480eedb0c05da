"""What is kept apart: the folders that count, and what an overlay does to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gsub.smoke.overlay import NoOverlayError, Overlay, _foreign, laid, places

NOBODY = 65534


def test_folders_that_a_script_may_write_to(tmp_path: Path) -> None:
    cwd, home, scratch = tmp_path / "home/proj", tmp_path / "home", tmp_path / "scratch"
    for folder in (cwd, home / "data", scratch / "runs", scratch / "linked", tmp_path / "named"):
        folder.mkdir(parents=True)
    (cwd / "checkpoints").symlink_to(scratch / "linked")
    environ = {"HOME": str(home), "SCRATCH": str(scratch)}
    text = "#!/bin/bash\nOUT=$SCRATCH/runs/$SLURM_JOB_ID\n"
    text += f"python a.py --data ~/data/x --c={home}/.cache > /usr/lib/x 2> /etc/y\n"
    words = [f"--out={tmp_path}/named/new/deep", "/dev/null", "a/b", "../proj/x", str(home)]
    found = places(words, [text], str(cwd), environ)
    assert set(found) == {
        str(tmp_path / "named"),
        str(scratch / "runs"),
        str(home / "data"),
        str(scratch / "linked"),
    }


def test_of_nested_folders_the_outer_one_counts(tmp_path: Path) -> None:
    (tmp_path / "out/in").mkdir(parents=True)
    (tmp_path / "cwd").mkdir()
    words = [f"{tmp_path}/out/in/x", f"{tmp_path}/out"]
    assert places(words, [], str(tmp_path / "cwd"), {"HOME": "/"}) == [str(tmp_path / "out")]


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Overlay, Path, Path]:
    cwd, other = tmp_path / "cwd", tmp_path / "other"
    for folder in (cwd / "sub", other):
        folder.mkdir(parents=True)
    (cwd / "kept").write_text("mine")
    (cwd / "gone").write_text("mine")
    try:
        return laid(str(cwd), [str(other)], tmp_path / "apart"), cwd, other
    except NoOverlayError as why:
        pytest.skip(f"no overlay here: {why}")


def test_what_is_written_changed_and_removed_goes_beside(apart: tuple[Overlay, Path, Path]) -> None:
    overlay, cwd, other = apart
    enter = overlay.enter(str(cwd))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            enter()
            Path("kept").write_text("theirs")
            Path("gone").unlink()
            Path("sub/new").write_text("")
            Path("empty").mkdir()
            (other / "far").write_text("")
            code = 0 if Path("kept").read_text() == "theirs" and not Path("gone").exists() else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert (cwd / "kept").read_text() == (cwd / "gone").read_text() == "mine"
    assert not (cwd / "sub/new").exists() and not (other / "far").exists()
    found = set(overlay.changed())
    assert found == {f"{cwd}/kept", f"{cwd}/gone", f"{cwd}/sub/new", f"{cwd}/empty/", f"{other}/far"}
    assert overlay.covers(f"{other}/far") and not overlay.covers(f"{other}else")
    assert not overlay.too_much
    overlay.remove()
    assert list(overlay.base.iterdir()) == []


def test_folders_that_cannot_be_laid_over(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    for folder, why in (
        (tmp_path / "a,b", "name"),
        (tmp_path, "temporary files"),
        (Path("/proc/self"), "write"),
    ):
        with pytest.raises(NoOverlayError, match=why):
            laid(str(folder), [], tmp_path / "apart")


@pytest.mark.root
def test_a_folder_of_another_group_is_left_alone_and_a_few_such_files_are_not_minded(tmp_path: Path) -> None:
    for name, gid, many in (("own", 0, 0), ("shared", 1234, 0), ("few", 0, 1), ("half", 0, 20)):
        folder = tmp_path / name
        folder.mkdir()
        os.chown(folder, NOBODY, gid)
        for number in range(40):
            (folder / str(number)).touch()
            os.chown(folder / str(number), NOBODY, 1234 if number < many else 0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and len(folder.parts) > 2:
            folder.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        assert [_foreign(str(tmp_path / name)) for name in ("own", "shared", "few", "half")] == [
            False,
            True,
            False,
            True,
        ]
    finally:
        os.seteuid(0)
